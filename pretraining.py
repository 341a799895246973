"""The run of run_pretraining.py: records in, a pre-trained model out.

Records -> batches -> encoder -> masked-LM and next-sentence heads -> training,
scores, or filled masks. What it leaves in the output directory is a model that
the fine-tuning scripts take as --init_checkpoint.
"""

import hashlib
import json
import os
import pathlib
import shutil

import keras
import numpy as np
import tensorflow as tf
from absl import logging

import checkpoints
import common_flags
import distribution
import dynamic_masking
import heads
import mask_filling
import modeling
import optimization
import record_pipeline
import records
import tasks
import text_pairs
import tokenization
import training

FLAGS = common_flags.FLAGS
TASK = "pretraining"
HEAD = "cls/predictions/"
MANY_EPOCHS = 100  # beyond that the flags are more likely an oversight


def run():
    """Does what the do_* flags ask for; gives the metrics of --do_eval.

    Raises ValueError or OSError for whatever is wrong with flags and files."""
    common_flags.warn_of_unused_flags(logging.warning)
    return PretrainingRun().run()


# ------------------------------------------------------------------ what for


def find_model(output_dir):
    """Gives the tasks.ModelFiles of this run and its former run.json.

    Flags come first, then what lies beside --init_checkpoint, then what an
    earlier run left in the output directory. vocab_file is None where there
    is none: only --do_predict and --dynamic_masking need it."""
    former_file = os.path.join(output_dir, "run.json")
    former = None
    if os.path.exists(former_file):
        former = common_flags.read_json(former_file)
    source = FLAGS.init_checkpoint
    config = common_flags.given("bert_config_file")
    vocab = common_flags.given("vocab_file")
    if source:
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


def _config_of(files, vocab):
    """The BertConfig of a file, or of --model_preset and the vocabulary."""
    if FLAGS.model_preset and not common_flags.given("bert_config_file"):
        if vocab is None:
            raise ValueError(
                "--model_preset needs --vocab_file, whose size the model gets."
            )
        size = max(vocab.values()) + 1
        return modeling.BertConfig.from_preset(FLAGS.model_preset, size)
    if not files.config_file:
        beside = f" beside {files.checkpoint}" if files.checkpoint else ""
        raise ValueError(
            "--bert_config_file is not given, and there is no such file"
            f"{beside}. Name one, or a size by --model_preset."
        )
    return checkpoints.load_config(files.config_file)


# ------------------------------------------------------------------ the run


class PretrainingRun:
    """One run in one output directory, as the flags say."""

    def __init__(self):
        self.output_dir = FLAGS.output_dir
        self.files, self.former = find_model(self.output_dir)
        self.tokenizer = None
        if self.files.vocab_file:
            # [MASK] in a text that is to be filled stays a piece of its own.
            self.tokenizer = tokenization.FullTokenizer(
                self.files.vocab_file, self.files.do_lower_case, keep=["[MASK]"]
            )
        vocab = self.tokenizer and self.tokenizer.vocab
        self.config = _config_of(self.files, vocab)
        if vocab:
            tokenization.check_vocab(
                vocab, self.config.vocab_size, self.files.vocab_file
            )
        self._check_length()
        self._check_vocab_is_there()
        self.global_step = 0
        padded = FLAGS.use_tpu or FLAGS.distribution_strategy == "tpu"
        self._padded = bool(padded)

    def _check_length(self):
        limit = self.config.max_position_embeddings
        if limit < FLAGS.max_seq_length:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} exceeds "
                f"max_position_embeddings={limit} of "
                f"{self.files.config_file or FLAGS.model_preset}. Lower the "
                "flag, or take a config with more positions."
            )

    def _check_vocab_is_there(self):
        for flag in ("do_predict", "dynamic_masking"):
            if FLAGS[flag].value and not self.files.vocab_file:
                raise ValueError(
                    f"--{flag} needs --vocab_file; there is none beside the "
                    "model."
                )

    def run(self):
        """Trains, scores, fills masks; gives the metrics of --do_eval."""
        try:
            return self._run()
        finally:
            common_flags.release_directory(self.output_dir)

    def _run(self):
        self._read()
        self._check_directory()
        if FLAGS.do_train:
            self._plan()
        common_flags.check_output_dir(self.output_dir)
        self._build()
        if self.is_chief:  # the others share its directory
            common_flags.hold_directory(self.output_dir)
        self._load_initial()
        results = {}
        if FLAGS.do_train:
            self._describe(pathlib.Path(self.output_dir))
            self._train()
        else:
            self._load_trained()
        if FLAGS.do_eval and self.is_chief:
            results = self._evaluate()
        if FLAGS.do_predict and self.is_chief:
            self._predict()
        return results

    # ---- data

    def _read(self):
        """Looks at the records, and reads the lines to be filled."""
        self.train_files = self.eval_files = None
        self.spec = records.pretraining_spec(
            FLAGS.max_seq_length, FLAGS.max_predictions_per_seq
        )
        if FLAGS.dynamic_masking:
            self.spec = records.unmasked_spec(FLAGS.max_seq_length)
        patterns = ",".join(FLAGS.input_file or [])
        others = ",".join(FLAGS.eval_input_file or [])
        if FLAGS.do_train:
            self.train_files = self._open(patterns)
        if FLAGS.do_eval or self._wants_evaluation():
            same = self.train_files is not None and not others
            self.eval_files = self.train_files if same else None
            self.eval_files = self.eval_files or self._open(others or patterns)
        if FLAGS.do_predict:
            self.rows = [
                mask_filling.encode(pair, self.tokenizer, FLAGS.max_seq_length)
                for pair in text_pairs.read_pairs(FLAGS.predict_file)
            ]

    def _open(self, patterns):
        """The RecordFiles of some patterns, found to fit flags and model."""
        files = record_pipeline.RecordFiles(patterns)
        first = self.tokenizer and self.tokenizer.vocab["[CLS]"]
        record_pipeline.check_agreement(
            files, self.spec, self.config.vocab_size, first
        )
        logging.info(
            "%d records in %d files, %.1f tokens each",
            len(files),
            len(files.paths),
            files.mean_tokens,
        )
        return files

    def _parser(self):
        mask = None
        if FLAGS.dynamic_masking:
            mask = dynamic_masking.DynamicMasking(
                self.tokenizer.vocab,
                FLAGS.seed,
                FLAGS.max_predictions_per_seq,
                FLAGS.masked_lm_prob,
                FLAGS.do_whole_word_mask,
                FLAGS.draw_per_word,
            )
        return record_pipeline.Parser(self.spec, self._padded, mask)

    # ---- the output directory

    def _description(self):
        digest = None
        if self.files.vocab_file:
            content = pathlib.Path(self.files.vocab_file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
        return {
            "task": TASK,
            "description": {"nsp": FLAGS.nsp},
            "do_lower_case": self.files.do_lower_case,
            "hidden_size": self.config.hidden_size,
            "num_hidden_layers": self.config.num_hidden_layers,
            "vocab_sha256": digest,
        }

    def _check_directory(self):
        """Raises ValueError where the directory is another run's."""
        for key, ours in self._description().items():
            theirs = (self.former or {}).get(key)
            if None not in (ours, theirs) and theirs != ours:
                raise ValueError(
                    f"--output_dir={self.output_dir} belongs to another run: "
                    f"its {key} is {json.dumps(theirs)}, this one's is "
                    f"{json.dumps(ours)}. Choose another directory."
                )

    def _describe(self, directory):
        """Writes run.json, config and vocabulary beside a checkpoint."""
        if not self.is_chief or (directory / "run.json").exists():
            return
        run = self._description() | {
            "seed": FLAGS.seed,
            "flags": {
                name: FLAGS[name].value for name in FLAGS if FLAGS[name].present
            },
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
        common_flags.write_whole(directory / "run.json", text)

    # ---- the model

    def _build(self):
        """Makes strategy and model."""
        self.strategy = distribution.make_strategy(
            FLAGS.distribution_strategy,
            FLAGS.use_tpu,
            FLAGS.tpu_name,
            FLAGS.num_tpu_cores,
        )
        self.is_chief = distribution.is_chief(self.strategy)
        distribution.make_deterministic(FLAGS.seed)
        with self.strategy.scope():
            encoder = modeling.BertModel(
                self.config,
                dtype=distribution.dtype_policy(FLAGS.precision),
                padded=self._padded,
            )
            head = heads.PretrainingHead(
                self.config,
                encoder.embeddings.word_embeddings,
                encoder.dtype_policy,
                self._padded,
                next_sentence=FLAGS.nsp != "none",
            )
            self.model = heads.TaskModel(encoder, head)
        if FLAGS.run_eagerly:
            tf.config.run_functions_eagerly(True)
        self._scorer = distribution.Predictor(
            RowScores(self.model), self.strategy, FLAGS.run_eagerly
        )

    def _load_initial(self):
        """Loads --init_checkpoint, which a later checkpoint may replace."""
        self._head_is_there = False
        if self.files.checkpoint:
            report = checkpoints.load_checkpoint(
                self.files.checkpoint, self.model
            )
            logging.info("%s", report.summary())
            fresh = [name for name in report.fresh if name.startswith(HEAD)]
            self._head_is_there = not fresh
        elif FLAGS.do_train and not self.former:
            logging.info("No --init_checkpoint: training from new weights.")
        newest = tf.train.latest_checkpoint(self.output_dir)
        if newest and FLAGS.do_train and not self.former:
            # Of the original, or of a run that lost its run.json: better
            # refused now than when the directory is described anew.
            checkpoints.restore_checkpoint(newest, self.model)

    def _load_trained(self):
        """Loads the best or newest checkpoint of the output directory.

        Raises ValueError where neither it nor --init_checkpoint gives a
        masked-LM head."""
        directory = pathlib.Path(self.output_dir)
        prefix = tf.train.latest_checkpoint(str(directory / "best"))
        prefix = prefix or tf.train.latest_checkpoint(str(directory))
        if prefix:
            self.global_step = checkpoints.restore_checkpoint(
                prefix, self.model
            )
            logging.info("Going on with %s", prefix)
        elif not self.files.checkpoint:
            raise ValueError(
                f"There is no model: {self.output_dir} holds no trained "
                "checkpoint. Add --do_train or --init_checkpoint."
            )
        elif not self._head_is_there:
            raise ValueError(
                f"{self.files.checkpoint}: has no masked-LM head ({HEAD}...), "
                "so it cannot predict pieces. Take a pre-trained checkpoint, "
                "not a fine-tuned one, or add --do_train."
            )

    # ---- training

    def _plan(self):
        """Settles steps and warm-up, and says what they mean."""
        count, batch = len(self.train_files), FLAGS.train_batch_size
        steps = FLAGS.num_train_steps
        warmup = FLAGS.num_warmup_steps
        if FLAGS.num_train_epochs is not None:
            steps = int(count / batch * FLAGS.num_train_epochs)
            if not FLAGS["num_warmup_steps"].present:
                warmup = steps // 10
        if steps < 1:
            raise ValueError(
                f"{count} records, --train_batch_size={batch} and "
                f"--num_train_epochs={FLAGS.num_train_epochs} give no single "
                "step. Lower the batch size or raise the epochs."
            )
        epochs = steps * batch / count
        logging.info(
            "***** Running training ***** records %d, batch size %d, steps "
            "%d (%.4g epochs), warm-up steps %d",
            count,
            batch,
            steps,
            epochs,
            warmup,
        )
        if epochs > MANY_EPOCHS:
            logging.warning(
                "%d steps go %.4g times through the %d records. "
                "--num_train_epochs counts passes instead.",
                steps,
                epochs,
                count,
            )
        if warmup >= steps:
            logging.warning(
                "The run ends within its warm-up: --num_warmup_steps=%d of "
                "%d steps.",
                warmup,
                steps,
            )
        self._steps, self._warmup = steps, warmup

    def _wants_evaluation(self):
        return FLAGS.do_train and bool(
            FLAGS.eval_steps
            or FLAGS.early_stopping_patience
            or FLAGS.best_metric
        )

    def _train(self):
        trainer = self._trainer()
        dataset_fn = record_pipeline.training_batches(
            self.train_files,
            self._parser(),
            FLAGS.train_batch_size,
            self._steps,
            FLAGS.seed,
        )
        evaluate = self._scores if self._wants_evaluation() else None
        with self._explaining(self.train_files, self.eval_files):
            result = trainer.train(dataset_fn, evaluate)
        self.global_step = result.global_step
        if evaluate is not None and result.best_checkpoint:
            best = result.best_checkpoint
            self._describe(pathlib.Path(best).parent)
            self.global_step = checkpoints.restore_checkpoint(best, self.model)
            logging.info("Going on with the best: %s", best)

    def _trainer(self):
        layers, freeze = self.config.num_hidden_layers, FLAGS.freeze_layers
        with self.strategy.scope():
            optimizer = optimization.create_optimizer(
                FLAGS.learning_rate,
                self._steps,
                self._warmup,
                optimizer=FLAGS.optimizer,
                schedule=FLAGS.schedule,
                warmup_schedule=FLAGS.warmup_schedule,
                layer_decay=FLAGS.layer_decay,
                freeze_layers=None if freeze == 0 else max(freeze, 0),
                num_hidden_layers=layers,
                original_embedding_clip=FLAGS.original_embedding_clip,
            )
        wants = self._wants_evaluation()
        return training.Trainer(
            self.model,
            optimizer,
            self.strategy,
            self.output_dir,
            self._steps,
            FLAGS.train_batch_size,
            seed=FLAGS.seed,
            accumulation_steps=FLAGS.gradient_accumulation_steps,
            save_checkpoints_steps=FLAGS.save_checkpoints_steps,
            steps_per_loop=FLAGS.iterations_per_loop if self._padded else 10,
            log_steps=FLAGS.log_steps,
            run_eagerly=FLAGS.run_eagerly,
            tensorboard=FLAGS.tensorboard,
            eval_steps=FLAGS.eval_steps,
            steps_per_epoch=max(
                1, len(self.train_files) // FLAGS.train_batch_size
            ),
            best_metric=(FLAGS.best_metric or "loss") if wants else None,
            early_stopping_patience=FLAGS.early_stopping_patience,
            tokens_per_example=self.train_files.mean_tokens,
        )

    def _explaining(self, *files):
        """Says which record it was that a pipeline or a graph died of."""
        opened = [part for part in files if part is not None]
        return _Explaining(opened, self.spec, self.config.vocab_size)

    # ---- scores and answers

    def _scores(self):
        """The metrics of the evaluation records, each counted once."""
        batches = record_pipeline.evaluation_batches(
            self.eval_files,
            self._parser(),
            FLAGS.eval_batch_size,
            FLAGS.max_eval_steps,
        )
        return metrics_of(self._scorer.batches(batches), FLAGS.nsp != "none")

    def _evaluate(self):
        most = FLAGS.max_eval_steps * FLAGS.eval_batch_size
        if most < len(self.eval_files):
            logging.warning(
                "--max_eval_steps=%d and --eval_batch_size=%d: only the first "
                "%d of %d records are evaluated.",
                FLAGS.max_eval_steps,
                FLAGS.eval_batch_size,
                most,
                len(self.eval_files),
            )
        with self._explaining(self.eval_files):
            results = self._scores()
        results["global_step"] = self.global_step
        lines = [f"{key} = {results[key]}\n" for key in sorted(results)]
        path = os.path.join(self.output_dir, "eval_results.txt")
        common_flags.write_whole(path, "".join(lines))
        logging.info("***** Eval results *****\n%s", "".join(lines))
        logging.info("Wrote %s", path)
        return results

    def _predict(self):
        size = max(self.tokenizer.vocab.values()) + 1
        pieces = mask_filling.BestPieces(self.model, FLAGS.top_k, size)
        predictor = distribution.Predictor(
            pieces, self.strategy, FLAGS.run_eagerly
        )
        answers = mask_filling.fill(
            self.rows, predictor, self.tokenizer, FLAGS.eval_batch_size
        )
        path = os.path.join(self.output_dir, "predictions.jsonl")
        mask_filling.write(path, answers)
        logging.info("Wrote %s", path)


class _Explaining:
    """A context that turns an error of TensorFlow into the record's own."""

    def __init__(self, opened, spec, vocab_size):
        self._opened = opened
        self._spec, self._vocab_size = spec, vocab_size

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not isinstance(error, tf.errors.OpError):
            return
        for files in self._opened:
            if files.error is not None:
                raise files.error from None
        for files in self._opened:
            record_pipeline.find_bad_record(files, self._spec, self._vocab_size)


# ------------------------------------------------------------------ scores


class RowScores:
    """The losses and hits of each row of a pre-training batch.

    Called with features, as distribution.Predictor does; gives float32 [B]
    each: `masked_lm_loss` (a sum over the row's slots by their weights),
    `masked_lm_hits`, `masked_lm_weight`, `next_sentence_loss`,
    `next_sentence_hits`."""

    def __init__(self, model):
        self._model = model

    def __call__(self, features, training=False):
        """Runs the model and adds up what belongs to a row."""
        outputs = self._model(features, training=training)
        masked, weights, follows = self._model.head.example_losses(
            outputs, features
        )
        count, width = tf.unstack(tf.shape(features["masked_lm_weights"]))
        slots = outputs["masked_lm_slots"]
        labels = tf.gather(tf.reshape(features["masked_lm_ids"], [-1]), slots)
        hits = _is_best(outputs["masked_lm_logits"], labels)

        def by_row(values):
            return tf.math.unsorted_segment_sum(
                values * weights, slots // width, count
            )

        return {
            "masked_lm_loss": by_row(masked),
            "masked_lm_hits": by_row(hits),
            "masked_lm_weight": by_row(tf.ones_like(weights)),
            "next_sentence_loss": follows,
            "next_sentence_hits": _is_best(
                outputs["next_sentence_logits"],
                tf.reshape(features["next_sentence_labels"], [-1]),
            ),
        }


def _is_best(logits, labels):
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.cast(best == tf.cast(labels, tf.int32), tf.float32)


def metrics_of(batches, next_sentence=True):
    """Gives the original's metrics from the RowScores of all batches.

    Each prediction counts by its weight and each row once, whatever the
    batches; `loss` is the sum of both losses."""
    sums = {}
    rows = 0
    for scores in batches:
        rows += len(scores["next_sentence_loss"])
        for name, values in scores.items():
            total = values.sum(dtype=np.float64)
            sums[name] = sums.get(name, 0.0) + total
    weight = max(sums["masked_lm_weight"], 1e-5)
    results = {
        "masked_lm_loss": sums["masked_lm_loss"] / weight,
        "masked_lm_accuracy": sums["masked_lm_hits"] / weight,
    }
    results["loss"] = results["masked_lm_loss"]
    if next_sentence:
        results["next_sentence_loss"] = sums["next_sentence_loss"] / rows
        results["next_sentence_accuracy"] = sums["next_sentence_hits"] / rows
        results["loss"] += results["next_sentence_loss"]
    return {name: float(value) for name, value in results.items()}
