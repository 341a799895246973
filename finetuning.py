"""The one trip of every fine-tuning script.

Rows of a file -> examples -> features -> batches -> encoder -> head -> loss, or
outputs -> scores and files -> SavedModel. `tasks.Task` says what differs from
task to task; everything else is here, once. Flags: `common_flags.py`.
"""

import os
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np
import tqdm
from absl import logging

import checkpoints
import common_flags
import directories
import distribution
import exporting
import heads
import input_pipeline
import modeling
import runs
import tasks
import text_files
import tokenization

FLAGS = common_flags.FLAGS
SECONDS_PER_LINE = 30  # of the log while a set is read
SPLITS = {"do_train": "train", "do_eval": "eval", "do_predict": "predict"}


def run(task):
    """Does what the do_* flags ask for with one task.

    Raises ValueError or OSError for whatever is wrong with flags and files,
    before the long work starts and before a file is written."""
    tasks.check(task)
    common_flags.warn_of_unused_flags(logging.warning)
    if FLAGS.num_seeds > 1:
        return _run_seeds(task)
    return Voyage(task, FLAGS.output_dir, FLAGS.seed).run()


def _run_seeds(task):
    """Runs the trip for several seeds and writes mean and deviation.

    The rows are read once."""
    results, rows = {}, None
    for seed in range(FLAGS.seed, FLAGS.seed + FLAGS.num_seeds):
        directory = os.path.join(FLAGS.output_dir, f"seed-{seed}")
        voyage = Voyage(task, directory, seed, rows)
        results[seed] = voyage.run()
        rows = voyage.rows
        keras.backend.clear_session()
    lines = []
    if not all(results.values()):  # a worker that is not the chief
        return results
    for key in sorted(set().union(*results.values())):
        # Scores of a type that one seed alone predicted are 0 for the others.
        values = [float(result.get(key, 0.0)) for result in results.values()]
        lines.append(f"{key} = {statistics.mean(values):.6g}\n")
        lines.append(f"{key}_stdev = {statistics.stdev(values):.6g}\n")
    for seed, result in results.items():
        lines += [f"seed_{seed}_{k} = {v}\n" for k, v in sorted(result.items())]
    path = os.path.join(FLAGS.output_dir, "eval_results.txt")
    common_flags.write_whole(path, "".join(lines))
    logging.info("Results of %d seeds:\n%s", len(results), "".join(lines))
    return results


# ------------------------------------------------------------------ the trip


class Voyage(runs.Run):
    """One run of one task in one output directory."""

    def __init__(self, task, output_dir, seed, rows=None):
        super().__init__(output_dir, seed)
        self.task = task
        task.directory = output_dir
        begins = FLAGS.do_train or FLAGS.init_checkpoint
        is_ours = self.former and self.former.get("task") == task.name
        if begins and is_ours and not directories.is_trained(output_dir):
            self.former = None  # only scores of a model not trained here
        self._check_files()
        self.config = checkpoints.load_config(self.files.config_file)
        task.tokenizer = tokenization.FullTokenizer(
            self.files.vocab_file, self.files.do_lower_case
        )
        tokenization.check_vocab(
            task.tokenizer.vocab,
            self.config.vocab_size,
            self.files.vocab_file,
            needed=("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
            checkpoint_vocab_size=self.files.checkpoint
            and checkpoints.checkpoint_vocab_size(self.files.checkpoint),
        )
        trained = self.former or self._run_of_checkpoint()
        if trained and trained.get("task") == task.name:
            self._recall(trained)
        self._tile_positions()
        self._check_length()
        self.rows = rows  # (sets, tables), if another seed has read them
        self.sets, self.tables = rows or ({}, {})
        self._final = {}
        self.result = None

    def _check_files(self):
        """Raises ValueError unless there is a model to begin with."""
        source = self.files.checkpoint
        if not (source or self.former or self.files.config_file):
            if any(pathlib.Path(self.output_dir).glob("seed-*")):
                raise self._no_model()
            raise ValueError(
                f"There is no model: {self.output_dir} holds none. Give "
                "--init_checkpoint, or --bert_config_file and --vocab_file to "
                "train new weights."
            )
        former = self.output_dir if self.former else None
        for flag in ("bert_config_file", "vocab_file"):
            runs.require_file(self.files, flag, output_dir=former)

    def _recall(self, trained):
        """Tells the task what its run.json says."""
        try:
            self.task.restore(trained["description"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{runs.RUN_FILE} in the directory of "
                f"{self.output_dir if self.former else self.files.checkpoint} "
                f"lacks {error}: it is not of this program or version. Choose "
                "another directory."
            ) from error

    def _run_of_checkpoint(self):
        """The run.json beside --init_checkpoint where that is to be used.

        Training anew reads nothing of it."""
        if FLAGS.do_train or not self.files.checkpoint:
            return None
        path = checkpoints.find_checkpoint(self.files.checkpoint)
        return runs.read_run(directories.run_directory(path))

    def _tile_positions(self):
        """Lengthens the table of positions where the task reads more."""
        wanted = self.task.max_positions
        if wanted and wanted > self.config.max_position_embeddings:
            changed = {"max_position_embeddings": wanted}
            self.config = modeling.BertConfig.from_dict(
                self.config.to_dict() | changed
            )

    def _run(self):
        """Reads, trains, scores, predicts, exports; gives the dev metrics.

        Nothing is written before all was read and the model is complete."""
        directories.find_output_parent(self.output_dir)
        if self.rows is None:
            self._read()
            self.rows = self.sets, self.tables
            sets = [k.removeprefix("eval") for k in self.sets if "eval" in k]
            tasks.check_metric(self.task, sets)
        self._check_directory()
        if FLAGS.do_train:
            self._plan()
        self._build()
        self._check_checkpoint()
        if FLAGS.do_train:
            self._make_trainer()
        elif not self._load_trained():
            self._check_untrained()
        self._hold_directory()
        if FLAGS.do_train and self.is_chief:
            self.task.begin_training()
        if self.former:
            self._warn_of_changes()
        self._describe(self.output_dir)
        self._write_records()
        if FLAGS.do_train:
            self._train()
        self._predictor.freeze()
        results = {}
        if FLAGS.do_eval and self.is_chief:
            results = self._evaluate()
        if FLAGS.do_predict and self.is_chief:
            self._predict()
        if FLAGS.do_export and self.is_chief:
            self._export()
        return results

    # ---- reading

    def _read(self):
        """Reads and featurizes every set that is asked for."""
        for phase, split in SPLITS.items():
            if not FLAGS[phase].value:
                continue
            try:
                sets = self.task.examples(split)
            except text_files.UnknownLabel as error:
                if not self.former:
                    raise
                raise ValueError(
                    f"{error} The labels are those of {self.output_dir}/"
                    f"{runs.RUN_FILE}; for others choose another --output_dir."
                ) from error
            for suffix, examples in sets.items():
                if not examples:
                    raise ValueError(f"The {split}{suffix} set has no rows.")
                table = self._table_of(examples)
                if table is None:
                    table = self._featurize(examples, split)
                self.sets[split + suffix] = examples
                self.tables[split + suffix] = table

    def _table_of(self, examples):
        """The table of a list that is an earlier set too, or None."""
        for key, former in self.sets.items():
            if former is examples:
                return self.tables[key]
        return None

    def _featurize(self, examples, split):
        self.task.num_cut = 0
        rows, owners = self.task.featurize_all(examples, split)
        if not rows and (split == "train" or not self.task.rowless_examples):
            raise ValueError(
                f"None of the {len(examples)} {split} examples gives a row."
            )
        spec = self.task.feature_spec()
        table = input_pipeline.FeatureTable(spec, rows, self.task.group)
        table.owners = np.array(owners, np.int64)
        logging.info(
            "%s: %d examples, %d rows, %d tokens, longest %d%s",
            split,
            len(examples),
            len(rows),
            table.lengths.sum(),
            table.lengths.max(initial=0),
            f" in {self.task.group} choices" if self.task.group > 1 else "",
        )
        self._warn_of_texts(split, len(examples), table)
        return table

    def _warn_of_texts(self, split, count, table):
        """Says how many texts were cut, and that a vocabulary does not fit."""
        if self.task.num_cut:
            logging.warning(
                "%s: %d of %d texts are longer than --max_seq_length=%d and "
                "were cut%s.",
                split,
                self.task.num_cut,
                count,
                FLAGS.max_seq_length,
                "; --long_text=windows reads all"
                if "long_text" in FLAGS and not self.task.is_pair
                else "",
            )
        unknown = self.task.tokenizer.vocab["[UNK]"]
        share = table.share_of("input_ids", unknown)
        if share > 0.2:
            logging.warning(
                "%s: %.0f %% of the pieces are [UNK]. Is %s of this language?",
                split,
                100 * share,
                self.files.vocab_file,
            )

    def _description(self):
        return {
            "task": self.task.name,
            "description": self.task.describe(),
            **self._model_description(),
        }

    def _check_directory(self):
        """Raises ValueError where the directory is another run's.

        Or where there is neither a trained model nor one to begin with."""
        places = (self.output_dir, os.path.join(self.output_dir, "best"))
        steps = any(map(checkpoints.checkpoint_steps, places))
        if not (FLAGS.do_train or steps or self.files.checkpoint):
            raise self._no_model()
        super()._check_directory()

    def _warn_of_changes(self):
        """Names the flags of training that differ from the run's first."""
        if not FLAGS.do_train:
            return
        before = self.former.get("flags", {})
        for name in common_flags.TRAINING_FLAGS:
            if name not in FLAGS:
                continue
            old = _as_given(before.get(name, FLAGS[name].default))
            value = _as_given(FLAGS[name].value)
            if value != old:
                logging.warning(
                    "--%s is %s now; the run in %s began with %s. To go on "
                    "as it began, add --%s=%s.",
                    name,
                    "not given" if value is None else value,
                    self.output_dir,
                    old,
                    name,
                    old,
                )

    def _write_records(self):
        if not (FLAGS.write_records and self.is_chief):
            return
        names = self.task.record_names
        for key, table in self.tables.items():
            if key in names:
                name = f"{names[key]}.tf_record"
                table.write(os.path.join(self.output_dir, name))

    # ---- the model

    def _build(self):
        """Makes strategy and model, and loads --init_checkpoint."""
        self._make_strategy()
        padded = common_flags.on_tpu() or self.task.padded
        self._length = FLAGS.max_seq_length if padded else None
        policy = distribution.dtype_policy(FLAGS.precision)
        with self.strategy.scope():
            encoder = modeling.BertModel(
                self.config, dtype=policy, padded=padded
            )
            encoder.make_layout = self.task.make_layout()
            head = self.task.head(encoder, padded)
            self.model = heads.TaskModel(encoder, head)
        self._predictor = distribution.Predictor(
            self.model, self.strategy, FLAGS.run_eagerly
        )

    def _check_checkpoint(self):
        if self.files.checkpoint:
            self._loaded = self._load_initial(self.files.checkpoint)
            self.task.check_loaded(self._loaded.fresh)
        elif FLAGS.do_train and not self.former:
            logging.warning("No --init_checkpoint: training from new weights.")
        self._check_stray_checkpoint()

    def _load_initial(self, path):
        """Loads --init_checkpoint, with its positions tiled if need be.

        Gives the checkpoints.LoadReport."""
        shapes = checkpoints.CheckpointReader(path).shapes
        table = shapes.get(checkpoints.POSITION_EMBEDDINGS, [0])
        wanted = self.task.max_positions and self.config.max_position_embeddings
        if not wanted or wanted <= table[0]:
            return checkpoints.load_checkpoint(path, self.model)
        with tempfile.TemporaryDirectory() as directory:
            longer = os.path.join(directory, "model.ckpt")
            checkpoints.tile_positions(path, longer, wanted)
            return checkpoints.load_checkpoint(longer, self.model)

    def _check_untrained(self):
        """Warns, or refuses to export, where the head was never trained."""
        if not self.files.checkpoint:
            raise self._no_model()
        if self._loaded.other_head:
            raise ValueError(
                f"{self._loaded.other_head} It is the head of another task or "
                "of other labels. Name a checkpoint of this one, or add "
                "--do_train."
            )
        run = self._run_of_checkpoint() or {}
        word = str(run.get("task", self.task.name)).split("/")[0]
        if word not in (self.task.name.split("/")[0], "pretraining"):
            raise ValueError(
                f"--init_checkpoint={self.files.checkpoint} was trained for "
                f"'{word}', another task. Name a checkpoint of this one, or "
                "add --do_train."
            )
        theirs = run.get("description", {}).get("labels")
        if theirs and self.task.labels and theirs != list(self.task.labels):
            logging.warning(
                "The model was trained with the labels %s; here they are %s, "
                "taken in this order.",
                ", ".join(theirs),
                ", ".join(self.task.labels),
            )
        fresh = ", ".join(self._loaded.fresh)
        if not fresh:
            path = checkpoints.find_checkpoint(self.files.checkpoint)
            logging.info("The weights are those of %s", path)
            if "global_step" in self._loaded.training_state:
                self.global_step = checkpoints.global_step(path)
            return
        if FLAGS.do_export:
            raise ValueError(
                f"{self.files.checkpoint} lacks {fresh}, so there is no "
                "trained model to export. Add --do_train, or name a "
                "fine-tuned checkpoint."
            )
        logging.warning(
            "%s holds no trained checkpoint: the weights are those of "
            "--init_checkpoint, and new ones for %s.",
            self.output_dir,
            fresh,
        )

    # ---- training

    def _plan(self):
        """Counts the steps. Raises ValueError if there is none."""
        batch = FLAGS.train_batch_size
        rows = len(self.tables["train"])
        self.steps = int(rows / batch * FLAGS.num_train_epochs)
        if self.steps < 1:
            raise ValueError(
                f"{rows} training rows, --train_batch_size={batch} and "
                f"--num_train_epochs={FLAGS.num_train_epochs} give no single "
                "step. Lower the batch size or raise the epochs."
            )

    def _train(self):
        table = self.tables["train"]
        batch, rows = FLAGS.train_batch_size, len(table)
        logging.info(
            "***** Running training ***** examples %d, rows %d, batch size "
            "%d, steps %d",
            len(self.sets["train"]),
            rows,
            batch,
            self.steps,
        )
        logging.info("Compiling the first step ...")
        dataset_fn = input_pipeline.training_batches(
            table, batch, self.steps, self.seed, self._length
        )
        self.result = self._train_with(
            self._task_trainer, dataset_fn, self._dev_scores
        )

    def _make_trainer(self):
        warmup = FLAGS.num_warmup_steps
        if warmup is None:
            warmup = int(self.steps * FLAGS.warmup_proportion)
        _warn_of_warmup(warmup, self.steps)
        self._task_trainer = self._trainer(
            self.steps,
            warmup,
            len(self.tables["train"]),
            self.task.best_metric,
            self.task.learning_rate_multipliers,
        )

    # ---- scores and answers

    def outputs(self, key, batch_size):
        """Runs the model over a set: {output name: one entry per row}."""
        table = self.tables[key]
        if not len(table):
            return {"example": table.owners, "tokens": table.lengths}
        collected = {}
        batches = input_pipeline.sorted_batches(table, batch_size, self._length)
        count = -(-len(table) // batch_size)
        order, told = [], time.monotonic()

        def features():
            """Yields the batches and notes which rows each holds."""
            nonlocal told
            for rows, batch in tqdm.tqdm(
                batches, key, count, disable=None, leave=False
            ):
                if time.monotonic() - told > SECONDS_PER_LINE:
                    told = time.monotonic()
                    logging.info("%s: %d of %d batches", key, len(order), count)
                order.append(rows)
                yield batch

        for batch in self._predictor.batches(features()):
            for name, value in batch.items():
                if name in self.task.unread_outputs:
                    continue
                if name in self.task.sequence_outputs:
                    sizes = table.lengths[order[-1]]
                    value = [
                        row[:size]
                        for row, size in zip(value, sizes, strict=True)
                    ]
                collected.setdefault(name, []).extend(value)
        places = np.argsort(np.concatenate(order))
        outputs = {
            name: [values[place] for place in places]
            if name in self.task.sequence_outputs
            else np.asarray(values)[places]
            for name, values in collected.items()
        }
        outputs["example"] = table.owners
        outputs["tokens"] = table.lengths
        return outputs

    def _final_outputs(self, key, batch_size):
        """`outputs` of the trained model, once for sets that are one list."""
        table = self.tables[key]
        if id(table) not in self._final:
            outputs = self.outputs(key, batch_size)
            shared = sum(other is table for other in self.tables.values()) > 1
            if not shared:
                return outputs
            self._final[id(table)] = outputs
        return self._final[id(table)]

    def _dev_scores(self):
        """The metrics of all dev sets."""
        scores = {}
        for key, examples in self.sets.items():
            if not key.startswith("eval"):
                continue
            outputs = self.outputs(key, FLAGS.eval_batch_size)
            found = self.task.score(examples, outputs, FLAGS.eval_batch_size)
            suffix = key.removeprefix("eval")
            scores |= {name + suffix: value for name, value in found.items()}
        if FLAGS.best_metric:  # such as of a type that is not there
            scores.setdefault(FLAGS.best_metric, 0.0)
        return scores

    def _evaluate(self):
        logging.info("***** Evaluating step %d *****", self.global_step)
        results = {}
        written, pages = [], []
        for key, examples in self.sets.items():
            if not key.startswith("eval"):
                continue
            suffix = key.removeprefix("eval")
            outputs = self._final_outputs(key, FLAGS.eval_batch_size)
            found = self.task.score(examples, outputs, FLAGS.eval_batch_size)
            results |= {name + suffix: value for name, value in found.items()}
            written += self.task.write_evaluation(
                examples, outputs, self.output_dir, suffix
            )
            if FLAGS.report:
                pages.append((examples, outputs, suffix, found))
        results["global_step"] = self.global_step
        _log_written([self._write_results(results), *written])
        # The scores are safe by now.
        _log_written([self._report(*page) for page in pages])
        return results

    def _report(self, examples, outputs, suffix, scores):
        import reports

        path = os.path.join(self.output_dir, f"report{suffix}.html")
        parts = list(self.task.report(examples, outputs))
        if self.result is not None and len(self.result.losses):
            parts.append(
                reports.loss_curve(self.result.losses, self.result.first_step)
            )
        flags = {f"--{k}": str(v) for k, v in common_flags.all_given().items()}
        settings = [("date", time.strftime("%Y-%m-%d %H:%M")), *flags.items()]
        parts.append(reports.table("How it was made", (), settings))
        title = f"{self.task.name}, {len(examples)} examples of the dev set"
        reports.write(path, title, scores | {"step": self.global_step}, parts)
        return path

    def _predict(self):
        logging.info("***** Running prediction *****")
        written = []
        for key, examples in self.sets.items():
            if key.startswith("predict"):
                outputs = self._final_outputs(key, FLAGS.predict_batch_size)
                suffix = key.removeprefix("predict")
                written += self.task.write(
                    examples, outputs, self.output_dir, suffix
                )
        _log_written(written)

    def _export(self):
        path = os.path.join(self.output_dir, "saved_model", "1")
        logging.info("***** Exporting step %d *****", self.global_step)
        exporting.export(
            path,
            self.model,
            self.task,
            self.files.vocab_file,
            self.files.do_lower_case,
        )
        _log_written([path])


def _as_given(value):
    """A flag's value as it would be typed, lists of numbers in one form."""
    if not isinstance(value, list):
        return value
    try:
        return ",".join(f"{float(part):g}" for part in value)
    except ValueError:
        return ",".join(value)


def _warn_of_warmup(warmup, steps):
    """Warns where the learning rate never reaches its height."""
    if warmup > steps:
        logging.warning(
            "The run ends within its warm-up: --num_warmup_steps=%d of %d "
            "steps, so the rate never reaches --learning_rate.",
            warmup,
            steps,
        )


def _log_written(paths):
    for path in paths:
        logging.info("Wrote %s", path)
