"""A user's own classification data, read without writing a processor."""

import logging
import os

from classification_data import (
    SPLITS,
    Columns,
    TableProcessor,
    only_place,
    read_labels,
)
from text_files import check_label, json_text, located

_KEYS = ("label", "text_a", "text_b")
_YES = {"1", "1.0", "true", "True", "TRUE"}
_NO = {"0", "0.0", "false", "False", "FALSE", ""}


def _is_position(value):
    return str(value).isascii() and str(value).isdigit()


def _places(columns):
    """Column names as they are, positions as int."""
    return [int(c) if _is_position(c) else c for c in columns]


class TsvProcessor(TableProcessor):
    """Reads a user's own train, dev and test files without any code.

    Each is .tsv (no quoting), .csv (quoted) or .jsonl / .json (an object per
    line). Columns are found by the names label, text_a and text_b (optional)
    in a header, or set by label_column, text_a_column, text_b_column: a name,
    or a position from 0. Labels come from `labels`, `labels_file`, or, sorted,
    from the training set. With multi_label, a cell holds labels divided by
    label_separator, or label_columns names a 0/1 column for each label. With
    regression, labels are numbers. Test files need no label column."""

    name = "tsv"
    metric_names = ("accuracy", "f1")
    any_range = True
    quoted_csv = True
    files = {
        split: tuple(
            f"{split}.{extension}"
            for extension in ("tsv", "csv", "jsonl", "json")
        )
        for split in SPLITS
    }
    option_defaults = {
        "label_column": None,
        "text_a_column": None,
        "text_b_column": None,
        "has_header": None,
        "labels_file": None,
        "multi_label": False,
        "label_separator": ",",
        "label_columns": None,
        "regression": False,
    }

    def __init__(self, **options):
        super().__init__(**options)
        columns = self.options["label_columns"]
        if isinstance(columns, str):
            columns = [part.strip() for part in columns.split(",")]
        self.label_columns = columns
        if columns and len(set(columns)) < len(columns):
            raise ValueError(
                f"--label_columns={','.join(columns)} names a column twice. "
                "Name each once."
            )
        if not self.options["label_separator"]:
            raise ValueError(
                "--label_separator is empty; give what divides the labels of "
                "a row, such as a comma or a semicolon."
            )
        if self.options["regression"] and (
            self.options["multi_label"] or columns
        ):
            raise ValueError(
                "--regression and --multi_label contradict each other. "
                "Choose one."
            )
        if self.options["regression"]:
            self.output_mode = "regression"
            self.metric_names = ("pearson", "spearman")
        elif self.options["multi_label"] or columns:
            self.output_mode = "multi_label"
            self.metric_names = ("micro_f1", "macro_f1")
        self._labels = self._named_labels()

    def _find(self, data_dir, split, names=None):
        path = super()._find(data_dir, split, names)
        if not self.options[f"{split}_file"]:
            others = [
                name
                for name in self.files[split]
                if os.path.exists(os.path.join(data_dir or "", name))
            ]
            if len(others) > 1:
                logging.warning(
                    "%s: of %s the first is read.", data_dir, ", ".join(others)
                )
        return path

    def _known_labels(self):
        """The labels that a run was restored with, or found, or None."""
        if self.options["labels"] and not self.label_columns:
            return list(self.options["labels"])
        return self._labels

    def _named_labels(self):
        """The labels that options name, or None."""
        labels = self.options["labels"]
        file = self.options["labels_file"]
        if not labels and file:
            if not os.path.isfile(file):
                raise ValueError(f"--labels_file={file} is no file.")
            labels = read_labels(file)
            if len(labels) < 2 and self.output_mode == "classification":
                raise ValueError(
                    f"{file}: holds one label; a classifier needs two or more."
                )
        columns = self.label_columns
        if not columns:
            return list(labels) if labels else None
        labels = list(labels or map(str, columns))
        if len(labels) != len(columns):
            raise ValueError(
                f"--label_columns names {len(columns)} columns, but there are "
                f"{len(labels)} labels. Give one column for each label."
            )
        return labels

    def get_labels(self, data_dir=None):
        """The labels in the order of their ids; [] for regression.

        Reads the training set if nothing else names them, so needs
        `data_dir` unless it was read before."""
        if self.output_mode == "regression":
            return []
        if self._known_labels() is None:
            if data_dir is None and not self.options["train_file"]:
                raise ValueError(
                    "the labels are not known. Set --labels_file, or give a "
                    "training set to take them from."
                )
            self.get_train_examples(data_dir)
        return list(self._known_labels())

    def _settle_labels(self, path, examples, data_dir, split):
        if self._known_labels() is None and self.output_mode != "regression":
            if split == "train" and examples:
                self._labels = self._labels_of(path, examples)
            elif split == "test":  # predicting needs no labels
                for example in examples:
                    example.label = None
        return super()._settle_labels(path, examples, data_dir, split)

    def _labels_of(self, path, examples):
        """The labels that a training set uses: numbers by value, then text."""
        found, whole = set(), True
        for example in examples:
            labels = ()
            if example.label is None:
                whole = False
            elif self.output_mode == "multi_label":
                labels = self._split_labels(example.label)
            else:
                labels = (example.label,)
            for label in set(labels) - found:
                place = example.source.rsplit(":", 1)
                check_label(*place, label)
                divider = self.options["label_separator"]
                if self.output_mode == "multi_label" and divider in label:
                    raise located(
                        *place,
                        f"label '{label}' holds the '{divider}' that divides "
                        "labels in test_labels.tsv. Set another "
                        "--label_separator.",
                    )
            found.update(labels)
        if not found:
            raise ValueError(
                f"{path}: no row has a label. Is --label_column right?"
            )
        if self.output_mode != "multi_label" and whole and len(found) == 1:
            raise ValueError(
                f"{path}: every row has the label '{min(found)}'; a "
                "classifier needs two or more. Is --label_column right?"
            )

        def order(label):
            digits = label.isascii() and label.isdigit()
            return (0, int(label), label) if digits else (1, 0, label)

        return sorted(found, key=order)

    def _split_labels(self, raw):
        if isinstance(raw, tuple):
            return raw
        parts = raw.split(self.options["label_separator"])
        return tuple(part.strip() for part in parts if part.strip())

    def _wanted(self, key):
        """The name or the position (int) of a column, and if it was set."""
        value = self.options[f"{key}_column"]
        if value is None or value == "":
            return key, False
        return (int(value) if _is_position(value) else str(value)), True

    def _columns(self, path, line, first, split):
        wanted = {key: self._wanted(key) for key in _KEYS}
        names = tuple(cell.strip().lower() for cell in first)
        given = [name for name, _ in wanted.values()]
        given += _places(self.label_columns or ())
        # A position is no word of a header: the cell may be a label.
        words = {name.lower() for name in given if isinstance(name, str)}
        has_header = self.options["has_header"]
        if has_header is None:
            has_header = bool(words & set(names))
        if has_header:
            columns = self._by_name(path, line, names, wanted, split)
        elif any(isinstance(name, int) for name, _ in wanted.values()):
            columns = self._by_position(path, line, first, wanted, split)
        elif len(first) == 1 and split == "test":
            columns = Columns(None, 0, None, 1)
            if self.options["has_header"] is None:
                logging.warning(
                    "%s has no header text_a: its first row, '%s', is a text. "
                    "--has_header=false says so without this warning.",
                    path,
                    first[0][:40],
                )
        elif split == "test" and self.options["has_header"] is None:
            columns = self._as_in_training(path, line, first)
        else:
            raise self._no_header(path, line, first)
        self._check_apart(path, line, columns)
        self.is_pair = columns.text_b is not None
        return columns

    def _check_apart(self, path, line, columns):
        """Refuses a label that is read from the column of a text."""
        labels = columns.label
        labels = labels if isinstance(labels, tuple) else (labels,)
        for key in ("text_a", "text_b"):
            place = getattr(columns, key)
            if place is not None and place in labels:
                flag = "label_columns" if self.label_columns else "label_column"
                name = columns.names[place] if columns.names else place
                raise located(
                    path,
                    line,
                    f"--{key}_column and --{flag} both mean column "
                    f"'{name}': the label would be read from the text. Set "
                    "one of them to another column.",
                )

    def _no_header(self, path, line, first):
        return located(
            path,
            line,
            f"this first row ('{first[0][:40]}', ...) has no column "
            f"'{self._wanted('text_a')[0]}'. Add a header with the names "
            "label, text_a and (for pairs) text_b, or set --text_a_column, "
            "--text_b_column and --label_column: names in the header, or "
            "positions from 0 and --has_header=false.",
        )

    def _by_name(self, path, line, names, wanted, split):
        """The columns of a file with a header."""

        def find(name, needed):
            """The place of a column by its name or number."""
            if isinstance(name, int) and name < len(names):
                return name
            if str(name).lower() in names:
                return only_place(path, line, names, str(name).lower())
            if needed:
                raise located(
                    path,
                    line,
                    f"has no column '{name}'; it has: {', '.join(names)}. "
                    "Set --text_a_column, --text_b_column and "
                    "--label_column to its names or positions (from 0).",
                )
            return None

        text_a = find(wanted["text_a"][0], True)
        text_b, b_is_set = wanted["text_b"]
        if self.label_columns:
            found = [find(name, False) for name in _places(self.label_columns)]
            label = None if None in found else tuple(found)
            if label is None and split != "test":
                missing = self.label_columns[found.index(None)]
                find(missing, True)
        else:
            label = find(wanted["label"][0], split != "test")
        return Columns(
            label=label,
            text_a=text_a,
            text_b=find(text_b, b_is_set),
            count=len(names),
            names=names,
        )

    def _by_position(self, path, line, first, wanted, split):
        """The columns of a file without a header.

        A test file may lack the label column: then it has one column less
        than the positions need, and those behind the label move up."""
        for key, (name, is_set) in wanted.items():
            if is_set and not isinstance(name, int):
                raise located(
                    path,
                    line,
                    f"--{key}_column={name} is a name, but the file has no "
                    "header. Give positions from 0, or set --has_header.",
                )
        text_a = wanted["text_a"][0] if wanted["text_a"][1] else None
        text_b = wanted["text_b"][0] if wanted["text_b"][1] else None
        if text_a is None:
            raise located(
                path,
                line,
                "--text_a_column is not set, and the file has no header. "
                "Set it to a position from 0.",
            )
        label = wanted["label"][0] if wanted["label"][1] else None
        if self.label_columns:
            label = tuple(_places(self.label_columns))
        count = len(first)
        texts = [text_a] if text_b is None else [text_a, text_b]
        if isinstance(label, int) and split == "test":
            if count == max([label, *texts]):
                text_a -= text_a > label
                if text_b is not None:
                    text_b -= text_b > label
                label = None
            elif label >= count:
                label = None
        used = [text_a, text_b, *(label if self.label_columns else (label,))]
        highest = max(place for place in used if place is not None)
        if highest >= count:
            raise located(
                path,
                line,
                f"{count} columns, so there is none at position {highest} "
                "(from 0). Set --text_a_column, --text_b_column and "
                "--label_column.",
            )
        return Columns(label, text_a, text_b, count)

    def _as_in_training(self, path, line, first):
        """The columns of a test file without a header, as in training."""
        data_dir = os.path.dirname(path)
        columns = None
        for split in ("train", "dev"):
            try:
                model = self._find(data_dir, split)
            except FileNotFoundError:
                continue
            if str(model).endswith((".json", ".jsonl")):
                continue
            for model_line, cells in self._table(model):
                columns = self._columns(model, model_line, cells, split)
                break
            break
        if columns is None:
            raise self._no_header(path, line, first)
        count, label = len(first), columns.label
        if count == columns.count - 1 and isinstance(label, int):
            places = [
                p if p is None or p < label else p - 1
                for p in (columns.text_a, columns.text_b)
            ]
            found = Columns(None, *places, count)
        elif count == columns.count:
            found = columns._replace(names=())
        else:
            raise self._no_header(path, line, first)
        logging.warning(
            "%s:%d: no header is found; the %d columns are read in the order "
            "of %s. If line 1 is a header, give it the same names.",
            path,
            line,
            count,
            model,
        )
        return found

    def _from_cells(self, cells, columns):
        if not isinstance(columns.label, tuple):
            return super()._from_cells(cells, columns)
        rest = super()._from_cells(cells, columns._replace(label=None))
        label = tuple(cells[place] for place in columns.label)
        return (label, *rest[1:])

    def _from_json(self, path, line, record, split):
        for key in ("text_a", "text_b", "label"):
            if isinstance(self._wanted(key)[0], int):
                raise located(
                    path,
                    line,
                    f"--{key}_column is a position, but JSON rows have named "
                    "fields. Give a name.",
                )
        self._check_fields_apart(path, line)
        text_a = json_text(path, line, record, self._wanted("text_a")[0])
        key, is_set = self._wanted("text_b")
        text_b = json_text(path, line, record, key, needed=is_set)
        self.is_pair = self.is_pair or text_b is not None
        if not self.label_columns:
            key = self._wanted("label")[0]
            label = self._json_label(path, line, record, key)
        elif all(name in record for name in self.label_columns):
            label = tuple(
                str(int(value) if isinstance(value, bool) else value)
                for value in map(record.get, self.label_columns)
            )
        else:
            label = None
        return label, text_a, text_b, None

    def _check_fields_apart(self, path, line):
        """`_check_apart` for the fields of JSON rows."""
        texts = [self._wanted(key)[0] for key in ("text_a", "text_b")]
        labels = self.label_columns or [self._wanted("label")[0]]
        names = list(dict.fromkeys([*texts, *labels]))
        places = [names.index(name) for name in texts]
        label = tuple(names.index(name) for name in labels)
        self._check_apart(path, line, Columns(label, *places, 0, names=names))

    def _label(self, example, labels, known, split):
        if not self.label_columns or example.label is None:
            return super()._label(example, labels, known, split)
        chosen = []
        for label, cell in zip(labels, example.label, strict=True):
            if cell.strip() not in _YES | _NO:
                if split == "test":
                    return None
                raise ValueError(
                    f"{example.source}: '{cell}' in the column of label "
                    f"'{label}' is neither 0 nor 1. Mend the row."
                )
            if cell.strip() in _YES:
                chosen.append(label)
        return tuple(chosen)
