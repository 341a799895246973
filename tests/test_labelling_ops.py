"""labelling_ops.py: in the graph the same words, windows and tags."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import vocab_path

import labelling_data
import labelling_ops
import tokenization
import tokenization_ops

KINDS = ("LOC", "PER")
LABELS = ["O"] + [f"{p}-{kind}" for kind in KINDS for p in "BI"]


@pytest.fixture(scope="module")
def tokenizers():
    path = str(vocab_path("uncased"))
    return (
        tokenization.FullTokenizer(path, True),
        tokenization_ops.InGraphTokenizer(path, True),
    )


def numbers(ids, mask, continues):
    """A stand-in for a model: each word's tag depends on its whole window."""
    weights = np.arange(1, len(ids) + 1)
    own = int((np.array(ids) * weights).sum())
    return [
        (own + 31 * place + 7 * int(continues)) % 5 if flag else -1
        for place, flag in enumerate(mask)
    ]


def model(features):
    def answer(ids, mask, real, continues):
        rows = np.full(ids.shape, -1, np.int32)
        for row in range(len(ids)):
            size = int(real[row].sum())
            rows[row, :size] = numbers(
                ids[row, :size], mask[row, :size], continues[row]
            )
        return rows

    tags = tf.numpy_function(
        answer,
        [
            features[name]
            for name in ("input_ids", "label_mask", "input_mask", "continues")
        ],
        tf.int32,
    )
    return {"tag_ids": tf.ensure_shape(tags, [None, None])}


def in_graph(texts, tokenizer, unit, length, stride, scheme):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tag(texts):
        words = labelling_ops.find_words(texts, tokenizer, unit)
        tags = labelling_ops.tag_words(words, tokenizer, model, length, stride)
        tags = labelling_ops.TagWriter(LABELS, scheme)(tags, words.splits)
        return words._replace(ids=tags)

    words = tag(tf.constant(texts))
    rows = []
    for first, last in zip(words.splits, words.splits[1:], strict=False):
        part = [
            getattr(words, name).numpy()[first:last]
            for name in ("texts", "starts", "ends", "ids")
        ]
        rows.append(part)
    return rows


def in_python(words, tokenizer, length, stride, scheme):
    windows = labelling_data.encode_words(tokenizer, words, length, stride)
    answers = []
    for index, window in enumerate(windows):
        mask = [int(i in window.positions) for i in range(len(window.ids))]
        found = numbers(window.ids, mask, index > 0)
        answers.append([LABELS[found[p]] for p in window.positions])
    tags = labelling_data.merge_windows(len(words), windows, answers)
    return labelling_data.from_iob2(labelling_data.to_iob2(tags), scheme)


def sentences(seed, count=12, longest=120):
    random = np.random.default_rng(seed)
    stock = (
        "the Elasticsearch 2013-10-23 Jim Henson's puppeteer \u00c9clair, a "
        "unaffableness U.S. \u72ac\u732b \u039f\u0394\u039f\u03a3 "
        "pneumonoultramicroscopicsilicovolcanoconiosis --- x"
    ).split()
    return [
        list(random.choice(stock, random.integers(0, longest)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("length", "stride", "scheme"),
    [
        (128, None, "IOB2"),
        (64, 10, "IOB1"),
        (17, None, "IOBES"),
        (9, 7, "BILOU"),
        (5, 1, "BMES"),
        (3, None, "IOB2"),
    ],
)
def test_windows_and_tags_are_those_of_python(
    tokenizers, length, stride, scheme
):
    python, graph = tokenizers
    rows = sentences(length)
    texts = [" ".join(words) for words in rows]
    found = in_graph(texts, graph, "word", length, stride, scheme)
    for words, text, (names, starts, ends, tags) in zip(
        rows, texts, found, strict=True
    ):
        assert [name.decode() for name in names] == words
        assert [
            text[start:end] for start, end in zip(starts, ends, strict=True)
        ] == words
        expected = in_python(words, python, length, stride, scheme)
        assert [tag.decode() for tag in tags] == expected


@pytest.mark.parametrize(
    ("unit", "text", "words"),
    [
        ("word", "Ann\u3000lives  in\nS\u00e3o Paulo.", None),
        ("word", "\u72ac\u732b and\u72ac", ["\u72ac\u732b", "and\u72ac"]),
        (
            "cjk",
            "\u72ac\u732bPython3\u72ac, ok",
            ["\u72ac", "\u732b", "Python3", "\u72ac", ",", "ok"],
        ),
        (
            "character",
            "\u72ac 2013\u5e74\U0001f600e\u0301",
            ["\u72ac", *"2013", "\u5e74", "\U0001f600", "e"],
        ),
        ("word", "\u200bParis \u0000 ok", ["Paris", "ok"]),
        ("word", "", []),
    ],
)
def test_words_of_raw_text(tokenizers, unit, text, words):
    words = text.split() if words is None else words
    others = ["", "a b", text]
    found = in_graph([text, *others], tokenizers[1], unit, 64, None, "IOB2")
    assert len(found) == 4
    for names, starts, ends, tags in (found[0], found[3]):
        assert [name.decode() for name in names] == words
        assert [
            text[start:end] for start, end in zip(starts, ends, strict=True)
        ] == words
        assert len(tags) == len(words)
    assert len(found[1][0]) == 0 and len(found[2][0]) > 1


@pytest.mark.parametrize(
    "scheme", ["IOB1", "IOB2", "IOBES", "BILOU", "BMES", "plain"]
)
def test_tags_are_written_as_from_iob2_has_it(scheme):
    random = np.random.default_rng(4)
    rows = [list(random.integers(0, 5, size)) for size in (0, 1, 40, 0, 7, 3)]
    splits = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    tags = tf.constant(sum(rows, []), tf.int32)
    found = labelling_ops.TagWriter(LABELS, scheme)(tags, splits).numpy()
    expected = []
    for row in rows:
        names = [LABELS[tag] for tag in row]
        if scheme != "plain":
            names = labelling_data.to_iob2(names)
        expected += labelling_data.from_iob2(names, scheme)
    assert [tag.decode() for tag in found] == expected
