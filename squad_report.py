"""What report.html says of reading comprehension; drawn by `reports.py`."""

import collections

import numpy as np

import reports
import squad_metrics

FIRST_WORDS = 8  # the most frequent first words of questions that are shown
FEW = 5  # questions, below which a first word is not shown
AROUND = 60  # characters of the passage on either side of a gold answer


def parts(known, answers, metric, tokens):
    """The parts of the page about questions whose answers are known.

    answers: squad_answers.Answers; metric: as in score_answers; tokens:
    {question id: tokens of its windows}, overlaps and the question in each."""
    scores = squad_metrics.example_scores(known, answers, metric)
    found = [_answered_or_not(known, answers)]
    found.append(_by_first_word(known, scores))
    lengths = [tokens[example.qas_id] for example in known]
    name = "ROUGE-L" if metric == "dureader" else "F1"
    found.append(reports.by_length(lengths, scores, name))
    rows = [
        _row(example, answers, score)
        for example, score in zip(known, scores, strict=True)
    ]
    header = ("true", "predicted", "probability", "question", "passage")
    found.append(
        reports.worst_examples(rows, header, measure="missed F1 x probability")
    )
    return [part for part in found if part]


def _answered_or_not(examples, answers):
    """Whether there is an answer against whether one was given."""
    truth = [bool(example.answer_texts) for example in examples]
    if all(truth):
        return ""
    given = [bool(answers.predictions[e.qas_id]) for e in examples]
    matrix = np.zeros([2, 2], int)
    np.add.at(matrix, (np.array(truth, int), np.array(given, int)), 1)
    return reports.confusion(["no answer", "answer"], matrix, "Answered or not")


def _by_first_word(examples, scores):
    """Scores by the word a question begins with, if questions share any."""
    groups = collections.defaultdict(list)
    for example, score in zip(examples, scores, strict=True):
        words = example.question_text.split(maxsplit=1)
        groups[words[0].casefold() if words else ""].append(score)
    common = sorted(groups, key=lambda word: (-len(groups[word]), word))
    shown = [w for w in common[:FIRST_WORDS] if len(groups[w]) >= FEW]
    if not shown:
        return ""
    means = [float(np.mean(groups[word])) for word in shown]
    counts = [len(groups[word]) for word in shown]
    note = f"Of questions; words that begin fewer than {FEW} are left out."
    return reports.bars("Scores by first word", shown, means, note, counts)


def _row(example, answers, score):
    """A row of the worst: one that is surely wrong has the highest loss."""
    best = answers.nbest[example.qas_id]
    guess = answers.predictions[example.qas_id]
    chance = next((x["probability"] for x in best if x["text"] == guess), 0.0)
    golds = list(dict.fromkeys(example.answer_texts)) or ["(no answer)"]
    return (
        (1.0 - score) * chance,
        example.qas_id,
        golds,
        guess or "(no answer)",
        float(chance),
        example.question_text,
        _excerpt(example),
    )


def _excerpt(example):
    """The passage around the first gold answer, or its beginning."""
    passage = example.context_text
    first = last = 0
    if example.answers:
        text, first = example.answers[0]
        last = first + len(text)
    low, high = max(0, first - AROUND), last + AROUND
    before = "…" if low else ""
    after = "…" if high < len(passage) else ""
    return f"{before}{passage[low:high]}{after}"
