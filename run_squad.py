"""Fine-tunes BERT to find the answers of questions in passages.

    python run_squad.py --train_file=train-v2.0.json \\
      --predict_file=dev-v2.0.json --version_2_with_negative \\
      --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=squad_output \\
      --do_train --do_predict --do_eval --do_export

Reads SQuAD 1.1 and 2.0, files in their layout (CMRC 2018, DRCD, XQuAD,
DuReader-robust), CMRC 2018's own and DuReader 2.0 JSON lines. Writes
predictions.json, nbest_predictions.json, null_odds.json (2.0 only),
eval_results.txt (--do_eval scores --predict_file) and saved_model/1, which
takes raw questions and passages of any length. About 5 minutes for 1,000
questions and 2 epochs with a small BERT (6 layers, H 384) on two CPU cores.
"""

import os
import random

import tqdm
from absl import flags, logging

import common_flags
import reading_comprehension
import records
import squad_answers
import squad_data
import squad_metrics
import tasks

FLAGS = flags.FLAGS

SHUFFLE_SEED = 12345  # the original's, for the order of its training rows
ALL_MESSAGES = 1 << 62
# What a trained model cannot do without: kept in run.json.
MODEL_FLAGS = ("no_answer_head", "passage_first", "attention_window")
# How passages are cut and answers are chosen, unless the flag is given.
RECALLED = (
    "max_seq_length",
    "max_query_length",
    "doc_stride",
    "long_text",
    "max_answer_length",
    "n_best_size",
    "null_score_diff_threshold",
)


def define_flags():
    """The flags of this script."""
    common_flags.define_all_finetuning_flags(max_seq_length=384)
    text, switch = flags.DEFINE_string, flags.DEFINE_bool
    text("train_file", None, "Questions with answers to learn from.")
    text(
        "predict_file",
        None,
        "Questions for --do_predict and --do_eval; the latter needs their "
        "answers.",
    )
    define_window_flags()
    switch(
        "version_2_with_negative",
        False,
        "Whether some questions have no answer, as in SQuAD 2.0.",
    )
    common_flags.define_float(
        "null_score_diff_threshold",
        0.0,
        "With --version_2_with_negative: a question whose null odds are "
        "above this has no answer. --do_eval writes the best one.",
    )
    switch(
        "no_answer_head",
        False,
        "Learns a classifier that says whether there is an answer, instead of "
        "taking [CLS] for the span of none. Needs --version_2_with_negative.",
    )
    switch(
        "original_alignment",
        False,
        "Aligns and rebuilds answers by white-space words as the original, "
        "faults included; computes all padding, too. For comparison.",
    )
    flags.DEFINE_enum(
        "metric",
        "auto",
        ("auto", *squad_metrics.METRICS),
        "How --do_eval scores: auto takes cmrc for Chinese, dureader for "
        "DuReader JSON lines, else squad.",
    )
    switch(
        "verbose_logging",
        False,
        "Logs every answer that does not stand at its place, not only 20.",
    )


def define_window_flags():
    """How passages are cut and answers chosen."""
    number = flags.DEFINE_integer
    number(
        "doc_stride",
        128,
        "The step in pieces from one window of a long passage to the next.",
    )
    number(
        "max_query_length",
        64,
        "The longest question in pieces; longer ones are cut.",
        lower_bound=1,
    )
    number(
        "n_best_size",
        20,
        "How many answers nbest_predictions.json holds for a question, and "
        "how many starts and ends of each window compete.",
        lower_bound=1,
    )
    number(
        "max_answer_length",
        30,
        "The longest answer in pieces.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "long_text",
        "windows",
        ("windows", "truncate"),
        "What is done with a passage beyond --max_seq_length: it is read in "
        "windows that overlap, or its tail is cut.",
    )
    number(
        "attention_window",
        None,
        "Reads passages of any --max_seq_length in one piece: a piece sees "
        "those less than so many positions away, and [CLS] and the question, "
        "which see all. Positions beyond the checkpoint's repeat its own.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "passage_first",
        False,
        "Puts the passage before the question, for checkpoints trained so.",
    )


class SquadTask(tasks.Task):
    """The span of a passage that answers a question, or none."""

    name = "squad"
    best_metric = "eval_f1"
    sequence_outputs = ("start_logits", "end_logits")
    rowless_examples = True
    record_names = {"train": "train", "eval": "eval", "predict": "eval"}

    def __init__(self):
        self.version_2 = FLAGS.version_2_with_negative
        self.no_answer_head = FLAGS.no_answer_head
        self.passage_first = FLAGS.passage_first
        self.attention_window = FLAGS.attention_window
        self.max_positions = None
        if self.attention_window:
            self.max_positions = FLAGS.max_seq_length
        self.original = FLAGS.original_alignment
        self.metric = FLAGS.metric
        self.padded = self.original
        if self.padded:
            self.sequence_outputs = ()  # padding competes with the passage
        self.is_training = False
        self.windows = []  # of the questions to be answered
        self._questions = None
        self._answered = (None, None)

    @property
    def metric_names(self):
        """What --best_metric may name; more while no question was read."""
        known = {
            "squad": ("exact_match", "f1"),
            "cmrc": ("exact_match", "f1"),
            "dureader": ("rouge_l", "bleu_4"),
        }
        kinds = [self.metric] if self._questions else [*known]
        plain = dict.fromkeys(n for kind in kinds for n in known[kind])
        names = list(plain)
        if self.version_2 or not self._questions:
            parts = ("HasAns", "NoAns", "best")
            names += [f"{part}_{n}" for part in parts for n in plain]
        return tuple(f"eval_{name}" for name in names)

    def check(self):
        """Raises ValueError for flags that cannot work."""
        for phase, flag in (
            ("do_train", "train_file"),
            ("do_predict", "predict_file"),
            ("do_eval", "predict_file"),
        ):
            if not FLAGS[phase].value:
                continue
            path = FLAGS[flag].value
            if not path:
                raise ValueError(f"--{phase} needs --{flag}.")
            if not os.path.isfile(path):
                what = "is a directory"
                if not os.path.exists(path):
                    what = "does not exist"
                raise ValueError(f"--{flag}={path} {what}. Name a file.")
        reading_comprehension.check_lengths(
            FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length
        )
        if FLAGS.label_smoothing:
            raise ValueError(
                "--label_smoothing does not go with spans. Leave it out."
            )
        if self.no_answer_head and FLAGS.do_train and not self.version_2:
            raise ValueError(
                "--no_answer_head learns from questions without an answer. "
                "Add --version_2_with_negative, or leave it out."
            )
        if self.original and (FLAGS.do_export or self.no_answer_head):
            raise ValueError(
                "--original_alignment goes neither with --do_export nor with "
                "--no_answer_head, which the original has not. Leave one out."
            )
        static = common_flags.on_tpu()
        if self.attention_window and (static or self.padded):
            raise ValueError(
                "--attention_window goes neither with TPUs nor with "
                "--original_alignment, which compute padding. Leave it out."
            )

    def describe(self):
        """The form of the head and of the input, 2.0 or not."""
        return {
            "version_2_with_negative": self.trained_version_2,
            "no_answer_head": self.no_answer_head,
            "passage_first": self.passage_first,
            "attention_window": self.attention_window,
            "max_positions": self.max_positions,
        }

    @property
    def trained_version_2(self):
        """Whether the model was trained for 2.0; answers may differ."""
        return getattr(self, "_trained_version_2", self.version_2)

    def restore(self, description):
        """Takes what the trained model was trained with."""
        for name in MODEL_FLAGS:
            if common_flags.given(name) is None:
                setattr(self, name, description[name])
        self.max_positions = description["max_positions"]
        trained = description["version_2_with_negative"]
        if common_flags.given("version_2_with_negative") is None:
            self.version_2 = trained
            logging.info(
                "The run began with --version_2_with_negative=%s, so it is "
                "used.",
                str(trained).lower(),
            )
        elif self.version_2 != trained and not FLAGS.do_train:
            logging.warning(
                "The model was trained with --version_2_with_negative=%s; "
                "this run answers with %s.",
                str(trained).lower(),
                str(self.version_2).lower(),
            )
        if not FLAGS.do_train:
            self._trained_version_2 = trained

    # ---- rows

    def examples(self, split):
        """Reads a split; the questions to be answered once for all phases."""
        if split == "train":
            examples = self._read(FLAGS.train_file, True).examples
            if not examples:
                raise ValueError(
                    f"{FLAGS.train_file}: no question has an answer that "
                    "stands where the file says, or in the passage at all. "
                    "Offsets count characters from 0."
                )
            return {"": examples}
        if self._questions is None:
            self._questions, report = self._read(FLAGS.predict_file, False)
            if self.metric == "auto":
                self.metric = squad_metrics.choose_metric(
                    self._questions, report.layout
                )
            if self.metric == "dureader":
                self.best_metric = "eval_rouge_l"
        if split == "eval" and not squad_metrics.with_gold(
            self._questions, self.version_2
        ):
            raise ValueError(
                f"{FLAGS.predict_file}: no question has an answer to compare "
                "with, so it can be predicted but not scored. Leave out "
                "--do_eval."
            )
        return {"": self._questions}

    def _read(self, path, is_training):
        options = {"shown": ALL_MESSAGES} if FLAGS.verbose_logging else {}
        result = squad_data.read_examples(
            path, is_training, self.version_2, self.original, **options
        )
        report = result.report
        log = logging.warning if report.messages else logging.info
        for line in report.lines():
            log("%s", line)
        hidden = sum(
            count
            for kind, count in report.counts.items()
            if kind.startswith("answers not")
        ) - len(report.messages)
        if hidden > 0:
            logging.warning("%d more; --verbose_logging shows all.", hidden)
        return result

    def maker(self, is_training):
        """The WindowMaker of training or of prediction."""
        return reading_comprehension.WindowMaker(
            self.tokenizer,
            FLAGS.max_seq_length,
            FLAGS.doc_stride,
            FLAGS.max_query_length,
            is_training,
            self.version_2,
            self.original,
            self.passage_first,
            FLAGS.long_text == "truncate",
        )

    def featurize_all(self, examples, split):
        """Gives a row per window, and keeps what answers are read from."""
        self.is_training = split == "train"
        maker = self.maker(self.is_training)
        order = list(range(len(examples)))
        if self.is_training and self.original:
            random.Random(SHUFFLE_SEED).shuffle(order)
        rows, owners, windows = [], [], []
        for number in tqdm.tqdm(order, split, disable=None, leave=False):
            for window in maker(examples[number], number):
                rows.append(self._row(window))
                owners.append(number)
                if not self.is_training:
                    windows.append(self._kept(window))
        if not self.is_training:
            self.windows = windows
        counts = ", ".join(f"{n} {kind}" for kind, n in maker.counts.items())
        logging.info("%s: %s", split, counts or "no window")
        return rows, owners

    def _row(self, window):
        row = {
            "unique_ids": window["unique_id"],
            "input_ids": window["input_ids"],
            "segment_ids": window["segment_ids"],
        }
        if self.is_training:
            row["start_positions"] = window["start_position"]
            row["end_positions"] = window["end_position"]
            row["is_impossible"] = window["is_impossible"]
        return row

    def _kept(self, window):
        """A window without what only the model needs."""
        unused = (
            {"segment_ids"}
            if self.original
            else {
                "segment_ids",
                "input_ids",
                "words",
            }
        )
        return {k: v for k, v in window.items() if k not in unused}

    def feature_spec(self):
        """The original's features; labels in training only."""
        spec = [records.Feature("unique_ids", "int64")]
        spec += tasks.token_features(FLAGS.max_seq_length)
        if self.is_training:
            spec += [
                records.Feature(name, "int64")
                for name in (
                    "start_positions",
                    "end_positions",
                    "is_impossible",
                )
            ]
        return records.FeatureSpec(spec)

    # ---- model

    def head(self, encoder, padded):
        """Start and end of the span, perhaps whether there is one."""
        import heads

        kind = heads.SpanHead
        if self.no_answer_head:
            kind = heads.NoAnswerSpanHead
        return kind(encoder.config.hidden_size, padded)

    def make_layout(self):
        """Sparse attention with --attention_window."""
        if not self.attention_window:
            return None
        import sparse_attention

        return sparse_attention.question_is_global(
            self.attention_window, int(self.passage_first)
        )

    # ---- answers

    def answers(self, examples, outputs):
        """The squad_answers.Answers of some outputs, worked out once."""
        if self._answered[0] is not outputs:
            answers = squad_answers.answers_from_logits(
                examples,
                self.windows,
                outputs.get("start_logits", []),
                outputs.get("end_logits", []),
                n_best_size=FLAGS.n_best_size,
                max_answer_length=FLAGS.max_answer_length,
                version_2_with_negative=self.version_2,
                null_score_diff_threshold=FLAGS.null_score_diff_threshold,
                null_logits=outputs.get("null_logits"),
                original_alignment=self.original,
                tokenizer=self.tokenizer,
                do_lower_case=self.tokenizer.do_lower_case,
            )
            self._answered = outputs, answers
        return self._answered[1]

    def score(self, examples, outputs, batch_size):
        """Exact match, F1 and more; see squad_metrics.score_answers."""
        answers = self.answers(examples, outputs)
        scores = squad_metrics.score_answers(
            examples, answers, self.metric, self.version_2
        )
        return {f"eval_{name}": value for name, value in scores.items()}

    def write(self, examples, outputs, directory, suffix):
        """Writes the original's two or three JSON files."""
        answers = self.answers(examples, outputs)
        answers.write(directory, self.version_2)
        former = os.path.join(directory, "null_odds.json")
        if not self.version_2 and os.path.exists(former):
            os.remove(former)  # it is of other predictions
        names = ["predictions", "nbest_predictions"]
        names += ["null_odds"] if self.version_2 else []
        return [os.path.join(directory, f"{name}.json") for name in names]

    def report(self, examples, outputs):
        """Answers by kind and length, and the worst questions."""
        import squad_report

        answers = self.answers(examples, outputs)
        counts = self.token_counts(examples, outputs)
        tokens = {
            example.qas_id: count
            for example, count in zip(examples, counts, strict=True)
        }
        known = squad_metrics.with_gold(examples, self.version_2)
        return squad_report.parts(known, answers, self.metric, tokens)

    # ---- serving

    def text_inputs(self):
        """A `question` and the `context` that may hold its answer."""
        return ("question", "context")

    def serve(self, texts, tokenizer, call):
        """`answer`, `start`, `end`, `score`, `null_odds`, each [B]."""
        import squad_serving

        reader = squad_serving.Reader(
            tokenizer,
            max_seq_length=FLAGS.max_seq_length,
            doc_stride=FLAGS.doc_stride,
            max_query_length=FLAGS.max_query_length,
            n_best_size=FLAGS.n_best_size,
            max_answer_length=FLAGS.max_answer_length,
            threshold=FLAGS.null_score_diff_threshold
            if self.version_2
            else None,
            classifier=self.no_answer_head,
            passage_first=self.passage_first,
            truncate=FLAGS.long_text == "truncate",
        )
        return reader.answer(texts["question"], texts["context"], call)


def main(_):
    """Checks the flags, then makes the trip."""
    task = tasks.prepare(SquadTask, RECALLED)
    import finetuning

    finetuning.run(task)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
