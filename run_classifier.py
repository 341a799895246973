r"""Fine-tunes BERT to classify or score a text or a pair of texts.

    python run_classifier.py --task_name=MRPC --data_dir=MRPC \
      --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=mrpc_output \
      --do_train --do_eval --do_predict --do_export

Reads GLUE, XNLI, Chinese and other published sets, and with --task_name=tsv
your own rows. Writes checkpoints, eval_results.txt, test_results.tsv (one row
of probabilities per test row, in the order of the labels in run.json),
test_labels.tsv (the labels by name) and saved_model/1 into the output
directory. Predicting and exporting need only --task_name, --output_dir and, to
predict, --data_dir once a model was trained there. About 4 minutes for MRPC
with a small BERT (6 layers, H 384) on two CPU cores.
"""

import json
import os

from absl import flags, logging

import common_flags
import directories
import processors
import records
import tasks

FLAGS = flags.FLAGS

# How a reader is to take its rows. Each flag is passed on only where it was
# given, and an earlier run tells those that are not.
ROW_FLAGS = (
    "label_column",
    "text_a_column",
    "text_b_column",
    "has_header",
    "multi_label",
    "label_separator",
    "label_columns",
    "regression",
    "xnli_language",
    "trec_fine",
)
READER_FLAGS = (
    "train_file",
    "dev_file",
    "test_file",
    "labels_file",
    "skip_bad_rows",
    *ROW_FLAGS,
)
# What has to be as it was in training.
RECALLED_FLAGS = (
    *ROW_FLAGS,
    "pooling",
    "long_text",
    "doc_stride",
    "max_seq_length",
    "threshold",
)
THRESHOLDS = "thresholds.json"
# What --best_metric may name, higher is better but for the losses.
METRICS = {
    "regression": ("eval_pearson", "eval_spearman"),
    "multi_label": ("eval_micro_f1", "eval_macro_f1", "eval_accuracy"),
}


def define_flags():
    """The flags of this script."""
    common_flags.define_all_finetuning_flags()
    text = flags.DEFINE_string
    common_flags.define_split_flags("Where the task's files are.")
    text(
        "task_name",
        None,
        "One of: " + ", ".join(processors.task_names()) + ". Case and hyphens "
        "do not matter. tsv reads your own train, dev and test .tsv, .csv or "
        ".jsonl with columns label, text_a and text_b.",
        required=True,
    )
    _define_reader_flags()
    flags.DEFINE_list(
        "class_weights",
        None,
        "One weight per label, in the order of the labels, or 'balanced': the "
        "rarer a label in the training set, the higher.",
    )
    text(
        "threshold",
        "0.5",
        "With --multi_label: the probability from which a label is given, or "
        "'tuned' for one per label that is best on the dev set; those are "
        f"kept in OUTPUT_DIR/{THRESHOLDS} for later predictions.",
    )


def _define_reader_flags():
    """What stands where in the files, and how a text is read."""
    text, switch = flags.DEFINE_string, flags.DEFINE_bool
    text("label_column", None, "Name or number (from 0) of the label column.")
    place = "Name or number (from 0) of the column of the"
    text("text_a_column", None, f"{place} text, or of the first text.")
    text("text_b_column", None, f"{place} second text, if there are pairs.")
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
    common_flags.define_long_text_flags(
        "read in windows whose logits are averaged"
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
        names = METRICS.get(self.kind)
        if names is None:
            names = [f"eval_{name}" for name in self.processor.metric_names]
            names = dict.fromkeys(["eval_accuracy", *names])
        self.metric_names = (*names, "eval_loss")
        self.labels = None
        self.is_pair = self.processor.is_pair
        self._thresholds = None  # float [C] once tuned
        self._label_counts = None  # of the training set
        self._bias = None  # where that of the head begins
        self._unit = (0.0, 1.0)  # mean and deviation of regression's labels

    def check(self):
        """Raises ValueError for flags that cannot work."""
        least = 5 if self.is_pair else 3
        if FLAGS.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} is too small: a "
                f"{'pair' if self.is_pair else 'single text'} needs at least "
                f"{least}. Raise the flag."
            )
        self._check_files()
        self._check_kind()
        if FLAGS.long_text == "windows":
            room = FLAGS.max_seq_length - 2
            if FLAGS.doc_stride is not None and FLAGS.doc_stride > room:
                raise ValueError(
                    f"--doc_stride={FLAGS.doc_stride} exceeds the {room} "
                    "tokens of a window (--max_seq_length less 2): tokens "
                    "would be left out. Lower it."
                )
        elif FLAGS.doc_stride is not None:
            raise ValueError("--doc_stride needs --long_text=windows.")

    def _check_files(self):
        phases = (("train", "train"), ("eval", "dev"), ("predict", "test"))
        asked = [split for phase, split in phases if FLAGS[f"do_{phase}"].value]
        absent = [n for n in asked if not common_flags.given(f"{n}_file")]
        if FLAGS.data_dir is not None:
            if not os.path.isdir(FLAGS.data_dir):
                raise ValueError(
                    f"--data_dir={FLAGS.data_dir} is no directory."
                )
        elif absent:
            raise ValueError(
                f"--data_dir is not given, so there is no {absent[0]} set. "
                f"Set it, or --{absent[0]}_file."
            )

    def _check_kind(self):
        """Whether the flags of a kind of task go with this one."""
        if FLAGS.class_weights is not None:
            if self.kind != "classification":
                raise ValueError(
                    "--class_weights is for tasks with one label a row, not "
                    f"for {self.kind}. Leave it out."
                )
            if FLAGS.class_weights != ["balanced"]:
                weights = self._numbers("class_weights", FLAGS.class_weights)
                if not any(weights):
                    raise ValueError(
                        f"--class_weights={','.join(FLAGS.class_weights)} "
                        "counts no row at all. Give at least one label a "
                        "weight above 0."
                    )
        if FLAGS.label_smoothing and self.kind == "regression":
            raise ValueError(
                "--label_smoothing has no meaning for regression. Leave it out."
            )
        if self.kind != "multi_label":
            if common_flags.given("threshold") is not None:
                raise ValueError("--threshold needs a multi-label task.")
        elif FLAGS.threshold != "tuned":
            (number,) = self._numbers("threshold", [FLAGS.threshold])
            if not 0 < number < 1:
                raise ValueError(
                    f"--threshold={FLAGS.threshold} is neither 'tuned' nor a "
                    "number between 0 and 1."
                )
        elif FLAGS.do_train and not FLAGS.do_eval:
            raise ValueError(
                "--threshold=tuned (given now, or by the run so far) needs "
                "--do_eval with --do_train: thresholds are of the weights that "
                "they were tuned for."
            )
        elif not FLAGS.do_eval and not self._thresholds_file():
            raise ValueError(
                "--threshold=tuned needs --do_eval, now or in the run that "
                "trained the model."
            )

    @staticmethod
    def _numbers(name, values):
        try:
            numbers = [float(value) for value in values]
        except ValueError:
            numbers = [-1.0]
        if not all(0 <= number < float("inf") for number in numbers):
            word = "balanced" if name == "class_weights" else "tuned"
            raise ValueError(
                f"--{name}={','.join(values)} is neither '{word}' nor numbers "
                "from 0 up."
            )
        return numbers

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
        self._check_recalled(description["kind"], description["pooling"])
        self.is_pair = description["is_pair"]
        if self.labels:
            self.processor.options["labels"] = list(self.labels)

    def _check_recalled(self, kind, pooling):
        """Raises ValueError for flags that contradict the trained model."""
        if pooling != FLAGS.pooling:
            raise common_flags.contradiction("pooling", f"it has {pooling}")
        if kind != self.kind:
            names = ("regression", "multi_label", "label_columns")
            given = [n for n in names if common_flags.given(n) is not None]
            raise common_flags.contradiction(
                given[0] if given else "task_name", f"it is for {kind}"
            )
        if FLAGS.labels_file:
            if self.processor.get_labels(FLAGS.data_dir) != self.labels:
                raise common_flags.contradiction(
                    "labels_file",
                    f"its labels are {', '.join(self.labels)[:200]}",
                )

    # ---- rows

    def examples(self, split):
        """Reads a split; the first one read settles the labels."""
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
        if self.is_pair and FLAGS.long_text != "truncate_tail":
            raise ValueError(
                f"--long_text={FLAGS.long_text} is for single texts; the rows "
                "of this task are pairs, of which the longer text is cut. "
                "Leave it out."
            )
        if split == "train" and sets[""]:
            self._take_measure(sets[""])
        return sets

    def _take_measure(self, examples):
        """Looks at the training labels, for the head to begin near them.

        A sigmoid that begins at 0.5 must fall to the share of its label. The
        bias cannot in so few small steps; the pooled output would instead
        become the same for all texts, and hardly recovers. So the bias begins
        at the log-odds of the share. An own regression's labels are counted
        in deviations from their mean, unless the head is loaded."""
        import numpy as np

        values = np.array(self._values(examples))
        if self.kind == "classification":
            counts = np.bincount(values, minlength=len(self.labels))
            self._label_counts = counts.tolist()
        elif self.kind == "multi_label":
            share = (values.sum(axis=0) + 0.5) / (len(values) + 1)
            smooth = FLAGS.label_smoothing
            share = share * (1 - smooth) + 0.5 * smooth
            self._bias = np.log(share / (1 - share))
        elif self.processor.any_range:
            mean, deviation = float(values.mean()), float(values.std())
            least, most = float(values.min()), float(values.max())
            if least < most and deviation < max(1e-5 * abs(mean), 1e-30):
                raise ValueError(
                    f"the labels, {least} to {most}, lie too close together "
                    "to be told apart in single precision. Subtract "
                    f"{mean} from them, or scale them."
                )
            self._unit = (mean, deviation or 1.0)

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
            texts = [example.text_a, example.text_b]
            row = processors.encode_pair(self.tokenizer, *texts, room)
            if len(row[0]) == room:
                ids = [self.tokenizer.encode(text) for text in texts if text]
                self.num_cut += sum(map(len, ids)) + len(ids) + 1 > room
            return [row]
        ids = self.tokenizer.encode(example.text_a)
        if FLAGS.long_text != "windows":
            self.num_cut += len(ids) > room - 2
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

    def head(self, encoder, padded):
        """A linear layer on the pooled text."""
        import heads

        if self.labels is None:  # no set was read, no run is restored
            self.labels = list(self.processor.get_labels(FLAGS.data_dir))
        if self.kind == "multi_label" and not self._tunes():
            self.thresholds()  # read, and refused, before the long work
        self._head = heads.ClassifierHead(
            encoder.config.hidden_size,
            max(1, len(self.labels)),
            self.kind,
            FLAGS.pooling,
            self._class_weights(),
            FLAGS.label_smoothing,
            self._bias,
            self._unit,
        )
        return self._head

    def check_loaded(self, fresh):
        """Lets a trained regression count in the unit of the new labels."""
        begins = FLAGS.do_train and not directories.is_trained(self.directory)
        if self.kind != "regression" or not begins:
            return
        if "output_weights" in fresh or self._head.change_unit(*self._unit):
            return
        logging.warning(
            "The labels have another size than those that --init_checkpoint "
            "was trained on: the head begins anew."
        )

    def _class_weights(self):
        weights = FLAGS.class_weights
        if weights is None or not FLAGS.do_train:
            return None
        if weights == ["balanced"]:
            total = sum(self._label_counts) / len(self.labels)
            return [total / max(1, count) for count in self._label_counts]
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

    def _values(self, examples):
        """The labels as numbers."""
        return [
            processors.label_value(example, self.labels, self.kind)
            for example in examples
        ]

    def score(self, examples, outputs, batch_size):
        """The task's metrics, and the loss in the original's two ways."""
        import metrics

        logits = self._by_example(examples, outputs)
        labels = self._values(examples)
        if self._tunes():
            self._thresholds = metrics.tune_thresholds(
                labels, metrics.probabilities(self.kind, logits)
            ).tolist()
        scores = metrics.task_scores(
            self.kind,
            self.processor.metric_names,
            logits,
            labels,
            self.thresholds() if self.kind == "multi_label" else 0.5,
        )
        losses = metrics.example_losses(self.kind, logits, labels)
        scores["eval_loss"] = float(losses.mean())
        scores["loss"] = metrics.mean_of_batch_means(losses, batch_size)
        return scores

    def begin_training(self):
        """Forgets the thresholds of earlier weights."""
        path = os.path.join(self.directory, THRESHOLDS)
        if os.path.exists(path):
            os.remove(path)

    def _tunes(self):
        """Whether the set that is scored sets the thresholds.

        That of a training does, or the first one; later sets are scored by
        what was found then."""
        if self.kind != "multi_label" or FLAGS.threshold != "tuned":
            return False
        if FLAGS.do_train or not FLAGS.do_eval:
            return FLAGS.do_eval
        return not self._thresholds_file(of_the_model=True)

    def _thresholds_file(self, of_the_model=False):
        """The thresholds that were tuned for the weights in use, or None.

        They lie in the run of the weights, or else, unless `of_the_model`,
        where weights from elsewhere were scored earlier."""
        own = self.directory or FLAGS.output_dir
        places = [own]
        if FLAGS.init_checkpoint and not directories.is_trained(own):
            run = directories.run_directory(FLAGS.init_checkpoint)
            places = [run] if of_the_model else [run, own]
        paths = [os.path.join(place, THRESHOLDS) for place in places]
        return next(filter(os.path.exists, paths), None)

    def thresholds(self):
        """The probability from which each label is given, list [C].

        Tuned in this run, or else in the one that trained the model, unless
        --threshold says otherwise."""
        if self._thresholds is not None:
            return self._thresholds
        path = None if FLAGS.do_train else self._thresholds_file()
        fixed = common_flags.given("threshold") not in (None, "tuned")
        if path and not (fixed and not common_flags.is_recalled("threshold")):
            found = common_flags.read_json(path)
            if not isinstance(found, dict) or list(found) != self.labels:
                raise ValueError(
                    f"{path}: is not of the labels of this model. Remove it, "
                    "or set --threshold."
                )
            self._thresholds = list(found.values())
            if not all(
                type(x) in (int, float) and 0 <= x <= 1 for x in found.values()
            ):
                raise ValueError(
                    f"{path}: holds other than numbers from 0 to 1. Mend or "
                    "remove it."
                )
            logging.info("Thresholds are those of %s", path)
        else:
            self._thresholds = [float(FLAGS.threshold)] * len(self.labels)
        return self._thresholds

    def write_evaluation(self, examples, outputs, directory, suffix):
        """Keeps tuned thresholds for later predictions."""
        if self.kind != "multi_label" or FLAGS.threshold != "tuned":
            return []
        path = os.path.join(directory, THRESHOLDS)
        found = dict(zip(self.labels, self.thresholds(), strict=True))
        text = json.dumps(found, indent=1, ensure_ascii=False)
        common_flags.write_whole(path, text + "\n")
        return [path]

    def names(self, logits):
        """What logits [rows, C] say, a str a row: the label or labels."""
        import metrics

        if self.kind == "classification":
            return [self.labels[best] for best in logits.argmax(axis=-1)]
        if self.kind == "regression":
            return [f"{score:.6g}" for score in logits[:, 0]]
        given = metrics.probabilities(self.kind, logits) >= self.thresholds()
        return [
            FLAGS.label_separator.join(
                label
                for label, is_given in zip(self.labels, row, strict=True)
                if is_given
            )
            for row in given
        ]

    def write(self, examples, outputs, directory, suffix):
        """Writes test_results.tsv and, for labels, test_labels.tsv.

        A row for each example, in order."""
        import metrics

        logits = self._by_example(examples, outputs)
        path = os.path.join(directory, f"test_results{suffix}.tsv")
        processors.write_test_results(
            path, metrics.probabilities(self.kind, logits)
        )
        if self.kind == "regression":
            return [path]
        named = os.path.join(directory, f"test_labels{suffix}.tsv")
        lines = "".join(f"{name}\n" for name in self.names(logits))
        common_flags.write_whole(named, lines)
        return [path, named]

    def report(self, examples, outputs):
        """Confusion, scores by label and length, the worst examples."""
        import classifier_report

        return classifier_report.parts(
            self.kind,
            self.labels,
            examples,
            self._by_example(examples, outputs),
            self._values(examples),
            self.token_counts(examples, outputs),
            self.thresholds() if self.kind == "multi_label" else None,
        )

    # ---- serving

    def text_inputs(self):
        """`text`, or `text_a` and `text_b`."""
        return ("text_a", "text_b") if self.is_pair else ("text",)

    def serve(self, texts, tokenizer, call):
        """Tokenizes raw strings as in training and answers them."""
        import tensorflow as tf

        import exporting

        length = FLAGS.max_seq_length
        ids = [tokenizer.tokenize(text).ids for text in texts.values()]
        if FLAGS.long_text == "truncate_tail" or self.is_pair:
            features = tokenizer.pack(*ids, max_seq_length=length)
            return self.serving_outputs(call(features))
        rows, owners = exporting.long_text_rows(
            ids[0], length - 2, FLAGS.long_text, FLAGS.doc_stride
        )
        features = tokenizer.pack(rows, max_seq_length=length)
        if FLAGS.long_text != "windows":
            return self.serving_outputs(call(features))
        shape = [None, max(1, len(self.labels))]
        read = exporting.in_parts(call, "logits", tf.float32, shape)
        logits = tf.math.unsorted_segment_mean(
            read(features)["logits"], owners, tf.size(ids[0].row_starts())
        )
        squash = tf.sigmoid if self.kind == "multi_label" else tf.nn.softmax
        return self.serving_outputs(
            {"score": logits[:, 0], "probabilities": squash(logits)}
        )

    def serving_outputs(self, outputs):
        """`probabilities` [B, C] and `label` [B], or `score` [B].

        With several labels to a row, `label` has them all, divided by
        --label_separator."""
        import tensorflow as tf

        if self.kind == "regression":
            return {"score": outputs["score"]}
        probabilities = outputs["probabilities"]
        names = tf.constant(self.labels)
        if self.kind == "multi_label":
            given = probabilities >= tf.constant(self.thresholds(), tf.float32)
            rows = tf.zeros_like(probabilities, tf.int32)
            chosen = tf.ragged.boolean_mask(
                tf.gather(names, rows + tf.range(tf.size(names))), given
            )
            label = tf.strings.reduce_join(
                chosen, axis=1, separator=FLAGS.label_separator
            )
        else:
            label = tf.gather(names, tf.argmax(probabilities, axis=-1))
        return {"probabilities": probabilities, "label": label}


def main(_):
    """Checks the flags, then makes the trip."""
    task = tasks.prepare(ClassifierTask, RECALLED_FLAGS, ROW_FLAGS)
    import finetuning

    finetuning.run(task)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
