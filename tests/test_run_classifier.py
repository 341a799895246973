"""run_classifier.py from the command line: results, files, bad input."""

import json
import re

import numpy as np
import pytest
from classifier_runs import (
    TINY,
    read_results,
    read_table,
    run_all,
    succeed,
    text,
    write_rows,
    write_set,
)
from conftest import GOLDEN, run_script

import checkpoints

COMMANDS = {
    command["name"]: command
    for command in json.loads((GOLDEN / "e2e" / "commands.json").read_text())
    if command["script"] == "run_classifier.py"
}


# ------------------------------------------------------- the original's runs


def flags_of(command, output_dir):
    flags = {}
    for name, value in command["flags"].items():
        value = value.replace("golden/", f"{GOLDEN}/")
        flags[name] = value.replace("OUT", str(output_dir))
    flags["output_dir"] = str(output_dir)
    return [f"--{name}={value}" for name, value in flags.items()]


@pytest.fixture(scope="module")
def old_runs(tmp_path_factory):
    """The output directory of each command of the original."""
    top = tmp_path_factory.mktemp("old")
    succeed([flags_of(c, top / name) for name, c in COMMANDS.items()], top)
    return top


@pytest.mark.parametrize("name", COMMANDS)
def test_old_command_gives_old_results(name, old_runs):
    command, output_dir = COMMANDS[name], old_runs / name
    expected = dict(
        line.split(" = ") for line in command["eval_results.txt"].splitlines()
    )
    results = read_results(output_dir / "eval_results.txt")
    for key, value in expected.items():
        assert results[key] == pytest.approx(float(value), abs=1e-5), key
    expected = command.get("test_results.tsv")
    if expected is not None:
        rows = [line.split("\t") for line in expected.splitlines()]
        np.testing.assert_allclose(
            np.array(read_table(output_dir / "test_results.tsv")),
            np.array(rows, float),
            atol=1e-5,
        )


# ------------------------------------------------------------------ bad input


def with_file(directory, name, content):
    """Own data with one file replaced."""
    write_set(directory)
    (directory / name).write_bytes(content)
    return directory


def other_model(top):
    """A directory where a model with H 32 was trained by somebody else."""
    import shutil

    for path in (GOLDEN / "tiny" / "trained").iterdir():
        shutil.copy(path, top)
    return top


def config_with(path, **changes):
    config = json.loads((GOLDEN / "tiny" / "bert_config.json").read_text())
    path.write_text(json.dumps(config | changes))
    return path


def bad_input(top):
    """{name: (flags, what stderr has to tell)}."""
    data = write_set(top / "data")
    pairs = write_set(top / "pairs", pair=True)
    other = top / "other"
    other.mkdir()
    other_model(other)
    vocab = (GOLDEN / "tiny" / "vocab.txt").read_text(encoding="utf-8")
    (top / "long.txt").write_text(vocab + "more\nand_more\n", encoding="utf-8")
    (top / "no_sep.txt").write_text(
        vocab.replace("[SEP]", "[XXX]"), encoding="utf-8"
    )
    wide = config_with(top / "wide.json", hidden_size=64)
    deep = config_with(top / "deep.json", num_hidden_layers=3)
    words = config_with(top / "words.json", vocab_size=120)
    (top / "file").write_text("in the way")
    for name, task in (("former", "ner"), ("odd", "classifier/tsv")):
        run = {"task": task, "description": {}, "do_lower_case": True}
        (top / name).mkdir()
        (top / name / "run.json").write_text(json.dumps(run))
        (top / name / "model.ckpt-1.index").touch()
    (top / "broken").mkdir()
    (top / "broken" / "run.json").write_text('{"task": ')
    rows = b"label\ttext_a\nno\tthe a\nyes\tb\n"
    maybe = with_file(top / "maybe", "dev.tsv", rows + b"maybe\tof\n")
    narrow = with_file(top / "narrow", "train.tsv", rows + b"no\n")
    latin = with_file(top / "latin", "train.tsv", rows + b"no\tcaf\xe9\n")
    empty = with_file(top / "empty", "test.tsv", b"")
    header = with_file(top / "header", "dev.tsv", b"label\ttext_a\n")
    nameless = with_file(top / "nameless", "train.tsv", rows[14:])
    nowhere = top / "nowhere"
    train = ["--do_train", "--do_eval", "--do_predict"]
    return {
        "nothing to do": ([], ["--do_train"]),
        "no checkpoint": (
            [*train, f"--init_checkpoint={top}/no/model.ckpt"],
            [f"{top}/no/model.ckpt"],
        ),
        "empty directory as checkpoint": (
            [*train, f"--init_checkpoint={data}"],
            [str(data)],
        ),
        "wider config": (
            [*train, f"--bert_config_file={wide}"],
            ["64", "32", "config"],
        ),
        "deeper config": ([*train, f"--bert_config_file={deep}"], ["3", "2"]),
        "other word table": (
            [*train, f"--bert_config_file={words}"],
            ["97 rows", "120", "the checkpoint's table has 97"],
        ),
        "no config": (
            [*train, f"--bert_config_file={nowhere}"],
            ["--bert_config_file", "does not exist"],
        ),
        "long vocabulary": (
            [*train, f"--vocab_file={top}/long.txt"],
            ["99 rows", "97", "long.txt"],
        ),
        "no [SEP]": (
            [*train, f"--vocab_file={top}/no_sep.txt"],
            ["no_sep.txt", "[SEP]"],
        ),
        "beyond the positions": (
            [*train, "--max_seq_length=65"],
            ["--max_seq_length=65", "=64", "bert_config.json"],
        ),
        "too short for a pair": (
            [
                *train,
                "--task_name=MRPC",
                f"--data_dir={pairs}",
                "--max_seq_length=4",
            ],
            ["--max_seq_length=4", "at least 5"],
        ),
        "too short for own pairs": (
            [*train, f"--data_dir={pairs}", "--max_seq_length=4"],
            ["--max_seq_length=4", "at least 5"],
        ),
        "too short for a text": (
            [*train, "--max_seq_length=2"],
            ["--max_seq_length=2", "at least 3"],
        ),
        "unknown label": (
            [*train, f"--data_dir={maybe}"],
            ["dev.tsv:4:", "'maybe'", "no, yes"],
        ),
        "too few columns": (
            [*train, f"--data_dir={narrow}"],
            ["train.tsv:4:", "1 column", "2"],
        ),
        "not UTF-8": (
            [*train, f"--data_dir={latin}"],
            ["train.tsv:4:", "UTF-8"],
        ),
        "empty test set": ([*train, f"--data_dir={empty}"], ["test.tsv"]),
        "dev set of a header": ([*train, f"--data_dir={header}"], ["dev.tsv"]),
        "no header": ([*train, f"--data_dir={nameless}"], ["train.tsv:1:"]),
        "no data": (
            [*train, f"--data_dir={nowhere}"],
            ["--data_dir", "nowhere"],
        ),
        "no such set": (
            [*train, f"--data_dir={other}"],
            [str(other), "train.tsv"],
        ),
        "another model's directory": (
            [
                *train,
                f"--output_dir={other}",
                f"--init_checkpoint={GOLDEN}/tiny/bert_model.ckpt",
            ],
            [str(other), "output_weights"],
        ),
        "another run's directory": (
            [*train, f"--output_dir={top}/former"],
            ["former", '"ner"', "Choose another directory"],
        ),
        "run.json without labels": (
            [*train, f"--output_dir={top}/odd"],
            ["run.json", "odd", "labels", "Choose another directory"],
        ),
        "unreadable run.json": (
            [*train, f"--output_dir={top}/broken"],
            ["run.json"],
        ),
        "a file as output": (
            [*train, f"--output_dir={top}/file"],
            ["--output_dir", "no directory"],
        ),
        "below a file": (
            [*train, f"--output_dir={top}/file/deeper"],
            ["--output_dir", "no directory"],
        ),
        "no model": (
            ["--do_predict", "--init_checkpoint="],
            ["no trained checkpoint", "--do_train"],
        ),
        "no step": (
            [*train, "--train_batch_size=64", "--num_train_epochs=1"],
            ["16 training rows", "64"],
        ),
        "no epoch": ([*train, "--num_train_epochs=0"], ["--num_train_epochs"]),
        "batch in no equal parts": (
            [*train, "--gradient_accumulation_steps=3"],
            ["3", "4"],
        ),
        "more frozen layers than there are": (
            [*train, "--freeze_layers=9"],
            ["9", "2"],
        ),
        "casing of an uncased model": (
            [
                *train,
                "--do_lower_case=true",
                f"--init_checkpoint={other_casing(top)}",
            ],
            ["--do_lower_case=true", "do_lower_case=false"],
        ),
        "metric of another task": (
            [*train, "--best_metric=eval_pearson"],
            ["--best_metric=eval_pearson", "eval_accuracy"],
        ),
        "wrong number of weights": (
            [*train, "--class_weights=1,2,3"],
            ["3 numbers", "2 labels", "no, yes"],
        ),
        "weights of nothing": (
            [*train, "--class_weights=0,0"],
            ["--class_weights=0,0", "above 0"],
        ),
        "weights below nothing": (
            [*train, "--class_weights=-1,1"],
            ["--class_weights=-1,1", "from 0 up"],
        ),
        "words as weights": (
            [*train, "--class_weights=much,little"],
            ["--class_weights=much,little"],
        ),
        "weights of numbers": (
            [*train, "--regression", "--class_weights=balanced"],
            ["--class_weights", "regression"],
        ),
        "smooth numbers": (
            [*train, "--regression", "--label_smoothing=0.1"],
            ["--label_smoothing"],
        ),
        "threshold above 1": (
            [*train, "--multi_label", "--threshold=1.5"],
            ["--threshold=1.5"],
        ),
        "threshold without labels": (
            [*train, "--threshold=0.4"],
            ["--threshold", "multi-label"],
        ),
        "tuned on nothing": (
            ["--do_predict", "--multi_label", "--threshold=tuned"],
            ["--threshold=tuned", "--do_eval"],
        ),
        "windows with gaps": (
            [*train, "--long_text=windows", "--doc_stride=15"],
            ["--doc_stride=15", "14"],
        ),
        "stride without windows": (
            [*train, "--doc_stride=5"],
            ["--long_text=windows"],
        ),
        "windows of pairs": (
            [*train, f"--data_dir={pairs}", "--long_text=windows"],
            ["--long_text=windows", "pairs"],
        ),
        "seeds without training": (
            ["--do_predict", "--num_seeds=3"],
            ["--num_seeds", "--do_train"],
        ),
        "report of nothing": (
            ["--do_train", "--report"],
            ["--report", "--do_eval"],
        ),
        "flag of another reader": (
            [*train, "--task_name=MRPC", "--label_column=x"],
            ["--label_column", "MRPC"],
        ),
        "unknown task": (
            [*train, "--task_name=MRCP"],
            ["MRCP", "MRPC"],
        ),
    }


def other_casing(top):
    """A copy of the checkpoint whose directory says it is cased."""
    import shutil

    directory = top / "model"
    directory.mkdir()
    for path in (GOLDEN / "tiny").glob("bert_model.ckpt.*"):
        shutil.copy(path, directory)
    told = json.dumps({"do_lower_case": False})
    (directory / "tokenizer_config.json").write_text(told)
    return directory / "bert_model.ckpt"


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """{name: (Run, what to tell, files before and after)}."""
    top = tmp_path_factory.mktemp("bad")
    cases = bad_input(top)
    usual = [
        *TINY,
        "--task_name=tsv",
        f"--data_dir={top}/data",
        f"--output_dir={top}/out",
    ]
    before = sorted(str(path) for path in top.rglob("*"))
    runs = run_all([usual + flags for flags, _ in cases.values()], top)
    after = sorted(str(path) for path in top.rglob("*"))
    mine = {str(top / n) for n in ("commands.json", "results.json")}
    told = {
        name: (run, pieces)
        for (name, (_, pieces)), run in zip(cases.items(), runs, strict=True)
    }
    return told, set(after) - set(before) - mine


def test_bad_input_is_told_in_one_sentence(refused):
    told, _ = refused
    wrong = []
    for name, (run, pieces) in told.items():
        lines = run.stderr.strip().splitlines()
        if (
            run.code != 1
            or len(lines) != 1
            or not lines[0].startswith("run_classifier.py: ")
            or any(piece not in lines[0] for piece in pieces)
        ):
            wrong.append(f"{name}: {run.code}: {run.stderr}")
    assert not wrong, "\n".join(wrong)


def test_bad_input_leaves_nothing_behind(refused):
    _, new = refused
    assert not new


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--no_such_flag=1"], "no_such_flag"),
        (["--do_lower_case", "False"], "'False' is not a flag"),
        (["--max_seq_length=many"], "max_seq_length"),
        (["--max_seq_length=0"], "max_seq_length"),
        (["--learning_rate=-1e-5"], "learning_rate"),
        (["--learning_rate=nan"], "learning_rate"),
        (["--warmup_proportion=1.5"], "warmup_proportion"),
        (["--schedule=quadratic"], "schedule"),
        (["--seed=-1"], "seed"),
    ],
)
def test_wrong_flag_is_refused_without_tensorflow(flags, told, tmp_path):
    result = run_script(
        "run_classifier.py",
        "--task_name=tsv",
        f"--output_dir={tmp_path}/out",
        *flags,
        check=False,
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert result.returncode == 1
    assert told in result.stderr
    assert not re.search(r"\| +(tensorflow|keras)\n", result.stderr)
    assert not (tmp_path / "out").exists()


def test_help_shows_shared_flags_without_tensorflow():
    result = run_script(
        "run_classifier.py",
        "--help",
        check=False,
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    for name in ("init_checkpoint", "train_batch_size", "num_seeds", "pooling"):
        assert f"--{name}:" in result.stdout
    assert "[no]do_lower_case" in result.stdout
    assert not re.search(r"\| +(tensorflow|keras)\n", result.stderr)


# ----------------------------------------------------------- kinds and files


def kinds(top):
    """{name: flags} of runs that train, score, predict and report."""
    phases = ["--do_train", "--do_eval", "--do_predict", "--report"]
    same = ["--task_name=tsv", "--num_train_epochs=2", *TINY, *phases]
    three = write_set(top / "three", ("x", "y & <b>", "中"))
    for name in ("test", "dev"):
        (three / f"{name}.tsv").write_bytes((three / "dev.tsv").read_bytes())
    many = write_set(top / "many", ("x,y", "", "z", "x"))
    numbers = write_set(top / "numbers", ("-3.5", "0", "12"))
    thousands = write_set(top / "thousands", ("-3500", "0", "12000"))
    return {
        "three": [*same, f"--data_dir={three}", "--class_weights=balanced"],
        "weights": [*same, f"--data_dir={three}", "--class_weights=1,0.5,2"],
        "smooth": [
            *same,
            f"--data_dir={three}",
            "--label_smoothing=0.2",
            "--pooling=mean",
        ],
        "max": [*same, f"--data_dir={three}", "--pooling=max"],
        "many": [
            *same,
            f"--data_dir={many}",
            "--multi_label",
            "--threshold=tuned",
        ],
        "fixed": [
            *same,
            f"--data_dir={many}",
            "--multi_label",
            "--threshold=0.45",
        ],
        "shares": [
            *same,
            f"--data_dir={many}",
            "--multi_label",
            "--learning_rate=1e-9",
        ],
        "numbers": [*same, f"--data_dir={numbers}", "--regression"],
        "thousands": [*same, f"--data_dir={thousands}", "--regression"],
        "windows": [
            *same,
            f"--data_dir={three}",
            "--max_seq_length=5",
            "--long_text=windows",
            "--doc_stride=2",
        ],
        "best": [
            *same,
            f"--data_dir={three}",
            "--eval_steps=2",
            "--best_metric=eval_loss",
            "--early_stopping_patience=2",
            "--learning_rate=0.01",
        ],
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with the outputs of every kind of run."""
    top = tmp_path_factory.mktemp("kinds")
    commands = {
        name: [*flags, f"--output_dir={top}/out/{name}"]
        for name, flags in kinds(top).items()
    }
    later = {
        # Predictions of an earlier run: its flags are recalled.
        "many": [f"--data_dir={top}/many"],
        "windows": [f"--data_dir={top}/three", "--predict_batch_size=1"],
    }
    again = [
        [
            "--task_name=tsv",
            "--do_predict",
            f"--output_dir={top}/out/{name}",
            *flags,
        ]
        for name, flags in later.items()
    ]
    again += [
        # The model of an earlier run, in another directory.
        [
            "--task_name=tsv",
            f"--data_dir={top}/{name}",
            f"--init_checkpoint={top}/out/{name}",
            f"--output_dir={top}/out/elsewhere-{name}",
            *flags,
        ]
        for name, flags in (
            ("many", ["--do_eval", "--do_predict"]),
            ("thousands", ["--do_predict"]),
        )
    ]
    seeds = [
        *kinds_of_seeds(top),
        f"--output_dir={top}/out/seeds",
    ]
    first = succeed([*commands.values(), seeds], top)
    kept = {
        name: (top / "out" / name / "test_results.tsv").read_text()
        for name in later
    }
    for name in later:
        (top / "out" / name / "test_results.tsv").unlink()
    succeed(again, top)
    runs = dict(zip([*commands, "seeds"], first, strict=True))
    return top / "out", runs, kept


def test_flags_that_contradict_the_model_are_refused(trained):
    out = trained[0]
    (out.parent / "labels.txt").write_text("b\na\n")
    base = ["--task_name=tsv", "--do_predict", f"--data_dir={out.parent}/many"]
    labels = f"--labels_file={out.parent}/labels.txt"
    kind, other = run_all(
        [
            [*base, f"--output_dir={out}/numbers", "--noregression"],
            [*base, f"--output_dir={out}/many", labels],
        ],
        out.parent,
    )
    assert kind.code == other.code == 1
    assert "--regression=False contradicts the trained model" in kind.stderr
    assert "it is for regression. Leave" in kind.stderr
    assert "labels.txt contradicts the trained model" in other.stderr


def kinds_of_seeds(top):
    return [
        "--task_name=tsv",
        *TINY,
        "--num_train_epochs=1",
        "--do_train",
        "--do_eval",
        f"--data_dir={top}/three",
        "--num_seeds=3",
        "--seed=5",
    ]


@pytest.mark.parametrize("name", ["three", "smooth", "max", "windows", "best"])
def test_predictions_reproduce_the_accuracy(name, trained):
    directory = trained[0] / name
    rows = read_table(directory / "test_results.tsv")
    labels = json.loads((directory / "run.json").read_text())["description"][
        "labels"
    ]
    named = (directory / "test_labels.tsv").read_text().splitlines()
    assert [labels[int(np.argmax(row))] for row in rows] == named
    truth = [("x", "y & <b>", "中")[number % 3] for number in range(9)]
    right = np.mean([a == b for a, b in zip(truth, named, strict=True)])
    results = read_results(directory / "eval_results.txt")
    assert results["eval_accuracy"] == pytest.approx(right)


def test_class_weights_change_the_training(trained):
    first, second, third = (
        read_table(trained[0] / name / "test_results.tsv")
        for name in ("three", "weights", "max")
    )
    assert first != second != third


def test_multi_label_rows_are_sigmoids_and_sets(trained):
    directory = trained[0] / "fixed"
    rows = np.array(read_table(directory / "test_results.tsv"))
    assert rows.shape == (7, 3)
    named = (directory / "test_labels.tsv").read_text().split("\n")[:-1]
    labels = np.array(["x", "y", "z"])
    assert named == [",".join(labels[row >= 0.45]) for row in rows]
    assert not (directory / "thresholds.json").exists()


def test_tuned_thresholds_are_kept_and_used_later(trained):
    directory = trained[0] / "many"
    found = json.loads((directory / "thresholds.json").read_text())
    assert list(found) == ["x", "y", "z"]
    rows = np.array(read_table(directory / "test_results.tsv"))
    named = (directory / "test_labels.tsv").read_text().split("\n")[:-1]
    labels = np.array(list(found))
    limits = np.array(list(found.values()))
    assert named == [",".join(labels[row >= limits]) for row in rows]
    tuned = read_results(directory / "eval_results.txt")
    fixed = read_results(trained[0] / "fixed" / "eval_results.txt")
    assert tuned["eval_macro_f1"] >= fixed["eval_macro_f1"]


@pytest.mark.parametrize("name", ["many", "windows"])
def test_later_predictions_need_no_flags_of_the_model(name, trained):
    top, _, kept = trained
    again = read_table(top / name / "test_results.tsv")
    before = [row.split("\t") for row in kept[name].splitlines()]
    np.testing.assert_allclose(again, np.array(before, float), atol=1e-5)


def test_thresholds_and_units_go_with_the_model(trained):
    top = trained[0]
    first, second = (
        read_table(top / f"{place}thousands" / "test_results.tsv")
        for place in ("", "elsewhere-")
    )
    np.testing.assert_allclose(first, second, atol=1e-2)
    for name in ("test_labels.tsv", "thresholds.json"):
        there = (top / "elsewhere-many" / name).read_text()
        assert there == (top / "many" / name).read_text()


def test_later_sets_do_not_tune_thresholds(tmp_path):
    """Scores of a test set must not be those of thresholds fitted to it."""
    many = write_set(tmp_path / "many", ("x,y", "", "z", "x"))
    other = write_set(tmp_path / "other", ("z", "x,y", "y", ""))
    flags = [*TINY, "--task_name=tsv", "--multi_label", "--threshold=tuned"]
    out = tmp_path / "out"
    common = [*flags, f"--output_dir={out}", "--do_eval"]
    succeed([[*common, f"--data_dir={many}", "--do_train"]], tmp_path)
    first = (out / "thresholds.json").read_text()
    succeed([[*common, f"--data_dir={other}"]], tmp_path)
    assert (out / "thresholds.json").read_text() == first


def test_a_training_begins_anew_after_a_baseline(tmp_path):
    data = write_set(tmp_path / "data")
    out = tmp_path / "out"
    flags = [*TINY, "--task_name=tsv", f"--data_dir={data}", "--do_eval"]
    flags += [f"--output_dir={out}", "--train_batch_size=4"]
    later = [*flags, "--do_train", "--max_seq_length=9", "--learning_rate=1e-3"]
    runs = succeed([flags, later, [*later, "--num_train_epochs=4"]], tmp_path)
    run = json.loads((out / "run.json").read_text())
    assert run["flags"]["max_seq_length"] == 9
    assert not any("began with" in line for line in runs[1].log)
    told = [line for line in runs[2].log if "began with" in line]
    assert len(told) == 1 and "--num_train_epochs is 4" in told[0]


def test_a_scored_directory_takes_the_labels_of_each_model(tmp_path):
    """It holds no model, so its run.json describes the last that answered."""
    data = write_set(tmp_path / "data")
    (tmp_path / "labels.txt").write_text("yes\nno\n")
    base = [*TINY, "--task_name=tsv", f"--data_dir={data}", "--do_eval"]
    trained = tmp_path / "trained"
    learn = [*base, "--do_train", f"--output_dir={trained}"]
    learn += [f"--labels_file={tmp_path}/labels.txt", "--learning_rate=1e-2"]
    scored = [*base, f"--output_dir={tmp_path}/scored"]
    answer = [*scored, f"--init_checkpoint={trained}"]
    succeed([learn, scored, answer], tmp_path)
    found, wanted = (
        read_results(tmp_path / name / "eval_results.txt")
        for name in ("scored", "trained")
    )
    assert found["eval_loss"] == pytest.approx(wanted["eval_loss"], abs=1e-5)
    run = json.loads((tmp_path / "scored" / "run.json").read_text())
    assert run["description"]["labels"] == ["yes", "no"]


def test_thresholds_of_other_weights_are_not_used(tmp_path):
    many = write_set(tmp_path / "many", ("x,y", "", "z", "x"))
    flags = [*TINY, "--task_name=tsv", f"--data_dir={many}", "--do_eval"]
    flags += ["--multi_label", "--do_train"]
    first, second = tmp_path / "first", tmp_path / "second"
    tuned = [*flags, f"--output_dir={first}", "--threshold=tuned"]
    succeed([tuned], tmp_path)
    path = first / "thresholds.json"
    path.write_text(json.dumps(dict.fromkeys("xyz", 0.01)))
    plain = [*flags, f"--output_dir={second}", f"--init_checkpoint={first}"]
    longer = [*flags, f"--output_dir={first}", "--num_train_epochs=4"]
    runs = succeed([plain, longer], tmp_path)
    assert not any("Thresholds are those of" in x for x in runs[0].log)
    assert max(json.loads(path.read_text()).values()) > 0.01
    path.write_text(json.dumps({"x": float("nan"), "y": 0.5, "z": 0.5}))
    (run,) = run_all(
        [[*flags[:-2], "--multi_label", f"--output_dir={first}"]], tmp_path
    )
    assert run.code == 1 and "thresholds.json" in run.stderr


def test_a_model_of_another_task_is_refused(tmp_path):
    data = write_set(tmp_path / "data")
    base = ["--task_name=tsv", f"--data_dir={data}", "--do_eval"]
    out = tmp_path / "out"
    succeed([[*TINY, *base, "--do_train", f"--output_dir={out}"]], tmp_path)
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(run | {"task": "ner"}))
    other = [*base, f"--init_checkpoint={out}", f"--output_dir={tmp_path}/x"]
    (run,) = run_all([[*other, "--max_seq_length=16"]], tmp_path)
    assert run.code == 1 and "was trained for 'ner'" in run.stderr
    assert not (tmp_path / "x").exists()


def test_labels_that_single_precision_cannot_tell_apart(tmp_path):
    data = write_set(tmp_path, ("1700000001", "1700000002", "1700000003"))
    flags = [*TINY, "--task_name=tsv", "--regression", f"--data_dir={data}"]
    (run,) = run_all(
        [[*flags, f"--output_dir={tmp_path}/out", "--do_train"]], tmp_path
    )
    assert run.code == 1 and "lie too close together" in run.stderr
    assert "Subtract 170000000" in run.stderr


def test_texts_that_are_cut_are_counted(tmp_path):
    data = write_set(tmp_path / "data")
    flags = [*TINY, "--task_name=tsv", f"--data_dir={data}", "--do_eval"]
    flags += [f"--output_dir={tmp_path}/out", "--max_seq_length=3"]
    (run,) = succeed([flags], tmp_path)
    assert any("longer than --max_seq_length=3 and were" in x for x in run.log)


def test_numbers_of_any_range(trained):
    directory = trained[0] / "numbers"
    assert len(read_table(directory / "test_results.tsv")) == 7
    results = read_results(directory / "eval_results.txt")
    assert {"eval_pearson", "eval_spearman", "eval_mse"} <= set(results)
    assert results["eval_loss"] == pytest.approx(results["eval_mse"])
    assert not (directory / "test_labels.tsv").exists()


def test_numbers_are_learnt_in_their_own_unit(trained):
    small, large = (
        np.array(read_table(trained[0] / name / "test_results.tsv"))
        for name in ("numbers", "thousands")
    )
    np.testing.assert_allclose(large, 1000 * small, rtol=1e-3, atol=1e-2)
    reader = checkpoints.CheckpointReader(trained[0] / "thousands")
    labels = np.resize([-3500, 0, 12000], 16)
    np.testing.assert_allclose(
        reader.read("label_unit"), (labels.mean(), labels.std()), rtol=1e-6
    )


def test_sigmoids_begin_at_the_shares_of_their_labels(trained):
    reader = checkpoints.CheckpointReader(trained[0] / "shares")
    bias = reader.read("output_bias")
    counts = np.array([8, 4, 4])  # of x, y and z in 16 rows
    share = (counts + 0.5) / 17
    np.testing.assert_allclose(bias, np.log(share / (1 - share)), atol=1e-6)


def test_windows_answer_each_text_once(trained):
    directory = trained[0] / "windows"
    assert len(read_table(directory / "test_results.tsv")) == 9
    log = "\n".join(trained[1]["windows"].log)
    found = re.search(r"train: (\d+) examples, (\d+) rows", log)
    examples, rows = found.groups()
    assert int(examples) == 16 < int(rows)


def test_best_checkpoint_is_what_is_scored(trained):
    directory = trained[0] / "best"
    best = json.loads((directory / "best" / "metrics.json").read_text())
    results = read_results(directory / "eval_results.txt")
    assert results["global_step"] == best["global_step"]
    assert results["eval_loss"] == pytest.approx(best["eval_loss"], abs=1e-6)


def test_seeds_give_mean_and_deviation(trained):
    directory = trained[0] / "seeds"
    results = read_results(directory / "eval_results.txt")
    losses = [
        read_results(directory / f"seed-{seed}" / "eval_results.txt")[
            "eval_loss"
        ]
        for seed in (5, 6, 7)
    ]
    assert results["eval_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert results["eval_loss_stdev"] == pytest.approx(
        np.std(losses, ddof=1), rel=1e-3
    )
    assert len(set(losses)) == 3
    read = [line for line in trained[1]["seeds"].log if "train: 16" in line]
    assert len(read) == 1


def test_report_is_one_page_with_escaped_text(trained):
    page = (trained[0] / "three" / "report.html").read_text(encoding="utf-8")
    assert "y &amp; &lt;b&gt;" in page and "<b>" not in page
    for part in (
        "Confusion matrix",
        "Scores by label",
        "Scores by length",
        "Worst examples",
        "Training loss",
        "--task_name</td>",
    ):
        assert part in page
    assert page.count("<svg") == 3
    assert not re.search(r'(src|href)="(?!#|data:)', page.replace("xlink:", ""))


@pytest.mark.parametrize("name", ["many", "numbers"])
def test_report_of_other_kinds(name, trained):
    page = (trained[0] / name / "report.html").read_text(encoding="utf-8")
    assert "Worst examples" in page and "<svg" in page


@pytest.mark.slow
def test_log_holds_our_lines_only(tmp_path):
    data = write_set(tmp_path / "data", sizes=(4, 2, 2))
    result = run_script(
        "run_classifier.py",
        *TINY,
        "--task_name=tsv",
        "--do_train",
        "--do_export",
        "--num_train_epochs=1",
        f"--data_dir={data}",
        f"--output_dir={tmp_path}/out",
    )
    for line in result.stderr.strip().splitlines():
        found = re.match(r"[IW]\d{4} [\d:.]+ +\d+ (\w+\.py):\d+\] ", line)
        assert found, line
        assert (GOLDEN.parent.parent / found[1]).exists(), line


def test_mnli_has_two_dev_sets(tmp_path):
    head = ["index"] + [f"c{n}" for n in range(1, 8)]
    head += ["sentence1", "sentence2", "label1", "gold_label"]
    labels = ("neutral", "entailment", "contradiction")
    for name, size in (
        ("train", 12),
        ("dev_matched", 6),
        ("dev_mismatched", 5),
    ):
        rows = [
            [n, *"abcdefg", text(n), text(n + 1), "x", labels[n % 3]]
            for n in range(size)
        ]
        write_rows(tmp_path / "data" / f"{name}.tsv", [head, *rows])
    succeed(
        [
            [
                *TINY,
                "--task_name=mnli",
                "--do_train",
                "--do_eval",
                "--num_train_epochs=1",
                f"--data_dir={tmp_path}/data",
                f"--output_dir={tmp_path}/out",
            ]
        ],
        tmp_path,
    )
    results = read_results(tmp_path / "out" / "eval_results.txt")
    assert {"eval_accuracy", "eval_accuracy_mm", "eval_loss_mm"} <= set(results)
