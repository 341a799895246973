"""The trip through a script: killed and resumed, seeds, devices, heads."""

import fcntl
import json
import random
import shutil
import signal

import numpy as np
import pytest
from classifier_runs import (
    TINY,
    read_results,
    read_table,
    run_all,
    run_python,
    succeed,
    write_set,
)
from conftest import GOLDEN

import finetuning

# Runs the script and kills it with SIGKILL. The place is PLACE at STEP: after
# the step, between the two kinds of checkpoint, or inside the second.
KILLED = """
import os, sys
step, place, *command = sys.argv[1:]
def die():
    os.kill(os.getpid(), 9)
import common_flags, run_classifier
import output_directory, training
if place == "after":
    check = training.Trainer._check_finite
    def check_finite(self, figures, first):
        check(self, figures, first)
        if first + len(figures) >= int(step):
            die()
    training.Trainer._check_finite = check_finite
elif place == "between":
    save = output_directory.RunDirectory.save_resume
    def save_resume(self, progress):
        if progress.global_step >= int(step):
            die()
        save(self, progress)
    output_directory.RunDirectory.save_resume = save_resume
elif place == "inside":
    replace = os.replace
    def late(source, target):
        if str(target).endswith("/step-" + step):
            die()
        replace(source, target)
    os.replace = late
run_classifier.define_flags()
common_flags.FLAGS(["run_classifier.py", *command])
run_classifier.main([])
"""
PLACES = ("after", "between", "inside")


def command(top, output_dir, *flags):
    return [
        *TINY,
        "--task_name=tsv",
        f"--data_dir={top}/data",
        f"--output_dir={output_dir}",
        "--do_train",
        "--num_train_epochs=5",
        "--save_checkpoints_steps=4",
        "--learning_rate=0.002",
        "--log_steps=1",
        *flags,
    ]


def weights(directory):
    """{name: array} of the newest checkpoint that others read."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(directory))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
    }


def assert_same_bits(first, second):
    first, second = weights(first), weights(second)
    assert first["global_step"] == 20
    assert sorted(first) == sorted(second)
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Two runs with one seed and one with another, none disturbed."""
    top = tmp_path_factory.mktemp("runs")
    write_set(top / "data")
    succeed(
        [
            command(top, top / "first"),
            command(top, top / "second"),
            command(top, top / "other", "--seed=7"),
        ],
        top,
    )
    return top


def kill_and_resume(top, output_dir, kills):
    for step, place in kills:
        result = run_python(
            KILLED, step, place, *command(top, output_dir), check=False
        )
        assert result.returncode == -signal.SIGKILL, result.stderr
    succeed([command(top, output_dir)], output_dir.parent)


def test_same_seed_gives_the_same_bits(unbroken):
    assert_same_bits(unbroken / "first", unbroken / "second")
    first, other = weights(unbroken / "first"), weights(unbroken / "other")
    assert any(np.any(first[name] != other[name]) for name in first)


def test_a_warm_up_longer_than_the_training(caplog):
    finetuning._warn_of_warmup(20, 20)
    assert not caplog.records
    finetuning._warn_of_warmup(21, 20)
    assert "within its warm-up: --num_warmup_steps=21 of 20" in caplog.text


def test_two_runs_in_one_directory(unbroken, tmp_path):
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = run_python(
            "import common_flags, run_classifier, sys\n"
            "run_classifier.define_flags()\n"
            "common_flags.run(run_classifier.main)",
            *command(unbroken, tmp_path / "out"),
            check=False,
        )
    assert second.returncode == 1
    assert "another run is writing to " in second.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == [".lock"]


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(unbroken, tmp_path):
    kills = [(6, "after"), (8, "between"), (16, "inside")]
    kill_and_resume(unbroken, tmp_path / "out", kills)
    assert_same_bits(unbroken / "first", tmp_path / "out")


@pytest.mark.soak
def test_killed_ten_times_ends_with_the_same_bits(unbroken, tmp_path):
    chance = random.Random()
    steps = sorted(chance.sample(range(1, 20), 7)) + [8, 12, 16]
    kills = [(step, "after") for step in steps[:7]]
    kills += [(step, chance.choice(PLACES[1:])) for step in steps[7:]]
    kills.sort()
    print("kills:", kills)
    for step, place in kills:
        run_python(
            KILLED,
            step,
            place,
            *command(unbroken, tmp_path / "out"),
            check=False,
        )
    succeed([command(unbroken, tmp_path / "out")], tmp_path)
    assert_same_bits(unbroken / "first", tmp_path / "out")


def test_resume_of_half_a_run_equals_the_whole(unbroken, tmp_path):
    """And a finished run says so and changes nothing."""
    whole, half = unbroken / "first", tmp_path / "half"
    shutil.copytree(whole, half)
    for path in (half / "resume").iterdir():
        if path.name != "step-16":
            shutil.rmtree(path)
    for path in half.glob("model.ckpt-20.*"):
        path.unlink()
    again, done = succeed([command(unbroken, half)] * 2, tmp_path)
    assert_same_bits(whole, half)
    assert any("step 17 of 20" in line for line in again.log)
    assert not any("step 16 of 20" in line for line in again.log)
    assert any("nothing to train" in line for line in done.log)


# ------------------------------------------------------------------- devices

DEVICES = """
import sys
import tensorflow as tf
count, losses, *command = sys.argv[1:]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * int(count),
)
import numpy as np
import common_flags, finetuning, heads, run_classifier
heads.HEAD_DROPOUT = 0.0  # fixed at 0.1, whatever the config says
run_classifier.define_flags()
common_flags.FLAGS(["run_classifier.py", *command])
voyage = finetuning.Voyage(
    run_classifier.ClassifierTask(), common_flags.FLAGS.output_dir, 3
)
voyage.run()
np.save(losses, voyage.result.losses)
"""


@pytest.mark.slow
def test_two_devices_learn_what_one_does(tmp_path):
    write_set(tmp_path / "data", ("a", "b", "c"))
    config = json.loads((GOLDEN / "tiny" / "bert_config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    losses, rows = [], []
    for count, name in ((1, "one_device"), (2, "mirrored")):
        output_dir = tmp_path / name
        flags = command(
            tmp_path,
            output_dir,
            f"--bert_config_file={tmp_path}/config.json",
            f"--distribution_strategy={name}",
            "--do_eval",
            "--do_predict",
        )
        found = tmp_path / f"{name}.npy"
        run_python(DEVICES, count, found, *flags)
        losses.append(np.load(found))
        rows.append(read_table(output_dir / "test_results.tsv"))
    assert losses[0].shape == (20,)
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)
    results = [
        read_results(tmp_path / name / "eval_results.txt")
        for name in ("one_device", "mirrored")
    ]
    assert results[0]["eval_loss"] == pytest.approx(
        results[1]["eval_loss"], abs=1e-4
    )


# --------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Runs that start from what other runs left: (directory, list of Run)."""
    top = tmp_path_factory.mktemp("chain")
    write_set(top / "two")
    write_set(top / "three", ("a", "b", "c"))
    short = ["--task_name=tsv", "--num_train_epochs=1", "--train_batch_size=4"]
    phases = ["--do_train", "--do_eval", "--do_predict"]
    first = top / "first"
    commands = {
        "first": [*TINY, *short, *phases, f"--data_dir={top}/two"],
        # C06: another number of labels, from the checkpoint of the first.
        "three": [
            *short,
            *phases,
            "--max_seq_length=16",
            f"--init_checkpoint={first}",
            f"--data_dir={top}/three",
        ],
        # A trained model used from another directory.
        "elsewhere": [
            "--task_name=tsv",
            "--do_eval",
            "--do_predict",
            "--max_seq_length=16",
            f"--init_checkpoint={first}",
            f"--data_dir={top}/two",
        ],
        "stale": [*TINY, *short, "--do_train", f"--data_dir={top}/two"],
    }
    (top / "stale").mkdir()
    for path in (GOLDEN / "tiny" / "trained").glob("model.ckpt-3.*"):
        shutil.copy(path, top / "stale" / path.name.replace("-3", "-999"))
    done = [
        *short,
        *phases,
        f"--data_dir={top}/three",
        f"--output_dir={first}",
        "--max_seq_length=16",
    ]
    runs = run_all(
        [
            *([*c, f"--output_dir={top}/{n}"] for n, c in commands.items()),
            done,
        ],
        top,
    )
    names = [*commands, "other labels"]
    return top, dict(zip(names, runs, strict=True))


def test_other_number_of_labels_starts_a_fresh_head(chain):
    _, runs = chain
    assert runs["three"].code == 0, runs["three"].stderr
    fresh = [line for line in runs["three"].log if "head starts fresh" in line]
    assert len(fresh) == 1


def test_other_labels_in_an_old_directory_are_refused(chain):
    _, runs = chain
    run = runs["other labels"]
    assert run.code == 1 and "'a' is not one of: no, yes" in run.stderr


def test_trained_model_answers_from_another_directory(chain):
    top, runs = chain
    assert runs["elsewhere"].code == 0, runs["elsewhere"].stderr
    found = [
        read_table(top / name / "test_results.tsv")
        for name in ("first", "elsewhere")
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_checkpoint_holds_no_slots_and_names_the_newest(chain):
    top, runs = chain
    assert not any("adam" in name for name in weights(top / "first"))
    assert runs["stale"].code == 0, runs["stale"].stderr
    listed = (top / "stale" / "checkpoint").read_text()
    assert 'model_checkpoint_path: "model.ckpt-4"' in listed
    assert "999" not in listed
    assert (top / "stale" / "model.ckpt-999.index").exists()


def test_directory_describes_itself(chain):
    top, _ = chain
    run = json.loads((top / "first" / "run.json").read_text())
    assert run["task"] == "classifier/tsv"
    assert run["description"]["labels"] == ["no", "yes"]
    assert run["do_lower_case"] is True and run["seed"] == 12345
    assert run["flags"]["max_seq_length"] == 16
    assert set(run["versions"]) == {"tensorflow", "keras"}
    tiny = GOLDEN / "tiny"
    copied = (top / "first" / "vocab.txt").read_bytes()
    assert copied == (tiny / "vocab.txt").read_bytes()
    assert json.loads((top / "first" / "bert_config.json").read_text()) == (
        json.loads((tiny / "bert_config.json").read_text())
    )


def test_lost_files_of_an_output_directory(unbroken, tmp_path):
    whole = tmp_path / "whole"
    copies = [tmp_path / name for name in ("list", "empty", "all", "left")]
    predict = ["--do_predict", "--notensorboard"]
    shutil.copytree(unbroken / "first", whole)
    for copy in copies:
        shutil.copytree(unbroken / "first", copy)
    lost_list, empty_list, no_checkpoint, left_over = copies
    (lost_list / "checkpoint").unlink()
    (empty_list / "checkpoint").write_text("")
    for path in no_checkpoint.glob("model.ckpt-*"):
        path.unlink()
    (left_over / "saved_model" / "1.77.tmp").mkdir(parents=True)
    (left_over / ".model.ckpt-5.77.partial.data-0").touch()

    def run(directory, *flags):
        start = command(unbroken, directory, *flags)
        start.remove("--do_train")
        return [x for x in start if not x.startswith("--init_checkpoint")]

    runs = run_all(
        [
            run(whole, *predict),
            run(lost_list, *predict),
            run(empty_list, *predict),
            run(no_checkpoint, "--do_export"),
            run(left_over, *predict),
        ],
        tmp_path,
    )
    assert [r.code for r in runs] == [0, 0, 0, 1, 0], runs
    expected = read_table(whole / "test_results.tsv")
    for directory in (lost_list, empty_list, left_over):
        assert read_table(directory / "test_results.tsv") == expected
    for number in (1, 2):
        assert any("names none that is" in x for x in runs[number].log)
    assert "There is no model:" in runs[3].stderr
    assert not (no_checkpoint / "saved_model").exists()
    assert not list((left_over / "saved_model").iterdir())
    assert not list(left_over.glob(".model*"))


def test_a_best_checkpoint_that_is_gone_is_missed(unbroken, tmp_path):
    train = command(unbroken, tmp_path / "out", "--do_eval", "--eval_steps=5")
    succeed([train], tmp_path)
    shutil.rmtree(tmp_path / "out" / "best")
    (again,) = succeed([train], tmp_path)
    assert any("the best so far, is gone" in line for line in again.log)


def test_the_best_stays_the_model_of_its_directory(unbroken, tmp_path):
    """Case: later training was scored, and other weights then predicted."""
    out = tmp_path / "out"
    first = command(unbroken, out, "--do_eval", "--eval_steps=2")
    first[first.index("--num_train_epochs=5")] = "--num_train_epochs=1"
    longer = command(unbroken, out, "--learning_rate=1e-9")
    evaluated = [*longer, "--do_eval", "--num_train_epochs=6"]
    later = [x for x in longer if x not in ("--do_train", "--do_eval")]
    later = [x for x in later if not x.startswith("--init_checkpoint")]
    succeed([first], tmp_path)
    (trained,) = succeed([[*longer, "--do_predict"]], tmp_path)
    assert any("stays the model of this" in line for line in trained.log)
    assert any("--eval_steps is not given now" in line for line in trained.log)
    rows = read_table(out / "test_results.tsv")
    succeed([[*later, "--do_predict"]], tmp_path)
    assert read_table(out / "test_results.tsv") == rows
    succeed([evaluated], tmp_path)  # its steps compete with the best
    both = read_results(out / "eval_results.txt")
    metrics = json.loads((out / "best" / "metrics.json").read_text())
    assert both["global_step"] == metrics["global_step"]
    succeed([[*later, "--do_eval"]], tmp_path)
    assert read_results(out / "eval_results.txt") == both


def test_an_untrained_head_is_not_exported(tmp_path):
    write_set(tmp_path / "data")
    flags = [
        *TINY,
        "--task_name=tsv",
        f"--data_dir={tmp_path}/data",
        f"--labels_file={tmp_path}/labels.txt",
        f"--output_dir={tmp_path}/out",
    ]
    (tmp_path / "labels.txt").write_text("no\nyes\n")
    export, predict = run_all(
        [[*flags, "--do_export"], [*flags, "--do_predict"]], tmp_path
    )
    assert export.code == 1
    assert "lacks output_weights, output_bias, so there is no" in export.stderr
    assert not (tmp_path / "out/saved_model").exists()
    assert predict.code == 0
    assert any("new ones for output_weights" in x for x in predict.log)


def test_an_export_that_lost_its_name_gets_it_back(unbroken, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(unbroken / "first", out)
    for name in ("1.77.old", "1.77.tmp"):
        (out / "saved_model" / name).mkdir(parents=True)
        (out / "saved_model" / name / "mark").write_text(name)
    succeed([command(unbroken, out, "--do_predict")], tmp_path)
    names = [path.name for path in (out / "saved_model").iterdir()]
    assert names == ["1"]
    assert (out / "saved_model/1/mark").read_text() == "1.77.old"
