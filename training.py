"""The one training loop of all scripts, on any number of devices.

A step is the same update whatever it runs on: losses come as sums and weights
that are added up over replicas and micro-batches before they are divided, and
gradients are summed, then clipped once. A run that was killed at any step and
started again ends with the bits of one that was not: dropout and the order of
data are pure functions of the seed and the global step.

`TrainStep` is one update, `Trainer` the loop; what lies on the disk is
`output_directory.RunDirectory`, what it runs on `distribution.make_strategy`.
"""

import contextlib
import dataclasses
import functools
import signal
import sys
import threading

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

import checkpoints
import distribution
import optimization
from output_directory import (
    LOSS,
    NORM,
    RATE,
    STOP,
    Meter,
    Progress,
    RunDirectory,
)

SECONDS_PER_CALL = 5.0  # how long a signal or the log may have to wait
TERMINATED = 128 + signal.SIGTERM


class TrainingDiverged(ValueError):
    """The loss or its gradient is no longer a finite number."""


@dataclasses.dataclass
class TrainingResult:
    """What a call of `Trainer.train` did.

    first_step: the global step it began at; global_step: where it ended.
    losses: float32 [global_step - first_step], before each update.
    evaluations: dicts of metrics, each with its `global_step`.
    best_checkpoint: prefix of the best one, None where none was kept."""

    first_step: int
    global_step: int
    losses: np.ndarray
    evaluations: list
    best_checkpoint: str | None = None
    best_value: float | None = None
    stopped_early: bool = False
    examples_per_second: float = 0.0


# --------------------------------------------------------------------- step


class TrainStep:
    """One update of the model, as a replica computes it.

    The loss is the sum over names of losses[name] / loss_weights[name], both
    summed over the whole global batch."""

    def __init__(self, model, optimizer, seed, accumulation_steps=1):
        self._model = model
        self._optimizer = optimizer
        self._seed = seed
        self._accumulation_steps = accumulation_steps
        self.loss_names = []  # known after the first call

    def __call__(self, features, stop):
        """Updates the variables; gives float32 [4 + names] of figures.

        `stop` is 1.0 where this worker was asked to end; the figure of all
        workers tells each of them at the same step."""
        replica = tf.distribute.get_replica_context()
        weights = self._model.loss_weights(features)
        self.loss_names = sorted(weights)
        summed = replica.all_reduce(
            tf.distribute.ReduceOp.SUM,
            [tf.identity(weights[name]) for name in self.loss_names]
            + [tf.identity(stop)],
        )
        step = self._optimizer.iterations.value
        seed = functools.partial(  # of a micro-batch
            distribution.dropout_seed,
            self._seed,
            step,
            replica.replica_id_in_sync_group,
        )
        variables = self._optimizer.updated(self._model.trainable_variables)
        shares, grads = self._gradients(features, summed[:-1], seed, variables)
        shares = replica.all_reduce(tf.distribute.ReduceOp.SUM, shares)
        rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        norm = self._optimizer.apply_with_norm(grads, variables)
        figures = [tf.reduce_sum(shares), norm, rate, summed[-1]]
        return tf.concat([tf.stack(figures), shares], 0)

    def _gradients(self, features, weights, seed, variables):
        """This replica's share of the losses [names] and the gradients."""
        count = self._accumulation_steps
        if count == 1:
            return self._forward_backward(features, weights, seed(0), variables)
        rows = tf.shape(next(iter(features.values())))[0]
        size = (rows + count - 1) // count
        connected = []  # filled while the loop's body is traced

        def body(index, losses, sums):
            """Adds the losses and gradients of one part of the batch."""
            micro = {
                name: value[index * size : (index + 1) * size]
                for name, value in features.items()
            }
            shares, grads = self._forward_backward(
                micro, weights, seed(index), variables
            )
            connected[:] = [gradient is not None for gradient in grads]
            sums = [
                total
                if gradient is None
                else total + optimization.dense_gradient(gradient, variable)
                for total, gradient, variable in zip(
                    sums, grads, variables, strict=True
                )
            ]
            return index + 1, losses + shares, sums

        _, losses, sums = tf.while_loop(
            lambda index, *_: index * size < rows,
            body,
            (
                tf.constant(0),
                tf.zeros([len(self.loss_names)]),
                [tf.zeros(v.shape) for v in variables],
            ),
            parallel_iterations=1,
        )
        return losses, [
            total if has_gradient else None
            for total, has_gradient in zip(sums, connected, strict=True)
        ]

    def _forward_backward(self, features, weights, seed, variables):
        """The losses of some rows and the gradients of their sum."""
        with tf.GradientTape() as tape, self._lookups() as lookups:
            outputs = self._model(features, training=True, seed=seed)
            losses = self._model.losses(outputs, features)
            # A batch where nothing counts has loss 0, as in the original.
            shares = tf.stack(
                [
                    tf.math.divide_no_nan(losses[name], weight)
                    for name, weight in zip(
                        self.loss_names, weights, strict=True
                    )
                ]
            )
            total = tf.reduce_sum(shares)
        sources = [v.value for v in variables]
        rows = [rows for _, _, rows in lookups]
        (*grads,) = tape.gradient(total, sources + rows)
        found = grads[len(sources) :]
        grads = grads[: len(sources)]
        for (table, ids, _), gradient in zip(lookups, found, strict=True):
            _take_lookups_apart(grads, variables, table, ids, gradient)
        return shares, grads

    @contextlib.contextmanager
    def _lookups(self):
        """Collects (table, ids, rows) of the word embedding, if asked for.

        Only the clip-norm quirk of the original needs them."""
        lookups = []
        if not self._optimizer.original_embedding_clip:
            yield lookups
            return
        embeddings = self._model.encoder.embeddings
        embeddings.on_lookup = lambda *lookup: lookups.append(lookup)
        try:
            yield lookups
        finally:
            embeddings.on_lookup = None


def _take_lookups_apart(grads, variables, table, ids, gradient):
    """Splits a table's gradient into its tied part and one row per lookup.

    The tape adds the two up; the original's norm saw them side by side."""
    for index, variable in enumerate(variables):
        if variable is table and not isinstance(grads[index], tf.IndexedSlices):
            rows = tf.IndexedSlices(
                tf.reshape(gradient, [-1, table.shape[1]]),
                tf.reshape(ids, [-1]),
            )
            tied = grads[index] - optimization.dense_gradient(rows, table)
            grads[index] = [tied, rows]


# --------------------------------------------------------------------- loop


@dataclasses.dataclass(eq=False)
class Trainer:
    """Trains a model to a number of steps, or goes on where it stopped.

    Make the model and the optimizer inside `strategy.scope()`. All sizes are
    global: the same run on more devices means the same steps.

    model: has call(features, training, seed), loss_weights and losses.
    steps_per_loop: at most so many steps in one call of the graph.
    eval_steps: evaluate so often; by default after each steps_per_epoch.
    best_metric: key of evaluate()'s result that `best/` is kept by; lower is
      better where `loss` is in its name, else higher.
    early_stopping_patience: end after so many evaluations without gain.
    save_optimizer_slots: write adam_m and adam_v to model.ckpt-N, too.
    save_checkpoint(prefix, model, optimizer, global_step) and
      load_checkpoint(prefix, model, optimizer), which returns the step: by
      default save_checkpoint and restore_checkpoint of `checkpoints`.
    tokens_per_example: where known, the log tells tokens a second, too.

    Raises ValueError for a value out of range."""

    model: object
    optimizer: optimization.ClippingOptimizer
    strategy: tf.distribute.Strategy
    output_dir: str
    num_train_steps: int
    train_batch_size: int
    seed: int = 0
    accumulation_steps: int = 1
    save_checkpoints_steps: int = 1000
    steps_per_loop: int = 1000
    log_steps: int = 100
    run_eagerly: bool = False
    tensorboard: bool = False
    eval_steps: int | None = None
    steps_per_epoch: int | None = None
    best_metric: str | None = None
    early_stopping_patience: int | None = None
    save_optimizer_slots: bool = False
    save_checkpoint: object = None
    load_checkpoint: object = None
    tokens_per_example: float | None = None

    def __post_init__(self):
        self._check()
        self.is_chief = distribution.is_chief(self.strategy)
        self._workers = distribution.num_workers(self.strategy)
        self._evaluate_every = (
            self.eval_steps or self.steps_per_epoch or self.num_train_steps
        )
        self._slots = self.optimizer if self.save_optimizer_slots else None
        with self.strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        self.directory = RunDirectory(
            self.output_dir,
            self.model,
            self.optimizer,
            self.save_checkpoint or checkpoints.save_checkpoint,
            self.load_checkpoint or checkpoints.restore_checkpoint,
            self.is_chief,
        )
        step = TrainStep(
            self.model, self.optimizer, self.seed, self.accumulation_steps
        )
        self._step = step
        self._replica_step = tf.autograph.experimental.do_not_convert(
            lambda features, stop: step(features, stop)
        )
        self._run = self._train_steps
        if not self.run_eagerly:
            self._run = tf.function(self._train_steps)
        self._stop_asked = False

    def _check(self):
        """Raises ValueError for what cannot be trained."""
        for name in (
            "num_train_steps",
            "save_checkpoints_steps",
            "steps_per_loop",
            "log_steps",
            "eval_steps",
            "early_stopping_patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.early_stopping_patience and not self.best_metric:
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience} "
                "needs best_metric, the metric that is to improve."
            )
        replicas = self.strategy.num_replicas_in_sync
        self.replica_batch_size = distribution.per_replica_batch_size(
            self.train_batch_size, self.strategy, self.accumulation_steps
        )
        if self.optimizer.original_embedding_clip and (
            replicas > 1 or self.accumulation_steps > 1
        ):
            raise ValueError(
                "original_embedding_clip was asked for with "
                f"{replicas} replicas and --gradient_accumulation_steps="
                f"{self.accumulation_steps}; the original defines it for one "
                "of each. Leave one of them out."
            )

    def train(self, dataset_fn, evaluate=None):
        """Trains to num_train_steps; returns a TrainingResult.

        dataset_fn(first_step, input_context) gives the tf.data.Dataset of
        this worker's per-replica batches from that global step on, whose
        order is a pure function of seed and step. evaluate() gives a dict of
        metrics, the same on every worker.

        Raises TrainingDiverged where the loss is no number, and SystemExit
        (143), all saved, after SIGTERM."""
        progress = self._restore()
        result = TrainingResult(
            progress.global_step, progress.global_step, np.zeros(0), []
        )
        self._check_agreement(progress.global_step)
        step = progress.global_step
        if self.directory.is_resumed and not self.directory.has_hand_over(step):
            self.directory.save_hand_over(step, self._slots)
        if self._is_done(progress):
            return self._finish(result, progress)
        self._warn_of_plan(evaluate)
        if progress.global_step == 0:
            self.directory.save_hand_over(0, self._slots)
        first = progress.global_step
        datasets = self.strategy.distribute_datasets_from_function(
            lambda context: dataset_fn(first, context)
        )
        meter = Meter(
            self.directory.path if self.tensorboard and self.is_chief else None,
            self.train_batch_size,
            self.num_train_steps,
            first,
            self.tokens_per_example,
        )
        with self._signals(), meter, self._bar(first) as bar:
            self._loop(iter(datasets), evaluate, progress, result, meter, bar)
        result.examples_per_second = meter.overall
        return self._finish(result, progress)

    def _loop(self, iterator, evaluate, progress, result, meter, bar):
        """Steps, and what falls due after each call of the graph."""
        losses = []
        while not self._is_done(progress):
            count = self._next_count(progress.global_step, meter)
            figures = self._run(
                iterator,
                tf.constant(count),
                tf.constant(float(self._stop_asked)),
            ).numpy()
            self._check_finite(figures, progress.global_step)
            progress.global_step += count
            step = progress.global_step
            losses.append(figures[:, LOSS])
            bar.update(count)
            meter.add(figures)
            last = step == self.num_train_steps
            if step % self.log_steps == 0 or last or meter.is_late:
                meter.report(step, self._step.loss_names, self._next_rate())
            terminated = self._is_terminated(figures)
            due = step % self._evaluate_every == 0 or last
            if evaluate and due and not terminated:
                with meter.paused():
                    self._evaluate(evaluate, progress, result, meter)
                if progress.finished and step % self.log_steps:
                    meter.report(step, self._step.loss_names, self._next_rate())
            done = last or progress.finished or terminated
            if done or step % self.save_checkpoints_steps == 0:
                with meter.paused():
                    self._save(progress)
            if terminated or (self._stop_asked and self._workers == 1):
                if not (done or step % self.save_checkpoints_steps == 0):
                    self._save(progress)  # asked while it evaluated
                logging.warning("SIGTERM: saved step %d, leaving.", step)
                raise SystemExit(TERMINATED)
        result.losses = np.concatenate(losses)

    def _train_steps(self, iterator, count, stop):
        """Runs `count` steps in one call; gives their figures [count, ...]."""
        rows = tf.TensorArray(
            tf.float32, size=count, element_shape=[None], infer_shape=False
        )
        for index in tf.range(count):
            values = self.strategy.run(
                self._replica_step, args=(next(iterator), stop)
            )
            local = self.strategy.experimental_local_results(values)
            rows = rows.write(index, local[0])
        return rows.stack()

    def _restore(self):
        """The Progress of the directory, its variables loaded."""
        with self.strategy.scope():
            progress = self.directory.restore(self._workers == 1)
            if progress is None:
                return Progress(seed=self.seed)
            if not self.directory.is_resumed:
                self._recall_best(progress)
            self.optimizer.iterations.assign(progress.global_step)
        logging.info(
            "Resuming %s at step %d.",
            self.directory.path,
            progress.global_step,
        )
        if progress.seed not in (None, self.seed):
            logging.warning(
                "The run began with seed %d and goes on with seed %d: the "
                "order of its data changes.",
                progress.seed,
                self.seed,
            )
        progress.seed = self.seed
        return progress

    def _recall_best(self, progress):
        """Lets the best checkpoint of a run without its state stay best.

        Not one of later steps, which are gone: they come again."""
        prefix = self.directory.best_checkpoint()
        metrics = self.directory.best_metrics()
        value = metrics.get(self.best_metric)
        step = int(prefix.rsplit("-", 1)[1]) if prefix else 0
        if prefix and value is not None and step <= progress.global_step:
            progress.best_value, progress.best_step = value, step
            progress.best_loss = metrics.get("eval_loss")

    def _is_done(self, progress):
        return progress.finished or progress.global_step >= self.num_train_steps

    def _finish(self, result, progress):
        """Completes the result; says so where there was nothing to do."""
        if progress.global_step == result.first_step:
            beyond = progress.global_step > self.num_train_steps
            (logging.warning if beyond else logging.info)(
                "%s is already at step %d of %d%s: nothing to train.",
                self.directory.path,
                progress.global_step,
                self.num_train_steps,
                ", stopped early" if progress.finished else "",
            )
        result.global_step = progress.global_step
        result.stopped_early = progress.finished
        result.best_checkpoint = self.directory.best_checkpoint()
        if progress.best_step is not None and not result.best_checkpoint:
            logging.warning(
                "%s/best/model.ckpt-%d, the best so far, is gone: going on "
                "with the weights of step %d.",
                self.directory.path,
                progress.best_step,
                progress.global_step,
            )
        result.best_value = progress.best_value
        return result

    def _warn_of_plan(self, evaluate):
        """Warns once of steps that learn nothing and of idle patience."""
        schedule = getattr(self.optimizer, "_learning_rate", None)
        planned = getattr(schedule, "num_train_steps", self.num_train_steps)
        if planned < self.num_train_steps:
            logging.warning(
                "The learning rate is planned for %d steps and 0 from there "
                "to step %d: nothing will be learned.",
                planned,
                self.num_train_steps,
            )
        if self.early_stopping_patience and evaluate is None:
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience} needs "
                "an evaluation during training; give an evaluation set."
            )
        count = -(-self.num_train_steps // self._evaluate_every)
        if (
            self.early_stopping_patience
            and self.early_stopping_patience >= count
        ):
            logging.warning(
                "early_stopping_patience=%d cannot stop a run of %d "
                "evaluations; it counts evaluations, not steps.",
                self.early_stopping_patience,
                count,
            )

    def _check_agreement(self, step):
        """Raises ValueError where the workers start at different steps."""
        if self._workers == 1:
            return

        def sums():
            mine = tf.constant(float(step), tf.float64)
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(
                tf.distribute.ReduceOp.SUM, [mine, mine * mine]
            )

        results = self.strategy.run(tf.function(sums))
        total, squares = (
            float(self.strategy.experimental_local_results(value)[0])
            for value in results
        )
        replicas = self.strategy.num_replicas_in_sync
        if total != replicas * step or squares != replicas * step * step:
            raise ValueError(
                f"This worker starts at step {step}, others do not. All "
                f"workers must see one {self.directory.path}."
            )

    def _next_count(self, step, meter):
        """How many steps the next call takes: to what is due, or less."""
        every = (
            self.log_steps,
            self.save_checkpoints_steps,
            self._evaluate_every,
        )
        due = min(interval - step % interval for interval in every)
        count = min(due, self.steps_per_loop, self.num_train_steps - step)
        if self._workers == 1:  # clocks differ, and workers must not
            count = min(count, meter.steps_in(SECONDS_PER_CALL))
        return count

    def _next_rate(self):
        """The learning rate of the update that comes next."""
        rate = self.optimizer.learning_rate
        return float(tf.convert_to_tensor(rate).numpy())

    def _check_finite(self, figures, first):
        """Raises TrainingDiverged naming the first bad step."""
        finite = np.isfinite(figures[:, LOSS]) & np.isfinite(figures[:, NORM])
        if finite.all():
            return
        bad = int(np.argmin(finite))
        what, value = "loss", figures[bad, LOSS]
        if np.isfinite(value):
            what, value = "gradient's norm", figures[bad, NORM]
        steps = checkpoints.checkpoint_steps(self.directory.path)
        good = f"model.ckpt-{steps[-1]}" if steps else "none"
        raise TrainingDiverged(
            f"The {what} is {value} at step {first + bad + 1} of "
            f"{self.num_train_steps} (learning rate "
            f"{figures[bad, RATE]:.3g}). The last good checkpoint in "
            f"{self.directory.path} is {good}. Lower --learning_rate or look "
            "for rows that are out of range."
        )

    def _is_terminated(self, figures):
        """Whether some worker was asked to end, as all of them learn it."""
        if self._workers == 1:
            return self._stop_asked
        return bool(figures[:, STOP].any())

    def _evaluate(self, evaluate, progress, result, meter):
        """Evaluates, keeps the best checkpoint, ends a run without gain."""
        step = progress.global_step
        metrics = {name: float(value) for name, value in evaluate().items()}
        result.evaluations.append({"global_step": step, **metrics})
        meter.report_evaluation(step, metrics)
        if not self.best_metric:
            return
        if self.best_metric not in metrics:
            raise ValueError(
                f"best_metric={self.best_metric!r} is not among the metrics "
                f"of this task: {', '.join(sorted(metrics))}."
            )
        value = metrics[self.best_metric]
        loss, best = metrics.get("eval_loss"), progress.best_loss
        # Scores such as F1 stay the same, at 0 say, while the loss still falls.
        falls = value == progress.best_value and None not in (loss, best)
        if falls and loss < best or self._is_better(value, progress.best_value):
            progress.best_value, progress.best_step = value, step
            progress.best_loss = loss
            progress.evaluations_without_gain = 0
            self.directory.save_best(step, {"global_step": step, **metrics})
            return
        progress.evaluations_without_gain += 1
        if (
            self.early_stopping_patience
            and progress.evaluations_without_gain
            >= self.early_stopping_patience
            and step < self.num_train_steps
        ):
            progress.finished = True
            logging.info(
                "Stopping at step %d: %d evaluations without a better %s "
                "than %g at step %s.",
                step,
                progress.evaluations_without_gain,
                self.best_metric,
                float("nan")
                if progress.best_value is None
                else progress.best_value,
                progress.best_step,
            )

    def _is_better(self, value, best):
        """Whether a value of the named metric is better; NaN never is."""
        if not np.isfinite(value) or best is None:
            return bool(np.isfinite(value))
        return value < best if "loss" in self.best_metric else value > best

    def _save(self, progress):
        # In this order: a run killed in between goes on from its own state,
        # and first writes the hand-over checkpoint that is missing.
        self.directory.save_resume(progress)
        self.directory.save_hand_over(progress.global_step, self._slots)

    @contextlib.contextmanager
    def _signals(self):
        """Notes SIGTERM while the loop runs, to end after the next call."""
        self._stop_asked = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(signum, frame):
            self._stop_asked = True

        before = signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _bar(self, first):
        """A tqdm bar on a terminal, none in a log file."""
        return tqdm.tqdm(
            total=self.num_train_steps,
            initial=first,
            unit="step",
            disable=not (self.is_chief and sys.stderr.isatty()),
        )
