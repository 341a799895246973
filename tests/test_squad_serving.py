"""Windows and answers in graph ops, against those of prediction."""

import functools
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import shared_data, vocab_path
from squad_cases import SQUAD, tokenizer_of

import reading_comprehension as rc
import squad_answers
import squad_data
import squad_serving
import tokenization_ops

LENGTHS = {"max_seq_length": 40, "doc_stride": 11, "max_query_length": 12}


@functools.cache
def graph_tokenizer(vocab="uncased"):
    return tokenization_ops.InGraphTokenizer(str(vocab_path(vocab)))


@pytest.mark.parametrize("room, stride", [(9, 4), (10, 3), (7, 50), (5, 1)])
def test_windows_lie_where_prediction_has_them(room, stride):
    lengths = list(range(0, 45))
    laid = squad_serving.lay_windows(
        tf.constant(lengths), tf.fill([len(lengths)], room), stride
    )
    context = squad_serving.max_context(laid, room).numpy()
    place = 0
    for row, length in enumerate(lengths):
        starts, sizes, best = rc.window_geometry(length, room, stride)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            assert laid.row[place] == row and laid.number[place] == number
            assert laid.start[place] == start and laid.size[place] == size
            expected = np.zeros(room, bool)
            expected[:size] = best[start : start + size] == number
            np.testing.assert_array_equal(context[place], expected)
            place += 1
    assert place == len(laid.row)


def test_rooms_may_differ_from_row_to_row():
    laid = squad_serving.lay_windows(
        tf.constant([20, 0, 20]), tf.constant([20, 5, 8]), 6
    )
    assert laid.row.numpy().tolist() == [0, 2, 2, 2]
    assert laid.start.numpy().tolist() == [0, 0, 6, 12]
    context = squad_serving.max_context(laid, 20).numpy()
    assert context[0].all()
    assert context[1:, 8:].sum() == 0


def scores_of(ids, shift):
    """Logits that any backend computes alike: many ties, some negative."""
    place = np.arange(ids.shape[1], dtype=np.int64)[None, :]
    mixed = (ids.astype(np.int64) * 7919 + place * 104729 + shift) % 1009
    return ((mixed % 97) / 8.0 - 5.0).astype(np.float32)


def call(features):
    ids = tf.cast(features["input_ids"], tf.int64)
    place = tf.range(tf.shape(ids)[1], dtype=tf.int64)[None, :]
    outputs = {}
    for name, shift in (("start_logits", 1), ("end_logits", 500)):
        mixed = (ids * 7919 + place * 104729 + shift) % 1009
        value = tf.cast(mixed % 97, tf.float32) / 8.0 - 5.0
        real = features["input_mask"] > 0
        outputs[name] = tf.where(real, value, -10000.0)
    outputs["null_logits"] = outputs["start_logits"][:, 3] / 4
    return outputs


def both(examples, vocab="uncased", threshold=None, graph=False, **options):
    """(answers of prediction, answers of the graph as numpy)."""
    lengths = LENGTHS | {
        name: options.pop(name) for name in LENGTHS if name in options
    }
    form = {
        name: options.pop(name, False) for name in ("passage_first", "truncate")
    }
    classifier = options.pop("classifier", False)
    maker = rc.WindowMaker(tokenizer_of(vocab), **lengths, **form)
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    rows = [
        [scores_of(w["input_ids"][None, :], shift)[0] for w in windows]
        for shift in (1, 500)
    ]
    answers = squad_answers.answers_from_logits(
        examples,
        windows,
        *rows,
        version_2_with_negative=True,
        null_score_diff_threshold=1e9 if threshold is None else threshold,
        null_logits=[row[3] / 4 for row in rows[0]] if classifier else None,
        **options,
    )
    reader = squad_serving.Reader(
        graph_tokenizer(vocab),
        **lengths,
        **form,
        threshold=threshold,
        classifier=classifier,
        **options,
    )
    serve = functools.partial(reader.answer, call=call)
    if graph:
        serve = tf.function(serve)
    found = serve(
        tf.constant([e.question_text for e in examples], tf.string),
        tf.constant([e.context_text for e in examples], tf.string),
    )
    return answers, {name: value.numpy() for name, value in found.items()}


def check(examples, **options):
    answers, found = both(examples, **options)
    for number, example in enumerate(examples):
        key = example.qas_id
        text = found["answer"][number].decode()
        assert text == answers.predictions[key], key
        odds = answers.null_odds[key]
        assert found["null_odds"][number] == pytest.approx(odds), key
        start, end = found["start"][number], found["end"][number]
        if not text:
            assert (start, end) == (-1, -1)
            continue
        row = next(row for row in answers.nbest[key] if row["text"] == text)
        assert (start, end) == (row["answer_start"], row["answer_end"])
        score = row["start_logit"] + row["end_logit"]
        assert found["score"][number] == pytest.approx(score)
    return answers, found


def golden_examples(name):
    return squad_data.read_examples(str(SQUAD / name)).examples


@pytest.mark.parametrize(
    "options",
    [
        {"graph": True},
        {"threshold": 0.5},
        {"n_best_size": 2, "threshold": 0.0},
        {"n_best_size": 1, "max_answer_length": 1},
        {"passage_first": True},
        {"truncate": True, "threshold": -4.0},
        {"classifier": True, "threshold": -0.3},
        {"doc_stride": 1, "max_seq_length": 24, "max_answer_length": 500},
        {"doc_stride": 500},
    ],
    ids=str,
)
def test_answers_are_those_of_prediction(options):
    examples = golden_examples("v20.json")
    answers, _ = check(examples, **options)
    if "threshold" in options:
        empty = [text for text in answers.predictions.values() if not text]
        assert 0 < len(empty) < len(examples)


def test_empty_passages_and_questions_are_answered_too():
    pairs = itertools.product(["", "who was it"], ["", " \t", "a\u00a0b  c"])
    examples = [
        rc.SquadExample(str(number), question, context_text=context)
        for number, (question, context) in enumerate(pairs)
    ]
    answers, found = check(examples)
    assert found["answer"][0] == b"" and found["null_odds"][0] == 10000.0
    assert found["score"][0] == squad_serving.NO_SPAN_SCORE
    assert answers.predictions["2"]
    _, found = check(examples[:2])
    assert found["answer"].tolist() == [b"", b""]


def test_an_empty_batch_gives_empty_outputs():
    _, found = both([])
    assert all(len(value) == 0 for value in found.values())


def test_rare_characters_keep_their_offsets():
    contexts = [
        "Der\u202fMann \U0001f600\U0001f600 trug I\u0307stanbul \u0661\u0662.",
        "\u8303\u5ef7\u98821963\u5e74\u88ab\u4efb\u4e3a\u4e3b\u6559",
        "e\u0301te\u0301 \u00ad soft\u00adhyphen\r\n\r\n tail",
    ]
    examples = [
        rc.SquadExample(str(number), f"what {number}", context_text=context)
        for number, context in enumerate(contexts)
    ]
    for size in (1, 2, 5):
        check(examples, max_answer_length=size)


def test_bad_bytes_are_dropped_before_places_are_counted():
    reader = squad_serving.Reader(graph_tokenizer(), **LENGTHS)
    found = reader.answer(
        tf.constant([b"who", b"who"]),
        tf.constant([b"a \xffb\xfe c", b"a b c"]),
        call,
    )
    for name in ("answer", "start", "end"):
        assert found[name][0] == found[name][1]


def test_lengths_without_room_are_refused():
    with pytest.raises(ValueError, match="max_seq_length"):
        squad_serving.Reader(
            graph_tokenizer(), max_seq_length=20, max_query_length=17
        )


def test_a_very_long_passage_is_read_a_few_windows_at_a_time():
    words = "the quick brown fox jumps over it".split()
    context = " ".join(words[i * i % 7] + str(i % 50) for i in range(4000))
    example = rc.SquadExample("long", "what jumps", context_text=context)
    sizes = []

    def noting(features):
        sizes.append(len(features["input_ids"]))
        return call(features)

    reader = squad_serving.Reader(graph_tokenizer(), **LENGTHS)
    reader.answer(tf.constant(["what jumps"]), tf.constant([context]), noting)
    assert len(sizes) > 10 and max(sizes) <= squad_serving.WINDOWS_AT_ONCE
    check([example])


def test_real_articles():
    path = shared_data("SQuAD2.0/dev-v2.0.json")
    examples = squad_data.read_examples(str(path)).examples[:150]
    lengths = {
        "max_seq_length": 128,
        "doc_stride": 50,
        "max_query_length": 20,
    }
    check(examples, threshold=0.0, **lengths)


@pytest.mark.parametrize("language", ["ar", "hi", "th", "ru"])
def test_other_scripts(language):
    path = shared_data("xquad")
    files = [p for p in sorted(path.iterdir()) if f".{language}." in p.name]
    data = json.loads(files[0].read_text("utf-8"))["data"][:2]
    examples = [
        rc.SquadExample(q["id"], q["question"], context_text=p["context"])
        for article in data
        for p in article["paragraphs"][:2]
        for q in p["qas"][:4]
    ]
    check(examples, vocab="multi_cased")
