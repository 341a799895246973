"""Fine-tunes BERT to tag words: named entities, parts of speech, chunks.

    python run_ner.py --data_dir=CoNLL-2003 \\
      --init_checkpoint=cased_L-12_H-768_A-12 --output_dir=ner_output \\
      --do_train --do_eval --do_predict --do_export

Reads train.txt, dev.txt and test.txt with a word and its tag on each line and
a blank line after each sentence (any number of columns), or .jsonl files.
Writes eval_results.txt (precision, recall and F1 of entities, also by type),
test_predictions.txt (the test file with one more column) and saved_model/1.
A sentence of any length keeps all its rows: what exceeds --max_seq_length is
read in windows that overlap. About 4 minutes an epoch for CoNLL-2003 with a
small BERT (6 layers, H 384) on two CPU cores.
"""

import os
import re
from typing import NamedTuple

from absl import flags, logging

import common_flags
import labelling_data
import records
import tasks
import tokenization

FLAGS = flags.FLAGS

SCHEMES = ("auto", "IOB1", "IOB2", "IOBES", "BILOU", "BMES", "plain")
ENDINGS = (".txt", ".jsonl", ".json", ".tsv", ".conll")
FILE_NAMES = {
    "train": ("train",),
    "eval": ("dev", "valid", "val"),
    "predict": ("test",),
}
LOST_TAG = "O"  # of words without pieces
# What prediction and export take from the run that trained the model.
RECALLED = (
    "max_seq_length",
    "doc_stride",
    "tag_scheme",
    "token_column",
    "tag_column",
    "use_crf",
)


def define_flags():
    """The flags of this script."""
    common_flags.define_all_finetuning_flags()
    common_flags.define_split_flags(
        "Where train.txt, dev.txt and test.txt are (or .jsonl)."
    )
    text = flags.DEFINE_string
    text(
        "token_column",
        "0",
        "The column of the words: a number from 0, or from the end (-1 is "
        "the last), or of JSON lines the field's name.",
    )
    text("tag_column", "-1", "The column of the tags, as --token_column.")
    flags.DEFINE_enum(
        "tag_scheme",
        "auto",
        SCHEMES,
        "How tags mark entities; auto finds it out, plain takes each tag as "
        "it is. Predictions are written in it, too.",
    )
    text("labels_file", None, "The tags, one on a line, in their order.")
    flags.DEFINE_bool(
        "use_crf",
        False,
        "Whether to score whole sentences of tags (a linear-chain CRF) and "
        "not each tag on its own.",
    )
    common_flags.define_float(
        "crf_rate_multiplier",
        100.0,
        "How many times faster the CRF's transitions learn than the rest.",
        lower_bound=0.0,
    )
    flags.DEFINE_integer(
        "doc_stride",
        None,
        "The step in pieces from one window of a long sentence to the next; "
        "by default three quarters of a window.",
        lower_bound=1,
    )


def column(value):
    """A column as number, or a name as it is."""
    return int(value) if re.fullmatch(r"-?\d+", value) else value


def unit_of(sentences):
    """What a word is in these sentences: one of labelling_ops.UNITS.

    It decides how the exported model finds the words of a raw string:
    "character" if every word has one character and some are Chinese, "cjk"
    if those with a Chinese character do, else "word"."""
    chinese = re.compile(f"[{tokenization.CJK}]")
    words = {word for sentence in sentences for word in sentence.words}
    found = [word for word in words if chinese.search(word)]
    if not found or any(len(word) > 1 for word in found):
        return "word"
    return "cjk" if any(len(word) > 1 for word in words) else "character"


class Example(NamedTuple):
    """A sentence and the windows in which the model reads it."""

    sentence: labelling_data.Sentence
    windows: list


class LabellingTask(tasks.Task):
    """One tag for each word of a sentence."""

    name = "ner"
    sequence_outputs = ("tag_ids",)
    unread_outputs = ("logits",)
    rowless_examples = True

    def __init__(self):
        self.labels = None
        self.scheme = None
        self.unit = "word"
        self.use_crf = FLAGS.use_crf
        self.files = {}
        if self.use_crf:
            pair = (r"(^|/)crf/transitions", FLAGS.crf_rate_multiplier)
            self.learning_rate_multipliers = (pair,)

    @property
    def best_metric(self):
        """F1 of entities, or accuracy where tags are plain."""
        return "eval_accuracy" if self.scheme == "plain" else "eval_f1"

    @property
    def metric_names(self):
        """What --best_metric may name; more while the tags are not known."""
        if self.scheme == "plain":
            return ("eval_accuracy", "eval_loss")
        kinds = {label[2:] for label in self.labels or ["B-*"]} - {""}
        names = ["f1", "precision", "recall"]
        names += [f"{n}_{kind}" for n in names for kind in sorted(kinds)]
        return tuple(f"eval_{n}" for n in [*names, "accuracy", "loss"])

    def check(self):
        """Raises ValueError for flags that cannot work."""
        labelling_data.window_sizes(FLAGS.max_seq_length, FLAGS.doc_stride)
        if self.use_crf and FLAGS.label_smoothing:
            raise ValueError(
                "--label_smoothing does not go with --use_crf, which scores "
                "whole sentences. Leave out one of them."
            )

    def describe(self):
        """Labels in order, their scheme, what a word is, the head."""
        return {
            "labels": self.labels,
            "scheme": self.scheme,
            "unit": self.unit,
            "use_crf": self.use_crf,
        }

    def restore(self, description):
        """Takes labels, scheme and head of the trained model."""
        self.labels = description["labels"]
        self.scheme = description["scheme"]
        self.unit = description["unit"]
        if common_flags.given("use_crf") is None:
            self.use_crf = description["use_crf"]
        if FLAGS.tag_scheme not in ("auto", self.scheme):
            raise common_flags.contradiction(
                "tag_scheme", f"its tags are {self.scheme}"
            )
        if FLAGS.labels_file:
            path = FLAGS.labels_file
            if labelling_data.read_labels(path, self.scheme) != self.labels:
                raise common_flags.contradiction(
                    "labels_file", f"its tags are {' '.join(self.labels)[:200]}"
                )

    # ---- rows

    def examples(self, split):
        """Reads a split; the first one read settles labels and scheme."""
        train = self.files.get("train")
        found = labelling_data.read_labelled_file(
            common_flags.find_split(split, FILE_NAMES[split], ENDINGS),
            column(FLAGS.token_column),
            column(FLAGS.tag_column),
            labelled=split != "predict",
            columns=train and train.columns,
        )
        if split == "predict":
            self._convert_test(found)
        else:
            scheme = self._convert(found)
            if self.labels is None:
                self._settle(found, scheme)
            labelling_data.check_known_tags(found, self.labels)
        self.files[split] = found
        return {"": [self._example(s) for s in found.sentences]}

    def _convert(self, found):
        """Makes IOB2 of a file's tags; gives the scheme they had."""
        scheme = None if FLAGS.tag_scheme == "auto" else FLAGS.tag_scheme
        if self.scheme == "plain":
            scheme = "plain"
        return labelling_data.convert_to_iob2(found, scheme)

    def _convert_test(self, found):
        """The same of a test set, whose tags need not make sense."""
        self._check_labels()
        if any(sentence.tags is None for sentence in found.sentences):
            return
        try:
            self._convert(found)
        except ValueError as error:
            logging.warning("%s The tags of this test set are not used.", error)
            for sentence in found.sentences:
                sentence.tags = None
        labelling_data.check_known_tags(found, self.labels, labelled=False)

    def _check_labels(self):
        if self.labels is None:
            raise ValueError(
                "The tags are not known: there is no trained model in "
                "--output_dir. Add --do_train."
            )

    def _settle(self, found, scheme):
        """Takes labels, scheme and unit from the first set read."""
        self.scheme = scheme
        self.unit = unit_of(found.sentences)
        if FLAGS.labels_file:
            self.labels = labelling_data.read_labels(FLAGS.labels_file, scheme)
        else:
            self.labels = labelling_data.labels_of(found.sentences, scheme)
        logging.info(
            "%s: tags are %s, %d labels: %s",
            found.path,
            scheme,
            len(self.labels),
            " ".join(self.labels[:40]),
        )

    def _example(self, sentence):
        windows = labelling_data.encode_words(
            self.tokenizer,
            sentence.words,
            FLAGS.max_seq_length,
            FLAGS.doc_stride,
        )
        return Example(sentence, [w for w in windows if w.words])

    def featurize(self, example):
        """Gives one row per window with words to be answered."""
        sentence, windows = example
        number = {label: index for index, label in enumerate(self.labels)}
        shown = [word for window in windows for word in window.words]
        tags = [self.labels[0]] * len(shown)
        if sentence.tags is not None:
            tags = [sentence.tags[word] for word in shown]
            if self.scheme != "plain":
                tags = labelling_data.to_iob2(tags)
        rows, done = [], 0
        for window in windows:
            labels, mask = [0] * len(window.ids), [0] * len(window.ids)
            for place in window.positions:
                labels[place], mask[place] = number[tags[done]], 1
                done += 1
            rows.append(
                {
                    "input_ids": window.ids,
                    "segment_ids": [0] * len(window.ids),
                    "label_ids": labels,
                    "label_mask": mask,
                    "continues": int(bool(rows)),
                }
            )
        return rows

    def feature_spec(self):
        """The three of every model; label and whether it counts per token.

        `continues` is 1 for windows inside a sentence."""
        spec = tasks.token_features(FLAGS.max_seq_length)
        spec += [
            records.Feature(name, "int64", FLAGS.max_seq_length, True)
            for name in ("label_ids", "label_mask")
        ]
        spec.append(records.Feature("continues", "int64"))
        return records.FeatureSpec(spec)

    # ---- model

    def head(self, encoder, padded):
        """A linear layer on every token, or a CRF on top of it."""
        import labelling_heads

        self._check_labels()
        starts = labelling_heads.word_starts(self.tokenizer.vocab)
        if self.use_crf:
            rules = labelling_data.allowed_transitions(self.labels, self.scheme)
            return labelling_heads.CrfHead(
                encoder.config.hidden_size, *rules, starts, padded
            )
        return labelling_heads.TokenHead(
            encoder.config.hidden_size,
            len(self.labels),
            starts,
            FLAGS.label_smoothing,
        )

    # ---- scores and files

    def tags(self, examples, outputs):
        """A list of tags for each example: IOB2, or the plain ones."""
        rows = iter(outputs.get("tag_ids", ()))
        found = []
        for sentence, windows in examples:
            answers = [
                [self.labels[row[place]] for place in window.positions]
                for window, row in zip(windows, rows, strict=False)
            ]
            tags = labelling_data.merge_windows(
                len(sentence.words), windows, answers, LOST_TAG
            )
            if self.scheme != "plain":
                tags = labelling_data.to_iob2(tags)
            found.append(tags)
        return found

    def score(self, examples, outputs, batch_size):
        """Scores of entities and accuracy of tags; every row counts."""
        import metrics

        gold = [example.sentence.tags for example in examples]
        found = self.tags(examples, outputs)
        written = (
            [labelling_data.from_iob2(tags, self.scheme) for tags in side]
            for side in (gold, found)
        )
        scores = metrics.token_accuracy(*written)
        if self.scheme != "plain":
            scores |= metrics.span_scores(gold, found)
        words = sum(len(w.words) for e in examples for w in e.windows)
        loss = float(sum(outputs.get("row_losses", ())))
        scores["eval_loss"] = loss / max(1, words)
        return scores

    def write(self, examples, outputs, directory, suffix):
        """Writes the test file with one more column (or field).

        Where the file had tags, test_results.txt says how right they are."""
        file = self.files["predict"]
        is_json = file.separator is None
        ending = "jsonl" if is_json else "txt"
        path = os.path.join(directory, f"test_predictions{suffix}.{ending}")
        tags = [
            labelling_data.from_iob2(tags, self.scheme)
            for tags in self.tags(examples, outputs)
        ]
        labelling_data.write_predictions(file, tags, path)
        if any(example.sentence.tags is None for example in examples):
            return [path]
        scores = self.score(examples, outputs, FLAGS.predict_batch_size)
        lines = [f"{key} = {scores[key]}\n" for key in sorted(scores)]
        lines = [line.replace("eval_", "test_", 1) for line in lines]
        results = os.path.join(directory, f"test_results{suffix}.txt")
        common_flags.write_whole(results, "".join(lines))
        return [path, results]

    def report(self, examples, outputs):
        """Mistakes by type, scores by length, the worst sentences."""
        import numpy as np

        import metrics
        import reports

        gold = [example.sentence.tags for example in examples]
        found = self.tags(examples, outputs)
        parts = []
        if self.scheme != "plain":
            spans = metrics.span_scores(gold, found)
            kinds = [k[8:] for k in spans if k.startswith("eval_f1_")]
            values = [spans[f"eval_f1_{kind}"] for kind in kinds]
            if kinds:
                bars = reports.bars("F1 by type", kinds, values, ylabel="F1")
                parts.append(bars)
        names = sorted({self._kind(t) for tags in gold + found for t in tags})
        number = {name: index for index, name in enumerate(names)}
        pairs = [
            [number[self._kind(tag)] for tags in side for tag in tags]
            for side in (gold, found)
        ]
        matrix = metrics.confusion_matrix(*pairs, len(names))
        parts.append(reports.confusion(names, matrix, "Words by type"))
        right = [
            np.mean([a == b for a, b in zip(*tags, strict=True)])
            for tags in zip(gold, found, strict=True)
        ]
        sizes = [len(tags) for tags in gold]
        parts.append(reports.by_length(sizes, right, "share of right tags"))
        losses = np.zeros(len(examples))
        np.add.at(losses, outputs["example"], outputs.get("row_losses", 0.0))
        worst = [
            (
                loss / len(sentence.words) if true != guess else 0.0,
                sentence.source,
                labelling_data.describe_tags(sentence.words, true),
                labelling_data.describe_tags(sentence.words, guess),
                " ".join(sentence.words),
            )
            for loss, (sentence, _), true, guess in zip(
                losses, examples, gold, found, strict=True
            )
        ]
        return [*parts, reports.worst_examples(worst)]

    def _kind(self, tag):
        if self.scheme == "plain":
            return tag
        return labelling_data.tag_parts(tag)[1] or "O"

    # ---- serving

    def text_inputs(self):
        """`text`, a sentence whose words stand as in the training file."""
        return ("text",)

    def serve(self, texts, tokenizer, call):
        """`words`, `starts`, `ends`, `tags` [B, W], filled with "" and -1."""
        import tensorflow as tf

        import exporting
        import labelling_ops

        words = labelling_ops.find_words(texts["text"], tokenizer, self.unit)
        read = exporting.in_parts(call, "tag_ids", tf.int32, [None, None])
        tags = labelling_ops.tag_words(
            words, tokenizer, read, FLAGS.max_seq_length, FLAGS.doc_stride
        )
        writer = labelling_ops.TagWriter(self.labels, self.scheme)

        def dense(values, default):
            rows = tf.RaggedTensor.from_row_splits(values, words.splits)
            return rows.to_tensor(default)

        return {
            "words": dense(words.texts, ""),
            "starts": dense(words.starts, -1),
            "ends": dense(words.ends, -1),
            "tags": dense(writer(tags, words.splits), ""),
        }

    def serving_outputs(self, outputs):
        """`tags` [B, L] at pieces that begin a word, "" elsewhere."""
        import tensorflow as tf

        import labelling_ops

        tags = outputs["tag_ids"]
        cells = tf.where(tags >= 0)
        rows = tf.cast(cells[:, 0], tf.int32)
        splits = tf.searchsorted(rows, tf.range(tf.shape(tags)[0] + 1))
        writer = labelling_ops.TagWriter(self.labels, self.scheme)
        found = writer(tf.gather_nd(tags, cells), splits)
        empty = tf.fill(tf.shape(tags), "")
        return {"tags": tf.tensor_scatter_nd_update(empty, cells, found)}


def main(_):
    """Checks the flags, then makes the trip."""
    task = tasks.prepare(LabellingTask, RECALLED)
    import finetuning

    finetuning.run(task)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
