"""Rows of classification files as examples: what every reader shares.

DataProcessor is the original's base class, TableProcessor reads any table or
JSON lines as its class attributes describe them; processors.py declares the
tasks. Rows are read as text_files.py says. A published file is known by the
names in its header, or, without one, by its number of columns. Whatever is
wrong with a row is a ValueError that starts with `file:line: ` and ends with
the remedy. Test sets need no labels."""

import dataclasses
import logging
import math
import os
from typing import NamedTuple

from text_files import (
    UnknownLabel,
    json_text,
    json_texts,
    located,
    read_csv,
    read_json_lines,
    read_lines,
    read_tsv,
)

LARGEST = 1e18  # of a label of regression: float32 holds its square
SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(eq=False, slots=True)
class InputExample:
    """One row: guid, text_a, text_b, label and where it was read.

    `label` is a str, a float (regression), a tuple of str (multi-label) or
    None (not known); `source` is 'file:line' or None."""

    guid: str
    text_a: str
    text_b: str | None = None
    label: object = None
    source: str | None = None


class Columns(NamedTuple):
    """Where a table keeps what: positions from 0, None for what it lacks.

    `label` is a tuple of positions if each label has a column of its own.
    `count` is the number of cells a row must have; with `at_least`, may
    exceed. `names` are the cells of the header, () without one."""

    label: int | tuple | None
    text_a: int
    text_b: int | None
    count: int
    at_least: bool = False
    names: tuple = ()


def only_place(path, line, names, name):
    """The position of a column in a header that names it once.

    Raises ValueError where two columns have the name."""
    if names.count(name) > 1:
        places = [str(i) for i, other in enumerate(names) if other == name]
        raise located(
            path,
            line,
            f"the columns at {' and '.join(places)} (from 0) are both named "
            f"'{name}'. Rename one of them.",
        )
    return names.index(name)


class DataProcessor:
    """What every reader of a classification task gives.

    Class attributes: name, output_mode ('classification', 'regression' or
    'multi_label'), metric_names, is_pair (own data know it once read)."""

    name = ""
    output_mode = "classification"
    metric_names = ("accuracy",)
    is_pair = False
    option_defaults = {
        "labels": None,
        "train_file": None,
        "dev_file": None,
        "test_file": None,
        "skip_bad_rows": False,
    }

    def __init__(self, **options):
        known = {}
        for parent in reversed(type(self).__mro__):
            known.update(getattr(parent, "option_defaults", {}))
        unknown = sorted(set(options) - set(known))
        if unknown:
            names = ", ".join(
                f"--{name}" for name in sorted(set(known) - {"labels"})
            )
            raise ValueError(
                f"--{unknown[0]} is not used by task {self.name}; its flags "
                f"are: {names}. Leave it out, or read the files with "
                "--task_name=tsv."
            )
        self.options = known | options

    def get_train_examples(self, data_dir):
        """The InputExamples of the training set."""
        raise self._lacks("get_train_examples")

    def get_dev_examples(self, data_dir):
        """The InputExamples of the dev set."""
        raise self._lacks("get_dev_examples")

    def get_test_examples(self, data_dir):
        """The InputExamples of the test set."""
        raise self._lacks("get_test_examples")

    def get_labels(self, data_dir=None):
        """The list of labels in the order of their ids; [] for regression."""
        raise self._lacks("get_labels")

    def _lacks(self, method):
        return ValueError(f"{type(self).__name__} has no {method}. Write one.")

    def get_dev_sets(self, data_dir):
        """Every dev set: {suffix of its metrics ('' or '_mm'): examples}."""
        return {"": self.get_dev_examples(data_dir)}

    def get_test_sets(self, data_dir):
        """Every test set: {suffix ('' or '_mm'): examples}."""
        return {"": self.get_test_examples(data_dir)}

    @classmethod
    def _read_tsv(cls, input_file, quotechar=None):
        """The rows of a TSV file exactly as the original's readers saw them.

        Kept for processors written for the original: the byte order mark
        stays, a blank line is [], every \\r is deleted. Raises ValueError
        with file and line for bad UTF-8."""
        rows = []
        for number, text in read_lines(input_file):
            if number == 1:
                with open(input_file, "rb") as file:
                    if file.read(3) == b"\xef\xbb\xbf":
                        text = "\ufeff" + text
            text = text.replace("\r", "")
            if not text:
                rows.append([])
            elif quotechar is None:
                rows.append(text.split("\t"))
            else:
                import csv

                rows.extend(
                    csv.reader([text], delimiter="\t", quotechar=quotechar)
                )
        return rows


class TableProcessor(DataProcessor):
    """Reads tables and JSON lines as its class attributes describe them.

    files: {split: names to look for, the first found is read};
    text_a_names, text_b_names, label_names: what headers and JSON keys may
    call the three; without_header: {number of columns: positions of (label,
    text_a, text_b)}, more_columns if rows may be longer; class_file: names of
    the classes that the labels number from class_base; missing_label: what
    stands for no gold label; test_label: the original's stand-in in tests;
    any_range: regression labels may be of any size, not near 0 to 5."""

    files = {split: (f"{split}.tsv",) for split in SPLITS}
    labels = ("0", "1")
    text_a_names = ("text_a",)
    text_b_names = ("text_b",)
    label_names = ("label",)
    without_header = {}
    more_columns = False
    quoted_csv = False
    encoding = "utf-8"
    class_file = None
    class_base = 0
    label_aliases = {}
    missing_label = None
    test_label = None
    any_range = False

    def get_train_examples(self, data_dir):
        """The InputExamples of the training set, in the file's order."""
        return self._examples(data_dir, "train")

    def get_dev_examples(self, data_dir):
        """The InputExamples of the dev set, in the file's order."""
        return self._examples(data_dir, "dev")

    def get_test_examples(self, data_dir):
        """The InputExamples of the test set; labels may be None."""
        return self._examples(data_dir, "test")

    def get_labels(self, data_dir=None):
        """The labels in the order of their ids; [] for regression.

        Class names come from the class file in `data_dir` if it is there."""
        if self.output_mode == "regression":
            return []
        if self.options["labels"]:
            return list(self.options["labels"])
        if self.class_file and data_dir:
            path = os.path.join(data_dir, self.class_file)
            if os.path.exists(path):
                return read_labels(path)
        return list(self.labels)

    def _find(self, data_dir, split, names=None):
        """The path of a split's file; FileNotFoundError names what to add."""
        if self.options[f"{split}_file"]:
            return self.options[f"{split}_file"]
        names = names or self.files[split]
        for name in names:
            path = os.path.join(data_dir or "", name)
            if os.path.exists(path):
                return path
        raise FileNotFoundError(
            f"{data_dir}: holds no {split} set of task {self.name}, looked "
            f"for {', '.join(names)}. Put the file there, or set --data_dir "
            f"or --{split}_file."
        )

    def _examples(self, data_dir, split, names=None, set_type=None):
        path = self._find(data_dir, split, names)
        examples, bad_rows = [], []
        for index, line, texts in self._rows(path, split, bad_rows):
            label, text_a, text_b, mark = texts
            if isinstance(label, str) and self.output_mode != "multi_label":
                label = label.strip() or None
            guid = f"{set_type or split}-{index if mark is None else mark}"
            examples.append(
                InputExample(guid, text_a, text_b, label, f"{path}:{line}")
            )
        if bad_rows:
            logging.warning(
                "%s: left out %d rows with a wrong number of columns, the "
                "first in line %d.",
                path,
                len(bad_rows),
                bad_rows[0],
            )
        return self._settle_labels(path, examples, data_dir, split)

    def _rows(self, path, split, bad_rows):
        """Yields (index, line, (label, text_a, text_b, guid mark))."""
        if str(path).endswith((".json", ".jsonl")):
            for index, (line, record) in enumerate(read_json_lines(path)):
                texts = self._from_json(path, line, record, split)
                yield index, line, texts
            return
        columns = None
        for index, (line, cells) in enumerate(self._table(path)):
            if columns is None:
                columns = self._columns(path, line, cells, split)
                if columns.names:
                    continue
            if not self._fits(path, line, cells, columns, split):
                bad_rows.append(line)
                continue
            texts = self._from_cells(cells, columns)
            if texts is not None:
                yield index, line, texts

    def _table(self, path):
        """Yields (line, cells) of a file that is not JSON."""
        if self.quoted_csv and str(path).endswith(".csv"):
            return read_csv(path, self.encoding)
        return read_tsv(path, self.encoding)

    def _columns(self, path, line, first, split):
        """Finds the columns from the first row: a header, or their number."""
        names = tuple(cell.strip().lower() for cell in first)

        def find(wanted):
            name = next((n for n in wanted if n in names), None)
            return None if name is None else only_place(path, line, names, name)

        text_a = find(self.text_a_names)
        if text_a is not None:
            columns = Columns(
                label=find(self.label_names),
                text_a=text_a,
                text_b=find(self.text_b_names) if self.is_pair else None,
                count=len(names),
                names=names,
            )
            absent = None
            if self.is_pair and columns.text_b is None:
                absent = self.text_b_names[0]
            if columns.label is None and split != "test":
                absent = self.label_names[0]
            if absent is None:
                return columns
            raise located(
                path,
                line,
                f"the header has no column '{absent}' (it has: "
                f"{', '.join(names)}). Add it, or read the file with "
                "--task_name=tsv.",
            )
        count = len(first)
        if self.more_columns:
            count = min(count, max(self.without_header))
        layouts = {
            number: positions
            for number, positions in self.without_header.items()
            if split == "test" or positions[0] is not None
        }
        if count in layouts:
            return Columns(*layouts[count], count, self.more_columns)
        layouts = " or ".join(str(number) for number in sorted(layouts))
        raise located(
            path,
            line,
            f"this first row of {len(first)} columns is neither a header "
            f"with '{self.text_a_names[0]}'"
            + (f" nor a row of {layouts} columns" if layouts else "")
            + f", as task {self.name} has. Is it a TSV file of this task? "
            "Other layouts are read with --task_name=tsv.",
        )

    def _fits(self, path, line, cells, columns, split):
        """Whether a row has the right number of columns; errors if not."""
        count = len(cells)
        if count == columns.count or (
            columns.at_least and count > columns.count
        ):
            return True
        if self.options["skip_bad_rows"] and split != "test":
            return False
        raise located(
            path,
            line,
            f"{count} columns, but "
            + f"{columns.count}{' or more' if columns.at_least else ''}"
            + " as in the first row are expected. Cells are divided by one "
            "tab (in .csv: a comma) and no cell may hold one. Mend the row"
            + (
                "."
                if split == "test"
                else ", or leave such rows out with --skip_bad_rows."
            ),
        )

    def _from_cells(self, cells, columns):
        """(label, text_a, text_b, guid mark) of a row; None leaves it out."""
        label = None if columns.label is None else cells[columns.label]
        text_b = None if columns.text_b is None else cells[columns.text_b]
        return label, cells[columns.text_a], text_b, None

    def _from_json(self, path, line, record, split):
        """(label, text_a, text_b, guid mark) of a JSON row."""

        def pick(names):
            return next((n for n in names if n in record), names[0])

        text_a = json_text(path, line, record, pick(self.text_a_names))
        text_b = None
        if self.is_pair:
            text_b = json_text(path, line, record, pick(self.text_b_names))
        label = self._json_label(path, line, record, pick(self.label_names))
        return label, text_a, text_b, None

    def _json_label(self, path, line, record, key):
        value = record.get(key)
        if isinstance(value, bool):
            return str(value).lower()
        if self.output_mode == "multi_label" and isinstance(value, list):
            return tuple(json_texts(path, line, key, value))
        return json_text(path, line, record, key, needed=False)

    def _settle_labels(self, path, examples, data_dir, split):
        """Turns raw labels into known ones; rows without gold are dropped."""
        if split != "test" and self.missing_label is not None:
            gold = [e for e in examples if e.label != self.missing_label]
            if len(gold) < len(examples):
                logging.warning(
                    "%s: left out %d rows without a gold label ('%s').",
                    path,
                    len(examples) - len(gold),
                    self.missing_label,
                )
            examples = gold
        if not examples:
            raise ValueError(
                f"{path}: holds no examples. Give a {split} set with at "
                "least one row."
            )
        if split == "test" and self.test_label is not None:
            for example in examples:
                example.label = self.test_label
            return examples
        if split == "test" and all(e.label is None for e in examples):
            return examples
        labels = self.get_labels(data_dir)
        known = {label: index for index, label in enumerate(labels)}
        for example in examples:
            example.label = self._label(example, labels, known, split)
        return examples

    def _label(self, example, labels, known, split):
        """The label of one example; None if a test row's is not known."""
        raw = example.label
        if raw is None:
            if split == "test":
                return None
            raise ValueError(
                f"{example.source}: has no label, which a {split} set needs. "
                "Add it, or use the file as the test set."
            )
        if self.output_mode == "regression":
            return _score(example, split)
        many = self.output_mode == "multi_label"
        parts = self._split_labels(raw) if many else (raw,)
        found = [self._class(part, labels, known) for part in parts]
        if None in found:
            if split == "test":
                return None
            shown = ", ".join(labels[:20]) + ", ..." * (len(labels) > 20)
            raise UnknownLabel(
                f"{example.source}: label '{parts[found.index(None)]}' is not "
                f"one of: {shown}. Mend the row, or give all labels with "
                "--labels_file (own data) or in the training set."
            )
        if many:
            return tuple(sorted(set(found), key=known.get))
        return found[0]

    def _split_labels(self, raw):
        if isinstance(raw, tuple):
            return raw
        return tuple(part.strip() for part in raw.split(",") if part.strip())

    def _class(self, raw, labels, known):
        """The known label that a cell means, or None."""
        raw = self.label_aliases.get(raw, raw)
        if raw in known:
            return raw
        if self.class_file and raw.isascii() and raw.isdigit():
            index = int(raw) - self.class_base
            if 0 <= index < len(labels):
                return labels[index]
        return None


class NliProcessor(TableProcessor):
    """Premise and hypothesis in the columns that GLUE and SNLI name."""

    is_pair = True
    labels = ("contradiction", "entailment", "neutral")
    text_a_names = ("sentence1", "premise", "text_a")
    text_b_names = ("sentence2", "hypothesis", "text_b")
    label_names = ("gold_label", "label")
    missing_label = "-"


def _score(example, split):
    """The number in a regression label; None if a test row has none."""
    try:
        # float() reads 1_000 as a thousand
        value = float(example.label.replace("_", "?"))
    except ValueError:
        value = math.nan
    if abs(value) < LARGEST:
        return value
    if split == "test":
        return None
    raise ValueError(
        f"{example.source}: label '{example.label}' is not a number below "
        f"{LARGEST:g}, which a regression task needs. Mend the row."
    )


def read_labels(path):
    """The labels of a file with one per line, in order of their ids.

    Raises ValueError for an empty file or a label given twice."""
    labels = {}
    for line, text in read_lines(path):
        label = text.strip()
        if not label:
            continue
        if label in labels:
            raise located(
                path,
                line,
                f"label '{label}' stands in line {labels[label]} already. "
                "Remove one of the two.",
            )
        labels[label] = line
    if not labels:
        raise ValueError(f"{path}: holds no labels. Give one per line.")
    return list(labels)
