"""The vocabulary learner, in the process and from the command line."""

import collections
import gzip
import json
import random
import subprocess
import sys
import types

import pytest
from conftest import GOLDEN, ROOT, shared_data

import tokenization
import vocabulary
import vocabulary_extension

RESERVED = list(tokenization.RESERVED_TOKENS)
TEXT = """The river rose in the night, and the rowers rowed on rivers.
Slower rowers follow the slow river; lower rivers flow slowly [MASK].
河水 rises, Ünder the bridge — 河边 flows \u2028 on.
"""


@pytest.fixture
def run(tmp_path):
    """Runs `python tokenization.py` in a directory: (exit code, out, err)."""

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, ROOT / "tokenization.py", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return types.SimpleNamespace(
            code=done.returncode, out=done.stdout, err=done.stderr
        )

    return call


def rows_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def check_refused(run, tmp_path, sentence, *arguments):
    """One sentence, exit code 1 and no new file."""
    before = sorted(tmp_path.iterdir())
    done = run(*arguments)
    assert done.code == 1, done
    assert sentence in done.err
    assert len(done.err.strip().split("\n")) == 1
    assert "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before


# --- learning ---------------------------------------------------------------


def test_the_most_frequent_pair_is_merged_first():
    counts = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    rows = vocabulary.learn_vocabulary(counts, 5 + 14 + 4)
    assert rows[:5] == RESERVED
    assert rows[5:19] == [*"bghnpsu", *(f"##{char}" for char in "bghnpsu")]
    # ##u##g 20, then ##u##n 16, h##ug 15 and p##un 12 (before: 17 p##u fell)
    assert rows[19:] == ["##ug", "##un", "hug", "pun"]


def test_equal_counts_are_decided_by_age_not_by_order():
    counts = {"ab": 3, "cd": 3, "ac": 3, "xyz": 3}
    want = vocabulary.learn_vocabulary(counts, 30)
    for seed in range(5):
        items = list(counts.items())
        random.Random(seed).shuffle(items)
        assert vocabulary.learn_vocabulary(dict(items), 30) == want
    assert want.index("ab") < want.index("ac") < want.index("cd")


def test_repeated_letters_are_counted_right():
    for count in range(1, 9):
        words = {"a" * count: 1, "b" * (9 - count): 2}
        merged = plain_merges(words, 40)
        assert vocabulary.learn_vocabulary(words, 9 + len(merged))[9:] == merged


def plain_merges(counts, room):
    """Merging by counting everything anew each time."""
    chars = sorted({char for word in counts for char in word})
    symbols = chars + [f"##{char}" for char in chars]
    words = {
        word: [word[0], *(f"##{char}" for char in word[1:])] for word in counts
    }
    found = []
    while len(found) < room:
        pairs = collections.Counter()
        for word, parts in words.items():
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(
            pairs,
            key=lambda pair: (-pairs[pair], *map(symbols.index, pair)),
        )
        new = best[0] + best[1][2:]
        if new not in symbols:
            symbols.append(new)
            found.append(new)
        for parts in words.values():
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = [new]
                at += 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_incremental_counts_equal_counting_anew(seed):
    draw = random.Random(seed)
    counts = {
        "".join(draw.choices("abc", k=draw.randint(1, 9))): draw.randint(1, 9)
        for _ in range(60)
    }
    merged = plain_merges(counts, 1000)
    rows = vocabulary.learn_vocabulary(counts, 11 + len(merged))
    assert rows[11:] == merged


def test_counts_beyond_32_bits_are_exact():
    counts = {"the": 3_000_000_000, "of": 2**40, "cat": 1}
    rows = vocabulary.learn_vocabulary(counts, 5 + 14 + 3)
    assert rows[-3:] == ["of", "th", "the"]


def test_markers_brackets_and_cjk_stay_single():
    counts = vocabulary.count_words(["[MASK] [mask]x 河水河水 a-b"] * 9)
    rows = vocabulary.learn_vocabulary(counts, 60)
    for row in rows[5:]:
        assert not (set(row) & set("[]-") and len(row) > 1), row
        assert not (set(row) & set("河水") and len(row) > 1), row
    assert {"mask", "河", "水", "[", "x", "##x"} <= set(rows)


@pytest.mark.parametrize("size", [30, 41, 60, 83])
def test_the_size_is_exact_where_the_text_allows(size):
    counts = vocabulary.count_words([TEXT])
    rows = vocabulary.learn_vocabulary(counts, size)
    assert len(rows) == len(set(rows)) == size


def test_a_short_text_gives_fewer_rows():
    rows = vocabulary.learn_vocabulary({"ab": 1}, 100)
    assert rows[5:] == ["a", "b", "##a", "##b", "ab"]


def test_unused_rows_follow_the_reserved_ones():
    rows = vocabulary.learn_vocabulary(
        {"ab": 1}, 13, [*RESERVED, "[E1]"], num_unused=2
    )
    assert rows[:8] == [*RESERVED, "[E1]", "[unused0]", "[unused1]"]
    assert len(rows) == 13


def test_rare_pieces_and_characters_are_left_out_on_request():
    counts = {"abab": 5, "xy": 1, "ac": 2}
    rows = vocabulary.learn_vocabulary(counts, 100, min_frequency=2)
    assert "abab" in rows and "ac" in rows and "xy" not in rows
    assert "x" not in rows and "##y" not in rows


def test_the_alphabet_can_be_limited():
    counts = {"aa": 9, "ab": 5, "ac": 1}
    rows = vocabulary.learn_vocabulary(counts, 100, limit_alphabet=2)
    assert rows[5:] == ["a", "b", "##a", "##b", "aa", "ab"]


def test_rare_characters_make_way_but_fill_empty_rows(caplog):
    common = {chr(0x4E00 + number): 10_000 for number in range(1500)}
    rare = {chr(0x6000 + number): 1 for number in range(100)}
    counts = common | rare | {"ab": 7}
    rows = vocabulary.learn_vocabulary(counts, 5 + 1500 + 2)
    assert set(common) <= set(rows) and not set(rare) & set(rows)
    rows = vocabulary.learn_vocabulary(counts, 5000)
    assert set(rare) <= set(rows)
    assert not caplog.records
    vocabulary.learn_vocabulary(counts, 100)
    assert "Only the 95 most frequent of 1602 characters" in caplog.text


@pytest.mark.parametrize(
    "message,size,options",
    [
        ("--vocab_size=5 leaves no room beside 5", 5, {}),
        ("--vocab_size=9 leaves no room beside 15", 9, {"num_unused": 10}),
        ("over the limit of 2097151 rows", 1 << 21, {}),
        ("[A] is given twice", 9, {"reserved_tokens": ["[A]", "[A]"]}),
        ("'' is empty", 9, {"reserved_tokens": [""]}),
        ("' a' is empty or has blanks", 9, {"reserved_tokens": [" a"]}),
    ],
)
def test_sizes_and_tokens_that_cannot_be_are_refused(message, size, options):
    with pytest.raises(ValueError) as error:
        vocabulary.learn_vocabulary({"ab": 1}, size, **options)
    assert message in str(error.value)


def test_unknown_options_are_refused_by_name():
    with pytest.raises(TypeError, match="max_bytes_per_word"):
        vocabulary.learn_vocabulary({"ab": 1}, 9, max_bytes_per_word=100)


# --- counting ---------------------------------------------------------------


def test_words_are_counted_as_the_tokenizer_cuts_them():
    lines = [TEXT, "z" * 201, b"\xff\xe2\x82\xac caf\xc3\xa9"]
    counts = vocabulary.count_words(lines)
    basic = tokenization.BasicTokenizer()
    want = [word for line in lines for word in basic.tokenize(line)]
    want.remove("z" * 201)
    assert counts == collections.Counter(want)
    assert vocabulary.count_words(["Ü"], False) == {"Ü": 1}
    assert vocabulary.count_words(["Ü"], True, False) == {"ü": 1}


def test_a_list_and_a_dataset_in_any_order_give_the_same():
    class Tensor:
        """A scalar string tensor, as eager TensorFlow has it."""

        def __init__(self, text):
            self.numpy = text.encode

        __hash__ = None

    lines = TEXT.split("\n")
    want = vocabulary.count_words(lines)
    assert vocabulary.count_words([Tensor(line) for line in lines]) == want
    rows = vocabulary.learn_vocabulary(want, 70)
    again = vocabulary.count_words(lines[::-1])
    assert vocabulary.learn_vocabulary(again, 70) == rows


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_parts_never_cut_a_word(tmp_path, monkeypatch, size):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 3 + "last words", encoding="utf-8")
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(vocabulary, "_PART_BYTES", size)
    parts = vocabulary._parts(str(path))
    assert [part[1] for part in parts[1:]] == [part[2] for part in parts[:-1]]
    want = vocabulary.count_words([TEXT * 3 + "last words"])
    assert vocabulary.count_files([str(path)]) == want
    assert vocabulary.count_files([str(packed)]) == want


# --- the command line -------------------------------------------------------


def test_files_workers_and_packing_change_no_byte(run, tmp_path):
    lines = (TEXT * 4).split("\n")
    (tmp_path / "a.txt").write_text("\n".join(lines[:5]), encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(lines[5:]), encoding="utf-8")
    (tmp_path / "bom.txt").write_text(
        "\r\n".join(lines), encoding="utf-8-sig", newline=""
    )
    (tmp_path / "all.txt.gz").write_bytes(
        gzip.compress("\n".join(reversed(lines)).encode())
    )
    outputs = set()
    for number, (files, workers) in enumerate(
        [
            ("[ab].txt", 1),
            ("b.txt,a.txt", 2),
            ("all.txt.gz", 2),
            ("bom.txt", 1),
        ]
    ):
        done = run(
            f"--input_file={files}",
            f"--vocab_file=v{number}",
            "--vocab_size=90",
            f"--num_workers={workers}",
            "--num_unused=3",
        )
        assert done.code == 0, done
        assert f"v{number}: 90 rows learned from " in done.out
        outputs.add((tmp_path / f"v{number}").read_bytes())
    assert len(outputs) == 1
    tokenizer = tokenization.FullTokenizer(tmp_path / "v0")
    tokenization.check_vocab(tokenizer.vocab, 90, "v0")
    assert tokenizer.vocab_size == len(tokenizer.vocab) == 90
    assert tokenizer.tokenize("the")[0] == "the"
    assert "[UNK]" not in tokenizer.tokenize(TEXT)


def test_cased_text_and_another_encoding(run, tmp_path):
    (tmp_path / "latin.txt").write_bytes("Über dem Fluß. ".encode("latin-1"))
    arguments = (
        "--input_file=latin.txt",
        "--vocab_file=v",
        "--vocab_size=40",
        "--do_lower_case=false",
    )
    done = run(*arguments, "--input_encoding=latin-1")
    assert done.code == 0, done
    assert {"Ü", "F", "##ß"} <= set(rows_of(tmp_path / "v"))
    assert "rows, not --vocab_size=40. Give more text" in done.err


def test_bad_bytes_are_named_with_file_and_line(run, tmp_path, monkeypatch):
    line = b"some good words\r\n"
    (tmp_path / "good.txt").write_bytes(line)
    (tmp_path / "bad.txt").write_bytes(line * 6 + b"good caf\xe9 bar\n" + line)
    (tmp_path / "bad.txt.gz").write_bytes(
        gzip.compress(line + b"\xff\n" + line)
    )
    sentence = "bad.txt:7: byte 0xe9 is not valid utf-8. Convert the file"
    check_refused(
        run,
        tmp_path,
        sentence,
        "--input_file=*.txt",
        "--vocab_file=v",
        "--num_workers=2",
    )
    monkeypatch.setattr(vocabulary, "_PART_BYTES", 30)
    for name, want in (("bad.txt", 7), ("bad.txt.gz", 2)):
        with pytest.raises(ValueError, match=rf"{name}:{want}: byte"):
            vocabulary.count_files([str(tmp_path / name)])


def test_a_torn_gzip_file_is_named(run, tmp_path):
    whole = gzip.compress(TEXT.encode() * 9)
    (tmp_path / "torn.gz").write_bytes(whole[:-20])
    (tmp_path / "text.gz").write_bytes(b"no gzip at all")
    for name, words in (
        ("torn.gz", "the compressed file is damaged"),
        ("text.gz", "is no gzip file; rename it"),
    ):
        check_refused(
            run,
            tmp_path,
            f"{name}: {words}",
            f"--input_file={name}",
            "--vocab_file=v",
        )


@pytest.mark.parametrize(
    "sentence,arguments",
    [
        ("'none*' matches no file", ["--input_file=none*"]),
        (
            "empty.txt, void.txt: no word is in",
            ["--input_file=empty.txt,void.txt"],
        ),
        ("Name the text with --input_file.", []),
        ("leaves no room", ["--input_file=text.txt", "--vocab_size=5"]),
        (
            "--reserved_tokens lacks [CLS], [MASK], [SEP]",
            ["--input_file=text.txt", "--reserved_tokens=[PAD],[UNK]"],
        ),
        (
            "the directory",
            ["--input_file=text.txt", "--vocab_file=none/vocab.txt"],
        ),
        (
            "is one of the input files",
            ["--input_file=*.txt", "--vocab_file=text.txt"],
        ),
        (
            "--input_encoding=utf-16 is unknown or does not keep ASCII",
            ["--input_file=text.txt", "--input_encoding=utf-16"],
        ),
        (
            "--input_encoding=klingon is unknown",
            ["--input_file=text.txt", "--input_encoding=klingon"],
        ),
        (
            "--num_new_words needs --extend_vocab",
            ["--input_file=text.txt", "--num_new_words=3"],
        ),
        (
            "--init_checkpoint and --output_checkpoint go together",
            [
                "--input_file=text.txt",
                "--extend_vocab=old.txt",
                "--init_checkpoint=x",
            ],
        ),
        (
            "leave --output_checkpoint away",
            [
                "--input_file=text.txt",
                "--extend_vocab=old.txt",
                "--init_checkpoint=x",
                "--output_checkpoint=y",
                "--use_unused_rows",
            ],
        ),
        (
            "vocabulary file old.txt does not exist",
            ["--input_file=text.txt", "--extend_vocab=old.txt"],
        ),
    ],
)
def test_bad_input_ends_in_one_sentence(run, tmp_path, sentence, arguments):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "void.txt").write_bytes(b"\xef\xbb\xbf \r\n\x00\n")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    check_refused(run, tmp_path, sentence, "--vocab_file=v", *arguments)


def test_help_shows_the_flags_and_unknown_ones_are_refused(run):
    done = run("--help")
    assert "--limit_alphabet" in done.out and "--extend_vocab" in done.out
    done = run("--vocab_file=v", "--input_file=x", "--max_bytes_per_word=3")
    assert done.code != 0 and "max_bytes_per_word" in done.err


def test_importing_defines_no_flag():
    code = (
        "from absl import flags; import tokenization, vocabulary; "
        "assert 'vocab_size' not in flags.FLAGS"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_learner_of_tensorflow_text_can_be_chosen(run, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    done = run(
        "--input_file=text.txt",
        "--vocab_file=v",
        "--vocab_size=200",
        "--algorithm=tensorflow_text",
        "--num_unused=1",
    )
    assert done.code == 0, done
    rows = rows_of(tmp_path / "v")
    assert rows[:6] == [*RESERVED, "[unused0]"]
    assert "the" in rows and len(rows) < 200
    assert "rows, not --vocab_size=200" in done.err


def test_pieces_per_word_on_unseen_text():
    """A Rust trainer's vocabulary of this size and text needs 1.0879 pieces."""
    text = shared_data("wikitext-2/valid.txt").read_text(encoding="utf-8")
    lines = text.split("\n")
    seen = [line for number, line in enumerate(lines) if number % 5]
    counts = vocabulary.count_words(seen)
    rows = vocabulary.learn_vocabulary(counts, 8000)
    assert len(rows) == len(set(rows)) == 8000
    pieces = tokenization.WordpieceTokenizer(dict.fromkeys(rows))
    unseen = vocabulary.count_words(lines[::5])
    number = sum(n * len(pieces.pieces(word)) for word, n in unseen.items())
    assert number / unseen.total() == pytest.approx(1.0879, rel=0.01)


# --- extending --------------------------------------------------------------


OLD = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
OLD += ["the", "r", "##i", "##v", "##e", "##r", "##s", "\u2028", "f", "##low"]


@pytest.fixture
def old(tmp_path):
    directory = tmp_path / "uncased_old"
    directory.mkdir()
    path = directory / "vocab.txt"
    path.write_bytes("\r\n".join(OLD).encode())
    return path


def test_the_words_that_save_most_pieces_are_chosen(old):
    tokenizer = tokenization.FullTokenizer(old)
    counts = {"the": 99, "river": 2, "rivers": 2, "flow": 7, "zz": 4, "ri": 1}
    choose = vocabulary_extension.choose_new_words
    # saved: rivers 5 * 2, river 4 * 2, zz 2 * 4, flow 1 * 7, ri 1
    order = ["rivers", "river", "zz", "flow", "ri"]
    assert choose(counts, tokenizer, 9) == order
    assert choose(counts, tokenizer, 2) == order[:2]
    assert choose(counts, tokenizer, 9, min_frequency=2) == order[:4]


def test_words_are_appended_and_old_rows_keep_their_bytes(run, tmp_path, old):
    (tmp_path / "text.txt").write_text("The River RIVER flow " * 3)
    done = run(
        "--extend_vocab=uncased_old/vocab.txt",
        "--input_file=text.txt",
        "--vocab_file=new.txt",
        "--num_new_words=2",
    )
    assert done.code == 0, done
    assert "new.txt: 19 rows, 2 of them new" in done.out
    want = old.read_bytes() + b"\nriver\nflow\n"
    assert (tmp_path / "new.txt").read_bytes() == want
    before = tokenization.FullTokenizer(old)
    after = tokenization.FullTokenizer(tmp_path / "new.txt")
    assert after.tokenize("the river flow") == ["the", "river", "flow"]
    assert list(after.vocab.items())[: len(OLD)] == list(before.vocab.items())


def test_words_go_into_unused_rows(run, tmp_path, old):
    (tmp_path / "words.txt").write_text("River\r\n\nthe\nflow", newline="")
    arguments = (
        "--extend_vocab=uncased_old/vocab.txt",
        "--vocab_file=new.txt",
        "--use_unused_rows",
    )
    done = run(*arguments, "--new_words_file=words.txt")
    assert done.code == 0, done
    rows = (tmp_path / "new.txt").read_bytes().decode().split("\n")
    assert (rows[1], rows[6]) == ("river", "flow")
    assert len(rows) == len(OLD) + 1
    (tmp_path / "words.txt").write_text("river\nflow\nfire\n")
    (tmp_path / "new.txt").unlink()
    check_refused(
        run,
        tmp_path,
        "has 2 [unused] rows for 3 new words",
        *arguments,
        "--new_words_file=words.txt",
    )


def test_words_that_can_never_be_found_are_refused(run, tmp_path, old):
    arguments = (
        "--extend_vocab=uncased_old/vocab.txt",
        "--vocab_file=new.txt",
        "--new_words_file=words.txt",
    )
    for content, sentence in (
        (b"river\nco-op\n", "words.txt:2: 'co-op' is cut into"),
        (b"ri\xff\n", "words.txt:1: the line is not UTF-8"),
        (b"the\n\n", "holds every word already"),
    ):
        (tmp_path / "words.txt").write_bytes(content)
        check_refused(run, tmp_path, sentence, *arguments)
    check_refused(
        run,
        tmp_path,
        "--do_lower_case=false contradicts the directory name 'uncased_old'",
        *arguments,
        "--do_lower_case=false",
    )


def test_the_checkpoint_grows_with_the_vocabulary(tmp_path, old, monkeypatch):
    calls = []
    stand_in = types.ModuleType("checkpoints")
    stand_in.grow_word_embeddings = lambda *arguments, old_vocab_size: (
        calls.append((*arguments, old_vocab_size))
    )
    monkeypatch.setitem(sys.modules, "checkpoints", stand_in)
    config = {"vocab_size": len(OLD), "hidden_size": 4}
    (old.parent / "bert_config.json").write_text(json.dumps(config))
    init, output = old.parent / "bert_model.ckpt", tmp_path / "new.ckpt"
    values = {
        "extend_vocab": str(old),
        "do_lower_case": types.SimpleNamespace(present=0, value=True),
        "strip_accents": None,
        "new_words_file": str(tmp_path / "words.txt"),
        "use_unused_rows": False,
        "init_checkpoint": str(init),
        "output_checkpoint": str(output),
    }

    class Flags(dict):
        __getattr__ = dict.__getitem__

    monkeypatch.setattr(vocabulary, "FLAGS", Flags(values))
    monkeypatch.setattr(vocabulary.common_flags, "FLAGS", Flags(values))
    (tmp_path / "words.txt").write_text("river\n")
    written = []
    sink = types.SimpleNamespace(write=written.append)
    summary = vocabulary._extend([], sink)
    assert calls == [(str(init), str(output), len(OLD) + 1, len(OLD))]
    assert summary.startswith("18 rows, 1 of them new; ")
    assert written[0].endswith(b"\nriver\n")
    grown = json.loads((tmp_path / "bert_config.json").read_text())
    assert grown == config | {"vocab_size": 18}
    again = vocabulary_extension.write_config(init, output, 20)
    assert "set vocab_size to 20" in again
    assert json.loads((tmp_path / "bert_config.json").read_text()) == grown


@pytest.mark.slow
def test_a_real_checkpoint_grows_or_nothing_is_written(run, tmp_path):
    tiny = GOLDEN / "tiny"
    (tmp_path / "text.txt").write_text("rivers and rowers and rivers")
    arguments = (
        f"--extend_vocab={tiny / 'vocab.txt'}",
        "--input_file=text.txt",
        "--vocab_file=vocab.txt",
        "--num_new_words=2",
        "--output_checkpoint=bert_model.ckpt",
    )
    done = run(*arguments, f"--init_checkpoint={tiny / 'none.ckpt'}")
    assert done.code == 1 and "none.ckpt" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    done = run(*arguments, f"--init_checkpoint={tiny / 'bert_model.ckpt'}")
    assert done.code == 0, done
    assert len(rows_of(tmp_path / "vocab.txt")) == 99
    config = json.loads((tmp_path / "bert_config.json").read_text())
    assert config["vocab_size"] == 99
    assert (tmp_path / "bert_model.ckpt.index").exists()
