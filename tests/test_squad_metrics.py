"""squad_metrics.py against known values and the official evaluators."""

import random

import pytest

import squad_metrics
from reading_comprehension import SquadExample
from squad_answers import Answers


def example(qas_id, texts, context="A context."):
    return SquadExample(qas_id, "?", context_text=context, answer_texts=texts)


def answers(predictions, odds=None, best=None):
    result = Answers()
    result.predictions.update(predictions)
    result.null_odds.update(odds or {})
    result.best_texts.update(best or predictions)
    return result


def test_squad_1():
    examples = [
        example("a", ["the River Lark", "Lark"]),
        example("b", ["grey seals"]),
        example("c", ["x"]),
        example("unknown", None),
        example("empty", []),
    ]
    got = answers({"a": "lark!", "b": "107 grey seals", "c": ""})
    scores = squad_metrics.score_answers(examples, got)
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 0.8 + 0) / 3)
    assert scores["total"] == 3 and scores["questions_without_gold"] == 2


def test_squad_2_parts_and_best_threshold():
    examples = [
        example("a", ["Lark"]),
        example("b", ["grey seals"]),
        example("n", []),
        example("m", []),
    ]
    got = answers(
        {"a": "", "b": "seals", "n": "wrong", "m": ""},
        {"a": 0.5, "b": -3.0, "n": -1.0, "m": 40.0},
        {"a": "Lark", "b": "seals", "n": "wrong", "m": "no"},
    )
    scores = squad_metrics.score_answers(examples, got, "squad", True)
    assert scores["exact_match"] == 25.0
    assert scores["f1"] == pytest.approx(100 * (2 / 3 + 1) / 4)
    assert scores["HasAns_exact_match"] == 0.0
    assert scores["HasAns_f1"] == pytest.approx(100 / 3)
    assert scores["NoAns_f1"] == 50.0
    assert scores["HasAns_total"] == scores["NoAns_total"] == 2
    # -3: b answered, the others not.
    assert scores["best_f1"] == pytest.approx(100 * (2 / 3 + 2) / 4)
    assert scores["best_f1_threshold"] == -3.0
    # Nothing answered is best for exact match: a threshold below all odds.
    assert scores["best_exact_match"] == 50.0
    assert scores["best_exact_match_threshold"] < -3.0


NAMES = {
    "squad": ("exact_match", "f1"),
    "cmrc": ("exact_match", "f1"),
    "dureader": ("rouge_l",),
}


@pytest.mark.parametrize("metric", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_best_when_applied(seed, metric):
    chance = random.Random(seed)
    examples, odds, best = [], {}, {}
    for number in range(40):
        key = str(number)
        examples.append(example(key, ["one"] if chance.random() < 0.6 else []))
        odds[key] = chance.gauss(0 if examples[-1].answer_texts else 2, 3)
        best[key] = chance.choice(["one", "two", "one two"])

    def applied(threshold):
        texts = {k: "" if odds[k] > threshold else best[k] for k in odds}
        return squad_metrics.score_answers(
            examples, answers(texts, odds, best), metric, True
        )

    scores = applied(0.0)
    assert scores["HasAns_total"] + scores["NoAns_total"] == 40
    for name in NAMES[metric]:
        parts = [
            scores[f"{part}_{name}"] * scores[f"{part}_total"]
            for part in ("HasAns", "NoAns")
        ]
        assert scores[name] == pytest.approx(sum(parts) / 40)
        value = applied(scores[f"best_{name}_threshold"])[name]
        assert value == pytest.approx(scores[f"best_{name}"])
        tried = [applied(odd)[name] for odd in odds.values()]
        assert max(tried) <= value + 1e-9


def test_units():
    assert squad_metrics.text_units("公元1963年，Nexon的3,000.5元!") == [
        "公",
        "元",
        "1963",
        "年",
        "，",
        "nexon",
        "的",
        "3,000.5",
        "元",
        "!",
    ]
    units = squad_metrics.text_units("《跑跑》，A-b", without_marks=True)
    assert units == ["跑", "跑", "ab"]


@pytest.mark.parametrize(
    "gold, predicted, f1",
    [
        ("1963年", "1963年", 1.0),
        ("《泡泡堂》", "泡泡堂", 1.0),
        ("泡泡堂", "泡泡", 0.8),
        ("甲乙丙丁", "丙丁甲乙", 0.5),
        ("甲", "乙", 0.0),
        ("甲", "", 0.0),
        ("，", "。", 0.0),
    ],
)
def test_cmrc_f1(gold, predicted, f1):
    assert squad_metrics.cmrc_f1(gold, predicted) == pytest.approx(f1)


def test_cmrc_exact():
    assert squad_metrics.cmrc_exact("《泡泡堂》", " 泡泡堂\n")
    assert not squad_metrics.cmrc_exact("泡泡堂", "泡泡 堂")
    assert not squad_metrics.cmrc_exact("他说…是", "他说是")
    assert squad_metrics.cmrc_exact("Nexon", "nexon")
    assert not squad_metrics.cmrc_exact("泡泡堂", "泡泡")


def test_cmrc_scores():
    examples = [
        example("a", ["1963年", "1963"], "他1963年任主教"),
        example("b", ["泡泡堂"], "游戏泡泡堂"),
    ]
    got = answers({"a": "1963", "b": "泡泡"})
    assert squad_metrics.choose_metric(examples) == "cmrc"
    scores = squad_metrics.score_answers(examples, got, "cmrc")
    assert scores == {"exact_match": 50.0, "f1": 90.0, "total": 2}
    examples.append(example("n", []))
    got.predictions["n"] = got.best_texts["n"] = ""
    got.null_odds.update({"a": -2.0, "b": -1.0, "n": 1.0})
    scores = squad_metrics.score_answers(examples, got, "cmrc", True)
    assert scores["exact_match"] == pytest.approx(200 / 3)


def plain_subsequence(first, second):
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            rows[i + 1][j + 1] = (
                rows[i][j] + 1
                if a == b
                else max(rows[i][j + 1], rows[i + 1][j])
            )
    return rows[-1][-1]


def test_longest_common_subsequence_and_run():
    chance = random.Random(2)
    for _ in range(200):
        first = [chance.choice("abcd") for _ in range(chance.randint(0, 20))]
        second = [chance.choice("abcd") for _ in range(chance.randint(0, 20))]
        common = squad_metrics.longest_common_subsequence(first, second)
        assert common == plain_subsequence(first, second)
        run = squad_metrics.longest_common_run(first, second)
        text, other = "".join(first), "".join(second)
        runs = [
            end - start
            for start in range(len(text))
            for end in range(start, len(text) + 1)
            if text[start:end] in other
        ]
        assert run == max(runs, default=0)


def test_rouge_l():
    assert squad_metrics.rouge_l(["甲乙丙"], "甲乙丙") == pytest.approx(1)
    assert squad_metrics.rouge_l(["甲乙丙"], "") == 0
    # precision 2/2, recall 2/4: (1 + 1.44) / 2 / (0.5 + 1.44)
    value = squad_metrics.rouge_l(["甲乙丙丁"], "甲丁")
    assert value == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    assert squad_metrics.rouge_l(["甲乙丙丁", "甲丁"], "甲丁") == pytest.approx(
        1
    )


def test_dureader_scores():
    texts = "买十五升的就够了不要太大"
    examples = [
        example("a", [texts, "十五升"], texts),
        example("b", ["家里三口人用的热水器"], texts),
        example("none", []),
    ]
    got = answers({"a": texts, "b": "家里三口人用的热水器"})
    assert squad_metrics.choose_metric([], "DuReader JSON lines") == "dureader"
    scores = squad_metrics.score_answers(examples, got, "dureader")
    assert scores["rouge_l"] == pytest.approx(1.0)
    assert scores["bleu_4"] == pytest.approx(1.0)
    assert scores["total"] == 2
    got.predictions["b"] = "家里"
    worse = squad_metrics.score_answers(examples, got, "dureader")
    assert 0 < worse["bleu_4"] < 1 and 0 < worse["rouge_l"] < 1


def test_choose_metric():
    english = [example("a", [], "The River Lark rises in 上海.")]
    assert squad_metrics.choose_metric(english) == "squad"
    assert squad_metrics.choose_metric([]) == "squad"


def test_wrong_use():
    with pytest.raises(ValueError, match="unknown metric 'bleu'; one of squad"):
        squad_metrics.score_answers([example("a", ["x"])], answers({}), "bleu")
    for examples in ([], [example("a", None)], [example("a", [])]):
        with pytest.raises(
            ValueError, match="none of the questions has a gold"
        ):
            squad_metrics.score_answers(examples, answers({}))


@pytest.mark.parametrize("metric", squad_metrics.METRICS)
def test_scores_of_examples_have_the_mean_of_all(metric):
    examples = [
        example("a", ["the River Lark", "Lark"]),
        example("b", ["grey seals"]),
        example("c", ["x"]),
    ]
    got = answers({"a": "lark!", "b": "107 grey seals", "c": ""})
    scores = squad_metrics.score_answers(examples, got, metric)
    one_by_one = squad_metrics.example_scores(examples, got, metric)
    mean = sum(one_by_one) / 3
    if metric == "dureader":
        assert scores["rouge_l"] == pytest.approx(mean)
    else:
        assert scores["f1"] == pytest.approx(100 * mean)
    assert one_by_one[2] == 0.0


def test_no_answer_is_right_where_there_is_none():
    examples = [example("n", []), example("m", [])]
    got = answers({"n": "", "m": "wrong"})
    assert squad_metrics.example_scores(examples, got) == [1.0, 0.0]


def test_dureader_questions_without_answer_count():
    examples = [example("a", ["甲乙"]), example("n", []), example("m", [])]
    got = answers(
        {"a": "甲乙", "n": "丙", "m": ""},
        {"a": -1.0, "n": 0.0, "m": 2.0},
        {"a": "甲乙", "n": "丙", "m": "丁"},
    )
    scores = squad_metrics.score_answers(examples, got, "dureader", True)
    assert scores["total"] == 3 and scores["NoAns_total"] == 2
    assert scores["rouge_l"] == pytest.approx(2 / 3)
    assert scores["best_rouge_l"] == 1.0
    assert scores["best_rouge_l_threshold"] == -1.0
