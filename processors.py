"""Classification tasks as examples and features: GLUE, XNLI, Chinese sets,
news, questions, emotions and anybody's own files.

    processor = get_processor("MRPC")
    examples = processor.get_train_examples("glue/MRPC")
    labels = processor.get_labels("glue/MRPC")
    ids, segment_ids = encode_pair(
        tokenizer, examples[0].text_a, examples[0].text_b, max_seq_length=128)

What the readers accept and refuse is told in classification_data.py; own files
are read by own_data.py. Formats of which no sample was at hand (LCQMC, QQP,
QNLI, AX, SNLI) follow their publishers' descriptions."""

import dataclasses
import logging
import os
import re

from chinese_data import (
    BustmProcessor,
    ChnSentiCorpProcessor,
    ClueWscProcessor,
    CslProcessor,
    IflytekProcessor,
    LcqmcProcessor,
    OcnliProcessor,
    ThucNewsProcessor,
    TnewsProcessor,
)
from classification_data import (
    SPLITS,
    DataProcessor,
    InputExample,
    NliProcessor,
    TableProcessor,
)
from common_flags import LONG_TEXTS
from own_data import TsvProcessor
from text_files import located, read_lines
from text_files import whole_file as _whole_file

__all__ = [
    "DataProcessor",
    "InputExample",
    "InputFeatures",
    "PaddingInputExample",
    "convert_single_example",
    "encode_pair",
    "get_processor",
    "label_value",
    "long_text_parts",
    "task_names",
    "write_test_results",
]

# ---------------------------------------------------------------- features


class PaddingInputExample:
    """Stands for a row that only fills up the last batch, as on TPU."""


@dataclasses.dataclass(eq=False, slots=True)
class InputFeatures:
    """The numbers of one row, padded to one length, as the original's."""

    input_ids: list
    input_mask: list
    segment_ids: list
    label_id: object
    is_real_example: bool = True


def truncated_lengths(length_a, length_b, room):
    """How many tokens of each text to keep: (of A, of B), at most `room`.

    The same as taking one token off the end of the longer text until they
    fit, of B where both are equally long (the original's rule)."""
    if length_a + length_b <= room:
        return length_a, length_b
    share_a, share_b = (room + 1) // 2, room // 2
    if length_a <= share_a:
        return length_a, room - length_a
    if length_b <= share_b:
        return room - length_b, length_b
    return share_a, share_b


def _truncate_seq_pair(tokens_a, tokens_b, max_length):
    """Cuts two lists in place, always the end of the longer one."""
    keep_a, keep_b = truncated_lengths(len(tokens_a), len(tokens_b), max_length)
    del tokens_a[keep_a:]
    del tokens_b[keep_b:]


def encode_pair(tokenizer, text_a, text_b, max_seq_length):
    """The ids of one text or a pair, not padded: (ids, segment_ids).

    [CLS] A [SEP] or [CLS] A [SEP] B [SEP] with segments 0 and 1; a text_b
    that is None, empty or without tokens makes it single. Raises ValueError
    if `max_seq_length` is under 3 (a pair: 5)."""
    ids_a = tokenizer.encode(text_a)
    ids_b = tokenizer.encode(text_b) if text_b else []
    needed = 5 if ids_b else 3
    if max_seq_length < needed:
        kind, shape = (
            ("pair", "[CLS] a [SEP] b [SEP]")
            if ids_b
            else ("single text", "[CLS] a [SEP]")
        )
        raise ValueError(
            f"--max_seq_length={max_seq_length} is too small: a {kind} needs "
            f"at least {needed} tokens ({shape}). Raise the flag."
        )
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    if not ids_b:
        ids = [cls_id, *ids_a[: max_seq_length - 2], sep_id]
        return ids, [0] * len(ids)
    _truncate_seq_pair(ids_a, ids_b, max_seq_length - 3)
    ids = [cls_id, *ids_a, sep_id, *ids_b, sep_id]
    return ids, [0] * (len(ids_a) + 2) + [1] * (len(ids_b) + 1)


def long_text_parts(ids, room, long_text, stride=None):
    """The parts of a long text's ids to read, each of at most `room`.

    `long_text`: truncate_tail keeps the head, truncate_head the tail,
    head_tail a quarter of head and the rest of tail (Sun et al., 2019,
    arXiv:1905.05583), windows all of it in parts that begin `stride` apart
    (by default half a window). A text that fits is one part. Raises
    ValueError for a stride that would leave tokens out."""
    if long_text not in LONG_TEXTS:
        raise ValueError(
            f"--long_text={long_text} is not one of: {', '.join(LONG_TEXTS)}."
        )
    if stride is not None and not 1 <= stride <= room:
        raise ValueError(
            f"--doc_stride={stride} is not between 1 and the {room} tokens "
            "of a window; tokens would be left out. Lower the flag."
        )
    if len(ids) <= room:
        return [ids]
    if long_text == "truncate_tail":
        return [ids[:room]]
    if long_text == "truncate_head":
        return [ids[-room:]]
    if long_text == "head_tail":
        head = room // 4
        return [ids[:head] + ids[head - room :]]
    stride = stride or max(1, room // 2)
    starts = range(0, len(ids) - room + stride, stride)
    return [ids[start : start + room] for start in starts]


def label_value(example, label_list, output_mode="classification"):
    """The label as numbers: an id, a float (regression), a 0/1 list.

    An example without a label gives 0, 0.0 or all zeros. Raises ValueError
    for a label that is not in `label_list`, with the place it stands."""
    if output_mode == "regression":
        return 0.0 if example.label is None else float(example.label)
    many = output_mode == "multi_label"
    if example.label is None:
        return [0] * len(label_list) if many else 0
    found = example.label if many else (example.label,)
    unknown = [label for label in found if label not in label_list]
    if unknown:
        raise ValueError(
            f"{example.source or example.guid}: label '{unknown[0]}' is not "
            f"one of: {', '.join(label_list)}. Mend the row, or give all "
            "labels with --labels_file."
        )
    if many:
        return [int(label in found) for label in label_list]
    return label_list.index(example.label)


def convert_single_example(
    ex_index, example, label_list, max_seq_length, tokenizer
):
    """The InputFeatures of one row, padded to `max_seq_length`.

    `label_list` [] means regression. The first five are logged, as in the
    original. Raises what encode_pair and label_value raise."""
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, zeros[:], zeros[:], 0, False)
    ids, segment_ids = encode_pair(
        tokenizer, example.text_a, example.text_b, max_seq_length
    )
    padding = [0] * (max_seq_length - len(ids))
    if not label_list:
        output_mode = "regression"
    elif isinstance(example.label, tuple):
        output_mode = "multi_label"
    else:
        output_mode = "classification"
    label_id = label_value(example, label_list, output_mode)
    if ex_index < 5:
        tokens = " ".join(tokenizer.convert_ids_to_tokens(ids))
        logging.info("guid %s: %s (%s)", example.guid, tokens, label_id)
    return InputFeatures(
        ids + padding, [1] * len(ids) + padding, segment_ids + padding, label_id
    )


def write_test_results(path, probabilities):
    """Writes float [rows, C] as the original's test_results.tsv.

    A row per example, str(float32) divided by tabs, no header. The file
    appears whole or not at all."""
    import numpy

    rows = numpy.asarray(probabilities, numpy.float32)
    with _whole_file(path) as file:
        for row in rows.reshape(len(rows), -1):
            file.write("\t".join(map(str, row)) + "\n")


# -------------------------------------------------------------------- GLUE


class ColaProcessor(TableProcessor):
    """CoLA: is a sentence acceptable (1) or not (0)."""

    name = "CoLA"
    metric_names = ("mcc", "accuracy")
    text_a_names = ("sentence", "text_a")
    # source, label, star, sentence; the published test set has a header
    without_header = {4: (1, 3, None)}
    test_label = "0"


class Sst2Processor(TableProcessor):
    """SST-2: sentiment of a sentence, 0 negative, 1 positive."""

    name = "SST-2"
    text_a_names = ("sentence", "text_a")
    without_header = {2: (1, 0, None), 1: (None, 0, None)}


class MrpcProcessor(TableProcessor):
    """MRPC: do two sentences say the same (1) or not (0)."""

    name = "MRPC"
    metric_names = ("accuracy", "f1")
    is_pair = True
    files = {
        "train": ("train.tsv", "msr_paraphrase_train.txt"),
        "dev": ("dev.tsv",),
        "test": ("test.tsv", "msr_paraphrase_test.txt"),
    }
    text_a_names = ("#1 string", "text_a")
    text_b_names = ("#2 string", "text_b")
    label_names = ("quality", "label")
    test_label = "0"


class QqpProcessor(TableProcessor):
    """QQP: do two questions ask the same (1) or not (0)."""

    name = "QQP"
    metric_names = ("accuracy", "f1")
    is_pair = True
    text_a_names = ("question1", "text_a")
    text_b_names = ("question2", "text_b")
    label_names = ("is_duplicate", "label")


class MnliProcessor(NliProcessor):
    """MNLI with its matched and mismatched dev and test sets."""

    name = "MNLI"
    files = {
        "train": ("train.tsv", "multinli_1.0_train.txt"),
        "dev": ("dev_matched.tsv", "multinli_1.0_dev_matched.txt"),
        "test": ("test_matched.tsv",),
    }
    mismatched = {
        "dev": ("dev_mismatched.tsv", "multinli_1.0_dev_mismatched.txt"),
        "test": ("test_mismatched.tsv",),
    }
    test_label = "contradiction"

    def get_dev_examples(self, data_dir):
        """The InputExamples of the matched dev set."""
        return self._examples(data_dir, "dev", set_type="dev_matched")

    def get_dev_sets(self, data_dir):
        """{'': matched, '_mm': mismatched, if its file is there}."""
        return self._sets(data_dir, "dev", self.get_dev_examples)

    def get_test_sets(self, data_dir):
        """{'': matched, '_mm': mismatched, if its file is there}."""
        return self._sets(data_dir, "test", self.get_test_examples)

    def _sets(self, data_dir, split, read_matched):
        sets = {"": read_matched(data_dir)}
        names = self.mismatched[split]
        if not self.options[f"{split}_file"] and any(
            os.path.exists(os.path.join(data_dir, name)) for name in names
        ):
            sets["_mm"] = self._examples(
                data_dir, split, names, f"{split}_mismatched"
            )
        return sets

    def _from_cells(self, cells, columns):
        texts = super()._from_cells(cells, columns)
        has_index = columns.names and columns.names[0] == "index"
        return (*texts[:3], cells[0] if has_index else None)


class AxProcessor(MnliProcessor):
    """AX: GLUE's diagnostic test set for a model trained on MNLI."""

    name = "AX"
    files = MnliProcessor.files | {
        "test": ("AX.tsv", "diagnostic.tsv", "diagnostic-full.tsv", "test.tsv")
    }
    mismatched = MnliProcessor.mismatched | {"test": ()}
    test_label = None


class SnliProcessor(NliProcessor):
    """SNLI; rows without a gold label ('-') are left out of training."""

    name = "SNLI"
    files = {
        split: (
            f"{split}.tsv",
            f"snli_1.0_{split}.txt",
            f"snli_1.0_{split}.jsonl",
        )
        for split in SPLITS
    }


class QnliProcessor(TableProcessor):
    """QNLI: does a sentence hold the answer to a question."""

    name = "QNLI"
    is_pair = True
    labels = ("entailment", "not_entailment")
    text_a_names = ("question", "text_a")
    text_b_names = ("sentence", "text_b")


class RteProcessor(TableProcessor):
    """RTE: does the first sentence entail the second."""

    name = "RTE"
    is_pair = True
    labels = ("entailment", "not_entailment")
    text_a_names = ("sentence1", "text_a")
    text_b_names = ("sentence2", "text_b")


class WnliProcessor(RteProcessor):
    """WNLI: is the second sentence, a pronoun resolved, true (1)."""

    name = "WNLI"
    labels = ("0", "1")


class StsbProcessor(TableProcessor):
    """STS-B: similarity of two sentences, 0 to 5 (regression)."""

    name = "STS-B"
    output_mode = "regression"
    metric_names = ("pearson", "spearman")
    is_pair = True
    labels = ()
    files = {split: (f"{split}.tsv", f"sts-{split}.csv") for split in SPLITS}
    text_a_names = ("sentence1", "text_a")
    text_b_names = ("sentence2", "text_b")
    label_names = ("score", "label")
    # genre, file, year, id, score, s1, s2, in some rows two sources more
    without_header = {7: (4, 5, 6)}
    more_columns = True


class XnliProcessor(NliProcessor):
    """XNLI in the languages of option `xnli_language` (zh; several by comma).

    Rows of other languages are left out; training data are the translated
    MultiNLI of each language."""

    name = "XNLI"
    option_defaults = {"xnli_language": "zh"}
    files = {
        "train": ("multinli/multinli.train.{}.tsv",),
        "dev": ("xnli.dev.tsv",),
        "test": ("xnli.test.tsv",),
    }
    text_b_names = ("sentence2", "hypo", "hypothesis", "text_b")
    label_aliases = {"contradictory": "contradiction"}

    def __init__(self, **options):
        super().__init__(**options)
        self.languages = [
            part.strip() for part in self.options["xnli_language"].split(",")
        ]

    def get_train_examples(self, data_dir):
        """The InputExamples of every chosen language, one after another."""
        if self.options["train_file"] or len(self.languages) == 1:
            return self._examples(
                data_dir, "train", self._train_names(self.languages[0])
            )
        examples = []
        for language in self.languages:
            names = self._train_names(language)
            examples += self._examples(
                data_dir, "train", names, f"train-{language}"
            )
        return examples

    def _train_names(self, language):
        return [name.format(language) for name in self.files["train"]]

    def _settle_labels(self, path, examples, data_dir, split):
        if not examples:
            raise ValueError(
                f"{path}: holds no rows of language "
                f"{' or '.join(self.languages)}. Set --xnli_language to one "
                "that it holds."
            )
        return super()._settle_labels(path, examples, data_dir, split)

    def _from_cells(self, cells, columns):
        if "language" in columns.names:
            language = cells[columns.names.index("language")]
            if language not in self.languages:
                return None
        return super()._from_cells(cells, columns)


# ------------------------------------------- news, questions, films, feelings


class AgNewsProcessor(TableProcessor):
    """AG news: the topic of a title (text_a) and a description (text_b).

    A backslash stands for a line end there and is read as a space. The
    published files have no dev set: the test set serves."""

    name = "AG-news"
    is_pair = True
    quoted_csv = True
    files = {
        "train": ("train.csv",),
        "dev": ("dev.csv", "test.csv"),
        "test": ("test.csv",),
    }
    text_a_names = ("title", "text_a")
    text_b_names = ("description", "text_b")
    label_names = ("class index", "label")
    without_header = {3: (0, 1, 2), 2: (None, 0, 1)}
    class_file = "classes.txt"
    class_base = 1
    labels = ("World", "Sports", "Business", "Sci/Tech")

    def _from_cells(self, cells, columns):
        label, *texts, mark = super()._from_cells(cells, columns)
        return label, *(text.replace("\\", " ") for text in texts), mark


class TrecProcessor(TableProcessor):
    """TREC: what a question asks for, 6 classes, or 50 with option `trec_fine`.

    `LABEL:detail text`, in Latin-1."""

    name = "TREC"
    option_defaults = {"trec_fine": False}
    encoding = "latin-1"
    files = {
        "train": ("train_5500.label", "train.txt"),
        "dev": ("dev.label", "TREC_10.label", "dev.txt"),
        "test": ("TREC_10.label", "test.label", "test.txt"),
    }
    without_header = {2: (0, 1, None)}
    coarse_labels = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    fine_labels = tuple(
        "ABBR:abb ABBR:exp DESC:def DESC:desc DESC:manner DESC:reason "
        "ENTY:animal ENTY:body ENTY:color ENTY:cremat ENTY:currency "
        "ENTY:dismed ENTY:event ENTY:food ENTY:instru ENTY:lang ENTY:letter "
        "ENTY:other ENTY:plant ENTY:product ENTY:religion ENTY:sport "
        "ENTY:substance ENTY:symbol ENTY:techmeth ENTY:termeq ENTY:veh "
        "ENTY:word HUM:desc HUM:gr HUM:ind HUM:title LOC:city LOC:country "
        "LOC:mount LOC:other LOC:state NUM:code NUM:count NUM:date NUM:dist "
        "NUM:money NUM:ord NUM:other NUM:perc NUM:period NUM:speed NUM:temp "
        "NUM:volsize NUM:weight".split()
    )

    @property
    def labels(self):
        """The labels of the chosen fineness."""
        return (
            self.fine_labels
            if self.options["trec_fine"]
            else self.coarse_labels
        )

    def _rows(self, path, split, bad_rows):
        index = -1
        for line, text in read_lines(path, self.encoding):
            if not text.strip(" "):
                continue
            index += 1
            label, _, rest = text.partition(" ")
            if not re.fullmatch(r"[A-Z]+:\w+", label):
                if split != "test":
                    raise located(
                        path,
                        line,
                        f"'{label[:40]}' is no label such as NUM:date. Begin "
                        "the row with one, and a space.",
                    )
                label, rest = None, text
            elif not self.options["trec_fine"]:
                label = label.partition(":")[0]
            yield index, line, (label, rest, None, None)


class GoEmotionsProcessor(TableProcessor):
    """GoEmotions: the feelings in a comment, any number of 28 (multi-label).

    Text, comma-separated numbers of labels.txt, id."""

    name = "GoEmotions"
    output_mode = "multi_label"
    metric_names = ("micro_f1", "macro_f1")
    text_a_names = ("text", "text_a")
    without_header = {3: (1, 0, None), 2: (1, 0, None), 1: (None, 0, None)}
    class_file = "labels.txt"
    labels = tuple(map(str, range(28)))


class _TwoClassProcessor(TableProcessor):
    """A set without splits: each tenth row of a class is dev and test.

    A subclass has _class_rows(data_dir, label): the (text, source) of one."""

    labels = ("neg", "pos")

    def _examples(self, data_dir, split, names=None, set_type=None):
        examples = []
        for label in self.get_labels():
            for index, (text, source) in enumerate(
                self._class_rows(data_dir, label)
            ):
                if (index % 10 == 9) == (split != "train"):
                    guid = f"{split}-{label}-{index}"
                    examples.append(
                        InputExample(guid, text, None, label, source)
                    )
        return self._settle_labels(data_dir, examples, data_dir, split)


class RtPolarityProcessor(_TwoClassProcessor):
    """rt-polarity: sentiment of a sentence, a file for each class.

    Each tenth line of a file is dev and test, the others are training."""

    name = "rt-polarity"

    def _class_rows(self, data_dir, label):
        path = self._find(data_dir, "train", [f"rt-polarity.{label}"])
        for line, text in read_lines(path):
            if text.strip(" "):
                yield text, f"{path}:{line}"


class MovieReviewsProcessor(_TwoClassProcessor):
    """movie_reviews: sentiment of a long review, a file for each document.

    Each tenth file of a directory is dev and test, the others training."""

    name = "movie_reviews"

    def _class_rows(self, data_dir, label):
        directory = self._find(data_dir, "train", [label])
        for name in sorted(os.listdir(directory)):
            if name.endswith(".txt"):
                path = os.path.join(directory, name)
                lines = [text for _, text in read_lines(path)]
                yield "\n".join(lines).strip("\n"), f"{path}:1"


_PROCESSORS = (
    ColaProcessor,
    MrpcProcessor,
    MnliProcessor,
    XnliProcessor,
    Sst2Processor,
    QqpProcessor,
    QnliProcessor,
    RteProcessor,
    WnliProcessor,
    SnliProcessor,
    StsbProcessor,
    AxProcessor,
    TsvProcessor,
    ChnSentiCorpProcessor,
    LcqmcProcessor,
    BustmProcessor,
    TnewsProcessor,
    IflytekProcessor,
    CslProcessor,
    OcnliProcessor,
    ClueWscProcessor,
    ThucNewsProcessor,
    AgNewsProcessor,
    TrecProcessor,
    GoEmotionsProcessor,
    RtPolarityProcessor,
    MovieReviewsProcessor,
)


def _plain(name):
    return re.sub(r"[-_ ]", "", name).lower()


TASKS = {_plain(processor.name): processor for processor in _PROCESSORS}


def task_names():
    """The names of all tasks, as messages and flags show them."""
    return [processor.name for processor in _PROCESSORS]


def get_processor(task_name, **options):
    """The processor of a task, its name in any case, with or without hyphen.

    Options that are None count as not given. Raises ValueError for an
    unknown task, and for an option that the task does not use."""
    processor = TASKS.get(_plain(task_name))
    if processor is None:
        names = ", ".join(task_names())
        raise ValueError(
            f"--task_name={task_name} is not one of: {names}. Own data are "
            "read with --task_name=tsv."
        )
    given = {key: v for key, v in options.items() if v is not None}
    return processor(**given)
