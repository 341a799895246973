"""What a training run leaves behind: checkpoints, log lines, event files.

`RunDirectory` writes and reads the checkpoints of an output directory, `Meter`
measures and reports; the loop that uses both is `training.Trainer`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import time

import numpy as np
import tensorflow as tf
from absl import logging

import checkpoints
import common_flags

KEEP_CHECKPOINTS = 5  # as the original's Estimator
KEEP_RESUME_STATES = 2
# Of the errors that reading a file which is cut, lost or overwritten raises.
DAMAGE_CODES = (
    tf.errors.DATA_LOSS,
    tf.errors.NOT_FOUND,
    tf.errors.OUT_OF_RANGE,
    tf.errors.UNKNOWN,
)
# Columns of what a step reports; the losses by name follow.
LOSS, NORM, RATE, STOP, NAMED = range(5)


@dataclasses.dataclass
class Progress:
    """What a resumed run must know beside its variables."""

    global_step: int = 0
    seed: int | None = 0  # None: a checkpoint that does not say
    best_value: float | None = None
    best_step: int | None = None
    best_loss: float | None = None  # the dev loss at that step
    evaluations_without_gain: int = 0
    finished: bool = False  # stopped early; nothing is left to do


# ---------------------------------------------------------------- directory


class _Damaged(Exception):
    """A state to resume from that cannot be read."""


class RunDirectory:
    """The checkpoints of a run: for others, to resume, and the best.

    OUTPUT_DIR/model.ckpt-N  hand-over, with the original's variable names;
        the newest 5 are kept and the text file `checkpoint` lists them
    OUTPUT_DIR/best/model.ckpt-N  the best one by the named metric
    OUTPUT_DIR/resume/step-N/  all variables, slots and `state.json`

    Every file or directory appears whole, under a temporary name first.
    Workers on several machines must see one and the same directory."""

    def __init__(self, path, model, optimizer, save, load, writes=True):
        self.path = pathlib.Path(path)
        self._model = model
        self._optimizer = optimizer
        self._save, self._load = save, load
        self._writes = writes
        self._resume = self.path / "resume"
        self._damaged = []  # states that were passed over
        self.is_resumed = False  # from a state in resume/
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    def restore(self, skip_damaged=True):
        """Loads the newest state into the variables; returns its Progress.

        First choice is `resume/`, then a hand-over checkpoint (this
        program's or the original's, with slots if it has them), else the
        variables stay as they are and the Progress is None. A state that
        cannot be read is passed over with a warning, if there is another.

        Raises ValueError where the state belongs to another model, or is
        damaged and there is no other, or `skip_damaged` is False: several
        workers must not go on from different states."""
        for _, directory in sorted(self._states(), reverse=True):
            try:
                return self._resume_from(directory)
            except _Damaged as error:
                if not skip_damaged:
                    raise ValueError(
                        f"{directory} is damaged ({error}). Restore it, or "
                        "remove it to go on with what was saved before."
                    ) from error
                logging.warning(
                    "%s is damaged (%s): passing it over.", directory, error
                )
                self._damaged.append(directory)
        prefix = checkpoints.newest_checkpoint(self.path)
        if prefix is None and self._damaged:
            raise ValueError(
                f"{self._resume} holds no state that can be read, and there "
                f"is no checkpoint in {self.path}. Choose another directory "
                "to begin anew."
            )
        if prefix is None:
            return None
        step = int(self._load(prefix, self._model, self._optimizer))
        if step and not checkpoints.has_slots(prefix):
            logging.warning(
                "Going on with %s: its weights only, the optimizer's moments "
                "begin anew.",
                prefix,
            )
        return Progress(global_step=step, seed=None)

    def _resume_from(self, directory):
        """Loads a state of `resume/`; raises _Damaged where it is broken."""
        names = {field.name for field in dataclasses.fields(Progress)}
        try:
            state = json.loads((directory / "state.json").read_text())
        except ValueError as error:
            raise _Damaged(f"state.json: {error}") from error
        if not isinstance(state, dict) or (
            state.keys() | {"best_loss"} != names
        ):
            raise _Damaged("state.json lacks what it should hold")
        prefix = str(directory / "variables")
        try:
            status = self._checkpoint.read(prefix)
            status.assert_existing_objects_matched()
        except (tf.errors.OpError, IndexError) as error:
            code = getattr(error, "error_code", tf.errors.DATA_LOSS)
            if code not in DAMAGE_CODES:
                raise
            raise _Damaged(str(error).split("\n")[0]) from error
        except (ValueError, AssertionError) as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"{prefix} cannot be resumed with this model and optimizer: "
                f"{reason} Give another --output_dir, or the flags of the "
                "run that wrote it."
            ) from error
        self.is_resumed = True
        return Progress(**state)

    def _states(self):
        """(step, directory) of every resume state on the disk."""
        for path in self._resume.glob("step-*"):
            number = path.name.removeprefix("step-")
            if number.isdigit() and (path / "state.json").exists():
                yield int(number), path

    def save_resume(self, progress):
        """Writes the state of a step whole; keeps the newest two."""
        if not self._writes:
            return
        with checkpoints.naming_a_full_disk(self.path):
            self._write_resume(progress)

    def _write_resume(self, progress):
        final = self._resume / f"step-{progress.global_step}"
        new, old = self._resume / ".new", self._resume / ".old"
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir(parents=True)
        try:
            with _quiet():
                self._checkpoint.write(str(new / "variables"))
        except tf.errors.OpError as error:
            if checkpoints.is_full_disk(error):
                raise
            reason = str(error).split("\n")[0]
            raise OSError(f"{new} cannot be written: {reason}") from error
        state = json.dumps(dataclasses.asdict(progress), indent=1)
        (new / "state.json").write_text(state + "\n")
        if final.exists():
            os.replace(final, old)
        os.replace(new, final)
        shutil.rmtree(old, ignore_errors=True)
        while self._damaged:
            shutil.rmtree(self._damaged.pop(), ignore_errors=True)
        for _, path in sorted(self._states())[:-KEEP_RESUME_STATES]:
            shutil.rmtree(path, ignore_errors=True)

    def save_hand_over(self, step, optimizer=None):
        """Writes model.ckpt-STEP and `checkpoint`; keeps the newest five."""
        if not self._writes:
            return
        prefix = str(self.path / f"model.ckpt-{step}")
        with checkpoints.naming_a_full_disk(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._save(prefix, self._model, optimizer, step)
            # Higher ones are another run's: neither listed nor removed.
            steps = [
                n for n in checkpoints.checkpoint_steps(self.path) if n <= step
            ]
            _write_checkpoint_list(self.path, steps[-KEEP_CHECKPOINTS:])
        for old in steps[:-KEEP_CHECKPOINTS]:
            _remove_checkpoint(self.path, old)

    def has_hand_over(self, step):
        """Whether model.ckpt-STEP is there, the index and some data."""
        prefix = self.path / f"model.ckpt-{step}"
        data = self.path.glob(f"{prefix.name}.data-*")
        return os.path.exists(f"{prefix}.index") and any(data)

    def save_best(self, step, metrics):
        """Writes best/model.ckpt-STEP with its metrics, drops the last."""
        if not self._writes:
            return
        best = self.path / "best"
        prefix = str(best / f"model.ckpt-{step}")
        with checkpoints.naming_a_full_disk(self.path):
            best.mkdir(parents=True, exist_ok=True)
            self._save(prefix, self._model, None, step)
            _write_whole(best / "metrics.json", json.dumps(metrics, indent=1))
            _write_checkpoint_list(best, [step])
        for other in checkpoints.checkpoint_steps(best):
            if other != step:
                _remove_checkpoint(best, other)

    def best_checkpoint(self):
        """The prefix of the best checkpoint, None without one."""
        return checkpoints.best_checkpoint(self.path)

    def best_metrics(self):
        """The metrics of the best checkpoint by name, {} without one.

        Raises ValueError where the file is damaged."""
        path = self.path / "best" / "metrics.json"
        metrics = common_flags.read_json(path) if path.exists() else {}
        if not isinstance(metrics, dict):
            raise ValueError(
                f"{path}: is no JSON object. Remove {path.parent}."
            )
        return metrics


@contextlib.contextmanager
def _quiet():
    """Leaves out TensorFlow's line about each checkpoint it writes."""
    logger = logging.get_absl_logger()
    before = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(before)


def _remove_checkpoint(directory, step):
    for path in directory.glob(f"model.ckpt-{step}.*"):
        path.unlink()


def _write_checkpoint_list(directory, steps):
    """Writes the text file that tf.train.latest_checkpoint reads."""
    lines = [f'model_checkpoint_path: "model.ckpt-{steps[-1]}"']
    lines += [
        f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in steps
    ]
    _write_whole(directory / "checkpoint", "\n".join(lines))


def _write_whole(path, text):
    """Writes a text file that appears whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


# ---------------------------------------------------------------------- meter


class Meter:
    """Speed, log lines and TensorBoard scalars of a training run."""

    LATE_SECONDS = 60.0

    def __init__(
        self, directory, batch_size, num_train_steps, first, tokens=None
    ):
        self._directory = directory  # None: no TensorBoard
        self._batch_size = batch_size
        self._tokens = tokens  # of a mean example, where known
        self._total = num_train_steps
        self._rows = []
        self._clock = self._mark = time.monotonic()
        self._seconds = 0.0  # of calls after the first, which traces
        self._steps = 0
        self._calls = 0
        self._writers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for writer in self._writers.values():
            writer.close()

    @property
    def overall(self):
        """Examples per second of all but the first call."""
        return self._batch_size * self._steps / max(self._seconds, 1e-9)

    @property
    def is_late(self):
        """Whether the last line in the log is old."""
        return time.monotonic() - self._mark > self.LATE_SECONDS

    def steps_in(self, seconds):
        """How many steps fit into some seconds; 1 while nobody knows."""
        if not self._steps:
            return 1
        return max(1, int(seconds * self._steps / max(self._seconds, 1e-9)))

    def add(self, figures):
        """Counts the steps of a call that has just ended."""
        now = time.monotonic()
        if self._calls:
            self._seconds += now - self._clock
            self._steps += len(figures)
        self._calls += 1
        self._clock = now
        self._rows.append(figures)

    @contextlib.contextmanager
    def paused(self):
        """Leaves the time inside out of the speed."""
        before = time.monotonic()
        yield
        self._clock += time.monotonic() - before

    def report(self, step, names, next_rate):
        """Logs the means since the last line."""
        rows = np.concatenate(self._rows)
        self._rows = []
        self._mark = time.monotonic()
        means = rows.mean(axis=0, dtype=np.float64)
        scalars = {"loss": means[LOSS], "learning_rate": next_rate}
        text = f"step {step} of {self._total}: loss {means[LOSS]:.5f}"
        if len(names) > 1:
            named = dict(zip(names, means[NAMED:], strict=True))
            scalars.update(named)
            parts = [f"{name} {value:.5f}" for name, value in named.items()]
            text += f" ({', '.join(parts)})"
        text += f", learning rate {next_rate:.4g}"
        if self._steps:
            left = self._seconds / self._steps * (self._total - step)
            text += f", {self.overall:.1f} examples/s"
            if self._tokens:
                text += f", {self.overall * self._tokens:.0f} tokens/s"
            text += f", {_duration(left)} left"
            scalars["examples_per_second"] = self.overall
        scalars["gradient_norm"] = means[NORM]
        logging.info("%s", text)
        self._write("", step, scalars)

    def report_evaluation(self, step, metrics):
        """Logs an evaluation's metrics."""
        text = ", ".join(f"{k} {v:.5f}" for k, v in sorted(metrics.items()))
        logging.info("evaluation at step %d: %s", step, text)
        self._write("eval", step, metrics)

    def _write(self, part, step, scalars):
        """Writes scalars to the event file of OUTPUT_DIR/part."""
        if self._directory is None:
            return
        if part not in self._writers:
            self._writers[part] = tf.summary.create_file_writer(
                str(self._directory / part)
            )
        with self._writers[part].as_default():
            for name, value in scalars.items():
                tf.summary.scalar(name, float(value), step=step)
        self._writers[part].flush()


def _duration(seconds):
    """Gives h:mm:ss."""
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
