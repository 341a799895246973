"""The tokenizer against the 2018 original's answers, and its own additions."""

import base64
import copy
import gzip
import hashlib
import json
import logging
import pickle
import random
import subprocess
import sys
import unicodedata

import pytest
from conftest import GOLDEN, ROOT, shared_data, vocab_path

import tokenization
from tokenization import BasicTokenizer, FullTokenizer, WordpieceTokenizer

VOCABS = ("uncased", "cased", "chinese", "multi_cased")
DIRECTORY = GOLDEN / "tokenization"
SAME_UNICODE = unicodedata.unidata_version == "14.0.0"


def golden(name):
    with gzip.open(DIRECTORY / f"{name}.gz", "rt", encoding="utf-8") as file:
        return file.read()


@pytest.fixture(scope="module")
def strings():
    rows = [
        json.loads(line)
        for line in golden("tokenization.jsonl").split("\n")
        if line
    ]
    assert len(rows) == 486
    for row in rows:
        row["input"] = (
            base64.b64decode(row["bytes_b64"])
            if "bytes_b64" in row
            else row["text"]
        )
    return rows


@pytest.fixture(scope="module")
def misc():
    return json.loads(golden("tokenization_misc.json"))


@pytest.fixture
def make(tmp_path):
    def build(*tokens, **options):
        path = tmp_path / "vocab.txt"
        path.write_text(
            "\n".join(tokens) + "\n", encoding="utf-8", newline="\n"
        )
        return FullTokenizer(path, **options)

    return build


def raw(text):
    return tokenization.convert_to_unicode(text)


# --- the golden files -------------------------------------------------------


@pytest.mark.parametrize("lower", [True, False])
def test_basic_tokenizer_gives_the_golden_words(strings, lower):
    tokenizer = BasicTokenizer(do_lower_case=lower)
    key = "lower" if lower else "nolower"
    for row in strings:
        assert tokenizer.tokenize(row["input"]) == row["basic"][key], row["id"]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("name", VOCABS)
def test_full_tokenizer_gives_the_golden_tokens_and_ids(strings, name, lower):
    tokenizer = FullTokenizer(vocab_path(name), do_lower_case=lower)
    key = "lower" if lower else "nolower"
    for row in strings:
        want = row[name][key]
        text = row["input"]
        assert tokenizer.tokenize(text) == want["tokens"], row["id"]
        assert tokenizer.encode(text) == want["ids"], row["id"]
        ids = tokenizer.convert_tokens_to_ids(want["tokens"])
        assert ids == want["ids"]
        tokens, starts, ends = tokenizer.tokenize_with_offsets(text)
        assert tokens == want["tokens"], row["id"]
        check_places(raw(text), tokens, starts, ends)


def check_places(text, tokens, starts, ends):
    assert len(tokens) == len(starts) == len(ends)
    for start, end in zip(starts, ends, strict=True):
        assert 0 <= start < end <= len(text)
    assert starts == sorted(starts)


@pytest.mark.skipif(not SAME_UNICODE, reason="made with Unicode 14.0")
@pytest.mark.parametrize("lower", [True, False])
def test_every_code_point_is_treated_as_in_the_original(lower):
    table = json.loads(golden("codepoints.json"))
    tokenizer = BasicTokenizer(do_lower_case=lower)
    answers = {
        "drop": lambda c: ["ab"],
        "space": lambda c: ["a", "b"],
        "split": lambda c: ["a", c, "b"],
        "keep": lambda c: ["a" + c + "b"],
    }
    seen = 0
    for first, last, kind in table["runs"]:
        for point in range(first, last + 1):
            char = chr(point)
            want = answers[kind](char)
            if lower:
                want = table["lower"].get(f"{point:04X}", want)
            assert tokenizer.tokenize(f"a{char}b") == want, hex(point)
            seen += 1
    assert seen > 1_100_000


def test_load_vocab_reads_odd_files_as_the_original(misc, tmp_path):
    path = tmp_path / "vocab.txt"
    for case in misc["load_vocab"]:
        path.write_bytes(base64.b64decode(case["file_b64"]))
        want = case["vocab_items_in_order"]
        if isinstance(want, dict):
            with pytest.raises(UnicodeDecodeError, match=r"vocab\.txt:2: "):
                tokenization.load_vocab(path)
        else:
            got = tokenization.load_vocab(path)
            assert [list(item) for item in got.items()] == want


def test_wordpiece_tokenizer_gives_the_golden_pieces(misc):
    words = misc["wordpiece"]["vocab"]
    vocab = {word: index for index, word in enumerate(words)}
    for case in misc["wordpiece"]["cases"]:
        tokenizer = WordpieceTokenizer(
            vocab, case["unk_token"], case["max_input_chars_per_word"]
        )
        assert tokenizer.tokenize(case["text"]) == case["tokens"]


def test_validate_case_matches_checkpoint_as_the_original(misc):
    for case in misc["validate_case_matches_checkpoint"]:
        arguments = case["do_lower_case"], case["init_checkpoint"]
        if case["ValueError"] is None:
            tokenization.validate_case_matches_checkpoint(*arguments)
            continue
        with pytest.raises(ValueError) as error:
            tokenization.validate_case_matches_checkpoint(*arguments)
        assert str(error.value) == case["ValueError"]


def test_convert_to_unicode_refuses_other_types(misc):
    values = {"3": 3, "None": None, "['x']": ["x"]}
    for name, _, message in misc["convert_to_unicode_errors"]:
        for function in (
            tokenization.convert_to_unicode,
            tokenization.printable_text,
        ):
            with pytest.raises(ValueError) as error:
                function(values[name])
            assert str(error.value) == message


def test_real_lines_give_the_golden_hashes():
    path = shared_data("../golden/real_data/hashes.json")
    names = {
        "bert-base-uncased": "uncased",
        "bert-base-cased": "cased",
        "bert-base-chinese": "chinese",
        "bert-base-multilingual-cased": "multi_cased",
    }
    cases = json.loads(path.read_text())["lines"]["cases"]
    assert cases
    for case in cases:
        tokenizer = FullTokenizer(
            vocab_path(names[case["vocab"]]), case["do_lower_case"]
        )
        data = shared_data(case["file"]).read_bytes()[: case["first_bytes"]]
        ids = [tokenizer.encode(line) for line in data.split(b"\n")]
        assert [len(ids), sum(map(len, ids))] == [case["lines"], case["ids"]]
        hashes = [
            hashlib.sha256(
                json.dumps(ids[i : i + 200], separators=(",", ":")).encode()
            ).hexdigest()[:16]
            for i in range(0, len(ids), 200)
        ]
        assert hashes == case["hashes"], case["file"]
