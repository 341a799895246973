"""Fine-tunes BERT to classify or score a text or a pair of texts.

    python run_classifier.py --task_name=MRPC --data_dir=MRPC \
      --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=mrpc_output \
      --do_train --do_eval --do_predict --do_export

Reads GLUE, XNLI, Chinese and other published sets, and with --task_name=tsv
your own rows. Writes checkpoints, eval_results.txt, test_results.tsv (one row
of probabilities per test row, in the order of the labels in run.json) and
saved_model/1 into the output directory. About 2 minutes for MRPC with a small
BERT (6 layers, H 384) on two CPU cores.
"""

import os

from absl import flags

import common_flags
import processors
import records
import tasks

FLAGS = flags.FLAGS

# Flags of one reader or another; each is passed on only where it was given.
READER_FLAGS = (
    "train_file",
    "dev_file",
    "test_file",
    "label_column",
    "text_a_column",
    "text_b_column",
    "has_header",
    "labels_file",
    "multi_label",
    "label_separator",
    "label_columns",
    "regression",
    "xnli_language",
    "trec_fine",
    "skip_bad_rows",
)
LONG_TEXTS = ("truncate_tail", "truncate_head", "head_tail", "windows")


def define_flags():
    """The flags of this script."""
    common_flags.define_all_finetuning_flags()
    text, switch = flags.DEFINE_string, flags.DEFINE_bool
    text("data_dir", None, "Where the task's files are.", required=True)
    text(
        "task_name",
        None,
        "One of: " + ", ".join(processors.task_names()) + ". Case and hyphens "
        "do not matter. tsv reads your own train, dev and test .tsv, .csv or "
        ".jsonl with columns label, text_a and text_b.",
        required=True,
    )
    for split in ("train", "dev", "test"):
        text(f"{split}_file", None, f"The {split} set, not the usual file.")
    text("label_column", None, "Name or number (from 0) of the label column.")
    text("text_a_column", None, "The same of the text, or first text.")
    text("text_b_column", None, "The same of the second text.")
    switch("has_header", None, "Whether the first row names the columns.")
    text("labels_file", None, "The labels, one on a line, in their order.")
    switch("multi_label", False, "Any number of labels to a row.")
    text("label_separator", ",", "What divides the labels of a row.")
    text("label_columns", None, "One 0/1 column for each label.")
    switch("regression", False, "The label is a number to be guessed.")
    text("xnli_language", "zh", "Language of XNLI, or several by commas.")
    switch("trec_fine", False, "TREC's 50 fine labels, not its 6 coarse ones.")
    switch("skip_bad_rows", False, "Leaves bad rows out, with a warning.")
    flags.DEFINE_enum(
        "pooling",
        "cls",
        ("cls", "mean", "max"),
        "What stands for the text: BERT's pooled [CLS], or the mean or "
        "maximum over its tokens.",
    )
    flags.DEFINE_enum(
        "long_text",
        "truncate_tail",
        LONG_TEXTS,
        "What is done to a text beyond --max_seq_length: its tail or its "
        "head is cut, or its middle (head_tail), or it is read in windows "
        "whose logits are averaged.",
    )
    flags.DEFINE_integer(
        "doc_stride",
        None,
        "With --long_text=windows, the step from one window to the next; "
        "by default half a window.",
        lower_bound=1,
    )
    flags.DEFINE_list(
        "class_weights",
        None,
        "One weight per label, in the order of the labels, or 'balanced'.",
    )
    text(
        "threshold",
        "0.5",
        "With --multi_label: the probability from which a label is given, or "
        "'tuned' for one per label that is best on the dev set.",
    )


class ClassifierTask(tasks.Task):
    """Classification, multi-label classification or regression of texts."""

    name = "classifier"
    best_metric = "eval_accuracy"

    def __init__(self):
        self.processor = processors.get_processor(
            FLAGS.task_name,
            **{
                name: common_flags.given(name)
                for name in READER_FLAGS
                if common_flags.given(name) is not None
            },
        )
        self.kind = self.processor.output_mode
        self.name = f"classifier/{self.processor.name}"
        self.best_metric = f"eval_{self.processor.metric_names[0]}"
        self.labels = None
        self.is_pair = self.processor.is_pair
        self.thresholds = None

    def check(self):
        """Raises ValueError for flags that cannot work."""
        least = 5 if self.is_pair else 3
        if FLAGS.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} is too small: a "
                f"{'pair' if self.is_pair else 'single text'} needs at least "
                f"{least}. Raise the flag."
            )
        if FLAGS.threshold != "tuned":
            try:
                number = float(FLAGS.threshold)
            except ValueError:
                number = -1.0
            if not 0 < number < 1:
                raise ValueError(
                    f"--threshold={FLAGS.threshold} is neither 'tuned' nor a "
                    "number between 0 and 1."
                )

    def describe(self):
        """Labels in order, kind, pairs or not, and how texts are read."""
        return {
            "labels": self.labels,
            "kind": self.kind,
            "is_pair": self.is_pair,
            "pooling": FLAGS.pooling,
        }

    def restore(self, description):
        """Takes the labels in the order of the trained head."""
        self.labels = description["labels"]
        self.kind = description["kind"]
        self.is_pair = description["is_pair"]
        if self.labels:
            self.processor.options["labels"] = list(self.labels)

    # ---- rows

    def examples(self, split):
        """Reads a split; the first one read settles the labels."""
        if not os.path.isdir(FLAGS.data_dir):
            raise ValueError(f"--data_dir={FLAGS.data_dir} is no directory.")
        read = self.processor
        if split == "train":
            sets = {"": read.get_train_examples(FLAGS.data_dir)}
        elif split == "eval":
            sets = read.get_dev_sets(FLAGS.data_dir)
        else:
            sets = read.get_test_sets(FLAGS.data_dir)
        if self.labels is None:
            self.labels = list(read.get_labels(FLAGS.data_dir))
        self.is_pair = self.is_pair or any(
            example.text_b for rows in sets.values() for example in rows
        )
        return sets

    def featurize(self, example):
        """Gives one row, or one per window of a long text."""
        value = processors.label_value(example, self.labels, self.kind)
        label = "label_values" if self.kind == "regression" else "label_ids"
        return [
            {"input_ids": ids, "segment_ids": segments, label: value}
            for ids, segments in self._token_rows(example)
        ]

    def _token_rows(self, example):
        room = FLAGS.max_seq_length
        if FLAGS.long_text == "truncate_tail" or example.text_b:
            return [
                processors.encode_pair(
                    self.tokenizer, example.text_a, example.text_b, room
                )
            ]
        ids = self.tokenizer.encode(example.text_a)
        first, last = self.tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        parts = processors.long_text_parts(
            ids, room - 2, FLAGS.long_text, FLAGS.doc_stride
        )
        rows = [[first, *part, last] for part in parts]
        return [(row, [0] * len(row)) for row in rows]

    def feature_spec(self):
        """The original's features; labels by the kind of task."""
        spec = tasks.token_features(FLAGS.max_seq_length)
        if self.kind == "regression":
            spec.append(records.Feature("label_values", "float32"))
        elif self.kind == "multi_label":
            count = len(self.labels)
            spec.append(records.Feature("label_ids", "int64", count))
        else:
            spec.append(records.Feature("label_ids", "int64"))
        return records.FeatureSpec(spec)

    # ---- model

    def head(self, config, dtype, padded):
        """A linear layer on the pooled text."""
        import heads

        return heads.ClassifierHead(
            config.hidden_size,
            max(1, len(self.labels)),
            self.kind,
            FLAGS.pooling,
            self._class_weights(),
            FLAGS.label_smoothing,
        )

    def _class_weights(self):
        weights = FLAGS.class_weights
        if weights is None or weights == ["balanced"]:
            return self.balanced if weights else None
        if len(weights) != len(self.labels):
            raise ValueError(
                f"--class_weights has {len(weights)} numbers for "
                f"{len(self.labels)} labels: {', '.join(self.labels)}."
            )
        return [float(weight) for weight in weights]

    # ---- scores and files

    def _by_example(self, examples, outputs):
        """Logits [examples, C], averaged over the windows of a text."""
        import numpy as np

        owners = outputs["example"]
        logits = np.zeros((len(examples), outputs["logits"].shape[1]))
        np.add.at(logits, owners, outputs["logits"])
        count = np.bincount(owners, minlength=len(examples))
        return logits / count[:, None]

    def score(self, examples, outputs, batch_size):
        """The task's metrics, and the loss in the original's two ways."""
        import metrics

        logits = self._by_example(examples, outputs)
        labels = [
            processors.label_value(example, self.labels, self.kind)
            for example in examples
        ]
        scores = metrics.task_scores(
            self.kind, self.processor.metric_names, logits, labels
        )
        losses = metrics.example_losses(self.kind, logits, labels)
        scores["eval_loss"] = float(losses.mean())
        scores["loss"] = metrics.mean_of_batch_means(losses, batch_size)
        return scores

    def write(self, examples, outputs, directory, suffix):
        """Writes test_results.tsv, a row for each example, in order."""
        import metrics

        logits = self._by_example(examples, outputs)
        path = os.path.join(directory, f"test_results{suffix}.tsv")
        processors.write_test_results(
            path, metrics.probabilities(self.kind, logits)
        )
        return [path]

    # ---- serving

    def text_inputs(self):
        """`text`, or `text_a` and `text_b`."""
        return ("text_a", "text_b") if self.is_pair else ("text",)

    def serve(self, texts, tokenizer, call):
        """Tokenizes raw strings as in training and answers them."""
        ids = [tokenizer.tokenize(text).ids for text in texts.values()]
        features = tokenizer.pack(*ids, max_seq_length=FLAGS.max_seq_length)
        return self.serving_outputs(call(features))

    def serving_outputs(self, outputs):
        """`probabilities` [B, C] and `label` [B], or `score` [B]."""
        import tensorflow as tf

        if self.kind == "regression":
            return {"score": outputs["score"]}
        probabilities = outputs["probabilities"]
        if self.kind == "multi_label":
            return {"probabilities": probabilities}
        names = tf.constant(self.labels)
        best = tf.argmax(probabilities, axis=-1)
        return {
            "probabilities": probabilities,
            "label": tf.gather(names, best),
        }


def main(_):
    """Checks the flags, then makes the trip."""
    task = ClassifierTask()
    common_flags.check_phases("do_train", "do_eval", "do_predict", "do_export")
    task.check()
    import finetuning

    finetuning.run(task)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
