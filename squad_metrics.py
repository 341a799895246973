"""Scores of reading comprehension: SQuAD, CMRC 2018, DuReader.

English scores come from official.nlp.tools.squad_evaluate_v1_1 / v2_0, BLEU
from sacrebleu. The Chinese ones follow the publishers' descriptions: CMRC 2018
compares characters by their longest common run, DuReader measures ROUGE-L
(beta 1.2) and BLEU-4. All scores are percentages but DuReader's, which are
fractions, as published. A question without an answer (2.0) scores 1 where none
is given, else 0.
"""

import re

METRICS = ("squad", "cmrc", "dureader")

_HAN = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_IDEOGRAPH = re.compile(_HAN)
_UNITS = re.compile(rf"{_HAN}|\d+(?:[.,]\d+)*|(?:(?!{_HAN})\w)+|[^\w\s]")
# The marks CMRC 2018 does not count. Its list has "……" too, which as two
# characters equals none of the single ones it is compared with.
_CMRC_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_ROUGE_BETA = 1.2


def choose_metric(examples, layout=""):
    """'dureader', 'cmrc' (passages mostly of Chinese characters) or 'squad'."""
    if layout.startswith("DuReader"):
        return "dureader"
    letters = ideographs = 0
    for example in examples[:50]:
        text = example.context_text[:500]
        letters += sum(char.isalpha() for char in text)
        ideographs += len(_IDEOGRAPH.findall(text))
    return "cmrc" if ideographs * 2 > letters else "squad"


def score_answers(
    examples, answers, metric="squad", version_2_with_negative=False
):
    """The scores of `answers` (Answers) as {name: float or int}.

    'squad': exact_match and f1. 'cmrc': the same by characters. 'dureader':
    rouge_l, and bleu_4 of the answerable questions. In 2.0 also the scores of
    the answerable and of the unanswerable questions, and the best threshold of
    the null odds with its score. Questions without a gold answer are left out,
    but for 2.0, and counted as `questions_without_gold`. ValueError if none
    has one."""
    if metric not in METRICS:
        raise ValueError(
            f"unknown metric {metric!r}; one of {', '.join(METRICS)}"
        )
    known = with_gold(examples, version_2_with_negative)
    if not known:
        raise ValueError(
            "none of the questions has a gold answer to compare with: a file "
            "without answers can be predicted but not evaluated"
        )
    if metric == "squad" and version_2_with_negative:
        scores = _score_squad_2(known, answers)
    elif metric == "squad":
        scores = _score_squad_1(known, answers)
    elif metric == "cmrc":
        measures = {"exact_match": _cmrc_any_exact, "f1": _cmrc_f1}
        scores = _means(known, answers, measures, version_2_with_negative, 100)
    else:
        measures = {"rouge_l": rouge_l}
        scores = _means(known, answers, measures, version_2_with_negative)
        scores["bleu_4"] = _bleu_4(known, answers)
    scores["total"] = len(known)
    if len(known) < len(examples):
        scores["questions_without_gold"] = len(examples) - len(known)
    return scores


def with_gold(examples, version_2_with_negative=False):
    """The questions that can be scored; without an answer in 2.0 only."""
    known = [e for e in examples if e.answer_texts is not None]
    if version_2_with_negative:
        return known
    return [e for e in known if e.answer_texts]


def example_scores(examples, answers, metric="squad"):
    """The score of each question, 0 to 1: F1, or ROUGE-L for DuReader."""
    score = {"squad": _squad_f1, "cmrc": _cmrc_f1, "dureader": rouge_l}
    return _scores_of(examples, answers.predictions, score[metric])


def _scores_of(examples, texts, measure):
    """measure(golds, text) of each question; see above for 2.0."""
    return [
        measure(example.answer_texts, texts.get(example.qas_id, ""))
        if example.answer_texts
        else float(not texts.get(example.qas_id, ""))
        for example in examples
    ]


def _means(examples, answers, measures, version_2_with_negative, unit=1):
    """The means of some measures, `unit` at most; 2.0: parts, thresholds."""
    scores = {}
    answerable = [bool(example.answer_texts) for example in examples]
    for name, measure in measures.items():
        found = _scores_of(examples, answers.predictions, measure)
        scores[name] = unit * sum(found) / len(found)
        if not version_2_with_negative:
            continue
        for part, has_answer in (("HasAns", True), ("NoAns", False)):
            pairs = zip(found, answerable, strict=True)
            chosen = [score for score, has in pairs if has == has_answer]
            if chosen:
                scores[f"{part}_{name}"] = unit * sum(chosen) / len(chosen)
                scores[f"{part}_total"] = len(chosen)
        best, threshold = _best_threshold(examples, answers, measure)
        scores[f"best_{name}"] = unit * best
        scores[f"best_{name}_threshold"] = threshold
    return scores


def _best_threshold(examples, answers, measure):
    """(mean score, threshold): the best if null odds above it give no answer.

    The search of the official script for SQuAD 2.0."""
    found = _scores_of(examples, answers.best_texts, measure)
    odds = [answers.null_odds[example.qas_id] for example in examples]
    score = best = sum(not example.answer_texts for example in examples)
    threshold = min(odds) - 1.0
    for place in sorted(range(len(odds)), key=odds.__getitem__):
        example = examples[place]
        score += found[place] - (not example.answer_texts)
        if score > best:
            best, threshold = score, odds[place]
    return best / len(examples), threshold


def _squad_f1(golds, predicted):
    """The best F1 of a text by the official evaluator, 0 to 1."""
    from official.nlp.tools import squad_evaluate_v2_0

    question = {"id": "", "answers": [{"text": gold} for gold in golds]}
    dataset = [{"paragraphs": [{"qas": [question]}]}]
    return squad_evaluate_v2_0.evaluate(dataset, {"": predicted})["f1"] / 100


def _cmrc_f1(golds, predicted):
    return max(cmrc_f1(gold, predicted) for gold in golds)


def _cmrc_any_exact(golds, predicted):
    return float(any(cmrc_exact(gold, predicted) for gold in golds))


def _as_dataset(examples):
    """Examples in the nesting the official evaluators read."""
    questions = [
        {
            "id": example.qas_id,
            "answers": [{"text": text} for text in example.answer_texts],
            "is_impossible": not example.answer_texts,
        }
        for example in examples
    ]
    return [{"paragraphs": [{"qas": questions}]}]


def _score_squad_1(examples, answers):
    from official.nlp.tools import squad_evaluate_v1_1

    scores = squad_evaluate_v1_1.evaluate(
        _as_dataset(examples), answers.predictions
    )
    return {
        "exact_match": 100.0 * scores["exact_match"],
        "f1": 100.0 * scores["final_f1"],
    }


def _score_squad_2(examples, answers):
    """2.0: the predictions as they are, and the best texts at every threshold.

    The evaluator takes odds above 1 for "no answer", so the odds go only into
    the search for the threshold."""
    from official.nlp.tools import squad_evaluate_v2_0

    dataset = _as_dataset(examples)
    plain = squad_evaluate_v2_0.evaluate(dataset, answers.predictions)
    scores = {"exact_match": plain["exact"], "f1": plain["f1"]}
    for part in ("HasAns", "NoAns"):
        if f"{part}_total" in plain:
            scores[f"{part}_exact_match"] = plain[f"{part}_exact"]
            scores[f"{part}_f1"] = plain[f"{part}_f1"]
            scores[f"{part}_total"] = plain[f"{part}_total"]
    ids = [example.qas_id for example in examples]
    odds = {key: answers.null_odds[key] for key in ids}
    best = squad_evaluate_v2_0.evaluate(
        dataset, {key: answers.best_texts[key] for key in ids}, odds
    )
    nothing = 100.0 * sum(not example.answer_texts for example in examples)
    nothing /= len(examples)
    for ours, name in (("exact_match", "exact"), ("f1", "f1")):
        value = best[f"final_{name}"]
        threshold = best[f"final_{name}_thresh"]
        if value <= nothing:  # best is to answer nothing at all
            threshold = min(odds.values()) - 1.0
        scores[f"best_{ours}"] = value
        scores[f"best_{ours}_threshold"] = threshold
    return scores


# --- Chinese ------------------------------------------------------------------


def text_units(text, without_marks=False):
    """A text as Chinese characters, numbers, other words and marks, lower case.

    `without_marks` leaves out the marks CMRC 2018 does not count."""
    text = text.lower()
    if without_marks:
        text = "".join(char for char in text if char not in _CMRC_MARKS)
    return _UNITS.findall(text)


def longest_common_run(first, second):
    """Length of the longest run of items standing in both lists."""
    best = 0
    above = [0] * (len(second) + 1)
    for item in first:
        row = [0] * (len(second) + 1)
        for place, other in enumerate(second, 1):
            if item == other:
                row[place] = above[place - 1] + 1
                best = max(best, row[place])
        above = row
    return best


def cmrc_f1(gold, predicted):
    """F1 of a predicted text by the longest common run of units, 0 to 1."""
    gold_units = text_units(gold, without_marks=True)
    units = text_units(predicted, without_marks=True)
    run = longest_common_run(gold_units, units)
    if not run:
        return 0.0
    precision, recall = run / len(units), run / len(gold_units)
    return 2 * precision * recall / (precision + recall)


def cmrc_exact(gold, predicted):
    """Whether two texts are equal but for case, marks and outer blanks."""

    def bare(text):
        return "".join(
            char for char in text.lower().strip() if char not in _CMRC_MARKS
        )

    return bare(gold) == bare(predicted)


def longest_common_subsequence(first, second):
    """Length of the longest common subsequence, with one bit per item."""
    places = {}
    for place, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << place
    row = 0
    for item in second:
        joined = row | places.get(item, 0)
        row = joined & ~(joined - ((row << 1) | 1))
    return row.bit_count()


def rouge_l(golds, predicted):
    """ROUGE-L of a text against several: best precision, best recall, F."""
    units = text_units(predicted)
    precision = recall = 0.0
    for gold in golds:
        gold_units = text_units(gold)
        common = longest_common_subsequence(gold_units, units)
        if common:
            precision = max(precision, common / len(units))
            recall = max(recall, common / len(gold_units))
    if not precision:
        return 0.0
    square = _ROUGE_BETA**2
    return (1 + square) * precision * recall / (recall + square * precision)


def _bleu_4(examples, answers):
    """BLEU-4 of the answers to the answerable questions, 0 to 1."""
    import sacrebleu

    examples = [example for example in examples if example.answer_texts]
    if not examples:
        return 0.0
    predicted = [answers.predictions.get(e.qas_id, "") for e in examples]
    most = max(len(example.answer_texts) for example in examples)
    references = [
        [
            e.answer_texts[number] if number < len(e.answer_texts) else None
            for e in examples
        ]
        for number in range(most)
    ]
    bleu = sacrebleu.corpus_bleu(predicted, references, tokenize="zh")
    return bleu.score / 100.0
