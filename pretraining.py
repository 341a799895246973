"""The run of run_pretraining.py: records in, a pre-trained model out.

Records -> batches -> encoder -> masked-LM and next-sentence heads -> training,
scores, or filled masks. What it leaves in the output directory is a model that
the fine-tuning scripts take as --init_checkpoint.
"""

import contextlib
import os

import numpy as np
import tensorflow as tf
from absl import logging

import checkpoints
import common_flags
import directories
import distribution
import dynamic_masking
import heads
import mask_filling
import modeling
import record_pipeline
import records
import runs
import text_pairs
import tokenization

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


def _config_of(files, vocab):
    """The BertConfig of a file, or of --model_preset and the vocabulary."""
    if FLAGS.model_preset and not common_flags.given("bert_config_file"):
        if vocab is None:
            raise ValueError(
                "--model_preset needs --vocab_file, whose size the model gets."
            )
        size = max(vocab.values()) + 1
        return modeling.BertConfig.from_preset(FLAGS.model_preset, size)
    runs.require_file(
        files, "bert_config_file", " Name one, or a size by --model_preset."
    )
    return checkpoints.load_config(files.config_file)


# ------------------------------------------------------------------ the run


class PretrainingRun(runs.Run):
    """One run in one output directory, as the flags say."""

    longer_inputs = "take a config with more positions"

    def __init__(self):
        super().__init__(FLAGS.output_dir, FLAGS.seed)
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
        self._padded = common_flags.on_tpu()

    def _check_vocab_is_there(self):
        for flag in ("do_predict", "dynamic_masking"):
            if FLAGS[flag].value and not self.files.vocab_file:
                raise ValueError(
                    f"--{flag} needs --vocab_file; there is none beside the "
                    "model."
                )

    def _run(self):
        """Trains, scores, fills masks; gives the metrics of --do_eval."""
        self._read()
        self._check_directory()
        if FLAGS.do_train:
            self._plan()
        directories.find_output_parent(self.output_dir)
        self._build()
        self._hold_directory()
        self._load_initial()
        results = {}
        if FLAGS.do_train:
            self._describe(self.output_dir)
            self._train()
        elif not self._load_trained():
            self._check_initial()
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
        if FLAGS.do_eval or self._evaluates:
            if FLAGS.do_train and not others:
                logging.warning(
                    "No --eval_input_file: the evaluation scores the records "
                    "of the training."
                )
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
            files, self.spec, self.config, first, FLAGS.nsp != "none"
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
        return {
            "task": TASK,
            "description": {"nsp": FLAGS.nsp},
            **self._model_description(),
        }

    # ---- the model

    def _build(self):
        """Makes strategy and model."""
        self._make_strategy()
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
        if FLAGS.do_train:
            self._check_stray_checkpoint()

    def _check_initial(self):
        """Raises ValueError unless --init_checkpoint gives a masked-LM head."""
        if not self.files.checkpoint:
            raise self._no_model()
        if not self._head_is_there:
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

    def _train(self):
        trainer = self._trainer(
            self._steps,
            self._warmup,
            len(self.train_files),
            best_metric="loss",
            tokens_per_example=self.train_files.mean_tokens,
        )
        dataset_fn = record_pipeline.training_batches(
            self.train_files,
            self._parser(),
            FLAGS.train_batch_size,
            self._steps,
            FLAGS.seed,
        )
        with self._explaining(self.train_files, self.eval_files):
            self._train_with(trainer, dataset_fn, self._scores)

    @contextlib.contextmanager
    def _explaining(self, *files):
        """Turns an error of TensorFlow into that of the record it died of."""
        try:
            yield
        except tf.errors.OpError:
            opened = [part for part in files if part is not None]
            for part in opened:
                if part.error is not None:
                    raise part.error from None
            for part in opened:
                record_pipeline.find_bad_record(part, self.spec, self.config)
            raise

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
        logging.info("Wrote %s", self._write_results(results))
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
