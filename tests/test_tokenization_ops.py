"""The tokenizer in the graph equals the one in Python, places included."""

import base64
import gzip
import json
import random
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from conftest import GOLDEN, vocab_path

import tokenization
import tokenization_ops

_CACHE = {}


def both(path, do_lower_case=True, **kwargs):
    """A graph function and the Python tokenizer of one vocabulary."""
    key = (str(path), do_lower_case, tuple(sorted(kwargs.items())))
    if key not in _CACHE:
        graph = tokenization_ops.InGraphTokenizer(path, do_lower_case, **kwargs)
        function = tf.function(
            graph.tokenize, input_signature=[tf.TensorSpec([None], tf.string)]
        )
        python = tokenization.FullTokenizer(path, do_lower_case, **kwargs)
        _CACHE[key] = graph, function, python
    return _CACHE[key]


def write_vocab(directory, rows, name="vocab.txt"):
    path = directory / name
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


def in_python(python, text):
    tokens, starts, ends = python.tokenize_with_offsets(text)
    return python.convert_tokens_to_ids(tokens), starts, ends


def differences(pair, texts):
    _, function, python = pair
    graph = zip(
        *(part.to_list() for part in function(tf.constant(texts))), strict=True
    )
    return [
        (text, row, in_python(python, text))
        for text, row in zip(texts, graph, strict=True)
        if row != in_python(python, text)
    ]


def golden_strings():
    path = GOLDEN / "tokenization" / "tokenization.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as reader:
        return [json.loads(line) for line in reader]


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese", "multi_cased"])
@pytest.mark.parametrize("case", ["lower", "nolower"])
def test_golden_ids(name, case):
    pair = both(vocab_path(name), case == "lower")
    rows = [
        row for row in golden_strings() if row["category"] != "surrogate"
    ]  # which UTF-8 cannot hold
    texts = [
        base64.b64decode(row["bytes_b64"])
        if "bytes_b64" in row
        else row["text"].encode()
        for row in rows
    ]
    ids = pair[1](tf.constant(texts)).ids.to_list()
    wrong = [
        row["id"]
        for row, found in zip(rows, ids, strict=True)
        if row[name][case]["ids"] != found
    ]
    assert len(rows) > 450 and wrong == []
    assert differences(pair, texts) == []


@pytest.mark.parametrize(
    "do_lower_case, strip_accents",
    [(True, None), (False, None), (True, False), (False, True)],
)
def test_every_assigned_code_point(do_lower_case, strip_accents):
    pair = both(
        vocab_path("uncased"), do_lower_case, strip_accents=strip_accents
    )
    chars = [
        chr(code_point)
        for code_point in range(sys.maxunicode + 1)
        if not 0xD800 <= code_point < 0xE000
        and not 0xF0100 <= code_point < 0xFFF00  # private use, all alike
        and not 0x100100 <= code_point < 0x10FF00
        and unicodedata.category(chr(code_point)) != "Cn"
    ]
    chars += ["\u0378", "\ufdd0", "\uffff", "\U0001ffff", "\U0010ffff"]
    wrong = []
    for start in range(0, len(chars), 20000):
        texts = [f"a{char}b" for char in chars[start : start + 20000]]
        wrong += differences(pair, [text.encode() for text in texts])
    print(f"{len(chars)} code points, allowed to differ: none")
    assert wrong == []


def random_texts(seed, count, alphabet):
    generator = random.Random(seed)
    return [
        "".join(generator.choices(alphabet, k=generator.randint(0, 14)))
        for _ in range(count)
    ]


CONTEXT_ALPHABET = (
    "aB\u03a3\u03a3\u03b1.':\u0301\u0345\u200b\x07\u4e2d \u2028-,\u0130\u1d2c"
)
MARK_ALPHABET = (
    "ae\u0301\u0316\u302e\u302f\U0001d165\U0001d16d\U0001d15e\U0001d160"
    "\u0344\u0f73\u1e69\u4e2d \u200b.\ud55c\u0b94\ufe0f\u00df"
)


@pytest.mark.parametrize("alphabet", [CONTEXT_ALPHABET, MARK_ALPHABET])
@pytest.mark.parametrize("strip_accents", [None, False])
def test_contexts(alphabet, strip_accents):
    pair = both(vocab_path("uncased"), strip_accents=strip_accents)
    texts = random_texts(5, 4000, alphabet)
    assert differences(pair, texts) == []


def test_places_of_letters(tmp_path):
    letters = ["a", "e", "i", "\u03c3", "\u03c2", "\u1112", "\u1161", "\u11ab"]
    letters += ["\U0001d165", "\U0001d16d", "\u302e", "."]
    rows = ["[UNK]", *letters, *("##" + letter for letter in letters)]
    pair = both(write_vocab(tmp_path, rows))
    texts = random_texts(7, 3000, CONTEXT_ALPHABET + MARK_ALPHABET)
    assert differences(pair, texts) == []


def test_bad_bytes():
    pair = both(vocab_path("uncased"))
    generator = random.Random(3)
    parts = [b"a", b"\xc3\xa9", b"\xe4\xbd\xa0", b"\xf0\x9f\x92\xa9", b" "]
    parts += [b"\xff", b"\xc3", b"\xe4\xbd", b"\xed\xa0\x80", b"\x80", b"\xc0"]
    parts += [b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xf0\x9f", b"\xe0\x80"]
    texts = [
        b"".join(generator.choices(parts, k=generator.randint(1, 8)))
        for _ in range(3000)
    ]
    assert differences(pair, texts) == []


def test_control_characters_join():  # T14, T15, T16
    pair = both(vocab_path("uncased"))
    joined = pair[1](["ab"]).ids.to_list()[0]
    for char in "\x07\0\x0b\x1c\x85\ufffd\u200b\ufeff\u00ad\u200e":
        assert pair[1]([f"a{char}b"]).ids.to_list()[0] == joined, char
    apart = pair[1](["a b"]).ids.to_list()[0]
    for char in "\t\r\n\u00a0\u3000\u2028\u2029\u1680":
        assert pair[1]([f"a{char}b"]).ids.to_list()[0] == apart, char


def test_long_words(tmp_path):  # T17
    pair = both(write_vocab(tmp_path, ["[UNK]", "a", "##a", "\u4e00"]))
    texts = ["a" * 101, "a" * 200, "a" * 201, "x a" + "a" * 300 + " a"]
    texts += ["a" * 199 + "\u0301\u0301", "\U0001f4a9" * 150]
    texts += ["\U0001f4a9" * 300 + "a a", "\u0e01" * 34]
    assert [len(row) for row in pair[1](texts[:3]).ids.to_list()] == [
        101,
        200,
        1,
    ]
    assert differences(pair, texts) == []


def test_cjk_ranges():  # T18
    pair = both(vocab_path("chinese"))
    texts = ["\U00020000\U00020001a", "\uf900x", "\U00030000a", "\u3005\u3007"]
    texts += ["\u30e9\u30fc\u30e1\u30f3", "\u2f08x", "\u4e00\u0301a"]
    assert differences(pair, texts) == []


def test_odd_vocabulary(tmp_path):  # V01, V02, V03, V06
    rows = ["[PAD]", "", "b", "a ", "##b\r", "\u2028", "##\u2028", "b", "[UNK]"]
    graph, function, python = pair = both(write_vocab(tmp_path, rows))
    assert function(["a b ab c #"]).ids.to_list() == [[3, 7, 3, 4, 8, 8]]
    assert graph.vocab_size == 9
    graph.self_test()
    assert differences(pair, ["", " ", "bab##b", "\u2028b"]) == []


def test_unknown_token_first_in_forty(tmp_path):  # V06
    rows = ["[UNK]", *(f"w{index}" for index in range(39))]
    graph, function, _ = both(write_vocab(tmp_path, rows))
    graph.self_test()
    assert function(["w38 w0 zz"]).ids.to_list() == [[39, 1, 0]]


def test_rewritten_file(tmp_path):  # V10
    path = write_vocab(tmp_path, ["[UNK]", "a", "b"])
    first = tokenization_ops.InGraphTokenizer(path).tokenize(["a b"])
    write_vocab(tmp_path, ["b", "[UNK]", "x", "a"])
    second = tokenization_ops.InGraphTokenizer(path).tokenize(["a b"])
    assert first.ids.to_list() == [[1, 2]]
    assert second.ids.to_list() == [[3, 0]]


def test_lacks_unknown_token(tmp_path):
    path = write_vocab(tmp_path, ["a", "b"])
    with pytest.raises(ValueError, match=r"vocab\.txt: lacks .*\[UNK\]"):
        tokenization_ops.InGraphTokenizer(path)


def test_self_test_notices(tmp_path):
    path = write_vocab(tmp_path, ["[UNK]", "the", "fox"])
    graph = tokenization_ops.InGraphTokenizer(path)
    graph.self_test()
    graph._ids = tf.constant([2, 1, 0])
    with pytest.raises(ValueError, match="tensorflow-text 2.20.1"):
        graph.self_test()


def test_kept_markers(tmp_path):
    rows = ["[UNK]", "a", "b", "[", "]", "##b", "[MASK]", "aa", "[X] y", "##a"]
    rows += ["aab"]
    path = write_vocab(tmp_path, rows)
    keep = ("[MASK]", "aa", "[X] y", "aab")
    pair = both(path, keep=keep)
    texts = ["a [MASK] b", "a[MASK]b", "[mask]", "aaaaab", "a[X] yb", "[X]", ""]
    texts += ["[X] ", "[MASK]\u0301a", "aa\u0301a", "\u03a3aa\u03a3", "aabaaa"]
    texts += random_texts(9, 3000, "ab[]Xy \u0301\u03a3")
    texts += random_texts(10, 1000, ["[MASK]", "aa", "[X]", " y", "b", "M"])
    assert differences(pair, texts) == []
    assert pair[1](["a[MASK]b"]).ids.to_list() == [[1, 6, 2]]
    with pytest.raises(ValueError, match="markers to keep"):
        tokenization_ops.InGraphTokenizer(path, keep=("[Z]",))


def test_empty_batches():
    _, function, _ = both(vocab_path("uncased"))
    assert function(tf.zeros([0], tf.string)).ids.to_list() == []
    assert function(["", "\u200b", " "]).ids.to_list() == [[], [], []]


def original_pair(a, b, max_seq_length):
    """The original's packing of two lists of ids, in words of its own."""
    a, b = list(a), list(b)
    room = max_seq_length - (3 if b else 2)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    ids = [101, *a, 102] + ([*b, 102] if b else [])
    return ids, [0] * (len(a) + 2) + [1] * (len(ids) - len(a) - 2)


@pytest.mark.parametrize("max_seq_length", [5, 6, 7, 8, 12, 13, 64])
def test_pack(max_seq_length):
    graph, _, _ = both(vocab_path("uncased"))
    rows = [
        (list(range(1000, 1000 + a)), list(range(2000, 2000 + b)))
        for a in range(10)
        for b in range(10)
    ]
    ids_a, ids_b = (
        tf.RaggedTensor.from_row_lengths(
            tf.constant([i for row in part for i in row], tf.int32),
            [len(row) for row in part],
        )
        for part in zip(*rows, strict=True)
    )
    packed = tf.function(graph.pack)(ids_a, ids_b, max_seq_length)
    expected = [original_pair(a, b, max_seq_length) for a, b in rows]
    longest = max(len(ids) for ids, _ in expected)
    for index, (ids, segments) in enumerate(expected):
        zeros = [0] * (longest - len(ids))
        for name, values in (
            ("input_ids", ids),
            ("input_mask", [1] * len(ids)),
            ("segment_ids", segments),
        ):
            assert packed[name].dtype == tf.int32
            assert packed[name][index].numpy().tolist() == values + zeros
    single = graph.pack(ids_a, max_seq_length=max_seq_length)
    last = original_pair(rows[-1][0], [], max_seq_length)[0]
    assert single["input_ids"][-1].numpy().tolist() == last
    assert not np.any(single["segment_ids"])


def test_pack_refuses(tmp_path):
    graph, function, _ = both(vocab_path("uncased"))
    ids = function(["a"]).ids
    with pytest.raises(ValueError, match="max_seq_length=4 is too small"):
        graph.pack(ids, ids, max_seq_length=4)
    with pytest.raises(ValueError, match="at least 3"):
        graph.pack(ids, max_seq_length=2)
    graph, function, _ = both(write_vocab(tmp_path, ["[UNK]", "a", "[CLS]"]))
    with pytest.raises(ValueError, match=r"lacks .*\[SEP\]"):
        graph.pack(function(["a"]).ids)


def test_export(tmp_path):
    graph, _, python = both(vocab_path("uncased"))

    class Exported(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = graph

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, texts):
            tokens = self.tokenizer.tokenize(texts)
            packed = self.tokenizer.pack(tokens.ids, max_seq_length=16)
            return packed | {"starts": tokens.starts.to_tensor()}

    module = Exported()
    path = str(tmp_path / "saved")
    tf.saved_model.save(module, path, signatures={"text": module.serve})
    size = sum(
        file.stat().st_size
        for file in (tmp_path / "saved").rglob("*")
        if file.is_file()
    )
    assert size < 4_000_000  # 2.2 MB of it are the vocabulary
    served = tf.saved_model.load(path).signatures["text"](
        texts=tf.constant(["H\u00e9llo, w\u00f6rld!"])
    )
    ids = [101, *python.encode("H\u00e9llo, w\u00f6rld!"), 102]
    assert served["input_ids"].numpy().tolist() == [ids]
    assert served["starts"].numpy().tolist() == [[0, 5, 7, 12]]
