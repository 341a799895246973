"""reading_comprehension.py: windows and labels, against the original."""

import hashlib
import json

import pytest
from conftest import shared_data
from squad_cases import (
    INDEX,
    S04,
    SQUAD,
    VOCAB_NAMES,
    LetterTokenizer,
    as_golden,
    features_of,
    question,
    read_golden,
    read_gzip_json,
    read_gzip_lines,
    span_text,
    tokenizer_of,
    windows_of,
)

import reading_comprehension as rc
import squad_data


@pytest.mark.parametrize(
    "name",
    ["v11_train", "v11_predict", "v20_train", "v20_predict"]
    + ["dev_multi_predict"],
)
def test_examples_equal_the_original(name):
    source, mode = name.rsplit("_", 1)
    rows = read_gzip_lines(SQUAD / f"features/examples_{name}.jsonl.gz")
    examples = read_golden(
        f"{source}.json", mode == "train", source.startswith("v20")
    )
    ours = [{key: getattr(e, key) for key in rows[0]} for e in examples]
    assert ours == rows


@pytest.mark.parametrize("case", INDEX["features"], ids=lambda c: c["file"])
def test_features_equal_the_original(case):
    settings = INDEX["feature_sets"][case["feature_set"]]
    examples = read_golden(
        case["source"], case["is_training"], case["version_2_with_negative"]
    )
    features = features_of(examples, settings, case["is_training"])
    golden = read_gzip_lines(SQUAD / "features" / case["file"])
    assert len(features) == len(golden) == case["num_features"]
    for ours, theirs in zip(features, golden, strict=True):
        row = as_golden(ours)
        assert {key: row[key] for key in theirs} == theirs


def real_cases():
    return read_gzip_json(SQUAD / "real_data.json.gz")["cases"]


def short_hash(value):
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "case",
    real_cases(),
    ids=lambda c: f"{c['file']}-{c['vocab']}-{c['max_seq_length']}",
)
def test_real_features_equal_the_original(case):
    settings = dict(case, vocab=VOCAB_NAMES[case["vocab"]])
    path = str(shared_data(case["file"]))
    examples = squad_data.read_squad_examples(path, False)[:400]
    per_example = [[] for _ in examples]
    for feature in features_of(examples, settings, False):
        row = as_golden(feature)
        names = ["unique_id", "tokens", "token_to_orig_map"]
        names += ["token_is_max_context", "input_ids", "input_mask"]
        names += ["segment_ids"]
        row = [row[name] for name in names]
        per_example[feature.example_index].append(row)
    assert [short_hash(rows) for rows in per_example] == case["hashes"]
    if "train_positions_first_400_unshuffled" not in case:
        with pytest.raises(ValueError, match="exactly 1 answer"):
            squad_data.read_squad_examples(path, True, True)
        return
    golden = case["train_positions_first_400_unshuffled"]
    examples = squad_data.read_squad_examples(path, True)[:400]
    positions = [
        [feature.unique_id, feature.start_position, feature.end_position]
        for feature in features_of(examples, settings, True)
    ]
    assert positions[:20] == golden["first"]
    assert len(positions) == golden["windows"]
    assert short_hash(positions) == golden["hash"]


@pytest.mark.parametrize(
    "case",
    [case for case in INDEX["features"] if case["is_training"]],
    ids=lambda c: c["file"],
)
def test_default_labels_equal_but_for_repeated_unknown_words(case):
    settings = INDEX["feature_sets"][case["feature_set"]]
    version_2 = case["version_2_with_negative"]
    examples = read_golden(
        case["source"], True, version_2, original_alignment=False
    )
    ours = features_of(
        examples,
        settings,
        True,
        original_alignment=False,
        version_2_with_negative=True,
    )
    golden = read_gzip_lines(SQUAD / "features" / case["file"])
    different = set()
    for feature, row in zip(ours, golden, strict=True):
        assert feature.input_ids == row["input_ids"]
        for name in ("start_position", "end_position"):
            if getattr(feature, name) != row[name]:
                different.add(examples[feature.example_index].qas_id)
    # Only Chinese answers that are all [UNK] in the English tiny vocabulary.
    unknown = {"q13", "q14", "q15"}
    assert different == (unknown if settings["vocab"] == "tiny" else set())


@pytest.mark.parametrize(
    "length, query", [(64, 64), (16, 64), (67, 64), (3, 0)]
)
def test_s01_lengths_that_leave_no_room_are_refused(length, query):
    with pytest.raises(ValueError, match="must be greater than"):
        rc.WindowMaker(LetterTokenizer(), length, 8, query)


def test_s01_shortest_length_and_stride_move_on():
    example = question("a b c", text="one two three four five")
    windows, maker = windows_of(example, length=8, stride=9, query=4)
    assert [w["doc_start"] for w in windows] == [0, 1, 2]
    assert maker.counts["questions cut to max_query_length"] == 1
    with pytest.raises(ValueError, match="--doc_stride is 0"):
        rc.WindowMaker(LetterTokenizer(), 384, 0, 64)
    with pytest.raises(ValueError, match="--max_query_length is -1"):
        rc.WindowMaker(LetterTokenizer(), 384, 128, -1)


@pytest.mark.parametrize(
    "answer_text, expected",
    [("h", [(7, 7)]), ("d", [(7, 7), (5, 5)]), ("c d", [(6, 7), (4, 5)])],
)
def test_s04_windows_without_the_answer(answer_text, expected):
    example = question(S04, answer_text, text="what is")
    options = {"length": 9, "stride": 2, "is_training": True}
    windows, maker = windows_of(example, **options)
    assert [
        (w["start_position"], w["end_position"]) for w in windows
    ] == expected
    left_out = maker.counts["windows left out: without the answer"]
    assert left_out == 3 - len(expected)
    windows, _ = windows_of(example, version_2_with_negative=True, **options)
    labels = [(w["start_position"], w["end_position"]) for w in windows]
    assert len(labels) == 3 and labels.count((0, 0)) == 3 - len(expected)


def test_s04_answer_longer_than_any_window():
    example = question(S04, S04, text="what is")
    options = {"length": 9, "stride": 2, "is_training": True}
    windows, maker = windows_of(example, **options)
    assert windows == []
    assert maker.counts["questions left out: no window holds the answer"] == 1
    assert rc.align_to_words(example, S04, 0)
    windows, _ = windows_of(example, original_alignment=True, **options)
    assert [w["end_position"] for w in windows] == [0, 0, 0]


@pytest.mark.parametrize(
    "context, text, piece",
    [
        ("a\u00a0b c", "b", "b"),
        ("x\u3000y z", "y", "y"),
        ("foo  bar", "bar", "bar"),
        ("foo \u2009bar,", "bar", "bar"),
        (" \ufeffbar", "bar", "bar"),
    ],
)
def test_s06_unusual_blanks(context, text, piece):
    tokenizer = tokenizer_of("uncased")
    example = question(context, text)
    windows, _ = windows_of(
        example, length=30, is_training=True, tokenizer=tokenizer
    )
    window = windows[0]
    start, end = window["start_position"], window["end_position"]
    ids = window["input_ids"][start : end + 1].tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == [piece]
    assert span_text(example, window, start, end) == text


@pytest.mark.parametrize("original", [False, True])
def test_s09_answer_at_the_first_word(original):
    example = question("a b c", "a")
    assert rc.align_to_words(example, "a", 0) and example.start_position == 0
    assert "start_position=0" in repr(example)
    windows, _ = windows_of(
        example, is_training=True, original_alignment=original
    )
    assert windows[0]["start_position"] == windows[0]["doc_offset"] == 3
    assert windows[0]["end_position"] == 3


def test_s11_chinese_passage_is_not_one_word():
    tokenizer = tokenizer_of("chinese")
    for context, text in [
        ("范廷颂1963年被任为主教", "1963年"),
        ("他说1963年以后，1963年又来了", "1963年又来"),
    ]:
        example = question(context, text, text="何时")
        windows, _ = windows_of(
            example, length=40, stride=9, tokenizer=tokenizer, is_training=True
        )
        window = windows[0]
        start, end = window["start_position"], window["end_position"]
        ids = window["input_ids"][start : end + 1].tolist()
        assert tokenizer.convert_ids_to_tokens(ids) == tokenizer.tokenize(text)
        assert span_text(example, window, start, end) == text


def test_passage_first():
    example = question("a b c", "b", text="what is")
    windows, _ = windows_of(example, is_training=True, passage_first=True)
    window = windows[0]
    tokens = ["[CLS]", "a", "b", "c", "[SEP]", "what", "is", "[SEP]"]
    tokenizer = LetterTokenizer()
    windows, _ = windows_of(
        example, is_training=True, passage_first=True, tokenizer=tokenizer
    )
    window = windows[0]
    ids = window["input_ids"].tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert window["segment_ids"].tolist() == [0] * 5 + [1] * 3
    assert window["start_position"] == window["end_position"] == 2
    assert span_text(example, window, 2, 3) == "b c"


def test_truncation_keeps_the_first_window():
    example = question(S04, "h")
    windows, maker = windows_of(example, length=9, truncate=True)
    assert [w["doc_start"] for w in windows] == [0]
    assert maker.counts["passages cut to one window"] == 1
    windows, _ = windows_of(example, length=9, truncate=True, is_training=True)
    assert windows == []


def test_thousand_questions_share_one_tokenization(monkeypatch):
    tokenizer = tokenizer_of("uncased")
    calls = []
    whole = tokenizer.tokenize_with_offsets
    monkeypatch.setattr(
        tokenizer,
        "tokenize_with_offsets",
        lambda text: calls.append(text) or whole(text),
    )
    maker = rc.WindowMaker(tokenizer)
    context = "One two three. " * 50
    count = sum(
        len(maker(rc.SquadExample(str(i), f"q {i}", context_text=context), i))
        for i in range(1000)
    )
    assert count == 1000 and len(calls) == 1
