"""Scores of classification, regression, multi-label and tagging tasks.

Thin over scikit-learn, SciPy and seqeval, which are imported where they are
used. Every function gives a dict with the keys of eval_results.txt and plain
floats. A score that is not defined (constant predictions) is 0, with one
warning. Reading comprehension has its scores in squad_metrics.py."""

import logging
import math
import warnings

import numpy as np


def probabilities(kind, logits):
    """What logits float [rows, C] say, float64 of the same shape.

    `kind`: classification (softmax), multi_label (a sigmoid for each label)
    or regression (the score itself)."""
    logits = np.asarray(logits, np.float64)
    if kind == "regression":
        return logits
    if kind == "multi_label":
        return np.exp(-np.logaddexp(0, -logits))
    return np.exp(_log_softmax(logits))


def _log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def example_losses(kind, logits, labels):
    """The loss of each row, float64 [rows], without label smoothing.

    Cross-entropy; for multi_label the mean binary cross-entropy over labels;
    for regression the squared difference."""
    logits = np.asarray(logits, np.float64)
    labels = np.asarray(labels)
    if kind == "regression":
        return np.square(logits[:, 0] - labels)
    if kind == "multi_label":
        return (np.logaddexp(0, logits) - labels * logits).mean(axis=-1)
    return -_log_softmax(logits)[np.arange(len(labels)), labels]


def mean_of_batch_means(losses, batch_size):
    """The mean over batches of each batch's mean, as the original's `loss`.

    A last batch of fewer rows counts as much as the others."""
    losses = np.asarray(losses, np.float64)
    starts = range(0, len(losses), batch_size)
    return float(
        np.mean([losses[at : at + batch_size].mean() for at in starts])
    )


def task_scores(kind, names, logits, labels, thresholds=0.5):
    """The scores of a classification, multi_label or regression task.

    `logits`: float [rows, C]; `labels`: ids [rows], 0/1 [rows, C] or numbers
    [rows]; `names`: a processor's metric_names; `thresholds`: those of
    multi_label_scores."""
    logits = np.asarray(logits)
    if kind == "regression":
        return regression_scores(labels, logits[:, 0])
    if kind == "multi_label":
        chances = probabilities(kind, logits)
        return multi_label_scores(labels, chances, thresholds)
    guesses = logits.argmax(axis=-1)
    return classification_scores(labels, guesses, logits.shape[1], names)


def classification_scores(labels, predictions, num_labels, names=()):
    """eval_accuracy and whatever else `names` asks for: 'f1', 'mcc'.

    `labels` and `predictions`: int [rows]. F1 is that of class 1 for two
    classes and the unweighted mean over classes for more. Raises ValueError
    for no rows, unequal lengths, a label out of range or an unknown name."""
    labels, predictions = _pair(labels, predictions)
    for what, ids in (("label", labels), ("prediction", predictions)):
        if ids.min() < 0 or ids.max() >= num_labels:
            raise ValueError(
                f"{what} ids from {ids.min()} to {ids.max()} do not fit "
                f"{num_labels} labels. Is this another task's file?"
            )
    scores = {"eval_accuracy": float(np.mean(labels == predictions))}
    constant = num_labels > 1 and len(set(predictions.tolist())) == 1
    for name in names:
        if name == "f1":
            scores["eval_f1"] = _f1(labels, predictions, num_labels)
        elif name == "mcc":
            scores["eval_mcc"] = _mcc(labels, predictions)
        elif name != "accuracy":
            raise ValueError(
                f"metric '{name}' is not one of: accuracy, f1, mcc."
            )
    if constant and {"f1", "mcc"} & set(names):
        logging.warning(
            "All %d predictions are class %d; F1 and Matthews correlation "
            "say nothing then and count 0 where they are not defined.",
            len(predictions),
            predictions[0],
        )
    return scores


def _pair(first, second):
    """Two arrays of one length, not empty."""
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or not first.size:
        raise ValueError(
            f"{first.shape} labels and {second.shape} predictions cannot be "
            "scored; both need the same number of rows, at least one."
        )
    return first, second


def _f1(labels, predictions, num_labels):
    from sklearn.metrics import f1_score

    average = (
        {"average": "binary"}
        if num_labels == 2
        else {
            "average": "macro",
            "labels": np.union1d(labels, predictions),
        }
    )
    return float(f1_score(labels, predictions, zero_division=0, **average))


def _mcc(labels, predictions):
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(matthews_corrcoef(labels, predictions))
    return value if math.isfinite(value) else 0.0


def regression_scores(labels, predictions):
    """eval_pearson, eval_spearman and eval_mse of float [rows].

    Constant or not finite predictions correlate 0, with one warning."""
    labels, predictions = _pair(labels, predictions)
    labels = labels.astype(np.float64)
    predictions = predictions.astype(np.float64)
    from scipy import stats

    finite = bool(np.isfinite(predictions).all())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        values = [math.nan, math.nan]
        if finite and len(labels) > 1:
            values = [
                float(stats.pearsonr(labels, predictions).statistic),
                float(stats.spearmanr(labels, predictions).statistic),
            ]
        error = float(np.mean(np.square(labels - predictions)))
    if not all(map(math.isfinite, values)):
        logging.warning(
            "The correlation of %d predictions is not defined (all are %s) "
            "and counts 0.",
            len(predictions),
            "equal, or all labels are" if finite else "not finite",
        )
        values = [v if math.isfinite(v) else 0.0 for v in values]
    return {
        "eval_pearson": values[0],
        "eval_spearman": values[1],
        "eval_mse": error,
    }


def multi_label_scores(labels, probabilities, thresholds=0.5):
    """eval_micro_f1, eval_macro_f1, eval_accuracy (rows wholly right).

    `labels`: 0/1 [rows, C]; `probabilities`: float [rows, C]; `thresholds`:
    a number or float [C]; a label is given if its probability is at least the
    threshold. Macro F1 counts labels that neither stand in the data nor are
    predicted as 0."""
    labels, probabilities = _pair(labels, probabilities)
    labels = labels.astype(bool)
    given = probabilities >= np.asarray(thresholds)
    right = np.sum(labels & given, axis=0)
    total = np.sum(labels, axis=0) + np.sum(given, axis=0)
    if not total.any():
        logging.warning(
            "No row has a label and none is predicted; F1 is not defined and "
            "counts 0."
        )
    per_label = 2 * right / np.maximum(total, 1)
    return {
        "eval_micro_f1": float(2 * right.sum() / max(total.sum(), 1)),
        "eval_macro_f1": float(per_label.mean()),
        "eval_accuracy": float(np.mean((labels == given).all(axis=1))),
    }


def tune_thresholds(labels, probabilities, default=0.5):
    """The threshold of each label with its best F1 on these rows, float [C].

    Takes what multi_label_scores takes. A threshold lies midway between two
    probabilities. Labels keep `default` that no row has, or whose best cut
    finds hardly more than chance would: the F1 of a label that was not learnt
    is highest where all rows get it. No cut gives a label to more than twice
    the rows that have it."""
    labels, probabilities = _pair(labels, probabilities)
    rows = len(labels)
    thresholds = np.full(labels.shape[1], default, np.float64)
    for column in range(labels.shape[1]):
        truth = labels[:, column].astype(bool)
        total = int(truth.sum())
        if not total:
            continue
        order = np.argsort(-probabilities[:, column], kind="stable")
        ranked = probabilities[order, column].astype(np.float64)
        count = np.arange(1, rows + 1)
        right = np.cumsum(truth[order])
        f1 = 2 * right / (count + total)
        # A cut is only possible where the probability changes.
        following = np.append(ranked[1:], 0.0)
        f1[(ranked == following) & (count < rows)] = -1
        f1[count > 2 * total] = -1
        best = int(np.argmax(f1))
        if f1[best] < 0:
            continue
        # Of `cut` rows drawn by chance: the mean of right ones, the deviation.
        cut, share = best + 1, total / rows
        spread = cut * share * (1 - share) * (rows - cut) / max(1, rows - 1)
        if total == rows or right[best] - cut * share > 2 * np.sqrt(spread):
            thresholds[column] = (ranked[best] + following[best]) / 2
    return thresholds


def span_scores(labels, predictions):
    """eval_precision, eval_recall, eval_f1 of entities, overall and by type.

    `labels`, `predictions`: a list of IOB2 tags for each sentence (other
    schemes: labelling_data.to_iob2 first). An entity counts only with its
    type and both ends right, as conlleval has it. By type the keys end in
    _TYPE. Raises ValueError for sentences of unequal length."""
    from seqeval.metrics import classification_report

    _check_sentences(labels, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spans = any(tag != "O" for tags in labels for tag in tags)
        if not spans and all(t == "O" for tags in predictions for t in tags):
            logging.warning("No entities to score; F1 counts 0.")
            report = {"micro avg": {}}
        else:
            report = classification_report(
                labels, predictions, output_dict=True, zero_division=0
            )
    scores = {}
    for kind, values in report.items():
        if kind.endswith(" avg") and kind != "micro avg":
            continue
        end = "" if kind == "micro avg" else f"_{kind}"
        for key, name in _SPAN_KEYS:
            scores[f"eval_{key}{end}"] = float(values.get(name, 0.0))
    return {key: scores[key] for key in sorted(scores)}


_SPAN_KEYS = (
    ("precision", "precision"),
    ("recall", "recall"),
    ("f1", "f1-score"),
)


def _check_sentences(labels, predictions):
    if len(labels) != len(predictions) or not len(labels):
        raise ValueError(
            f"{len(labels)} sentences and {len(predictions)} predictions "
            "cannot be scored; both need the same number, at least one."
        )
    for index, (tags, found) in enumerate(
        zip(labels, predictions, strict=True)
    ):
        if len(tags) != len(found):
            raise ValueError(
                f"sentence {index} has {len(tags)} tags but {len(found)} "
                "predictions; each word needs one."
            )


def token_accuracy(labels, predictions):
    """{'eval_accuracy': share of right tags} over lists of tag lists."""
    _check_sentences(labels, predictions)
    pairs = [
        tag == found
        for tags, guesses in zip(labels, predictions, strict=True)
        for tag, found in zip(tags, guesses, strict=True)
    ]
    return {"eval_accuracy": float(np.mean(pairs)) if pairs else 0.0}


def confusion_matrix(labels, predictions, num_labels):
    """int [C, C]: row = true class, column = predicted class."""
    labels, predictions = _pair(labels, predictions)
    cells = labels.astype(np.int64) * num_labels + predictions
    counts = np.bincount(cells, minlength=num_labels**2)
    return counts.reshape(num_labels, num_labels)
