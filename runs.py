"""What every run has: a model it finds, a directory it describes, a trainer.

`Run` is the part that fine-tuning (`finetuning.Voyage`) and pre-training
(`pretraining.PretrainingRun`) share. Flags: `common_flags.py`.
"""

import abc
import hashlib
import json
import os
import pathlib
import shutil

import keras
import tensorflow as tf
from absl import logging

import checkpoints
import common_flags
import directories
import distribution
import optimization
import tasks
import tokenization
import training

FLAGS = common_flags.FLAGS
RUN_FILE = "run.json"
# What a run writes before it gets its name.
LEFT_OVERS = (
    ".model.ckpt-*.partial*",
    "best/.model.ckpt-*.partial*",
    "saved_model/*.tmp",
    "saved_model/*.old",
    "vocab.txt.*.tmp",
    "best/vocab.txt.*.tmp",
)


# ------------------------------------------------------------- what is there


def read_run(output_dir):
    """The run.json of an output directory, or None without one."""
    path = os.path.join(output_dir, RUN_FILE)
    return common_flags.read_json(path) if os.path.exists(path) else None


def find_model(output_dir=None):
    """Gives the tasks.ModelFiles of this run and its former run.json, or None.

    Flags come first, then what lies beside --init_checkpoint, then what an
    earlier run left in the output directory. Config and vocabulary are None
    where there is neither; raises ValueError for one that is named and
    missing, and for a contradiction about the casing."""
    former = read_run(output_dir) if output_dir else None
    source = FLAGS.init_checkpoint or None
    config = common_flags.given("bert_config_file")
    vocab = common_flags.given("vocab_file")
    if source:
        try:
            checkpoints.find_checkpoint(source)
        except ValueError as error:
            raise ValueError(f"--init_checkpoint: {error}") from None
        found_config, found_vocab = checkpoints.companion_files(source)
        config, vocab = config or found_config, vocab or found_vocab
    if former:
        config = config or os.path.join(output_dir, "bert_config.json")
        own = os.path.join(output_dir, "vocab.txt")
        vocab = vocab or (own if os.path.exists(own) else None)
    for flag, path in (("bert_config_file", config), ("vocab_file", vocab)):
        if path and not os.path.exists(path):
            raise ValueError(f"--{flag}={path} does not exist.")
    lower = common_flags.given("do_lower_case")
    if vocab:
        place = source or (output_dir if former else os.path.dirname(vocab))
        lower = tokenization.resolve_casing(lower, place)
    return tasks.ModelFiles(source, config, vocab, lower), former


def require_file(files, flag, remedy="", output_dir=None):
    """Raises ValueError where config or vocabulary (`flag`) was not found.

    `output_dir` is that of a former run, if there was one."""
    if getattr(files, flag.removeprefix("bert_")):
        return
    place = files.checkpoint or output_dir
    beside = f" beside {place}" if place else ""
    raise ValueError(
        f"--{flag} is not given, and there is no such file{beside}.{remedy}"
    )


# --------------------------------------------------------------- the devices


def make_strategy():
    """The tf.distribute strategy that the flags ask for."""
    return distribution.make_strategy(
        FLAGS.distribution_strategy,
        FLAGS.use_tpu,
        FLAGS.tpu_name,
        FLAGS.num_tpu_cores,
    )


# ------------------------------------------------------------------- the run


class Run(abc.ABC):
    """One run in one output directory.

    A subclass sets `config` (BertConfig), says in `_description` what makes
    the directory its own, and makes the trip in `_run`."""

    config = None
    longer_inputs = 'see README "Long documents"'
    strategy = None  # until _make_strategy
    is_chief = True
    model = None
    global_step = 0  # of the weights that the model has

    def __init__(self, output_dir, seed):
        self.output_dir, self.seed = output_dir, seed
        self.files, self.former = find_model(output_dir)
        # Where an earlier run kept its best, later steps compete with it.
        self._evaluates = FLAGS.do_train and bool(
            FLAGS.eval_steps
            or FLAGS.early_stopping_patience
            or FLAGS.best_metric
            or (FLAGS.do_eval and checkpoints.best_checkpoint(output_dir))
        )

    def run(self):
        """Makes the trip, alone in its directory; gives the dev metrics."""
        try:
            return self._run()
        finally:
            directories.release_directory(self.output_dir)

    def _no_model(self):
        seeds = sorted(pathlib.Path(self.output_dir).glob("seed-*"))
        remedy = "Add --do_train or --init_checkpoint."
        if seeds:
            remedy = f"Each seed has its own: --output_dir={seeds[0]}."
        return ValueError(
            f"There is no model: {self.output_dir} holds no trained "
            f"checkpoint. {remedy}"
        )

    @abc.abstractmethod
    def _run(self):
        """Does what the do_* flags ask for; gives the metrics of --do_eval."""

    @abc.abstractmethod
    def _description(self):
        """What a run that goes on here must have in common: a dict."""

    def _check_length(self):
        limit = self.config.max_position_embeddings
        if limit < FLAGS.max_seq_length:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} exceeds "
                f"max_position_embeddings={limit} of "
                f"{self.files.config_file or '--model_preset'}. Lower the "
                f"flag, or {self.longer_inputs}."
            )

    # ---- the output directory

    def _model_description(self):
        """The part of `_description` that is about the model's files."""
        digest = None
        if self.files.vocab_file:
            content = pathlib.Path(self.files.vocab_file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
        return {
            "do_lower_case": self.files.do_lower_case,
            "hidden_size": self.config.hidden_size,
            "num_hidden_layers": self.config.num_hidden_layers,
            "vocab_sha256": digest,
        }

    def _check_directory(self):
        """Raises ValueError where the directory is another run's."""
        if not self.former:
            return
        for key, ours in self._description().items():
            theirs = self.former.get(key)
            if None not in (ours, theirs) and theirs != ours:
                if isinstance(ours, dict) and isinstance(theirs, dict):
                    theirs, ours = _differing(theirs, ours)
                raise ValueError(
                    f"--output_dir={self.output_dir} belongs to another run: "
                    f"its {key} is {_short(theirs)}, this one's is "
                    f"{_short(ours)}. Choose another directory."
                )

    def _hold_directory(self):
        """Makes the output directory, and keeps other runs out of it."""
        directories.check_output_dir(self.output_dir)
        if not self.is_chief:  # it shares the chief's directory
            return
        if directories.hold_directory(self.output_dir):
            self._remove_left_overs()

    def _remove_left_overs(self):
        """Removes what a killed run had not finished writing here."""
        directory = pathlib.Path(self.output_dir)
        for path in directory.glob("saved_model/*.old"):
            final = path.with_name(path.name.split(".")[0])
            if not final.exists():  # killed before the new one got its name
                path.rename(final)
        for pattern in LEFT_OVERS:
            for path in directory.glob(pattern):
                logging.info("Removing %s, left by a killed run.", path)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _describe(self, directory):
        """Writes run.json, config and vocabulary whole, once for a model."""
        directory = pathlib.Path(directory)
        begins = not self.former and directory == pathlib.Path(self.output_dir)
        is_there = (directory / RUN_FILE).exists()
        if not self.is_chief or (is_there and not begins):
            return
        run = self._description() | {
            "seed": self.seed,
            "flags": common_flags.all_given(),
            "versions": {
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
            },
        }
        config = self.config.to_json_string()
        common_flags.write_whole(directory / "bert_config.json", config)
        if self.files.vocab_file:
            temporary = directory / f"vocab.txt.{os.getpid()}.tmp"
            shutil.copyfile(self.files.vocab_file, temporary)
            os.replace(temporary, directory / "vocab.txt")
        text = json.dumps(run, indent=1) + "\n"
        common_flags.write_whole(directory / RUN_FILE, text)

    def _write_results(self, results):
        """Writes eval_results.txt and logs it; gives the path."""
        lines = [f"{key} = {results[key]}\n" for key in sorted(results)]
        path = os.path.join(self.output_dir, "eval_results.txt")
        common_flags.write_whole(path, "".join(lines))
        logging.info("***** Eval results *****\n%s", "".join(lines))
        return path

    # ---- the model

    def _make_strategy(self):
        """Chooses the devices, as flags and machine say."""
        self.strategy = make_strategy()
        self.is_chief = distribution.is_chief(self.strategy)
        if FLAGS.do_train:
            distribution.per_replica_batch_size(
                FLAGS.train_batch_size,
                self.strategy,
                FLAGS.gradient_accumulation_steps,
            )
        distribution.make_deterministic(self.seed)
        if FLAGS.run_eagerly:
            tf.config.run_functions_eagerly(True)

    def _check_stray_checkpoint(self):
        """Reads a checkpoint that lies here without a run.json.

        It is the original's, or of a run that lost its run.json: better
        refused now than when the training begins."""
        if self.former:
            return
        newest = checkpoints.newest_checkpoint(self.output_dir)
        if newest:
            checkpoints.restore_checkpoint(newest, self.model)

    def _load_trained(self):
        """Loads the best or newest checkpoint of the output directory.

        Gives its prefix, or None where there is none."""
        prefix = checkpoints.best_checkpoint(
            self.output_dir
        ) or checkpoints.newest_checkpoint(
            self.output_dir, unlisted=self.former is not None
        )
        if prefix:
            self._restore(prefix)
        return prefix

    def _restore(self, prefix):
        self.global_step = checkpoints.restore_checkpoint(prefix, self.model)
        logging.info("Loaded %s", prefix)

    # ---- training

    def _trainer(
        self, steps, warmup, rows, best_metric, multipliers=(), **options
    ):
        """The training.Trainer of this run; `rows` make an epoch.

        `best_metric` is used where --best_metric is not given."""
        freeze = FLAGS.freeze_layers
        if FLAGS.optimizer == "lamb" and FLAGS.learning_rate < 2e-4:
            logging.warning(
                "--optimizer=lamb moves each layer by a share of its length, "
                "--learning_rate=%g: little is learnt. 1e-3 is usual.",
                FLAGS.learning_rate,
            )
        with self.strategy.scope():
            optimizer = optimization.create_optimizer(
                FLAGS.learning_rate,
                steps,
                warmup,
                optimizer=FLAGS.optimizer,
                schedule=FLAGS.schedule,
                warmup_schedule=FLAGS.warmup_schedule,
                layer_decay=FLAGS.layer_decay,
                freeze_layers=None if freeze == 0 else max(freeze, 0),
                num_hidden_layers=self.config.num_hidden_layers,
                learning_rate_multipliers=multipliers,
                original_embedding_clip=FLAGS.original_embedding_clip,
            )
        best_metric = FLAGS.best_metric or best_metric
        per_loop = FLAGS.iterations_per_loop if common_flags.on_tpu() else 10
        return training.Trainer(
            self.model,
            optimizer,
            self.strategy,
            self.output_dir,
            steps,
            FLAGS.train_batch_size,
            seed=self.seed,
            accumulation_steps=FLAGS.gradient_accumulation_steps,
            save_checkpoints_steps=FLAGS.save_checkpoints_steps,
            steps_per_loop=per_loop,
            log_steps=FLAGS.log_steps,
            run_eagerly=FLAGS.run_eagerly,
            tensorboard=FLAGS.tensorboard,
            eval_steps=FLAGS.eval_steps,
            steps_per_epoch=max(1, rows // FLAGS.train_batch_size),
            best_metric=best_metric if self._evaluates else None,
            early_stopping_patience=FLAGS.early_stopping_patience,
            **options,
        )

    def _train_with(self, trainer, dataset_fn, scores):
        """Trains, and goes on with the best weights if they were kept.

        Gives the training.TrainingResult."""
        if self._evaluates and self.is_chief:  # whole even if it is killed
            best = os.path.join(self.output_dir, "best")
            os.makedirs(best, exist_ok=True)
            self._describe(best)
        result = trainer.train(dataset_fn, scores if self._evaluates else None)
        self.global_step = result.global_step
        if result.best_checkpoint:
            if not self._evaluates:
                logging.warning(
                    "%s stays the model of this directory: no later step was "
                    "compared with it. Add --do_eval to compare, or remove "
                    "%s to go on with the newest.",
                    result.best_checkpoint,
                    os.path.dirname(result.best_checkpoint),
                )
            self._restore(result.best_checkpoint)
        return result


def _differing(first, second):
    """Two dicts without what is the same in both."""
    same = {key for key in first if key in second and first[key] == second[key]}
    return [
        {key: value for key, value in values.items() if key not in same}
        for values in (first, second)
    ]


def _short(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 120 else text[:117] + "..."
