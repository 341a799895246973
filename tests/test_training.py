"""training.py, output_directory.py and distribution.py on a toy task."""

import errno
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_training as toy
from conftest import GOLDEN

import distribution
import heads
import modeling
import optimization
import output_directory
import training

# Before any test starts TensorFlow: two replicas need two devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


@pytest.fixture(scope="module")
def one_device():
    return distribution.make_strategy("one_device")


@pytest.fixture(scope="module")
def mirrored():
    return distribution.make_strategy("mirrored")


@pytest.fixture
def log():
    """The lines that absl logs during a test."""

    class Lines(logging.Handler):
        def __init__(self):
            super().__init__()
            self.lines = []

        def emit(self, record):
            self.lines.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger("absl")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(before)


def weights_of(trainer):
    """All variables of the model and the optimizer as numpy arrays."""
    variables = [*trainer.model.variables, *trainer.optimizer.variables]
    return [variable.value.numpy() for variable in variables]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def run(strategy, directory, batch_size=32, change=None, **options):
    """Trains the toy; gives the trainer and its result."""
    trainer = toy.make_trainer(
        strategy, directory, train_batch_size=batch_size, **options
    )
    dataset_fn = toy.dataset_fn_of(batch_size, change=change)
    return trainer, trainer.train(dataset_fn, options.pop("evaluate", None))


# ----------------------------------------------------- the same on any number


def test_mirrored_equals_one_device(one_device, mirrored, tmp_path):
    _, alone = run(one_device, tmp_path / "a")
    trainer, shared = run(mirrored, tmp_path / "b", steps_per_loop=7)
    assert trainer.replica_batch_size == 16
    np.testing.assert_allclose(shared.losses, alone.losses, atol=1e-5)
    assert len(alone.losses) == 20 and alone.global_step == 20


def start_process(options, **environment):
    """Starts a process that trains the toy."""
    script = pathlib.Path(toy.__file__)
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps(options)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_two_workers_equal_one_device(one_device, tmp_path):
    trainer, alone = run(one_device, tmp_path / "a", save_checkpoints_steps=9)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    options = {
        "strategy": "auto",
        "output_dir": str(tmp_path / "b"),
        "save_checkpoints_steps": 9,
    }
    processes = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": cluster, "task": task})
        processes.append(start_process(options, TF_CONFIG=config))
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output[-3000:]
    logits = toy.predict(
        trainer.model, [{"input_ids": toy.rows()["input_ids"][:7]}]
    )["logits"]
    for index in range(2):
        text = (tmp_path / "b" / f"losses-{index}.json").read_text()
        written = json.loads(text)
        np.testing.assert_allclose(written["losses"], alone.losses, atol=1e-5)
        np.testing.assert_allclose(written["logits"], logits, atol=1e-5)
        assert written["chief"] == (index == 0)
        assert written["workers"] == written["replicas"] == 2
    names = {path.name for path in (tmp_path / "b" / "resume").iterdir()}
    assert names == {"step-18", "step-20"}


def test_accumulation_equals_one_batch(one_device, tmp_path):
    whole, one = run(one_device, tmp_path / "a", init_lr=0.01)
    parts, four = run(
        one_device, tmp_path / "b", init_lr=0.01, accumulation_steps=4
    )
    np.testing.assert_allclose(four.losses, one.losses, atol=2e-6)
    for a, b in zip(weights_of(whole), weights_of(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert parts.optimizer.iterations.numpy() == 20


def test_accumulation_on_two_replicas(one_device, mirrored, tmp_path):
    _, one = run(one_device, tmp_path / "a")
    _, four = run(mirrored, tmp_path / "b", accumulation_steps=2)
    np.testing.assert_allclose(four.losses, one.losses, atol=1e-5)


def test_eager_stepping_gives_the_same(one_device, tmp_path):
    _, graph = run(one_device, tmp_path / "a", num_train_steps=4)
    _, eager = run(
        one_device, tmp_path / "b", num_train_steps=4, run_eagerly=True
    )
    np.testing.assert_allclose(eager.losses, graph.losses, atol=1e-6)


def test_steps_per_loop_changes_nothing(one_device, tmp_path):
    first, one = run(one_device, tmp_path / "a", steps_per_loop=1, rate=0.2)
    second, many = run(one_device, tmp_path / "b", steps_per_loop=9, rate=0.2)
    np.testing.assert_array_equal(one.losses, many.losses)
    assert_same(weights_of(first), weights_of(second))


def test_seed_decides_dropout(one_device, tmp_path):
    _, first = run(one_device, tmp_path / "a", num_train_steps=3, rate=0.4)
    _, again = run(one_device, tmp_path / "b", num_train_steps=3, rate=0.4)
    _, other = run(
        one_device, tmp_path / "c", num_train_steps=3, rate=0.4, seed=5
    )
    np.testing.assert_array_equal(first.losses, again.losses)
    assert not np.array_equal(first.losses, other.losses)


def test_dropout_seeds_are_pure_and_all_different():
    seeds = {
        tuple(distribution.dropout_seed(s, step, replica, micro).numpy())
        for s in (0, 1)
        for step in (0, 1, 2, 1000)
        for replica in (0, 1)
        for micro in (0, 1)
    }
    assert len(seeds) == 32
    first = distribution.dropout_seed(3, tf.constant(7, tf.int64), 1)
    second = distribution.dropout_seed(3, 7, 1)
    np.testing.assert_array_equal(first, second)


# ----------------------------------------------------------- the real model


def real_model(dropout=0.1):
    """The tiny BERT with a classifier of two labels, weights of a seed."""
    toy.keras.utils.set_random_seed(11)
    config = modeling.BertConfig.from_dict(
        json.loads((GOLDEN / "tiny" / "bert_config.json").read_text())
        | {
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
    )
    head = heads.ClassifierHead(config.hidden_size, 2)
    return heads.TaskModel(modeling.BertModel(config), head)


def texts(first_step, context):
    """Eight rows of unequal length for each step, shared by the replicas."""
    count = 8 // context.num_replicas_in_sync

    def batches():
        for step in range(first_step, 6):
            ids = np.random.default_rng(step).integers(5, 90, (8, 12))
            mask = np.arange(12) < 3 + np.arange(8)[:, None]
            for low in range(0, 8, count):
                part = slice(low, low + count)
                yield {
                    "input_ids": (ids * mask)[part].astype(np.int32),
                    "input_mask": mask[part].astype(np.int32),
                    "label_ids": (ids[part, 0] % 2).astype(np.int32),
                }

    spec = {
        "input_ids": tf.TensorSpec([None, None], tf.int32),
        "input_mask": tf.TensorSpec([None, None], tf.int32),
        "label_ids": tf.TensorSpec([None], tf.int32),
    }
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def train_real(strategy, directory, dropout=0.1, **options):
    with strategy.scope():
        model = real_model(dropout)
        optimizer = optimization.create_optimizer(1e-3, 6, 2)
    trainer = training.Trainer(
        model, optimizer, strategy, str(directory), 6, 8, **options
    )
    return trainer, trainer.train(texts)


def test_real_model_has_equal_bits_for_equal_seeds(one_device, tmp_path):
    first, one = train_real(one_device, tmp_path / "a", seed=4)
    second, two = train_real(one_device, tmp_path / "b", seed=4)
    np.testing.assert_array_equal(one.losses, two.losses)
    assert_same(weights_of(first), weights_of(second))
    prefix = tf.train.latest_checkpoint(tmp_path / "a")
    names = {name for name, _ in tf.train.list_variables(prefix)}
    assert "bert/encoder/layer_0/attention/self/query/kernel" in names
    assert "output_weights" in names and "global_step" in names


@pytest.mark.slow
def test_real_model_on_two_replicas_and_in_micro_batches(
    one_device, mirrored, tmp_path, monkeypatch
):
    monkeypatch.setattr(heads, "HEAD_DROPOUT", 0.0)
    _, one = train_real(one_device, tmp_path / "a", dropout=0.0)
    _, two = train_real(
        mirrored, tmp_path / "b", dropout=0.0, accumulation_steps=2
    )
    np.testing.assert_allclose(two.losses, one.losses, atol=1e-5)


def test_directory_of_the_original_is_resumed(one_device, tmp_path):
    """What its run_pretraining.py left after 3 steps, slots included."""
    for path in (GOLDEN / "tiny" / "trained").iterdir():
        shutil.copy(path, tmp_path)
    data = np.load(GOLDEN / "modeling" / "optim_resume_from_trained.npz")
    features = {
        key.removeprefix("in:"): data[key]
        for key in data.files
        if key.startswith("in:")
    }
    with one_device.scope():
        encoder = real_model(0.0).encoder
        table = encoder.get_embedding_table()
        model = heads.TaskModel(
            encoder, heads.PretrainingHead(encoder.config, table)
        )
        optimizer = optimization.create_optimizer(1e-3, 4, 0)
    trainer = training.Trainer(
        model, optimizer, one_device, str(tmp_path), 4, 8
    )

    def dataset_fn(first_step, context):
        assert first_step == 3
        return tf.data.Dataset.from_tensors(features)

    result = trainer.train(dataset_fn)
    assert result.losses == pytest.approx([data["losses"][0]], abs=1e-5)
    slots = np.load(GOLDEN / "tiny" / "trained" / "variables.npz")
    kept = optimizer.slot(table, "adam_v").numpy()
    old = slots["bert/embeddings/word_embeddings/adam_v"]
    assert (kept >= 0.99 * 0.999 * old).all() and old.max() > 0
    assert optimizer.iterations.numpy() == 4


# -------------------------------------------------------------------- resume


@pytest.fixture(scope="module")
def unbroken(one_device, tmp_path_factory):
    """The weights after 20 steps in one run, with dropout."""
    trainer, result = run(
        one_device,
        tmp_path_factory.mktemp("unbroken"),
        rate=0.3,
        save_checkpoints_steps=4,
    )
    return weights_of(trainer), result


def terminate_at(step, strategy, directory, **options):
    """Trains until SIGTERM comes while a step is read."""
    trainer = toy.make_trainer(
        strategy,
        directory,
        rate=0.3,
        save_checkpoints_steps=4,
        steps_per_loop=2,
        **options,
    )
    action = (step, lambda: os.kill(os.getpid(), signal.SIGTERM))
    dataset_fn = toy.dataset_fn_of(32, action=action)
    with pytest.raises(SystemExit) as stopped:
        trainer.train(dataset_fn)
    assert stopped.value.code == 143


def test_sigterm_saves_and_the_next_run_goes_on(one_device, tmp_path, unbroken):
    before = signal.getsignal(signal.SIGTERM)
    terminate_at(10, one_device, tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before
    states = [int(p.name[5:]) for p in (tmp_path / "resume").iterdir()]
    assert 5 < max(states) < 20
    trainer, result = run(
        one_device, tmp_path, rate=0.3, save_checkpoints_steps=4
    )
    assert result.first_step == max(states)
    assert_same(weights_of(trainer), unbroken[0])
    np.testing.assert_array_equal(
        result.losses, unbroken[1].losses[max(states) :]
    )


def test_resume_on_another_number_of_replicas(one_device, mirrored, tmp_path):
    _, alone = run(one_device, tmp_path / "a")
    path = tmp_path / "b"
    run(one_device, path, num_train_steps=10, planned_steps=20)
    _, rest = run(mirrored, path)
    assert rest.first_step == 10
    np.testing.assert_allclose(rest.losses, alone.losses[10:], atol=1e-5)


def kill_and_resume(directory, steps):
    """Kills the process at each of some steps, then lets it finish."""
    options = {
        "strategy": "one_device",
        "output_dir": str(directory),
        "rate": 0.3,
        "save_checkpoints_steps": 4,
        "steps_per_loop": 3,
    }
    for step in [*steps, None]:
        process = start_process({**options, "kill_at": step})
        output, _ = process.communicate(timeout=300)
        expected = 0 if step is None else -signal.SIGKILL
        assert process.returncode == expected, output[-3000:]


def assert_ends_as(directory, unbroken):
    """The resume state at step 20 has the bits of the unbroken run."""
    trainer = toy.make_trainer(
        distribution.make_strategy("one_device"), directory, rate=0.3
    )
    result = trainer.train(toy.dataset_fn_of(32))
    assert result.first_step == result.global_step == 20
    assert_same(weights_of(trainer), unbroken[0])


@pytest.mark.slow
def test_killed_twice_ends_with_the_same_bits(tmp_path, unbroken):
    kill_and_resume(tmp_path, [3, 13])
    assert_ends_as(tmp_path, unbroken)


@pytest.mark.soak
def test_killed_ten_times_ends_with_the_same_bits(tmp_path, unbroken):
    steps = sorted(random.Random().choices(range(1, 20), k=10))
    print("killed at", steps)
    kill_and_resume(tmp_path, steps)
    assert_ends_as(tmp_path, unbroken)


def test_nothing_left_to_train(one_device, tmp_path, log, caplog):
    caplog.set_level("WARNING")
    run(one_device, tmp_path, num_train_steps=5)
    files = sorted(tmp_path.rglob("*"))
    trainer, result = run(one_device, tmp_path, num_train_steps=5)
    assert result.first_step == result.global_step == 5
    assert len(result.losses) == 0
    assert any("already at step 5 of 5" in line for line in log)
    assert not caplog.records
    run(one_device, tmp_path, num_train_steps=3)
    (warning,) = caplog.records
    assert "already at step 5 of 3: nothing" in warning.message
    assert sorted(tmp_path.rglob("*")) == files


def test_directory_with_slots_but_no_resume_state(one_device, tmp_path):
    """As the original leaves it: model.ckpt-N with slots and a step."""
    whole, _ = run(one_device, tmp_path / "a")
    path = tmp_path / "b"
    run(
        one_device,
        path,
        num_train_steps=8,
        planned_steps=20,
        save_optimizer_slots=True,
    )
    for state in (path / "resume").glob("step-*"):
        for file in state.iterdir():
            file.unlink()
    trainer, rest = run(one_device, path)
    assert rest.first_step == 8
    assert_same(weights_of(trainer), weights_of(whole))


def test_a_kill_between_the_two_files_of_a_step(
    one_device, tmp_path, log, monkeypatch
):
    """The first step that is saved, of which only the state was written."""
    whole, _ = run(one_device, tmp_path / "a", save_checkpoints_steps=4)
    path = tmp_path / "b"
    save = output_directory.RunDirectory.save_hand_over

    def killed(self, step, optimizer=None):
        if step:
            raise KeyboardInterrupt
        save(self, step, optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(output_directory.RunDirectory, "save_hand_over", killed)
        with pytest.raises(KeyboardInterrupt):
            run(one_device, path, save_checkpoints_steps=4)
    assert not (path / "model.ckpt-4.index").exists()
    trainer, rest = run(one_device, path, save_checkpoints_steps=4)
    assert rest.first_step == 4
    assert_same(weights_of(trainer), weights_of(whole))
    assert (path / "model.ckpt-4.index").exists()


def test_weights_without_moments_are_said(one_device, tmp_path, log):
    run(one_device, tmp_path, num_train_steps=8, planned_steps=20)
    shutil.rmtree(tmp_path / "resume")
    _, rest = run(one_device, tmp_path)
    assert rest.first_step == 8
    assert "the optimizer's moments begin anew" in "".join(log)


def test_half_written_states_are_ignored(one_device, tmp_path):
    run(one_device, tmp_path, num_train_steps=6, planned_steps=12)
    (tmp_path / "resume" / "step-9").mkdir()
    (tmp_path / "resume" / ".new").mkdir()
    (tmp_path / "resume" / ".new" / "variables.index").write_text("half")
    _, result = run(one_device, tmp_path, num_train_steps=12)
    assert result.first_step == 6
    left = {p.name for p in (tmp_path / "resume").iterdir()}
    assert left == {"step-6", "step-9", "step-12"}


def cut(path):
    path.write_bytes(path.read_bytes()[:20])


DAMAGES = {
    "data cut": lambda d: cut(d / "variables.data-00000-of-00001"),
    "data gone": lambda d: (d / "variables.data-00000-of-00001").unlink(),
    "index cut": lambda d: cut(d / "variables.index"),
    "index gone": lambda d: (d / "variables.index").unlink(),
    "state cut": lambda d: cut(d / "state.json"),
    "state empty": lambda d: (d / "state.json").write_text("{}"),
    "state a list": lambda d: (d / "state.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_passed_over(one_device, tmp_path, log, damage):
    whole, _ = run(one_device, tmp_path / "a", save_checkpoints_steps=4)
    path = tmp_path / "b"
    run(
        one_device,
        path,
        num_train_steps=8,
        planned_steps=20,
        save_checkpoints_steps=4,
    )
    DAMAGES[damage](path / "resume" / "step-8")
    trainer, result = run(one_device, path, save_checkpoints_steps=4)
    assert result.first_step == 4
    assert_same(weights_of(trainer), weights_of(whole))
    assert any("step-8 is damaged" in line for line in log)


def test_all_states_are_damaged(one_device, tmp_path, log):
    run(one_device, tmp_path, num_train_steps=4, planned_steps=8)
    cut(tmp_path / "resume" / "step-4" / "state.json")
    trainer = toy.make_trainer(one_device, tmp_path, num_train_steps=8)
    with pytest.raises(ValueError, match="step-4 is damaged .*Restore it"):
        trainer.directory.restore(skip_damaged=False)
    _, result = run(one_device, tmp_path, num_train_steps=8)
    assert result.first_step == 4
    assert any("its weights only" in line for line in log)
    left = {p.name for p in (tmp_path / "resume").iterdir()}
    assert left == {"step-8"}
    cut(tmp_path / "resume" / "step-8" / "state.json")
    for path in tmp_path.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no state that can be read"):
        run(one_device, tmp_path, num_train_steps=8)


def test_a_checkpoint_that_was_lost_is_written_again(one_device, tmp_path):
    run(one_device, tmp_path)
    data = tmp_path / "model.ckpt-20.data-00000-of-00001"
    before = data.read_bytes()
    data.unlink()
    run(one_device, tmp_path)
    assert data.read_bytes() == before


def test_state_of_another_model_is_refused(one_device, tmp_path):
    run(one_device, tmp_path, num_train_steps=2)
    trainer = toy.make_trainer(one_device, tmp_path, num_train_steps=4)
    trainer.model.extra = tf.keras.layers.Dense(2)
    trainer.model.extra.build((None, 2))
    with pytest.raises(ValueError, match="cannot be resumed with this model"):
        trainer.train(toy.dataset_fn_of(32))


def test_another_seed_is_told(one_device, tmp_path, log):
    run(one_device, tmp_path, num_train_steps=2, planned_steps=4)
    run(one_device, tmp_path, num_train_steps=4, seed=7)
    assert any("began with seed 0 and goes on with seed 7" in x for x in log)


# --------------------------------------------------------------- checkpoints


def test_five_checkpoints_and_two_states_are_kept(one_device, tmp_path):
    run(one_device, tmp_path, save_checkpoints_steps=3)
    steps = [9, 12, 15, 18, 20]
    assert (
        sorted(
            int(p.stem.split("-")[1])
            for p in tmp_path.glob("model.ckpt-*.index")
        )
        == steps
    )
    assert tf.train.latest_checkpoint(tmp_path).endswith("model.ckpt-20")
    state = tf.train.get_checkpoint_state(tmp_path)
    listed = [p.rsplit("-", 1)[1] for p in state.all_model_checkpoint_paths]
    assert listed == [str(step) for step in steps]
    names = {path.name for path in (tmp_path / "resume").iterdir()}
    assert names == {"step-18", "step-20"}
    assert not list(tmp_path.rglob("*.new"))


def test_slots_are_written_only_where_asked_and_used(one_device, tmp_path):
    for slots in (False, True):
        path = tmp_path / str(slots)
        run(one_device, path, num_train_steps=2, save_optimizer_slots=slots)
        prefix = tf.train.latest_checkpoint(path)
        names = [name for name, _ in tf.train.list_variables(prefix)]
        count = sum(name.endswith("/adam_v") for name in names)
        assert count == (7 if slots else 0)  # the pooler got no gradient


def test_a_full_disk_leaves_the_last_state(one_device, tmp_path, monkeypatch):
    def full(self, prefix):
        pathlib.Path(prefix + ".index").write_text("half")
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    run(one_device, tmp_path, num_train_steps=4, planned_steps=8)
    monkeypatch.setattr(tf.train.Checkpoint, "write", full)
    with pytest.raises(OSError, match="no space is left on the disk of .*; fr"):
        run(one_device, tmp_path, num_train_steps=8)
    monkeypatch.undo()
    with monkeypatch.context() as context:
        write = pathlib.Path.write_text

        def quota(self, *arguments, **options):
            if self.name == "state.json":
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            return write(self, *arguments, **options)

        context.setattr(pathlib.Path, "write_text", quota)
        with pytest.raises(OSError, match="no space is left on the disk of"):
            run(one_device, tmp_path, num_train_steps=8)
    _, result = run(one_device, tmp_path, num_train_steps=8)
    assert result.first_step == 4 and result.global_step == 8


# ---------------------------------------------------------------- divergence


def test_nan_stops_the_run_and_names_the_step(one_device, tmp_path):
    order = np.random.default_rng([0, 3]).permutation(toy.ROWS)
    bad_row = order[40]  # second batch of the fourth epoch

    def change(data):
        data["weight"][bad_row] = 0
        data["value"][bad_row] = 0

    def poison(data):
        data["weight"][bad_row] = 1
        data["value"][bad_row] = np.nan

    step = next(
        s
        for s in range(20)
        if bad_row
        in np.random.default_rng([0, s // 3]).permutation(toy.ROWS)[
            s % 3 * 32 : (s % 3 + 1) * 32
        ]
    )
    with pytest.raises(training.TrainingDiverged) as error:
        run(one_device, tmp_path, change=poison, save_checkpoints_steps=1)
    assert f"The loss is nan at step {step + 1} of 20" in str(error.value)
    assert f"is model.ckpt-{step}." in str(error.value)
    last = tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path))
    assert last.get_tensor("global_step") == step
    for name in last.get_variable_to_shape_map():
        assert np.isfinite(last.get_tensor(name)).all()
    _, result = run(one_device, tmp_path, change=change)
    assert result.first_step == step and result.global_step == 20


def test_infinite_gradient_is_caught_before_the_weights(one_device, tmp_path):
    def change(data):
        data["value"][:] = 1e25  # its square is past float32
        data["weight"][:] = 1

    with pytest.raises(training.TrainingDiverged, match="inf at step 1 of"):
        run(one_device, tmp_path, change=change)


# ---------------------------------------------------------------- evaluation


def evaluating(values, name="eval_accuracy"):
    """An evaluate() that gives prepared values one after the other."""
    given = iter(values)
    return lambda: {name: next(given), "other": 1}


def train_with(strategy, directory, evaluate, **options):
    trainer = toy.make_trainer(strategy, directory, **options)
    return trainer, trainer.train(toy.dataset_fn_of(32), evaluate)


def test_best_checkpoint_is_kept_and_loaded(one_device, tmp_path):
    seen = []
    values = iter([0.5, 0.8, 0.7, 0.6, 0.1])
    trainer = toy.make_trainer(
        one_device, tmp_path, eval_steps=4, best_metric="eval_accuracy"
    )

    def evaluate():
        seen.append(trainer.model.classes.bias.numpy())
        return {"eval_accuracy": next(values)}

    result = trainer.train(toy.dataset_fn_of(32), evaluate)
    steps = [entry["global_step"] for entry in result.evaluations]
    assert steps == [4, 8, 12, 16, 20]
    assert result.best_checkpoint.endswith("best/model.ckpt-8")
    assert result.best_value == 0.8
    metrics = json.loads((tmp_path / "best" / "metrics.json").read_text())
    assert metrics == {"global_step": 8, "eval_accuracy": 0.8}
    assert len(list((tmp_path / "best").glob("*.index"))) == 1
    trainer.load_checkpoint(result.best_checkpoint, trainer.model, None)
    np.testing.assert_array_equal(trainer.model.classes.bias.numpy(), seen[1])


def test_patience_counts_evaluations(one_device, tmp_path, log):
    options = {
        "eval_steps": 2,
        "best_metric": "eval_loss",
        "early_stopping_patience": 3,
    }
    values = [0.9, 0.5, 0.6, 0.5, 0.7, 0.1, 0.1]
    _, result = train_with(
        one_device, tmp_path, evaluating(values, "eval_loss"), **options
    )
    assert result.stopped_early and result.global_step == 10
    assert result.best_checkpoint.endswith("model.ckpt-4")
    assert tf.train.latest_checkpoint(tmp_path).endswith("model.ckpt-10")
    _, again = train_with(
        one_device, tmp_path, evaluating([], "eval_loss"), **options
    )
    assert again.first_step == again.global_step == 10
    assert again.best_checkpoint == result.best_checkpoint
    assert any("stopped early: nothing to train" in line for line in log)


def test_of_equal_scores_that_with_the_lower_loss_is_best(one_device, tmp_path):
    """While F1 is still 0, a falling loss is a gain."""
    given = iter([(0, 0.9), (0, 0.7), (0, 0.8), (0, 0.6), (0, 0.6), (0.1, 0.9)])

    def evaluate():
        value, loss = next(given)
        return {"eval_f1": value, "eval_loss": loss}

    options = {
        "eval_steps": 2,
        "best_metric": "eval_f1",
        "early_stopping_patience": 2,
        "planned_steps": 20,
    }
    train_with(one_device, tmp_path, evaluate, num_train_steps=6, **options)
    best = tmp_path / "best" / "metrics.json"
    assert json.loads(best.read_text())["global_step"] == 4
    _, result = train_with(
        one_device, tmp_path, evaluate, num_train_steps=12, **options
    )
    assert result.global_step == 12 and not result.stopped_early
    assert result.best_value == 0.1


def test_a_best_of_later_steps_is_not_recalled(one_device, tmp_path):
    """They are gone with the kill, and will come again."""
    options = {
        "eval_steps": 2,
        "best_metric": "eval_accuracy",
        "early_stopping_patience": 2,
        "planned_steps": 20,
    }
    given = evaluating([0.1, 0.2, 0.9])
    options["save_checkpoints_steps"] = 2
    train_with(one_device, tmp_path, given, num_train_steps=6, **options)
    shutil.rmtree(tmp_path / "resume")
    for path in tmp_path.glob("model.ckpt-[46].*"):
        path.unlink()
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "model.ckpt-2"\n'
    )
    progress = toy.make_trainer(one_device, tmp_path, **options)._restore()
    assert (progress.best_value, progress.best_step) == (None, None)


def test_the_loss_of_the_best_is_part_of_the_state(one_device, tmp_path):
    given = iter([(0, 0.5), (0, 0.4), (0, 0.45)])

    def evaluate():
        value, loss = next(given)
        return {"eval_f1": value, "eval_loss": loss}

    options = {"eval_steps": 2, "best_metric": "eval_f1", "planned_steps": 20}
    train_with(one_device, tmp_path, evaluate, num_train_steps=4, **options)
    metrics = tmp_path / "best" / "metrics.json"
    metrics.write_text(metrics.read_text().replace("0.4", "0.1"))
    state = next((tmp_path / "resume").glob("step-4/state.json"))
    assert json.loads(state.read_text())["best_loss"] == 0.4
    old = json.loads(state.read_text())
    del old["best_loss"]
    state.write_text(json.dumps(old))  # as it was written before
    train_with(one_device, tmp_path, evaluate, num_train_steps=6, **options)


def test_patience_survives_an_interruption(one_device, tmp_path):
    options = {
        "eval_steps": 2,
        "best_metric": "eval_accuracy",
        "early_stopping_patience": 3,
        "planned_steps": 20,
    }
    train_with(
        one_device,
        tmp_path,
        evaluating([0.5, 0.4, 0.4]),
        num_train_steps=6,
        **options,
    )
    _, result = train_with(one_device, tmp_path, evaluating([0.3]), **options)
    assert result.stopped_early and result.global_step == 8
    assert result.best_value == 0.5


def test_evaluation_each_epoch_by_default(one_device, tmp_path):
    _, result = train_with(
        one_device,
        tmp_path,
        evaluating([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        steps_per_epoch=3,
        best_metric="eval_accuracy",
        early_stopping_patience=2,
    )
    steps = [entry["global_step"] for entry in result.evaluations]
    assert steps == [3, 6, 9, 12, 15, 18, 20]


def test_nan_is_never_the_best(one_device, tmp_path):
    _, result = train_with(
        one_device,
        tmp_path,
        evaluating([float("nan"), 0.2, float("nan")]),
        eval_steps=4,
        num_train_steps=12,
        best_metric="eval_accuracy",
    )
    assert result.best_checkpoint.endswith("model.ckpt-8")


def test_patience_that_cannot_fire_is_told(one_device, tmp_path, log):
    train_with(
        one_device,
        tmp_path,
        evaluating([0.1] * 4),
        num_train_steps=4,
        eval_steps=1,
        best_metric="eval_accuracy",
        early_stopping_patience=4,
    )
    assert any("cannot stop a run of 4 evaluations" in line for line in log)


def test_unknown_metric_is_an_error(one_device, tmp_path):
    with pytest.raises(
        ValueError, match="'f1' is not among .*: eval_accuracy, other"
    ):
        train_with(
            one_device,
            tmp_path,
            evaluating([0.1]),
            eval_steps=1,
            best_metric="f1",
        )


# ------------------------------------------------------------------ the log


def test_log_line_has_the_rate_of_its_step(one_device, tmp_path, log):
    """Step 5 of a warm-up over 10 to 1e-4 is 5e-5, not 2.5e-5."""
    trainer = toy.make_trainer(
        one_device, tmp_path, planned_steps=100, log_steps=5
    )
    trainer.optimizer.learning_rate = optimization.WarmupSchedule(1e-4, 100, 10)
    trainer.train(toy.dataset_fn_of(32))
    line = next(text for text in log if text.startswith("step 5 of 20"))
    assert "learning rate 5e-05" in line
    assert "(class " in line and " score " in line
    later = next(text for text in log if text.startswith("step 10 of 20"))
    assert "examples/s" in later and " left" in later


def test_steps_without_a_rate_are_told(one_device, tmp_path, log):
    run(one_device, tmp_path, num_train_steps=6, planned_steps=4)
    told = [line for line in log if "nothing will be learned" in line]
    assert len(told) == 1 and "planned for 4 steps" in told[0]


def test_tensorboard_scalars(one_device, tmp_path):
    from tensorboard.backend.event_processing import event_accumulator

    train_with(
        one_device,
        tmp_path,
        evaluating([0.25, 0.5]),
        tensorboard=True,
        log_steps=4,
        eval_steps=10,
    )
    found = {}
    for part in ("", "eval"):
        events = event_accumulator.EventAccumulator(str(tmp_path / part))
        events.Reload()
        for tag in events.Tags()["tensors"]:
            found[part + tag] = [
                (event.step, float(tf.make_ndarray(event.tensor_proto)))
                for event in events.Tensors(tag)
            ]
    assert [step for step, _ in found["loss"]] == [4, 8, 12, 16, 20]
    assert found["evaleval_accuracy"] == [(10, 0.25), (20, 0.5)]
    assert {"learning_rate", "gradient_norm", "examples_per_second"} <= set(
        found
    )
    assert found["learning_rate"][-1][1] == 0


def test_no_events_and_no_bar_unless_asked(one_device, tmp_path, capfd):
    run(one_device, tmp_path, num_train_steps=3)
    assert not list(tmp_path.glob("events*"))
    assert "step/s" not in capfd.readouterr().err


# ----------------------------------------------------------------- bad input


def test_batch_that_replicas_cannot_share(mirrored, tmp_path):
    with pytest.raises(
        ValueError, match="train_batch_size=33 cannot be shared .* 2 replicas"
    ):
        toy.make_trainer(mirrored, tmp_path, train_batch_size=33)


def test_batch_that_accumulation_cannot_share(mirrored, tmp_path):
    with pytest.raises(
        ValueError, match="--gradient_accumulation_steps=3 does not .* of 16"
    ):
        toy.make_trainer(mirrored, tmp_path, accumulation_steps=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train_steps": 0, "planned_steps": 1}, "num_train_steps=0 must"),
        ({"save_checkpoints_steps": 0}, "save_checkpoints_steps=0 must be"),
        ({"train_batch_size": 0}, "train_batch_size=0 must be at least 1"),
        ({"early_stopping_patience": 2}, "needs best_metric"),
        (
            {"original_embedding_clip": True, "accumulation_steps": 2},
            "with 1 replicas and --gradient_accumulation_steps=2",
        ),
    ],
)
def test_bad_options_say_why(one_device, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        toy.make_trainer(one_device, tmp_path, **options)


def test_quirk_is_refused_on_two_replicas(mirrored, tmp_path):
    with pytest.raises(ValueError, match="with 2 replicas and"):
        toy.make_trainer(mirrored, tmp_path, original_embedding_clip=True)


def test_patience_needs_an_evaluation(one_device, tmp_path):
    trainer = toy.make_trainer(
        one_device, tmp_path, best_metric="x", early_stopping_patience=1
    )
    with pytest.raises(ValueError, match="give an evaluation set"):
        trainer.train(toy.dataset_fn_of(32))


def test_strategies_by_name(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert distribution.make_strategy("auto").num_replicas_in_sync == 1
    assert distribution.make_strategy("mirrored").num_replicas_in_sync == 2
    assert distribution.is_chief(distribution.make_strategy("auto"))
    with pytest.raises(ValueError, match="'many' is not one of: auto, one_d"):
        distribution.make_strategy("many")
    with pytest.raises(ValueError, match="needs the environment variable"):
        distribution.make_strategy("multi_worker_mirrored")
    monkeypatch.setenv("TF_CONFIG", "{oops")
    with pytest.raises(ValueError, match="TF_CONFIG is no JSON"):
        distribution.make_strategy("auto")


def test_no_tpu_is_one_sentence(monkeypatch):
    def resolver(tpu):
        raise OSError("name not known\nmore")

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", resolver
    )
    with pytest.raises(ValueError) as error:
        distribution.make_strategy("auto", use_tpu=True, tpu_name="v3")
    assert str(error.value) == (
        "No TPU called 'v3' answers (name not known). Check --tpu_name, or "
        "leave out --use_tpu."
    )


def test_precision_names():
    assert distribution.dtype_policy("bfloat16") == "mixed_bfloat16"
    with pytest.raises(ValueError, match="'fp8' is not one of: float32, b"):
        distribution.dtype_policy("fp8")


# ---------------------------------------------------------------- prediction


@pytest.mark.parametrize("size", [1, 5, 32])
def test_predictions_keep_the_order_of_rows(one_device, mirrored, size):
    ids = toy.rows()["input_ids"][:33]
    batches = [
        {"input_ids": ids[start : start + size]}
        for start in range(0, len(ids), size)
    ]
    for strategy in (one_device, mirrored):
        with strategy.scope():
            toy.keras.utils.set_random_seed(2)
            model = toy.ToyTask()
        expected = model({"input_ids": ids})["logits"].numpy()
        for eagerly in (False, True):
            got = toy.predict(model, batches, strategy, eagerly)
            assert got["logits"].shape == (33, 3)
            np.testing.assert_allclose(got["logits"], expected, atol=1e-6)


def test_batches_of_unequal_length_keep_it(one_device):
    model = toy.ToyTask(rate=0.5)
    ids = toy.rows()["input_ids"] + 1
    batches = [{"input_ids": ids[:3, :4] % 20}, {"input_ids": ids[3:5] % 20}]
    predictor = distribution.Predictor(model, one_device)
    first, second = predictor.batches(iter(batches))
    assert first["tokens"].shape == (3, 4, 8)
    assert second["tokens"].shape == (2, 6, 8)
    dataset = tf.data.Dataset.from_tensors(batches[1])
    (again,) = predictor.batches(dataset)
    np.testing.assert_array_equal(again["tokens"], second["tokens"])


def narrow_classifier():
    """A tiny BERT in bfloat16 with a classifier, and a batch for it."""
    config = modeling.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    keras.utils.set_random_seed(3)
    encoder = modeling.BertModel(config, dtype="mixed_bfloat16")
    ids = np.arange(1, 25, dtype=np.int32).reshape(4, 6)
    batch = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
    }
    return heads.TaskModel(encoder, heads.ClassifierHead(16, 3)), batch


def test_frozen_kernels_give_the_same_answers_and_stay():
    model, batch = narrow_classifier()
    plain = next(distribution.Predictor(model).batches([batch]))
    predictor = distribution.Predictor(model)
    predictor.freeze()
    assert predictor._constants
    frozen = next(predictor.batches([batch]))
    np.testing.assert_allclose(frozen["logits"], plain["logits"], atol=2**-8)
    for variable, _ in predictor._constants:
        variable.assign(variable * 0)
    again = next(predictor.batches([batch]))
    np.testing.assert_array_equal(again["logits"], frozen["logits"])


def test_large_models_are_not_frozen(monkeypatch):
    model, batch = narrow_classifier()
    monkeypatch.setattr(distribution, "MOST_CONSTANTS", 100)
    predictor = distribution.Predictor(model)
    predictor.freeze()
    assert not predictor._constants
    plain = next(distribution.Predictor(model).batches([batch]))
    np.testing.assert_array_equal(
        next(predictor.batches([batch]))["logits"], plain["logits"]
    )
