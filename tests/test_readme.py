"""Every command of the README runs, for two steps, on small rows."""

import os
import re
import shlex

import pytest
from conftest import GOLDEN, ROOT, minilm_directory, run_script

README = (ROOT / "README.md").read_text(encoding="utf-8")
# What makes a script's two steps of the rows that the README names.
TWO_STEPS = {
    "run_classifier.py": ["--train_batch_size=4"],
    "run_squad.py": ["--train_batch_size=4", "--num_train_epochs=0.3"],
    "run_ner.py": ["--train_batch_size=4", "--num_train_epochs=0.13"],
    "run_multiple_choice.py": [
        "--train_batch_size=2",
        "--num_train_epochs=0.14",
    ],
    "run_pretraining.py": ["--num_train_steps=2", "--train_batch_size=2"],
    "create_pretraining_data.py": [],
    "tokenization.py": [],
    "extract_features.py": [],
}
EPOCHS = {"samples/support": "0.03", "MRPC": "2"}


def commands():
    """The README's commands, each as one line."""
    blocks = re.findall(r"(?:^    .*\n?)+", README, re.MULTILINE)
    text = "\n".join(blocks).replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line.startswith("python ")]


WHOLE = [command for command in commands() if "..." not in command]
SKETCHES = [command for command in commands() if "..." in command]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """What the README's variables stand for, and where output goes."""
    import checkpoints
    import modeling

    base = tmp_path_factory.mktemp("bert_base")
    config = modeling.BertConfig(
        30522, 32, 2, 4, 64, max_position_embeddings=512, type_vocab_size=2
    )
    (base / "bert_config.json").write_text(config.to_json_string())
    vocab = (minilm_directory() / "vocab.txt").read_text(encoding="utf-8")
    (base / "vocab.txt").write_text(vocab, encoding="utf-8")
    model = modeling.BertModel(config)
    checkpoints.save_checkpoint(str(base / "bert_model.ckpt"), model)
    return {
        "$BERT_BASE_DIR": str(base),
        "$GLUE_DIR": str(GOLDEN / "classifier" / "data"),
        "$WEIGHTS": str(base),
        "output/": f"{tmp_path_factory.mktemp('output')}/",
    }


def test_readme_has_a_command_for_every_script():
    named = {shlex.split(command)[1] for command in WHOLE}
    assert set(TWO_STEPS) <= named
    assert len(README.splitlines()) <= 450


@pytest.mark.slow
def test_every_command_runs(places):
    for command in WHOLE:
        for name, value in places.items():
            command = command.replace(name, value)
        _, script, *arguments = shlex.split(command)
        extra = list(TWO_STEPS[script])
        for rows, epochs in EPOCHS.items():
            if f"--data_dir={rows}" in arguments or any(
                argument.endswith(rows) for argument in arguments
            ):
                extra.append(f"--num_train_epochs={epochs}")
        result = run_script(script, *arguments, *extra, check=False)
        assert result.returncode == 0, f"{command}\n{result.stderr[-3000:]}"


@pytest.mark.parametrize("command", SKETCHES)
def test_flags_of_sketches_exist(command):
    _, script, *arguments = shlex.split(command.split("#")[0])
    listed = run_script(script, "--helpfull", check=False).stdout
    for argument in arguments:
        name = argument.removeprefix("--").split("=")[0]
        if argument.startswith("--"):
            assert re.search(rf"--(\[no\])?{name}\b", listed), argument


def test_files_that_the_readme_names_exist():
    for name in set(re.findall(r"`([a-z_/]+\.(?:py|md|txt))`", README)):
        if "/" in name or name.endswith((".py", ".md")):
            assert os.path.exists(ROOT / name), name
