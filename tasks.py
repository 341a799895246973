"""What a fine-tuning task has to say for itself; see `finetuning.py`.

A script such as run_classifier.py is its flags and one subclass of `Task`.
"""

import abc
import fnmatch
from typing import NamedTuple

import common_flags
import records


class ModelFiles(NamedTuple):
    """Where a model comes from, and what text it reads."""

    checkpoint: str | None
    config_file: str
    vocab_file: str
    do_lower_case: bool


def token_features(max_seq_length):
    """The three features of every model: ids, mask, segments."""
    return [
        records.Feature(name, "int64", max_seq_length, True)
        for name in ("input_ids", "input_mask", "segment_ids")
    ]


def check(task):
    """Raises ValueError for flags that cannot work. No file is read."""
    common_flags.check_finetuning()
    task.check()
    check_metric(task, ("", "_mm"))


def check_metric(task, suffixes):
    """Raises ValueError for a --best_metric that the dev sets will not have.

    `suffixes` are those of the sets. Before they are read a task may name
    more than it will have."""
    metric = common_flags.given("best_metric")
    names = [name + suffix for suffix in suffixes for name in task.metric_names]
    if metric and not any(fnmatch.fnmatchcase(metric, name) for name in names):
        names = [name for name in names if not name.endswith("_mm")] or names
        raise ValueError(
            f"--best_metric={metric} is not one of this task's: "
            f"{', '.join(names)}."
        )


def prepare(task_class, recalled, of_rows=()):
    """Gives the task of a script, its flags recalled and checked.

    `recalled` and `of_rows` name the flags that an earlier run settles; see
    common_flags.recall. A script imports TensorFlow only after this."""
    output_dir = common_flags.FLAGS.output_dir
    common_flags.recall(output_dir, task_class.name, recalled, of_rows)
    task = task_class()
    check(task)
    return task


class Task(abc.ABC):
    """Examples, features, head, scores and files of one kind of task.

    The trip is the same for all: `examples` -> `featurize` -> batches -> the
    encoder -> `head` -> loss, or outputs -> `score` and `write` -> `export`.
    Set by the trip before it starts: `tokenizer` (FullTokenizer) and
    `directory` (the output directory, which may not exist yet).
    """

    name = "task"
    best_metric = "eval_accuracy"
    metric_names = ("eval_accuracy", "eval_loss")  # also "eval_f1_*"
    sequence_outputs = ()  # outputs that have the token axis
    unread_outputs = ()  # outputs that neither scores nor files need
    group = 1  # token sequences in one row
    text_shapes = {}  # of those text_inputs that are not [B]
    learning_rate_multipliers = ()  # (regex on variable.path, factor) pairs
    padded = False  # every batch at full length, padding computed
    rowless_examples = False  # an example to be answered may have no row
    is_pair = False  # texts come in twos
    num_cut = 0  # texts cut at --max_seq_length since it was set to 0
    max_positions = None  # tiles the table of positions up to this many
    # What --write_records calls the files of each set.
    record_names = {"train": "train", "eval": "eval", "predict": "predict"}

    labels = None  # their names in the order of the head, if there are any

    tokenizer = None
    directory = None

    def check(self):
        """Raises ValueError for flags that cannot work. No file is read."""
        return None

    def describe(self):
        """A dict for run.json: what prediction and export need later.

        Asked after the training examples were read."""
        return {}

    def restore(self, description):
        """Takes the `describe` of the run that trained the model."""
        return None

    @abc.abstractmethod
    def examples(self, split):
        """Gives {suffix: list of examples} of "train", "eval" or "predict".

        The suffix marks the metrics of further sets ("_mm"); the first is "".
        Raises ValueError with file and line for what is wrong."""

    def featurize(self, example):
        """Gives the example's rows: dicts by the names of `feature_spec`.

        Token features are not padded; `input_mask` may be left out. Not asked
        of a task that has its own `featurize_all`."""
        return []

    def featurize_all(self, examples, split):
        """Gives the rows of a set and, of each, the number of its example."""
        rows, owners = [], []
        for number, example in enumerate(examples):
            for row in self.featurize(example):
                rows.append(row)
                owners.append(number)
        return rows, owners

    @abc.abstractmethod
    def feature_spec(self):
        """The records.FeatureSpec that writes and parses the rows."""

    @abc.abstractmethod
    def head(self, encoder, padded):
        """Gives the heads.Head on a modeling.BertModel."""

    def begin_training(self):
        """Removes what an earlier training left here and this one outdates."""
        return None

    def check_loaded(self, fresh):
        """Raises ValueError for weights that must not be new, of `fresh`.

        They are the names that --init_checkpoint lacks."""
        return None

    def make_layout(self):
        """None, or the modeling.BertModel.make_layout of another attention."""
        return None

    @abc.abstractmethod
    def score(self, examples, outputs, batch_size):
        """Gives the metrics of a set, {"eval_...": number}.

        `outputs` is {name: one entry per row}, beside the head's the number
        of the example that each row belongs to, outputs["example"], and of
        its tokens, outputs["tokens"]."""

    @abc.abstractmethod
    def write(self, examples, outputs, directory, suffix):
        """Writes the predictions; gives the list of paths."""

    def write_evaluation(self, examples, outputs, directory, suffix):
        """Writes files beside eval_results.txt, if the task has any."""
        return []

    @abc.abstractmethod
    def text_inputs(self):
        """The names of the strings that the exported model takes."""

    @abc.abstractmethod
    def serve(self, texts, tokenizer, call):
        """Answers raw strings, in graph ops: {output name: tensor}.

        `texts` are string tensors [B] by name, `tokenizer` an
        InGraphTokenizer, `call` takes features and gives the head's dict."""

    def serving_outputs(self, outputs):
        """Picks and names what the signatures on ids answer with."""
        return outputs

    @staticmethod
    def token_counts(examples, outputs):
        """How many tokens the rows of each example have, overlaps twice."""
        counts = [0] * len(examples)
        for owner, count in zip(
            outputs["example"], outputs["tokens"], strict=True
        ):
            counts[owner] += int(count)
        return counts

    def report(self, examples, outputs):
        """The parts of report.html about the dev set; see `reports.py`."""
        return []
