"""Asks an exported classifier about sentences of your own.

    python samples/classify.py --model=demo_output/saved_model/1 \
        "Where is my parcel?" "Thank you so much."

Prints each sentence with its label and the probability of every label; takes
about ten seconds, nearly all of it the import of TensorFlow. It needs only
tensorflow and tensorflow-text and none of this project's modules, so it is
also the shortest example of how to use an export. With --rows and --labels it
scores a file, and with --confusion_matrix it draws the result (matplotlib).
"""

import argparse
import os
import pathlib
import sys

# What TensorFlow says of missing GPUs is no help here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def label_names(model_directory, count):
    """The names of the `count` classes in the order of the probabilities.

    They stand in assets.extra/labels.txt of the export, one a line. Without
    that file they are called "class 0", "class 1" and so on."""
    path = pathlib.Path(model_directory) / "assets.extra" / "labels.txt"
    if path.is_file():
        names = path.read_text(encoding="utf-8").split("\n")[:-1]
        if len(names) == count:
            return names
    return [f"class {i}" for i in range(count)]


def read_rows(path):
    """The values of the column text_a of a TSV file with a header."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    header = lines[0].rstrip("\r").split("\t")
    if "text_a" not in header:
        raise ValueError(f"{path}:1: no column text_a in the header {header}.")
    column = header.index("text_a")
    rows = [line.rstrip("\r").split("\t") for line in lines[1:] if line]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}:{number}: {len(row)} columns, but the header has "
                f"{len(header)}."
            )
    return [row[column] for row in rows]


def confusion_counts(expected, predicted, names):
    """How often each of `names` (row) was taken for each (column): lists."""
    place = {name: i for i, name in enumerate(names)}
    counts = [[0] * len(names) for _ in names]
    for wanted, got in zip(expected, predicted, strict=True):
        for label in (wanted, got):
            if label not in place:
                raise ValueError(
                    f"label {label!r} is not one of: {', '.join(names)}."
                )
        counts[place[wanted]][place[got]] += 1
    return counts


def draw_confusion_matrix(counts, names, path):
    """Writes the counts as a picture to `path`, whole or not at all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = 2.6 + 0.7 * len(names)
    figure, axes = pyplot.subplots(figsize=(size, size * 0.85))
    axes.imshow(counts, cmap="Blues", vmin=0)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=30, ha="right")
    axes.set_yticks(ticks, names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("labelled")
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in ticks)
    axes.set_title(f"{right} of {total} right")
    darkest = max(map(max, counts))
    for i in ticks:
        for j in ticks:
            colour = "white" if counts[i][j] > darkest / 2 else "black"
            axes.text(j, i, counts[i][j], ha="center", va="center", c=colour)
    figure.tight_layout()
    part = f"{path}.part"
    figure.savefig(part, format="png", dpi=120)
    pyplot.close(figure)
    os.replace(part, path)


class ExportedClassifier:
    """A SavedModel of run_classifier.py, called with plain strings."""

    def __init__(self, directory):
        """Loads the export; ValueError where `directory` holds none."""
        if not os.path.isfile(os.path.join(directory, "saved_model.pb")):
            raise ValueError(
                f"{directory} holds no saved_model.pb. Name the numbered "
                "directory that --do_export wrote, as in "
                "--model=demo_output/saved_model/1."
            )
        import tensorflow as tf
        import tensorflow_text

        # The import registers the tokenizer's operations; loading needs them.
        self.operations_version = tensorflow_text.__version__
        self._constant = tf.constant
        self._model = tf.saved_model.load(directory)
        self._signature = self._model.signatures["serving_default"]
        inputs = list(self._signature.structured_input_signature[1])
        outputs = self._signature.structured_outputs
        if inputs != ["text"] or not {"label", "score"} & set(outputs):
            raise ValueError(
                f"{directory} takes {', '.join(sorted(inputs))} and answers "
                f"{', '.join(sorted(outputs))}; this example is for the "
                "export of run_classifier.py on single texts."
            )
        self._directory = directory
        self.names = None

    def __call__(self, texts, batch_size=32):
        """Gives (labels, probabilities): a list of B names, B lists of C.

        A regression gives its scores, as text, and no probabilities."""
        labels, probabilities = [], []
        for start in range(0, len(texts), batch_size):
            batch = self._constant(texts[start : start + batch_size])
            outputs = self._signature(text=batch)
            if "score" in outputs:
                labels += [f"{x:.6g}" for x in outputs["score"].numpy()]
                probabilities += [[] for _ in outputs["score"]]
                continue
            labels += [x.decode() for x in outputs["label"].numpy()]
            probabilities += outputs["probabilities"].numpy().tolist()
        self.names = label_names(self._directory, len(probabilities[0]))
        return labels, probabilities


def print_answers(texts, labels, probabilities, names):
    """Prints every sentence and, below it, the label and all probabilities."""
    for text, label, row in zip(texts, labels, probabilities, strict=True):
        shares = "  ".join(
            f"{name} {share:.3f}"
            for name, share in zip(names, row, strict=True)
        )
        print(f"\n{text}\n  -> {label:<12} {shares}")


def main(argv=None):
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the export")
    parser.add_argument("--rows", help="a TSV file with a column text_a")
    parser.add_argument("--labels", help="their labels, one a line")
    parser.add_argument("--confusion_matrix", help="PNG to write")
    parser.add_argument("texts", nargs="*", help="sentences")
    flags = parser.parse_args(argv)
    if bool(flags.rows) != bool(flags.labels):
        parser.error("--rows and --labels go together.")
    if flags.confusion_matrix and not flags.rows:
        parser.error("--confusion_matrix needs --rows and --labels.")
    if not (flags.rows or flags.texts):
        parser.error("give sentences, or --rows and --labels.")
    try:
        _run(flags)
    except (OSError, ValueError) as error:
        print(f"classify.py: {error}", file=sys.stderr)
        return 1
    return 0


def _run(flags):
    """Answers what the flags ask for."""
    rows, expected = [], []
    if flags.rows:
        rows = read_rows(flags.rows)
        text = pathlib.Path(flags.labels).read_text(encoding="utf-8")
        lines = text.removesuffix("\n").split("\n")
        expected = [line.rstrip("\r") for line in lines]
        if len(expected) != len(rows):
            raise ValueError(
                f"{flags.labels} has {len(expected)} labels, but {flags.rows} "
                f"has {len(rows)} rows. One label a line is needed."
            )
    classifier = ExportedClassifier(flags.model)
    if rows:
        predicted, _ = classifier(rows)
        counts = confusion_counts(expected, predicted, classifier.names)
        right = sum(counts[i][i] for i in range(len(counts)))
        print(
            f"{flags.rows}: {right} of {len(rows)} rows right "
            f"({right / len(rows):.1%}), by the exported model"
        )
        if flags.confusion_matrix:
            draw_confusion_matrix(
                counts, classifier.names, flags.confusion_matrix
            )
    if flags.texts:
        labels, probabilities = classifier(flags.texts)
        print_answers(flags.texts, labels, probabilities, classifier.names)


if __name__ == "__main__":
    sys.exit(main())
