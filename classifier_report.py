"""What report.html says of a classifier: see `parts`; drawn by `reports.py`."""

import os

import numpy as np

import metrics
import reports


def parts(kind, labels, examples, logits, values, tokens, thresholds=None):
    """The parts of the page about some labelled examples.

    kind, labels: as in run_classifier; logits: float [rows, C]; values: the
    labels as numbers; tokens: int [rows]; thresholds: of multi-label tasks,
    float [C]."""
    values = np.asarray(values)
    if kind == "regression":
        return _of_numbers(examples, logits[:, 0], values, tokens)
    chances = metrics.probabilities(kind, logits)
    if kind == "multi_label":
        truth = values.astype(bool)
        given = chances >= np.asarray(thresholds)
    else:
        truth = np.arange(len(labels)) == values[:, None]
        given = np.arange(len(labels)) == logits.argmax(axis=-1)[:, None]
    right = (truth == given).all(axis=1)
    losses = metrics.example_losses(kind, logits, values)
    losses = np.where(right, 0.0, losses)
    shown = [
        (
            float(losses[row]),
            _place(example),
            _names(labels, truth[row]),
            _names(labels, given[row]),
            _chances(labels, chances[row], truth[row] | given[row]),
            _text(example),
        )
        for row, example in enumerate(examples)
    ]
    found = []
    if kind == "classification":
        matrix = metrics.confusion_matrix(
            values, logits.argmax(axis=-1), len(labels)
        )
        found.append(reports.confusion(labels, matrix))
    found.append(_by_label(labels, truth, given, thresholds))
    found.append(reports.by_length(tokens, right, "share right"))
    header = ("true", "predicted", "probabilities", "text")
    found.append(reports.worst_examples(shown, header))
    return [part for part in found if part]


def _by_label(labels, truth, given, thresholds):
    """The table of precision, recall and F1 of each label."""
    hits = (truth & given).sum(axis=0)
    real, guessed = truth.sum(axis=0), given.sum(axis=0)
    header = ["label", "name", "rows", "predicted", "precision", "recall", "F1"]
    rows = [
        [
            index,
            name,
            int(real[index]),
            int(guessed[index]),
            float(hits[index] / max(1, guessed[index])),
            float(hits[index] / max(1, real[index])),
            float(2 * hits[index] / max(1, real[index] + guessed[index])),
        ]
        for index, name in enumerate(labels)
    ]
    if thresholds is not None:
        header.append("threshold")
        for row, threshold in zip(rows, thresholds, strict=True):
            row.append(float(threshold))
    return reports.table("Scores by label", header, rows)


def _of_numbers(examples, scores, values, tokens):
    """The parts of a regression task."""
    errors = np.abs(scores - values)
    shown = [
        (
            float(errors[row] ** 2),
            _place(example),
            float(values[row]),
            float(scores[row]),
            _text(example),
        )
        for row, example in enumerate(examples)
    ]
    return [
        reports.scatter("Predicted against true", values, scores),
        reports.by_length(tokens, errors, "absolute error", "Error by length"),
        reports.worst_examples(shown),
    ]


def _place(example):
    """Where an example stands: file name and line."""
    return os.path.basename(example.source or str(example.guid))


def _names(labels, mask):
    chosen = [label for label, is_in in zip(labels, mask, strict=True) if is_in]
    return chosen or ["(none)"]


def _chances(labels, row, named, limit=5):
    """The most probable labels, those named first, with probabilities."""
    order = np.argsort(-row - named, kind="stable")
    order = order[: max(limit, int(named.sum()))]
    return [f"{labels[index]} {row[index]:.3f}" for index in order]


def _text(example, limit=1000):
    """Both texts of an example, cut where a page would burst."""
    texts = [example.text_a, example.text_b]
    texts = [text for text in texts if text]
    return "\n".join(
        text if len(text) <= limit else text[:limit] + " …" for text in texts
    )
