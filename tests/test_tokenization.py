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


# --- cases of users, each with a variant ------------------------------------


@pytest.mark.parametrize(
    "lower,text,words",
    [
        # T01: voiced marks fall with the accents
        (True, "パンダ かぎ", ["ハンタ", "かき"]),
        (True, "ポスト がぎぐ", ["ホスト", "かきく"]),
        (False, "パンダ ポスト", ["パンダ", "ポスト"]),
        # T02: Hangul becomes jamo
        (True, "한국", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]),
        (True, "각", ["\u1100\u1161\u11a8"]),
        # T03: composed and decomposed letters
        (False, "\u00e1 a\u0301", ["\u00e1", "a\u0301"]),
        (True, "caf\u00e9 cafe\u0301", ["cafe", "cafe"]),
        (True, "\u1ec7 e\u0323\u0302", ["e", "e"]),
        # T04: a symbol is no punctuation
        (True, "me your vote♡♡", ["me", "your", "vote♡♡"]),
        (True, "10€ 3≤4", ["10€", "3≤4"]),
        # T05
        (True, "Apples是苹果。", ["apples", "是", "苹", "果", "。"]),
        # T07: joiners fall
        (
            True,
            "👨\u200d👩\u200d👧",
            ["👨👩👧"],
        ),
        # T08: only Cc and Cf fall, private and unassigned points stay
        (
            True,
            "a\u0378b x\ue000y \U0001f971",
            ["a\u0378b", "x\ue000y", "\U0001f971"],
        ),
        # T09: markers are ordinary text
        (True, "a [MASK] b [SEP]", "a [ mask ] b [ sep ]".split()),
        (False, "[CLS]x", ["[", "CLS", "]", "x"]),
        # T11: dashes and ASCII symbols
        (False, "Cretaceous–Paleogene", ["Cretaceous", "–", "Paleogene"]),
        (True, "$5.00^`~a", "$ 5 . 00 ^ ` ~ a".split()),
        (True, "a—b_c=d", "a — b _ c = d".split()),
        # T12: Indic and Arabic marks
        (True, "हिन्दी مَرْحَبًا", ["हिनदी", "مرحبا"]),
        (False, "हिन्दी", ["हिन्दी"]),
        # T14: control characters fall, tab and line ends separate
        (True, "a\x07b a\x00b a\x0bb a\u0085b", ["ab"] * 4),
        (True, "a\tb\r\nc", ["a", "b", "c"]),
        (False, "x\x1cy\x1fz\x7f", ["xyz"]),
        # T15
        (
            True,
            "a\ufffdb ab\u200dcd \ufeffab a\u00adb",
            ["ab", "abcd", "ab", "ab"],
        ),
        (False, "a\u00a0b 你\u3000好", ["a", "b", "你", "好"]),
        (True, "a\u2028b\u2029c\u1680d", ["a", "b", "c", "d"]),
        # T16: lower(), not case folding
        (True, "Straße ΟΔΟΣ İstanbul", ["straße", "οδος", "istanbul"]),
        (True, "ΣΑΣ, ΑΣ\u200b ﬁ①Ａ", ["σας", ",", "ας", "ﬁ①ａ"]),
        # T18: which characters stand alone
        (True, "𠀀𠀁a", ["𠀀", "𠀁", "a"]),
        (True, "\uf900x", ["\u8c48", "x"]),
        (True, "\U00030000a 々〇", ["\U00030000a", "々〇"]),
        (False, "ラーメン \u2f08x", ["ラーメン", "\u2f08x"]),
    ],
)
def test_words_of_the_users_cases(lower, text, words):
    tokenizer = BasicTokenizer(do_lower_case=lower)
    assert tokenizer.tokenize(text) == words
    assert tokenizer.tokenize(text.encode()) == words


@pytest.mark.parametrize(
    "text,words",
    [
        ("パンダ かぎ", ["パンダ", "かぎ"]),
        ("Das KÖNNTE", ["das", "könnte"]),
        ("한국", ["한국"]),
        ("हिन्दी مَرْحَبًا", ["हिन्दी", "مَرْحَبًا"]),
        ("İ", ["i\u0307"]),
    ],
)
def test_accents_can_be_kept_while_lower_casing(text, words):
    tokenizer = BasicTokenizer(do_lower_case=True, strip_accents=False)
    assert tokenizer.tokenize(text) == words


def test_accents_can_be_stripped_while_keeping_case():
    tokenizer = BasicTokenizer(do_lower_case=False, strip_accents=True)
    assert tokenizer.tokenize("Él Größe") == ["El", "Große"]


def test_composed_hangul_pieces_are_found_with_accents_kept(make):
    tokenizer = make("[UNK]", "한", "##국", strip_accents=False)
    assert tokenizer.tokenize("한국") == ["한", "##국"]
    assert make("[UNK]", "한", "##국").tokenize("한국") == ["[UNK]"]


def test_nfc_beforehand_makes_one_letter_of_both_forms():
    tokenizer = BasicTokenizer(do_lower_case=False)
    words = {
        *tokenizer.tokenize(unicodedata.normalize("NFC", "\u00e1")),
        *tokenizer.tokenize(unicodedata.normalize("NFC", "a\u0301")),
    }
    assert words == {"\u00e1"}


def test_kept_markers_stay_whole_and_as_they_are(make):
    words = "[UNK] [MASK] [SEP] a , sentence . b".split()
    keep = ("[MASK]", "[SEP]")
    tokenizer = make(*words, keep=keep)
    text = "A, [MASK] Sentence."
    want = "a , [MASK] sentence .".split()
    assert tokenizer.tokenize(text) == want
    assert tokenizer.encode(text) == [words.index(word) for word in want]
    assert tokenizer.tokenize_with_offsets(text) == (
        want,
        [0, 1, 3, 10, 18],
        [1, 2, 9, 18, 19],
    )
    glued = "b[MASK]b[mask][SEP]"
    assert BasicTokenizer(keep=keep).tokenize(glued) == [
        *("b", "[MASK]", "b", "[", "mask", "]", "[SEP]"),
    ]
    assert tokenizer.tokenize_with_offsets(glued)[1][:3] == [0, 1, 7]
    assert make(*words).tokenize("[MASK]") == ["[UNK]"] * 3


def test_the_longest_of_two_kept_markers_wins():
    tokenizer = BasicTokenizer(keep=("[E]", "[E]x"))
    assert tokenizer.tokenize("[E]xy [E]Y") == ["[E]x", "y", "[E]", "y"]


def test_a_kept_marker_must_be_in_the_vocabulary(make):
    with pytest.raises(ValueError, match=r"vocab\.txt: lacks .*\[E1\]"):
        make("[UNK]", keep=("[E1]",))
    with pytest.raises(ValueError, match="empty"):
        BasicTokenizer(keep=("",))


def test_very_long_words_become_unknown_after_200_characters(make):
    tokenizer = make("[UNK]", "a", "##a", "ก", "##ก")
    for letter in "aก":
        assert tokenizer.tokenize(letter * 200) == (
            [letter] + ["##" + letter] * 199
        )
        assert tokenizer.tokenize_with_offsets(letter * 201) == (
            ["[UNK]"],
            [0],
            [201],
        )
    # Counted after NFD: 67 syllables of three jamo are 201 characters.
    assert tokenizer.tokenize("\uac01" * 67) == ["[UNK]"]


# --- places -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text,want",
    [
        ("un want", [("un", 0, 2), ("want", 3, 7)]),
        ("  unwant", [("un", 2, 4), ("##want", 4, 8)]),
        ("💩💩💩 un", [("[UNK]", 0, 3), ("un", 4, 6)]),
        # a dropped accent belongs to the letter before it
        ("u\u0301n\u0303!", [("un", 0, 4), ("!", 4, 5)]),
        ("ún\u0301want", [("un", 0, 3), ("##want", 3, 7)]),
        # control characters count inside a word only
        ("\u200bu\x00\x0bn\u200b", [("un", 1, 5)]),
        ("中\u0301un", [("[UNK]", 0, 1), ("un", 2, 4)]),
        ("un,\u2028中", [("un", 0, 2), ("[UNK]", 2, 3), ("[UNK]", 4, 5)]),
        # İ is two code points in lower case, a syllable three jamo
        ("İun", [("i", 0, 1), ("##un", 1, 3)]),
        ("각", [("\u1100", 0, 1), ("##\u1161\u11a8", 0, 1)]),
        ("ΟΔΟΣ", [("οδος", 0, 4)]),
        ("x\u0300", [("[UNK]", 0, 2)]),
        ("\u0301", []),
    ],
)
def test_places_in_the_raw_text(make, text, want):
    words = "[UNK] un want ##want ##un ! i οδος \u1100 ##\u1161\u11a8".split()
    tokenizer = make(*words)
    for _ in range(2):  # computed, then remembered
        got = tokenizer.tokenize_with_offsets(text)
        assert list(zip(*got, strict=True)) == want


def test_places_in_bytes_count_the_decoded_text(make):
    tokenizer = make("[UNK]", "un")
    assert tokenizer.tokenize_with_offsets(b"\xff\xc3\xa9 un")[1:] == (
        [0, 2],
        [1, 4],
    )


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_random_text_gives_the_same_words_by_both_ways(lower, strip):
    """Words with places equal words, and a plain rendering of the rules."""
    draw = random.Random(7)
    points = [*range(0x300), *range(0x300, 0x3500), *range(0xF900, 0x10000)]
    pool = [chr(point) for point in points]
    pool += (
        list("aeiou,. \x0b\x1c\x85\u2028\u3000中ΣΑİ\u302e\u0301\u0323") * 100
    )
    tokenizer = BasicTokenizer(lower, strip)
    for _ in range(2000):
        text = "".join(draw.choices(pool, k=draw.randint(1, 30)))
        words = tokenizer.tokenize(text)
        assert words == plain_words(text, lower, strip), ascii(text)
        again = [
            word
            for unit in tokenization._UNIT.findall(text)
            for word, _, _ in tokenizer.words_with_places(unit)
        ]
        assert again == words, ascii(text)


def plain_words(text, lower, strip):
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif category in ("Cc", "Cf") or char == "\ufffd":
            continue
        elif any(
            first <= ord(char) <= last
            for first, last in (
                (0x3400, 0x4DBF),
                (0xF900, 0xFAFF),
                (0x4E00, 0x9FFF),
            )
        ):
            cleaned += f" {char} "
        else:
            cleaned += char
    words = ""
    for word in cleaned.split():
        word = word.lower() if lower else word
        if strip:
            word = unicodedata.normalize("NFD", word)
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        for char in word:
            symbol = char.isascii() and not char.isalnum()
            if symbol or unicodedata.category(char)[0] == "P":
                char = f" {char} "
            words += char
        words += " "
    return words.split()


def test_the_deleted_separators_are_all_that_python_splits_at():
    separators = [c for c in map(chr, range(0x110000)) if c.isspace()]
    glue = [c for c in separators if tokenization._is_control(c)]
    assert glue == list("\x0b\x0c\x1c\x1d\x1e\x1f\x85")
    assert all(tokenization._GLUED.search(char) for char in glue)


# --- memory, copies, imports ------------------------------------------------


def test_the_memory_is_bounded_and_forgetting_changes_nothing(make):
    tokenizer = make("[UNK]", "a", "##a", "##b")
    tokenizer._unit_ids.limit = 3
    for number in range(20):
        assert tokenizer.encode("a" * (number + 1)) == [1] + [2] * number
        assert len(tokenizer._unit_ids) <= 3
    tokenizer.tokenize("b" * 100)
    assert "b" * 100 not in tokenizer._unit_tokens


def test_a_tokenizer_can_be_pickled_and_copied(make):
    tokenizer = make("[UNK]", "[MASK]", "a", "##b", keep=("[MASK]",))
    assert tokenizer.encode("ab [MASK]") == [2, 3, 1]
    for twin in (
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
    ):
        assert twin.encode("ab [MASK] c") == [2, 3, 1, 0]
        assert twin.tokenize("ab") == ["a", "##b"]


def test_tensorflow_is_not_imported():
    code = (
        "import sys, tokenization; sys.exit(any(name.split('.')[0] in "
        "('tensorflow', 'keras', 'absl') for name in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    )


# --- vocabularies and errors ------------------------------------------------


def test_blank_lines_keep_the_numbers(make):
    tokenizer = make("[PAD]", "[UNK]", "", "a", "", "b")
    assert tokenizer.encode("a b") == [3, 5]
    assert (tokenizer.vocab_size, len(tokenizer.vocab)) == (6, 5)
    assert tokenizer.convert_ids_to_tokens([0, 3, 5]) == ["[PAD]", "a", "b"]
    assert make("[UNK]", "a", "", "").vocab_size == 4


def test_a_repeated_token_warns_once_with_both_lines(make, caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = make("[PAD]", "[UNK]", "a", "a", "b", "b")
    assert tokenizer.encode("a b") == [3, 5]
    assert tokenizer.vocab_size == 6
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "'a' on lines 3 and 4; 'b' on lines 5 and 6" in messages[0]


def test_trailing_blanks_and_crlf_are_stripped(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\r\n[UNK]\r\na \t\r\nc\rd\r\n")
    assert list(tokenization.load_vocab(path)) == ["[PAD]", "[UNK]", "a", "cd"]


def test_the_tokenizer_reads_a_rewritten_file_anew(make):
    assert make("[UNK]", "a").encode("a b") == [1, 0]
    assert make("b", "[UNK]").encode("a b") == [1, 0]


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt does not exist"):
        FullTokenizer(tmp_path / "none.txt")


def test_unknown_tokens_and_ids_are_named(make):
    tokenizer = make("[PAD]", "a")
    for function, value in (
        (tokenizer.convert_tokens_to_ids, ["a", "[CLS]"]),
        (tokenizer.convert_ids_to_tokens, [0, 7]),
        (tokenizer.encode, "a b"),  # needs [UNK]
    ):
        for kind in (KeyError, ValueError):
            with pytest.raises(kind, match="is not in the vocabulary of 2 "):
                function(value)
    assert tokenizer.convert_tokens_to_ids(["a"]) == [1]


def test_check_vocab_names_absent_tokens_and_file(tmp_path):
    vocab = {"[PAD]": 0, "[UNK]": 1, "a": 2}
    with pytest.raises(
        ValueError, match=r"v\.txt: lacks .*\[CLS\], \[SEP\], \[MASK\]"
    ):
        tokenization.check_vocab(vocab, 3, "v.txt")
    tokenization.check_vocab(vocab, 3, "v.txt", needed=("[UNK]",))
    marked = {"\ufeff[PAD]": 0, "[UNK]": 1}
    with pytest.raises(ValueError, match="byte order mark"):
        tokenization.check_vocab(marked, 2, "v.txt", needed=("[PAD]",))


def test_check_vocab_compares_sizes(caplog):
    vocab = {"[UNK]": 0, "a": 31101}
    check = tokenization.check_vocab
    check(vocab, 31102, "v.txt", needed=())
    assert not caplog.records
    check(vocab, 32102, "v.txt", needed=())
    assert "v.txt has 31102 rows" in caplog.text and "32102" in caplog.text
    with pytest.raises(ValueError, match="31102 rows.* 31000"):
        check(vocab, 31000, "v.txt", needed=())
    with pytest.raises(ValueError, match="31102.*44900.*21128.*grow"):
        check(vocab, 44900, "v.txt", needed=(), checkpoint_vocab_size=21128)


@pytest.mark.parametrize(
    "name,casing",
    [
        ("uncased_L-12_H-768_A-12", True),
        ("wwm_cased_L-24_H-1024_A-16", False),
        ("bert-base-uncased", True),
        ("multilingual_L-12_H-768_A-12", True),
        ("chinese_L-12_H-768_A-12", True),
        ("multi_cased_L-12_H-768_A-12", False),
        ("showcased", None),
        ("my_model", None),
    ],
)
def test_casing_is_read_from_the_directory_name(tmp_path, name, casing):
    directory = tmp_path / name
    directory.mkdir()
    for path in (directory, directory / "bert_model.ckpt", str(directory)):
        assert tokenization.casing_of_directory(path) is casing


def test_casing_files_come_before_the_name(tmp_path):
    directory = tmp_path / "bert-uncased"
    directory.mkdir()
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokenization.casing_of_directory(directory) is False
    (directory / "run.json").write_text('{"do_lower_case": true}')
    assert tokenization.casing_of_directory(directory) is True
    (directory / "run.json").write_text('{"other": 1}')
    assert tokenization.casing_of_directory(directory) is False
    (directory / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: is not a JSON object"):
        tokenization.casing_of_directory(directory)
    (directory / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"run\.json: is not a JSON object"):
        tokenization.casing_of_directory(directory)


def test_resolve_casing_refuses_contradiction(tmp_path):
    cased = tmp_path / "cased_L-2" / "bert_model.ckpt"
    cased.parent.mkdir()
    resolve = tokenization.resolve_casing
    assert resolve(None, cased) is False
    assert resolve(False, cased) is False
    with pytest.raises(
        ValueError, match="do_lower_case=true contradicts .*cased_L-2"
    ):
        resolve(True, cased)
    (cased.parent / "tokenizer_config.json").write_text(
        '{"do_lower_case": true}'
    )
    with pytest.raises(
        ValueError, match=r"do_lower_case=false contradicts .*\.json"
    ):
        resolve(False, cased)
    assert resolve(None, tmp_path / "model.ckpt-3") is True
    assert resolve(None, None) is True
    assert resolve(False, "") is False


def test_casing_against_the_vocabulary_warns(make, caplog):
    make("[UNK]", "apple", "是", do_lower_case=False)
    assert "has no upper-case letter" in caplog.text
    caplog.clear()
    make("[UNK]", "是", "苹", do_lower_case=False)
    make("[UNK]", "May", "may", do_lower_case=False)
    make("[UNK]", "may", "[MASK]")
    assert not caplog.records
    make("[UNK]", "May", "may")
    assert "has upper-case letters in 1 of 2" in caplog.text


def test_a_cased_tokenizer_keeps_the_case(make):
    tokenizer = make(*"[UNK] it is May 1st today".split(), do_lower_case=False)
    assert " ".join(tokenizer.tokenize("it is May 1st today")) == (
        "it is May 1st today"
    )


def test_convert_functions_on_plain_dicts():
    vocab = {"a": 0, "b": 1}
    assert tokenization.convert_tokens_to_ids(vocab, ["b", "a"]) == [1, 0]
    assert tokenization.convert_ids_to_tokens({0: "a"}, [0, 0]) == ["a", "a"]
    assert tokenization.whitespace_tokenize(" a\u2028b ") == ["a", "b"]
