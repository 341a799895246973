"""Scores against hand counts, definitions and undefined cases."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, shared_data

import labelling_data
import metrics


def test_two_classes_by_hand():
    labels = [1, 1, 1, 0, 0, 0, 0, 0]
    guesses = [1, 1, 0, 1, 0, 0, 0, 0]  # 2 right positives, 1 missed, 1 false
    scores = metrics.classification_scores(
        labels, guesses, 2, ("accuracy", "f1", "mcc")
    )
    assert scores == {
        "eval_accuracy": 0.75,
        "eval_f1": pytest.approx(2 / 3),
        "eval_mcc": pytest.approx((2 * 4 - 1 * 1) / 15),
    }
    assert all(type(value) is float for value in scores.values())


def test_more_than_two_classes_use_macro_f1():
    labels = [0, 0, 1, 1, 2, 3]
    guesses = [0, 1, 1, 1, 2, 2]
    scores = metrics.classification_scores(labels, guesses, 4, ["f1"])
    assert scores["eval_accuracy"] == pytest.approx(4 / 6)
    by_class = [2 / 3, 4 / 5, 2 / 3, 0]
    assert scores["eval_f1"] == pytest.approx(np.mean(by_class))


def test_constant_predictions_count_0_with_one_warning(caplog):
    for num_labels in (2, 3):
        caplog.clear()
        scores = metrics.classification_scores(
            [1, 1, 0, 1], [0] * 4, num_labels, ("f1", "mcc")
        )
        assert scores["eval_mcc"] == 0
        assert scores["eval_f1"] == (0 if num_labels == 2 else 0.2)
        assert len(caplog.records) == 1
        assert "All 4 predictions are class 0" in caplog.text
    caplog.clear()
    for values in ([2.5] * 4, [np.nan, 1, 2, 3], [np.inf, 1, 2, 3]):
        caplog.clear()
        scores = metrics.regression_scores([1, 2, 3, 4], values)
        assert scores["eval_pearson"] == scores["eval_spearman"] == 0
        assert len(caplog.records) == 1
    caplog.clear()
    assert metrics.regression_scores([1.0], [2.0])["eval_pearson"] == 0
    assert len(caplog.records) == 1


def test_regression_by_definition():
    rng = np.random.RandomState(3)
    labels = rng.rand(200).astype(np.float32) * 5
    guesses = labels**3 + rng.rand(200)
    scores = metrics.regression_scores(labels, guesses)
    ranks = [np.argsort(np.argsort(x)) for x in (labels, guesses)]
    assert scores["eval_pearson"] == pytest.approx(
        np.corrcoef(labels, guesses)[0, 1]
    )
    assert scores["eval_spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert scores["eval_mse"] == pytest.approx(np.mean((labels - guesses) ** 2))


def test_multi_label_by_hand(caplog):
    labels = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]]
    chances = [[0.9, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.6, 0], [0, 0.7, 0.2]]
    scores = metrics.multi_label_scores(labels, chances)
    # label 0: 2 right; label 1: 1 right, 1 missed, 1 false; label 2: nothing
    assert scores == {
        "eval_micro_f1": pytest.approx(6 / 8),
        "eval_macro_f1": pytest.approx((1 + 0.5 + 0) / 3),
        "eval_accuracy": 0.5,
    }
    assert not caplog.records
    scores = metrics.multi_label_scores(labels, chances, [0.5, 0.3, 0.5])
    assert scores["eval_micro_f1"] == pytest.approx(8 / 9)
    zeros = np.zeros((2, 3))
    assert metrics.multi_label_scores(zeros, zeros)["eval_micro_f1"] == 0
    assert len(caplog.records) == 1


def test_tuned_thresholds_are_the_best_there_are():
    rng = np.random.RandomState(5)
    labels = (rng.rand(60, 4) < [0.5, 0.1, 0.9, 0]).astype(int)
    chances = np.round(rng.rand(60, 4) * 0.5 + labels * 0.3, 1)
    chances = chances.astype(np.float32)
    thresholds = metrics.tune_thresholds(labels, chances, default=0.4)
    assert thresholds[3] == 0.4

    def f1(column, threshold):
        return metrics.multi_label_scores(
            labels[:, [column]], chances[:, [column]], threshold
        )["eval_micro_f1"]

    for column in range(3):
        best = max(f1(column, t) for t in np.linspace(0, 1, 101))
        assert f1(column, thresholds[column]) == pytest.approx(best)


def test_labels_that_were_not_learnt_keep_their_threshold():
    """Their F1 is highest where every row gets the label."""
    rng = np.random.RandomState(3)
    labels = (rng.rand(2000, 6) < [0.3, 0.05, 0.02, 0.02, 0.01, 0.01]) * 1
    chances = np.tile(labels.mean(axis=0), (2000, 1)) + 0.01 * rng.rand(2000, 6)
    chances[:, :2] += 0.4 * labels[:, :2] + 0.2 * rng.rand(2000, 2)
    thresholds = metrics.tune_thresholds(labels, chances)
    assert (thresholds[:2] != 0.5).all()
    tuned, plain = (
        metrics.multi_label_scores(labels, chances, value)["eval_micro_f1"]
        for value in (thresholds, 0.5)
    )
    assert tuned > max(plain, 0.85)
    given = (chances >= thresholds).sum(axis=0)
    assert (given <= 2 * labels.sum(axis=0)).all()


def test_equal_probabilities_give_a_label_to_no_row():
    labels = np.zeros((20, 1), int)
    labels[0] = 1
    chances = np.full((20, 1), 0.1)
    assert metrics.tune_thresholds(labels, chances).tolist() == [0.5]


def test_spans_by_hand():
    labels = ["B-PER I-PER O B-LOC".split(), "O B-PER".split()]
    guesses = ["B-PER I-PER O B-PER".split(), "B-LOC B-PER".split()]
    scores = metrics.span_scores(labels, guesses)
    assert scores["eval_precision"] == pytest.approx(2 / 4)
    assert scores["eval_recall"] == pytest.approx(2 / 3)
    assert scores["eval_f1"] == pytest.approx(4 / 7)
    assert scores["eval_f1_PER"] == pytest.approx(4 / 5)
    assert scores["eval_recall_LOC"] == 0
    assert metrics.token_accuracy(labels, guesses) == {
        "eval_accuracy": pytest.approx(4 / 6)
    }


def test_spans_of_every_scheme_and_bare_inside_tags():
    iob2 = [
        "B-A I-A B-A O".split(),
        "B-B I-B I-B O".split(),
        "O B-A O O".split(),
    ]
    for scheme in ("IOB1", "IOBES", "BILOU", "BMES"):
        other = [labelling_data.from_iob2(tags, scheme) for tags in iob2]
        back = [labelling_data.to_iob2(tags) for tags in other]
        assert metrics.span_scores(iob2, back)["eval_f1"] == 1
    bare = ["I-A I-A B-A O".split(), *iob2[1:]]  # N05: I- begins an entity
    assert metrics.span_scores(bare, iob2)["eval_f1"] == 1


def test_no_entities(caplog):
    scores = metrics.span_scores([["O", "O"]], [["O", "O"]])
    assert scores["eval_f1"] == 0 and len(caplog.records) == 1
    scores = metrics.span_scores([["O", "O"]], [["B-X", "O"]])
    assert scores["eval_f1"] == scores["eval_precision"] == 0
    scores = metrics.span_scores([["O", "B-X"]], [["O", "O"]])
    assert scores["eval_f1"] == scores["eval_recall_X"] == 0


def test_a_real_file_scores_1_against_itself():
    file = labelling_data.read_labelled_file(
        shared_data("WNUT-17/emerging.dev.conll")
    )
    tags = [sentence.tags for sentence in file.sentences]
    scores = metrics.span_scores(tags, tags)
    assert scores["eval_f1"] == scores["eval_f1_creative-work"] == 1
    assert metrics.token_accuracy(tags, tags) == {"eval_accuracy": 1}


def test_multi_label_chances_are_sigmoids():
    logits = [[2.0, 2.0, -3.0]]  # C07
    chances = metrics.probabilities("multi_label", logits)
    assert np.round(chances, 4).tolist() == [
        pytest.approx([0.8808, 0.8808, 0.0474])
    ]
    losses = metrics.example_losses("multi_label", logits, [[1, 0, 0]])
    expected = -np.log([0.8807971, 1 - 0.8807971, 1 - 0.0474259]).mean()
    assert losses == pytest.approx(expected, rel=1e-6)
    huge = metrics.probabilities("multi_label", [[-900.0, 900.0]])
    assert huge.tolist() == [[0, 1]]


def test_losses_and_scores_by_kind():
    logits = np.array([[1.0, 3.0], [800.0, -800.0], [0.0, 0.0]])
    losses = metrics.example_losses("classification", logits, [1, 0, 1])
    assert losses == pytest.approx([np.log1p(np.exp(-2)), 0, np.log(2)])
    chances = metrics.probabilities("classification", logits)
    assert chances.sum(axis=1) == pytest.approx(1)
    assert metrics.mean_of_batch_means([1, 2, 6], 2) == (1.5 + 6) / 2
    numbers = [[1.0], [2.0], [4.0]]
    losses = metrics.example_losses("regression", numbers, [1, 3, 2])
    assert losses.tolist() == [0, 1, 4]
    assert metrics.probabilities("regression", numbers).shape == (3, 1)
    scores = metrics.task_scores("regression", (), numbers, [1.0, 3.0, 2.0])
    assert scores["eval_spearman"] == pytest.approx(0.5)
    scores = metrics.task_scores("classification", ["mcc"], logits, [1, 0, 1])
    assert scores["eval_accuracy"] == pytest.approx(2 / 3)
    scores = metrics.task_scores(
        "multi_label", (), logits, [[1, 1], [1, 0], [0, 0]], 0.6
    )
    assert scores["eval_micro_f1"] == 1


def test_confusion_matrix():
    matrix = metrics.confusion_matrix([0, 0, 2, 1], [0, 2, 2, 1], 3)
    assert matrix.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]


def test_what_cannot_be_scored_is_told():
    scores = metrics.classification_scores
    for call, message in (
        (lambda: scores([0, 1], [0], 2), r"\(2,\) labels and \(1,\) pred"),
        (lambda: scores([], [], 2), "at least one"),
        (lambda: scores([0, 3], [0, 1], 3), "label ids from 0 to 3 do not fit"),
        (lambda: scores([0], [0], 2, ["auc"]), "metric 'auc' is not one of"),
        (lambda: metrics.span_scores([["O"]], []), "1 sentences and 0 predic"),
        (
            lambda: metrics.token_accuracy([["O"]], [["O", "O"]]),
            "sentence 0 has 1 tags but 2 predictions",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_nothing_heavy_is_imported_for_help():
    code = (
        "import sys, processors, metrics, labelling_data, choice_data; "
        "print([m for m in ('tensorflow', 'sklearn', 'scipy', 'seqeval', "
        "'pandas') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True
    )
    assert output.stdout.decode().strip() == "[]"
