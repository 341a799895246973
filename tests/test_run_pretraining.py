"""run_pretraining.py: the original's figures, training, resuming, filling."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import GOLDEN, ROOT, run_script, vocab_path
from script_runs import Script

import checkpoints
import distribution
import heads
import modeling
import pretraining
import record_pipeline
import records
import tokenization

TINY = GOLDEN / "tiny"
COMMANDS = {
    command["name"]: command
    for command in json.loads((GOLDEN / "e2e" / "commands.json").read_text())
}
MODEL = (
    f"--bert_config_file={TINY}/bert_config.json",
    f"--vocab_file={TINY}/vocab.txt",
    "--max_seq_length=64",
)
DATA = (*MODEL, "--max_predictions_per_seq=10", "--tensorboard=false")
INIT = f"--init_checkpoint={TINY}/bert_model.ckpt"


@pytest.fixture(scope="module")
def run():
    with Script("run_pretraining") as script:
        yield script


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The 29 records of the golden file."""
    path = tmp_path_factory.mktemp("data") / "pretrain64.tfrecord"
    packed = (GOLDEN / "e2e" / "pretrain64.tfrecord.gz").read_bytes()
    path.write_bytes(gzip.decompress(packed))
    return path


@pytest.fixture(scope="module")
def model():
    config = checkpoints.load_config(TINY / "bert_config.json")
    encoder = modeling.BertModel(config)
    head = heads.PretrainingHead(config, encoder.embeddings.word_embeddings)
    return heads.TaskModel(encoder, head)


def results_of(directory):
    lines = (directory / "eval_results.txt").read_text().splitlines()
    keys = [line.split(" = ")[0] for line in lines]
    assert keys == sorted(keys)
    return dict(
        (key, float(value))
        for key, value in (line.split(" = ") for line in lines)
    )


def weights_of(prefix):
    reader = checkpoints.CheckpointReader(str(prefix))
    return {name: reader.read(name) for name in reader.shapes}


def assert_same_weights(left, right):
    left, right = weights_of(left), weights_of(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    "name, prefix, steps",
    [
        ("pretrain_eval_5", "bert_model.ckpt", 5),
        ("pretrain_eval_100", "bert_model.ckpt", 100),
        ("pretrain_train3", "trained/model.ckpt-3", 5),
    ],
)
def test_figures_of_the_original(data, model, name, prefix, steps):
    # The original cycled through its 29 records until it had enough batches.
    checkpoints.load_checkpoint(TINY / prefix, model, what="all")
    raw = list(records.read_records(data))
    parse = record_pipeline.Parser(records.pretraining_spec(64, 10))
    scorer = distribution.Predictor(pretraining.RowScores(model))
    scores = list(
        scorer.batches(
            parse([raw[(8 * step + i) % 29] for i in range(8)], None, None)
            for step in range(steps)
        )
    )
    found = pretraining.metrics_of(scores)
    means = [
        batch["masked_lm_loss"].sum() / (batch["masked_lm_weight"].sum() + 1e-5)
        + batch["next_sentence_loss"].mean()
        for batch in scores
    ]
    found["loss"] = np.mean(means)  # the original's: a mean over batches
    lines = COMMANDS[name]["eval_results.txt"].splitlines()
    for key, value in (line.split(" = ") for line in lines):
        if key != "global_step":
            assert found[key] == pytest.approx(float(value), abs=1e-5), key


def test_old_command_counts_every_record_once(run, data, tmp_path):
    found = []
    for size in (1, 5, 8):
        out = tmp_path / str(size)
        run(
            *DATA, INIT, f"--input_file={data}", f"--output_dir={out}",
            "--do_eval=True", f"--eval_batch_size={size}",
        )  # fmt: skip
        found.append(results_of(out))
        assert not (out / "run.json").exists()  # no model was made here
    assert found[0].keys() == {
        "global_step", "loss", "masked_lm_accuracy", "masked_lm_loss",
        "next_sentence_accuracy", "next_sentence_loss",
    }  # fmt: skip
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-6)
    assert found[0]["next_sentence_accuracy"] == pytest.approx(7 / 29)
    assert found[0]["loss"] == pytest.approx(
        found[0]["masked_lm_loss"] + found[0]["next_sentence_loss"]
    )


def test_evaluation_that_ends_early_says_so(run, data, tmp_path):
    log = run(
        *DATA, INIT, f"--input_file={data}", f"--output_dir={tmp_path}",
        "--do_eval", "--max_eval_steps=2",
    )  # fmt: skip
    assert "only the first 16 of 29 records are evaluated" in log


# ------------------------------------------------------------------ training


def test_train_from_new_weights_and_fine_tune_from_it(run, data, tmp_path):
    out, files = tmp_path / "out", tmp_path / "data"
    files.mkdir()
    packed = gzip.compress(data.read_bytes())
    (files / "a.tfrecord.gz").write_bytes(packed)
    shutil.copy(data, files / "b.tfrecord")
    log = run(
        f"--vocab_file={vocab_path('tiny')}", "--model_preset=bert_L-2_H-128",
        "--max_seq_length=64", "--max_predictions_per_seq=10",
        f"--input_file={files}/*.tfrecord*", f"--output_dir={out}",
        f"--eval_input_file={data}", "--do_train", "--do_eval",
        "--train_batch_size=8", "--num_train_epochs=2", "--eval_steps=7",
        "--gradient_accumulation_steps=2", "--optimizer=lamb",
        "--learning_rate=0.002", "--log_steps=5", "--nodo_lower_case",
    )  # fmt: skip
    assert "58 records in 2 files" in log
    assert "records 58, batch size 8, steps 14 (1.931 epochs), warm-up" in log
    assert "examples/s" in log and "tokens/s" in log and " left" in log
    results = results_of(out)
    assert results["masked_lm_loss"] < np.log(97)
    assert (out / "best" / "run.json").exists()
    described = json.loads((out / "run.json").read_text())
    assert described["task"] == "pretraining"
    assert described["do_lower_case"] is False
    # What the fine-tuning scripts need to know lies beside the checkpoint.
    for directory in (out, out / "best"):
        config, vocab = checkpoints.companion_files(directory)
        assert checkpoints.load_config(config).vocab_size == 97
        assert open(vocab).read() == vocab_path("tiny").read_text()
        assert tokenization.casing_of_directory(directory) is False
        names = checkpoints.CheckpointReader(directory).shapes
        assert "cls/predictions/transform/dense/kernel" in names
        assert "bert/encoder/layer_1/output/dense/kernel" in names


@pytest.mark.slow
def test_fine_tuning_takes_the_output_directory_at_once(run, data, tmp_path):
    out = tmp_path / "pretrained"
    run(
        *DATA, f"--input_file={data}", f"--output_dir={out}", "--do_train",
        "--num_train_steps=2", "--train_batch_size=4",
    )  # fmt: skip
    rows = "label\ttext_a\nno\tthe and\nyes\tof it\nno\twas he\nyes\tun in\n"
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(rows)
    ran = run_script(
        "run_classifier.py", "--task_name=tsv", f"--data_dir={tmp_path}",
        f"--init_checkpoint={out}", f"--output_dir={tmp_path}/tuned",
        "--do_train", "--do_eval", "--num_train_epochs=1",
        "--train_batch_size=2", "--max_seq_length=16",
    )  # fmt: skip
    assert "training from new weights" not in ran.stderr
    assert "eval_accuracy" in (tmp_path / "tuned/eval_results.txt").read_text()


def test_an_output_directory_of_the_original_goes_on(run, data, tmp_path):
    shutil.copytree(TINY / "trained", tmp_path / "out")
    log = run(
        *DATA, f"--input_file={data}", f"--output_dir={tmp_path}/out",
        "--do_train", "--num_train_steps=5", "--num_warmup_steps=1",
        "--train_batch_size=4", "--learning_rate=0.001", "--log_steps=1",
    )  # fmt: skip
    assert "Resuming" in log and "at step 3" in log
    assert "step 4 of 5" in log and "step 3 of 5" not in log
    before = weights_of(TINY / "trained/model.ckpt-3")
    after = weights_of(tmp_path / "out/model.ckpt-5")
    name = "bert/encoder/layer_0/attention/self/query/kernel"
    assert 0 < np.abs(after[name] - before[name]).max() < 5e-3
    log = run(
        *DATA, f"--input_file={data}", f"--output_dir={tmp_path}/out",
        "--do_train", "--num_train_steps=5", "--num_warmup_steps=1",
    )  # fmt: skip
    assert "already at step 5 of 5" in log


def test_without_next_sentence_loss(run, data, tmp_path):
    run(
        *DATA, INIT, f"--input_file={data}", f"--output_dir={tmp_path}",
        "--do_train", "--do_eval", "--nsp=none", "--num_train_steps=2",
        "--num_warmup_steps=0", "--train_batch_size=4",
    )  # fmt: skip
    results = results_of(tmp_path)
    assert results.keys() == {
        "global_step", "loss", "masked_lm_accuracy", "masked_lm_loss",
    }  # fmt: skip
    assert results["loss"] == results["masked_lm_loss"]
    before = weights_of(TINY / "bert_model.ckpt")
    after = weights_of(tmp_path / "model.ckpt-2")
    for part in ("output_weights", "output_bias"):
        name = f"cls/seq_relationship/{part}"
        np.testing.assert_array_equal(before[name], after[name])


def test_a_long_run_over_few_records_is_pointed_out(run, data, tmp_path):
    log = run(
        *DATA, INIT, f"--input_file={data}", "--do_train",
        f"--output_dir={tmp_path}", "--num_train_steps=3",
        "--train_batch_size=2900",
    )  # fmt: skip
    assert "steps 3 (300 epochs), warm-up steps 10000" in log
    assert "3 steps go 300 times through the 29 records" in log
    assert "ends within its warm-up: --num_warmup_steps=10000 of 3" in log


def test_a_loss_that_is_no_number_ends_the_run(run, data, tmp_path):
    with pytest.raises(ValueError, match="at step .* of 20"):
        run(
            *DATA, INIT, f"--input_file={data}", "--do_train",
            f"--output_dir={tmp_path}", "--learning_rate=1e30",
            "--num_train_steps=20", "--num_warmup_steps=0",
        )  # fmt: skip
    assert (tmp_path / "model.ckpt-0.index").exists()
    assert not (tmp_path / "model.ckpt-20.index").exists()


def unmasked_data(path, count=120):
    draw = np.random.default_rng(1)
    spec = records.unmasked_spec(64)
    with records.RecordWriter(path) as writer:
        for _ in range(count):
            inner = int(draw.integers(6, 40))
            row = {
                "input_ids": [2, *draw.integers(5, 97, inner), 3],
                "input_mask": [1] * (inner + 2),
                "segment_ids": [0] * (inner + 2),
                "word_pieces": [0, *[1] * inner, 0],
                "next_sentence_labels": [int(draw.integers(2))],
            }
            writer.write(spec.encode(row))
    return path


@pytest.mark.slow
def test_killed_and_resumed_run_has_the_bits_of_an_unbroken_one(run, tmp_path):
    data = unmasked_data(tmp_path / "data")
    flags = (
        *DATA, f"--input_file={data}", "--do_train", "--dynamic_masking",
        "--do_whole_word_mask", "--num_train_steps=90", "--log_steps=5",
        "--num_warmup_steps=5", "--train_batch_size=7",
        "--save_checkpoints_steps=10", "--learning_rate=1e-3",
    )  # fmt: skip
    run(*flags, f"--output_dir={tmp_path}/whole")
    out = tmp_path / "killed"
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "run_pretraining.py", *flags]
            + [f"--output_dir={out}"],
            cwd=ROOT,
            stderr=log,
        )
    deadline = time.monotonic() + 300
    while not (out / "resume" / "step-20" / "state.json").exists():
        ended = process.poll() is not None or time.monotonic() > deadline
        assert not ended, (tmp_path / "log").read_text()
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "model.ckpt-90.index").exists()
    log = run(*flags, f"--output_dir={out}")
    assert "Resuming" in log
    assert_same_weights(
        out / "model.ckpt-90", tmp_path / "whole" / "model.ckpt-90"
    )
    newest = max((out / "resume").glob("step-90/variables.index"))
    for name in ("killed", "whole"):
        path = tmp_path / name / "resume" / "step-90" / "variables"
        values = tf.train.load_checkpoint(str(path))
        names = sorted(values.get_variable_to_shape_map())
        if name == "killed":
            before = {n: values.get_tensor(n) for n in names}
    assert newest.exists() and before.keys() == set(names)
    for n in names:
        if n != "_CHECKPOINTABLE_OBJECT_GRAPH":
            np.testing.assert_array_equal(before[n], values.get_tensor(n))


def test_dynamic_masks_are_scored_alike_every_time(run, tmp_path):
    data = unmasked_data(tmp_path / "data", 30)
    found = []
    for size in (3, 8):
        run(
            *DATA, INIT, f"--input_file={data}", "--do_eval",
            "--dynamic_masking", f"--output_dir={tmp_path}/{size}",
            f"--eval_batch_size={size}",
        )  # fmt: skip
        found.append(results_of(tmp_path / str(size)))
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.parametrize("phase", ["--do_eval", "--do_train"])
def test_a_bad_record_deep_in_a_file_is_named(run, tmp_path, phase):
    data = unmasked_data(tmp_path / "data", 90)
    flags = (
        *DATA, f"--input_file={data}", "--dynamic_masking", phase, INIT,
        f"--output_dir={tmp_path}", "--num_train_epochs=1",
    )  # fmt: skip
    whole = list(records.read_records(data))
    spec = records.unmasked_spec(64)
    row = dict(spec.decode(whole[70]))
    row["input_ids"] = row["input_ids"] * 0 + 97  # the vocabulary has 0 to 96
    with records.RecordWriter(data) as writer:
        for number, record in enumerate(whole):
            writer.write(spec.encode(row) if number == 70 else record)
    with pytest.raises(ValueError, match="data: record 71: input_ids holds 97"):
        run(*flags)
    content = bytearray(data.read_bytes())
    content[-30] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match="data: record 90 is damaged .*checks"):
        run(*flags)


# ------------------------------------------------------------- filling masks


def test_masks_of_texts_are_filled(run, model, tmp_path):
    lines = [
        "The [MASK] of it ||| he was [MASK] .",
        "",
        "nothing to fill",
        "a b " * 40 + "[MASK]",
        "[MASK] ||| ",
        "a \u2028 [MASK] b",
    ]
    (tmp_path / "in.txt").write_text("\n".join(lines), encoding="utf-8")
    log = run(
        *MODEL, INIT, "--do_predict", f"--predict_file={tmp_path}/in.txt",
        f"--output_dir={tmp_path}", "--top_k=3", "--eval_batch_size=4",
    )  # fmt: skip
    assert "1 [MASK]s lie beyond --max_seq_length" in log
    written = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8")
    answers = [json.loads(line) for line in written.split("\n")[:-1]]
    assert [answer["line"] for answer in answers] == [1, 2, 3, 4, 5, 6]
    counts = [len(answer["masks"]) for answer in answers]
    assert counts == [2, 0, 0, 1, 1, 1]
    assert answers[3]["masks"] == [{"predictions": []}]
    pairs = ["next_sentence_probability" in answer for answer in answers]
    assert pairs == [True, False, False, False, False, False]
    # The first line by hand.
    checkpoints.load_checkpoint(TINY / "bert_model.ckpt", model, what="all")
    vocab = tokenization.load_vocab(vocab_path("tiny"))
    tokens = "[CLS] the [MASK] of it [SEP] he was [MASK] . [SEP]".split()
    outputs = model(
        {
            "input_ids": tf.constant([[vocab[token] for token in tokens]]),
            "segment_ids": tf.constant([[0] * 6 + [1] * 5]),
            "masked_lm_positions": tf.constant([[2, 8]]),
            "masked_lm_weights": tf.constant([[1.0, 1.0]]),
        }
    )
    chances = tf.nn.softmax(outputs["masked_lm_logits"]).numpy()
    tokens = list(vocab)
    for mask, chance in zip(answers[0]["masks"], chances, strict=True):
        best = np.argsort(-chance)[:3]
        found = mask["predictions"]
        assert [item["token"] for item in found] == [tokens[i] for i in best]
        assert [item["probability"] for item in found] == pytest.approx(
            chance[best], abs=2e-6
        )
    follows = tf.nn.softmax(outputs["next_sentence_logits"])[0, 0]
    assert answers[0]["next_sentence_probability"] == pytest.approx(
        float(follows), abs=2e-6
    )


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "flags, message",
    [
        ((), "Nothing to do: set at least one of --do_train"),
        (("--do_train",), "--do_train needs --input_file"),
        (("--do_eval",), "--do_eval needs --input_file"),
        (("--do_predict",), "--do_predict needs --predict_file"),
        (
            ("--do_predict", "--predict_file=no.txt"),
            "--predict_file=no.txt does not exist",
        ),
        (
            ("--do_eval", "--input_file=x", "--max_seq_length=4"),
            "--max_seq_length=4 must be at least 5",
        ),
        (
            ("--do_train", "--input_file=x", "--num_train_steps=5",
             "--num_train_epochs=1"),
            "--num_train_epochs=1.0 and --num_train_steps=5 are both given",
        ),
        (
            ("--do_train", "--input_file=x", "--masked_lm_prob=0.2"),
            "--masked_lm_prob goes with --dynamic_masking",
        ),
        (
            ("--do_train", "--input_file=x", "--model_preset=bert_base"),
            "--model_preset needs --vocab_file",
        ),
        (
            ("--do_train", "--input_file=x"),
            "--bert_config_file is not given, and there is no such file",
        ),
        (
            ("--do_train", "--input_file=x", "--bert_config_file=no.json"),
            "--bert_config_file=no.json does not exist",
        ),
        (
            ("--do_train", "--input_file=x", *MODEL, "--max_seq_length=600"),
            "--max_seq_length=600 exceeds max_position_embeddings=64",
        ),
        (
            ("--do_train", "--input_file=nothing*", *MODEL),
            "'nothing.' matches no file",
        ),
        (
            ("--do_train", "--input_file=x", "--dynamic_masking", MODEL[0],
             "--max_seq_length=64"),
            "--dynamic_masking needs --vocab_file",
        ),
    ],
)  # fmt: skip
def test_flags_that_cannot_work(run, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message):
        run(f"--output_dir={tmp_path}/out", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--max_predictions_per_seq=76",), "holds 10 values.*seq=76. Set"),
        (("--max_seq_length=32",), "holds 64 values of input_ids.*=32. Set"),
        (("--num_train_epochs=0.01",), "29 records, --train_batch_size=32"),
        (("--dynamic_masking",), "Leave out --dynamic_masking"),
    ],
)
def test_data_that_does_not_fit_the_flags(run, data, tmp_path, flags, message):
    with pytest.raises(ValueError, match=message):
        run(
            *DATA, f"--input_file={data}", f"--output_dir={tmp_path}/out",
            "--do_train", *flags,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_models_that_are_not_there_or_of_another_run(run, data, tmp_path):
    flags = (*DATA, f"--input_file={data}", f"--output_dir={tmp_path}")
    with pytest.raises(ValueError, match="There is no model: .* holds no tra"):
        run(*flags, "--do_eval")
    fine_tuned = f"--init_checkpoint={tmp_path}/encoder.ckpt"
    values = weights_of(TINY / "bert_model.ckpt")
    encoder = {k: v for k, v in values.items() if k.startswith("bert/")}
    checkpoints.write_variables(tmp_path / "encoder.ckpt", encoder)
    with pytest.raises(ValueError, match="encoder.ckpt: has no masked-LM head"):
        run(*flags, fine_tuned, "--do_eval")
    other = {"task": "pretraining", "hidden_size": 768}
    (tmp_path / "run.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="hidden_size is 768, this one's is 3"):
        run(*flags, INIT, "--do_train")


def test_one_sentence_on_stderr(data, tmp_path):
    ran = run_script(
        "run_pretraining.py", *DATA, f"--input_file={data}", "--do_train",
        f"--output_dir={tmp_path}/out", "--max_predictions_per_seq=20",
        check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "--max_predictions_per_seq=20. Set" in ran.stderr.split("\n")[-2]
