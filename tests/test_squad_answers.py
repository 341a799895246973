"""squad_answers.py: answers from logits, against the original."""

import functools
import json
import random
import tracemalloc

import numpy as np
import pytest
from conftest import shared_data
from squad_cases import (
    INDEX,
    S04,
    SQUAD,
    LetterTokenizer,
    question,
    read_gzip_json,
    span_text,
    tokenizer_of,
    windows_of,
)

import reading_comprehension as rc
import squad_answers
import squad_data


def test_small_functions_equal_the_original():
    for case in json.loads((SQUAD / "small_functions.json").read_text()):
        if "logits" in case:
            best = squad_answers.get_best_indexes(case["logits"], case["n"])
            assert best == case["best"]
        else:
            ours = squad_answers.compute_softmax(case["scores"])
            assert ours == case["softmax"]


def test_get_final_text_equals_the_original():
    for case in json.loads((SQUAD / "get_final_text.json").read_text()):
        assert case["result"] == squad_answers.get_final_text(
            case["pred_text"], case["orig_text"], case["do_lower_case"]
        ), case


@functools.cache
def prediction_inputs(source, feature_set, original=True):
    settings = INDEX["feature_sets"][feature_set]
    examples = squad_data.read_examples(str(SQUAD / source)).examples
    maker = rc.WindowMaker(
        tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        settings["max_seq_length"],
        settings["doc_stride"],
        settings["max_query_length"],
        original_alignment=original,
    )
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    return examples, windows


def golden_answers(case, original, **options):
    examples, windows = prediction_inputs(
        case["source"], case["feature_set"], original
    )
    logits = np.load(SQUAD / "predictions" / case["logits"])
    ids = [window["unique_id"] for window in windows]
    assert logits["unique_ids"].tolist() == ids
    settings = INDEX["feature_sets"][case["feature_set"]]
    return squad_answers.answers_from_logits(
        examples,
        windows,
        logits["start_logits"],
        logits["end_logits"],
        original_alignment=original,
        tokenizer=tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        do_lower_case=case["do_lower_case"],
        **case["flags"],
        **options,
    )


@pytest.mark.parametrize("case", INDEX["predictions"], ids=lambda c: c["case"])
def test_predictions_equal_the_original(case):
    answers = golden_answers(case, original=True)
    dead = case.get("dies_on", [])
    files = {
        "predictions": answers.predictions,
        "nbest_predictions": answers.nbest,
    }
    if case["flags"].get("version_2_with_negative"):
        files["null_odds"] = answers.null_odds
        assert all(np.isfinite(odds) for odds in answers.null_odds.values())
    for name, ours in files.items():
        path = SQUAD / "predictions" / f"{case['case']}.{name}.json.gz"
        theirs = read_gzip_json(path)
        alive = {key: value for key, value in ours.items() if key not in dead}
        assert alive == theirs
        assert list(alive) == list(theirs)
    for key in dead:
        assert isinstance(answers.predictions[key], str)
        assert answers.nbest[key]


def texts_of_span(example, window, start, end, tokenizer, do_lower_case):
    """(original's text, our text, mended kind or None) of one span."""
    offset = window["doc_offset"]
    first = int(window["starts"][start])
    last = int(window["ends"][end])
    ours = squad_answers._BLANKS.sub(" ", example.context_text[first:last])
    ids = window["input_ids"][start + offset : end + offset + 1].tolist()
    pieces = tokenizer.convert_ids_to_tokens(ids)
    joined = " ".join(pieces).replace(" ##", "").replace("##", "")
    words = window["words"]
    own = example.doc_tokens[int(words[start]) : int(words[end]) + 1]
    text = " ".join(own)
    original = squad_answers.get_final_text(joined, text, do_lower_case)
    spaced, dense, _ = squad_answers._spaced_and_dense(text, do_lower_case)
    kind = None
    if "[UNK]" in pieces:
        kind = "unknown words"
    elif len(dense) != len(text.replace(" ", "")):
        kind = "tokenizing changes the number of characters"
    elif spaced.count(joined) > 1:
        kind = "repeated in its words"
    return original, ours, kind


@pytest.mark.parametrize("name", INDEX["feature_sets"])
def test_default_texts_differ_only_where_mended(name):
    settings = INDEX["feature_sets"][name]
    tokenizer = tokenizer_of(settings["vocab"], settings["do_lower_case"])
    examples, windows = prediction_inputs("v20.json", name)
    chance = random.Random(5)
    same = 0
    for window in windows:
        example = examples[window["example_index"]]
        for _ in range(12):
            start = chance.randrange(window["doc_length"])
            end = min(window["doc_length"], start + chance.randint(1, 9)) - 1
            original, ours, kind = texts_of_span(
                example,
                window,
                start,
                end,
                tokenizer,
                settings["do_lower_case"],
            )
            if kind is None:
                assert ours == original
                same += 1
    assert same > 5 * len(windows)  # of 12


@pytest.mark.parametrize(
    "case",
    [case for case in INDEX["predictions"] if "default" in case["case"]],
    ids=lambda c: c["case"],
)
def test_default_predictions_equal_but_for_the_mended_kinds(case):
    """q01-q06, q16-q19 and q22-q24 are plain space-separated text."""
    if case["feature_set"] == "stride1":
        pytest.skip("an uncased vocabulary without lower-casing: all [UNK]")
    theirs = golden_answers(case, original=True)
    ours = golden_answers(case, original=False, padding_competes=True)
    plain = ["q01", "q02", "q03", "q04", "q05", "q06", "q22", "q16", "q17"]
    plain += ["q18", "q23", "q19", "q24"]
    different = [
        key
        for key in plain
        if ours.predictions[key] != theirs.predictions[key].replace("empty", "")
    ]
    # "S" of "Smith's" for its second s: the first match in the words.
    assert different == [] or {
        (ours.predictions[key], theirs.predictions[key]) for key in different
    } <= {("s", "S")}
    assert ours.null_odds == theirs.null_odds or different
    contexts = {
        e.qas_id: e.context_text
        for e in prediction_inputs(case["source"], case["feature_set"], False)[
            0
        ]
    }
    for key, rows in ours.nbest.items():
        for row in rows:
            if row["answer_start"] is None:
                assert row["text"] == ""
                continue
            place = slice(row["answer_start"], row["answer_end"])
            part = squad_answers._BLANKS.sub(" ", contexts[key][place])
            assert part == row["text"]


def answer(example, start, end, **options):
    windows, _ = windows_of(example)
    return squad_answers.answers_from_logits(
        [example],
        windows,
        [start] * len(windows),
        [end] * len(windows),
        **options,
    )


S02 = [0, 9, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("context", ["a b c d", "x y", "a b c d e f g"])
def test_s02_no_candidate_but_the_null_answer(context):
    answers = answer(
        question(context),
        S02,
        S02,
        n_best_size=2,
        version_2_with_negative=True,
    )
    assert answers.predictions["q"] == ""
    assert [row["text"] for row in answers.nbest["q"]] == [""]
    assert answers.null_odds["q"] == 2.0  # 0 against -2


def test_s02_null_fills_the_n_best_and_the_threshold_still_holds():
    start = [0, 0, 0, 4, 0, 0, 0, 0]
    example = question("a b c d")
    for threshold, text in ((0.0, ""), (3.0, "a")):
        answers = answer(
            example,
            start,
            start,
            n_best_size=1,
            version_2_with_negative=True,
            null_score_diff_threshold=threshold,
            null_logits=[2.0],
        )
        assert [row["text"] for row in answers.nbest["q"]] == [""]
        assert answers.predictions["q"] == text
        assert answers.null_odds["q"] == 2.0
        assert answers.best_texts["q"] == "a"


def test_s02_an_example_without_any_window():
    example = question("")
    answers = answer(example, [], [], version_2_with_negative=True)
    assert answers.predictions["q"] == ""
    assert answers.null_odds["q"] == squad_answers.NO_SPAN_ODDS
    assert answers.nbest["q"][0]["text"] == ""
    json.dumps(answers.null_odds, allow_nan=False)


def test_s03_no_sentinel_word():
    answers = answer(question("a b c d"), S02, S02, n_best_size=2)
    assert answers.predictions["q"] == ""
    assert answers.nbest["q"] == [
        {
            "text": "",
            "probability": 1.0,
            "start_logit": 0.0,
            "end_logit": 0.0,
            "answer_start": None,
            "answer_end": None,
        }
    ]
    original = answer(
        question("a b c d"),
        S02,
        S02,
        n_best_size=2,
        original_alignment=True,
        tokenizer=LetterTokenizer(),
    )
    assert original.predictions["q"] == "empty"


def test_s07_start_and_end_are_chosen_together():
    start = [0, 0, 0, 0, 0, 5, 0]
    end = [0, 0, 0, 5, 0, 1, 0]
    answers = answer(question("a b c"), start, end)
    best = answers.nbest["q"][0]
    assert (best["text"], best["start_logit"], best["end_logit"]) == ("c", 5, 1)
    answers = answer(question("a b c"), end, start)
    assert answers.predictions["q"] == "a b c"


def test_s08_longest_answer():
    start = [0, 0, 0, 9, 0, 0, 0, 0]
    end = [0, 0, 0, 0, 0, 7, 9, 0]
    for limit, text in ((4, "a b c d"), (3, "a b c"), (2, "a")):
        answers = answer(
            question("a b c d"), start, end, max_answer_length=limit
        )
        assert answers.predictions["q"] == text
    for name in ("max_answer_length", "n_best_size"):
        with pytest.raises(ValueError, match=f"--{name} is 0"):
            answer(question("a b c d"), start, end, **{name: 0})


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("version_2", [False, True])
def test_s10_empty_context_and_question(original, version_2):
    tokenizer = tokenizer_of("uncased")
    examples = [
        rc.SquadExample("none", "what", context_text=""),
        rc.SquadExample("blank", "what", context_text=" \n\u3000 "),
        rc.SquadExample("silent", "", context_text="only this"),
        rc.SquadExample("one", "what", context_text="x"),
    ]
    maker = rc.WindowMaker(tokenizer, original_alignment=original)
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    logits = [np.arange(w["length"], dtype=np.float32) for w in windows]
    answers = squad_answers.answers_from_logits(
        examples,
        windows,
        logits,
        logits,
        n_best_size=4,
        version_2_with_negative=version_2,
        original_alignment=original,
        tokenizer=tokenizer,
    )
    nothing = "empty" if original and not version_2 else ""
    assert (
        answers.predictions["none"] == answers.predictions["blank"] == nothing
    )
    assert answers.predictions["silent"] == "this"
    assert answers.predictions["one"] == "x"
    assert maker.counts["empty passages"] == 2


@pytest.mark.parametrize(
    "context, text",
    [
        ("Steve Smith's", "Steve Smith"),
        ("the café is", "the café"),
        ("the cafe\u0301 is", "the cafe\u0301"),
        ("paid $5.00 then", "$5.00"),
        ("Apple是苹果", "Apple是"),
        ("公元1963年被任", "1963年"),
        ("in İstanbul's", "İstanbul"),
        ("die Straße, die Straße?", "Straße?"),
        ("an 😀😀 and 😁", "😀😀 and"),
        ("zero\u200bwidth too", "zero\u200bwidth"),
    ],
)
def test_s12_surface_form(context, text):
    tokenizer = tokenizer_of("uncased")
    example = question(context, text)
    windows, _ = windows_of(
        example, length=60, stride=9, tokenizer=tokenizer, is_training=True
    )
    window = windows[0]
    start, end = window["start_position"], window["end_position"]
    assert span_text(example, window, start, end) == text


def test_s12_repeated_answer_has_its_own_place():
    tokenizer = tokenizer_of("uncased")
    example = question("the cat-Cat the CAT", "CAT")
    windows, _ = windows_of(
        example, length=30, tokenizer=tokenizer, is_training=True
    )
    window = windows[0]
    place = window["start_position"]
    assert span_text(example, window, place, place) == "CAT"
    second = question("cat-Cat", "Cat")
    windows, _ = windows_of(
        second, length=30, tokenizer=tokenizer, is_training=True
    )
    place = windows[0]["start_position"]
    assert span_text(second, windows[0], place, place) == "Cat"
    original = span_text(
        second,
        windows[0],
        place,
        place,
        original_alignment=True,
        tokenizer=tokenizer,
    )
    assert original == "cat"


def test_s13_answers_end_where_pieces_end():
    """Documented: an answer may end inside a word, as in the original."""
    tokenizer = tokenizer_of("uncased")
    pieces = tokenizer.tokenize("unaffable")
    assert len(pieces) > 1
    example = question("so unaffable indeed", "unaffable")
    windows, _ = windows_of(
        example, length=30, tokenizer=tokenizer, is_training=True
    )
    window = windows[0]
    start, end = window["start_position"], window["end_position"]
    assert end - start == len(pieces) - 1
    assert span_text(example, window, start, end) == "unaffable"
    last = pieces[-1].removeprefix("##")
    assert span_text(example, window, end, end) == last


def test_no_answer_classifier_sets_the_odds():
    example = question("a b c d")
    start = [9, 0, 0, 4, 0, 0, 0, 0]
    for logit, text in ((0.5, ""), (-0.5, "a")):
        answers = answer(
            example,
            start,
            start,
            version_2_with_negative=True,
            null_logits=np.float32([logit]),
        )
        assert answers.null_odds["q"] == pytest.approx(logit)
        assert answers.predictions["q"] == text
        assert answers.nbest["q"][0]["text"] == text
    answers = answer(
        example,
        S02,
        S02,
        version_2_with_negative=True,
        n_best_size=2,
        null_logits=np.float32([-3.0]),
    )
    assert (answers.predictions["q"], answers.null_odds["q"]) == ("", -3.0)


def test_padding_does_not_compete_by_default():
    start = [0, 0, 0, 1, 0, 0, 0, 0] + [9] * 4
    answers = answer(question("a b c d"), start, start, n_best_size=2)
    assert answers.predictions["q"] == "a"
    answers = answer(
        question("a b c d"), start, start, n_best_size=2, padding_competes=True
    )
    assert answers.predictions["q"] == ""


def test_windows_in_any_order_and_ragged_rows():
    examples = [question(S04), question("x y z")]
    examples[1].qas_id = "r"
    tokenizer = LetterTokenizer()
    maker = rc.WindowMaker(tokenizer, 9, 2, 3)
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    state = np.random.RandomState(3)
    rows = [state.normal(size=(2, w["length"])) for w in windows]

    def result(order):
        return squad_answers.answers_from_logits(
            examples,
            [windows[i] for i in order],
            [rows[i][0] for i in order],
            [rows[i][1] for i in order],
        ).nbest

    count = len(windows)
    assert result(range(count)) == result(range(count)[::-1])


def test_wrong_logits_are_refused():
    example = question("a b c d")
    with pytest.raises(ValueError, match="8 positions but only 3 start"):
        answer(example, [1, 2, 3], S02)
    with pytest.raises(ValueError, match="end logits of window 0 are not num"):
        answer(example, S02, [float("nan")] * 12)
    with pytest.raises(ValueError, match="0 rows of start logits for 1 win"):
        squad_answers.answers_from_logits(
            [example], windows_of(example)[0], [], []
        )
    with pytest.raises(ValueError, match="needs the tokenizer"):
        answer(example, S02, S02, original_alignment=True)


def test_infinite_logits_do_not_crash():
    low = [-np.inf] * 12
    answers = answer(question("a b"), low, low, version_2_with_negative=True)
    assert answers.predictions["q"] in ("", "a")


def test_written_files(tmp_path):
    logits = [0, 0, 0, 5, 1, 0]
    answers = answer(
        question("né b"), logits, logits, version_2_with_negative=True
    )
    answers.write(tmp_path, version_2_with_negative=True)
    names = ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    text = (tmp_path / "predictions.json").read_bytes()
    assert text == b'{\n    "q": "n\\u00e9"\n}\n'
    with pytest.raises(ValueError, match="circular|Circular"):
        loop = []
        loop.append(loop)
        squad_answers.write_json(tmp_path / "predictions.json", loop)
    assert (tmp_path / "predictions.json").read_bytes() == text
    assert len(list(tmp_path.iterdir())) == 3


def test_long_passage_many_questions_long_question():
    tokenizer = tokenizer_of("uncased")
    sentence = "The survey counted 107 grey seals near Skellin Island. "
    context = sentence * (100_000 // len(sentence) + 1)
    examples = [
        rc.SquadExample(
            str(number), "how many seals " * 100, context_text=context
        )
        for number in range(20)
    ]
    maker = rc.WindowMaker(tokenizer)
    maker(examples[0])
    tracemalloc.start()
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert maker.counts["questions cut to max_query_length"] == 21
    assert max(w["length"] for w in windows) == 384
    # ids and segments of the windows; passage arrays are shared.
    assert peak < 12 * 384 * len(windows) + 1_000_000
    logits = np.zeros(384, np.float32)
    logits[100] = 3
    answers = squad_answers.answers_from_logits(
        examples, windows, [logits] * len(windows), [logits] * len(windows)
    )
    assert len(answers.predictions) == 20
    assert answers.nbest["0"] == answers.nbest["19"]


def round_trip(relative, vocab, do_lower_case, limit=None):
    """(answerable questions, those whose gold answer does not come back)."""
    result = squad_data.read_examples(str(shared_data(relative)), True, True)
    maker = rc.WindowMaker(
        tokenizer_of(vocab, do_lower_case),
        is_training=True,
        version_2_with_negative=True,
    )
    count, lost = 0, []
    for example in result.examples[:limit]:
        if example.is_impossible:
            continue
        count += 1
        windows = maker(example)
        starts = [np.zeros(w["length"], np.float32) for w in windows]
        ends = [row.copy() for row in starts]
        for window, start, end in zip(windows, starts, ends, strict=True):
            if window["start_position"]:
                start[window["start_position"]] = 9
                end[window["end_position"]] = 9
        text = squad_answers.answers_from_logits(
            [example], windows, starts, ends, max_answer_length=384
        ).predictions[example.qas_id]
        if text.strip() != example.orig_answer_text.strip():
            lost.append((example.qas_id, text, example.orig_answer_text))
    left_out = result.report.counts["questions left out: no usable answer"]
    return count + left_out, lost + [None] * left_out


ROUND_TRIPS = [
    ("SQuAD1.1/dev-v1.1.json", "uncased", True, 0.5),
    ("SQuAD2.0/dev-v2.0.json", "uncased", True, 0.5),
    ("SQuAD1.1/dev-v1.1.json", "cased", False, 0.5),
    ("cmrc2018/cmrc2018_trial.json", "chinese", True, 1.0),
    ("cmrc2018/cmrc2018_dev_first300.json", "chinese", True, 1.0),
    ("xquad/xquad.ar.json", "multi_cased", False, 2.0),
    ("xquad/xquad.de.json", "multi_cased", False, 2.0),
    ("xquad/xquad.hi.json", "multi_cased", False, 2.0),
    ("xquad/xquad.ru.json", "multi_cased", False, 2.0),
    ("xquad/xquad.th.json", "multi_cased", False, 2.0),
]


@pytest.mark.parametrize("relative, vocab, lower, percent", ROUND_TRIPS)
def test_gold_answers_come_back(relative, vocab, lower, percent):
    """Lost ones: a gold text that ends inside a piece ("(2,70" of "2,700",
    "Japan" of "Japanese"), an answer longer than a window's own share, blanks
    in a row (one space, as the original)."""
    count, lost = round_trip(relative, vocab, lower)
    assert count > 600
    assert 100 * len(lost) <= percent * count, lost
