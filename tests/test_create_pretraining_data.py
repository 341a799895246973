"""Tests of create_pretraining_data.py and the modules behind it."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from conftest import GOLDEN, ROOT, shared_data, vocab_path

import directories
import pretraining_data
import pretraining_shards
import pretraining_writer
import records
import tokenization
from pretraining_data import Options

DATA = GOLDEN / "pretraining_data"
CASES = json.loads((DATA / "index.json").read_text())["cases"]
BY_NAME = {case["case"]: case for case in CASES}
NAMES = records.pretraining_spec(1, 1).names

TEXT = """\
The quick brown fox jumps over the lazy dog.
It does so every morning at seven.
Nobody has ever asked it why.

A glacier is a river that has forgotten how to hurry.
Snow falls on its upper part and turns to ice.
The edges move more slowly than the middle.
Lines of stones bend like the current of a stream.

Salt keeps food because it draws the water out of it.
Roads were built for it.
Today it costs less than the paper it is wrapped in.

The ferry leaves at seven and does not wait.
On the first morning we missed it.
"""


def input_path(name):
    if name == "sample_text.txt":
        return shared_data("raw_en/google_bert_sample_text.txt")
    return DATA / "texts" / name


def golden_inputs(case):
    return [
        str(path)
        for name in case["inputs"]
        for path in (
            sorted((DATA / "texts").glob(name))
            if "*" in name
            else [input_path(name)]
        )
    ]


def options_of(case):
    flags = dict(case["flags"])
    lower = flags.pop("do_lower_case", True)
    seed = flags.pop("random_seed", 12345)
    return Options(**flags, original_labels=True), lower, seed


def script(*arguments, python=sys.executable, check=True, beam=(), **flags):
    """Runs the script; gives the finished process."""
    command = [python, "create_pretraining_data.py", *arguments]
    command += [f"--{name}={value}" for name, value in flags.items()]
    if "vocab_file" not in flags:
        command.append(f"--vocab_file={vocab_path('uncased')}")
    command += ["--", *beam] if beam else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def fails(*words, **flags):
    """Runs the script, which has to say the words on one line and exit 1."""
    done = script(check=False, **flags)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("create_pretraining_data.py: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in last
    return done


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def read(path, length=128, predictions=20):
    """The records of a file as lists, in the order of the features."""
    spec = records.pretraining_spec(length, predictions)
    return [
        {name: value.tolist() for name, value in spec.decode(record).items()}
        for record in records.read_records(path)
    ]


def summary_of(output):
    with open(f"{output}.summary.json") as file:
        return json.load(file)


# --- the original's instances -----------------------------------------------


@pytest.mark.parametrize("name", [c["case"] for c in CASES])
def test_instances_are_the_originals(name):
    case = BY_NAME[name]
    if "fails" in case:
        with pytest.raises(ValueError) as error:
            options, lower, seed = options_of(case)
            tokenizer = tokenization.FullTokenizer(
                vocab_path(case["vocab"]), lower
            )
            pretraining_data.create_training_instances(
                golden_inputs(case), tokenizer, options, random.Random(seed)
            )
        wanted = {
            "bad_utf8": "bad_utf8.txt:2: the text is not UTF-8 (byte 0xff)",
            "seq4_short1": "--max_seq_length=4 must be at least 5 for a pair",
        }
        assert wanted[name] in str(error.value)
        return
    options, lower, seed = options_of(case)
    tokenizer = tokenization.FullTokenizer(vocab_path(case["vocab"]), lower)
    made = pretraining_data.create_training_instances(
        golden_inputs(case), tokenizer, options, random.Random(seed)
    )
    tokens = tokenizer.convert_ids_to_tokens
    with gzip.open(DATA / "cases" / case["instances"], "rt") as file:
        wanted = [json.loads(line) for line in file]
    assert len(made) == case["num_instances"]
    for ours, theirs in zip(made, wanted, strict=True):
        assert tokens(ours.input_ids) == theirs["tokens"]
        assert ours.segment_ids == theirs["segment_ids"]
        assert ours.is_random_next == theirs["is_random_next"]
        assert ours.masked_lm_positions == theirs["masked_lm_positions"]
        assert tokens(ours.masked_lm_ids) == theirs["masked_lm_labels"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "name",
    [
        "english_3outputs",
        "two_inputs_2outputs",
        "tiny_wwm_64",
        "english_512",
        "max_pred_0",
        "one_doc",
        "english_seed_neg",
    ],
)
def test_files_are_the_originals(tmp_path, name, workers):
    case = BY_NAME[name]
    flags = dict(case["flags"])
    outputs = [tmp_path / item["file"] for item in case["outputs"]]
    script(
        "--original_labels",
        input_file=",".join(golden_inputs(case)),
        output_file=",".join(map(str, outputs)),
        vocab_file=vocab_path(case["vocab"]),
        num_workers=workers,
        **flags,
    )
    length = flags.get("max_seq_length", 128)
    predictions = flags.get("max_predictions_per_seq", 20)
    for path, item in zip(outputs, case["outputs"], strict=True):
        ours = read(path, length, predictions)
        assert ours == read(DATA / "cases" / item["file"], length, predictions)
        digest = hashlib.sha256()
        for record in ours:
            pairs = [[name, record[name]] for name in NAMES]
            digest.update(json.dumps(pairs, separators=(",", ":")).encode())
            digest.update(b"\n")
        assert digest.hexdigest() == item["content_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_real_texts_are_the_originals(number):
    with gzip.open(GOLDEN / "real_data" / "pretraining.json.gz") as file:
        case = json.load(file)["cases"][number]
    name = {"bert-base-uncased": "uncased", "bert-base-cased": "cased"}
    tokenizer = tokenization.FullTokenizer(
        vocab_path(name[case["vocab"]]), case["do_lower_case"]
    )
    made = pretraining_data.create_training_instances(
        [str(shared_data(case["file"]))],
        tokenizer,
        Options(
            max_seq_length=case["max_seq_length"],
            max_predictions_per_seq=case["max_predictions_per_seq"],
            dupe_factor=case["dupe_factor"],
            do_whole_word_mask=case["wwm"],
            original_labels=True,
        ),
        random.Random(case["seed"]),
    )
    tokens = tokenizer.convert_ids_to_tokens
    rows = [
        [
            tokens(made_one.input_ids),
            made_one.segment_ids,
            made_one.is_random_next,
            made_one.masked_lm_positions,
            tokens(made_one.masked_lm_ids),
        ]
        for made_one in made
    ]
    assert len(rows) == case["instances"]
    for part, wanted in enumerate(case["hashes"]):
        content = json.dumps(
            rows[100 * part : 100 * part + 100], separators=(",", ":")
        )
        assert hashlib.sha256(content.encode()).hexdigest()[:16] == wanted, part


@pytest.mark.parametrize("length, predictions", [(128, 20), (300, 40)])
@pytest.mark.parametrize("unmasked", [False, True])
def test_fast_encoding_is_that_of_the_specification(
    text, length, predictions, unmasked
):
    options = Options(
        length, predictions, 3, do_whole_word_mask=True, unmasked=unmasked
    )
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    encode = pretraining_writer.InstanceEncoder(options, len(tokenizer.vocab))
    for made in pretraining_data.create_training_instances(
        [str(text)], tokenizer, options, random.Random(1)
    ):
        values = {
            "input_ids": made.input_ids,
            "input_mask": [1] * len(made.input_ids),
            "segment_ids": made.segment_ids,
            "word_pieces": made.word_pieces,
            "masked_lm_positions": made.masked_lm_positions,
            "masked_lm_ids": made.masked_lm_ids,
            "masked_lm_weights": [1.0] * len(made.masked_lm_ids),
            "next_sentence_labels": [int(made.is_random_next)],
        }
        assert encode(made) == options.spec.encode(values)


def test_truncation_is_the_originals():
    def slowly(length_a, length_b, limit, rng):
        lost = [0, 0, 0, 0]
        while length_a + length_b > limit:
            b_loses = 0 if length_a > length_b else 2
            length_a, length_b = (
                (length_a - 1, length_b)
                if b_loses == 0
                else (length_a, length_b - 1)
            )
            lost[b_loses + (0 if rng.random() < 0.5 else 1)] += 1
        return tuple(lost)

    which = random.Random(4)
    for seed in range(300):
        a, b = which.randrange(1, 60), which.randrange(0, 60)
        limit = which.randrange(2, 60)
        draws = pretraining_data.Draws(random.Random(seed))
        assert pretraining_data.truncate_seq_pair(a, b, limit, draws) == slowly(
            a, b, limit, random.Random(seed)
        )


# --- users' cases -----------------------------------------------------------


def test_one_document_is_never_labelled_against_its_text(tmp_path):
    words = "one two three four five six".split()
    path = tmp_path / "one.txt"
    path.write_text("\n".join(words) + "\n")
    output = tmp_path / "o.tfrecord"
    flags = dict(
        input_file=path,
        output_file=output,
        max_seq_length=8,
        max_predictions_per_seq=1,
        dupe_factor=20,
        masked_lm_prob=0,
    )
    done = script(**flags)
    assert "single document" in done.stderr
    assert "single document" in summary_of(output)["warnings"][0]
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))

    def wrong():
        count = 0
        for record in read(output, 8, 1):
            ids = list(record["input_ids"])
            for place, label in zip(
                record["masked_lm_positions"],
                record["masked_lm_ids"],
                strict=True,
            ):
                ids[place] = label
            first = ids.index(tokenizer.vocab["[SEP]"])
            last = ids.index(tokenizer.vocab["[SEP]"], first + 1)
            tokens = tokenizer.convert_ids_to_tokens(ids)
            a, b = tokens[1:first], tokens[first + 1 : last]
            follows = words.index(b[0]) == words.index(a[-1]) + 1
            count += follows and record["next_sentence_labels"] == [1]
        return count

    assert wrong() == 0
    script("--original_labels", **flags)
    assert wrong() > 0


def test_sentences_that_are_documents_have_one_label(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("one sentence\n\nanother sentence\n")
    output = tmp_path / "o.tfrecord"
    done = script(input_file=path, output_file=output, dupe_factor=20)
    assert summary_of(output)["random_next_share"] == 1.0
    assert "100.0% of the instances have next-sentence label 1" in done.stderr
    assert all(x["next_sentence_labels"] == [1] for x in read(output))


def test_a_single_sentence_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    output = tmp_path / "o.tfrecord"
    fails("single sentence", input_file=path, output_file=output)
    script(input_file=path, output_file=output, nsp="none", dupe_factor=2)
    assert len(read(output)) == 2


@pytest.mark.parametrize("content", ["", "\n  \n\u3000\n", "\u200b\n"])
@pytest.mark.parametrize("streaming", ["true", "false"])
def test_input_without_text_is_refused(tmp_path, content, streaming):
    path = tmp_path / "empty.txt"
    path.write_text(content)
    output = tmp_path / "o.tfrecord"
    fails(
        "no text in",
        "empty.txt",
        input_file=path,
        output_file=output,
        streaming=streaming,
    )
    assert not list(tmp_path.glob("o*"))


def test_a_pattern_without_match_is_refused(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    fails(
        "nothing*.txt' matches no file",
        input_file=f"{text},{tmp_path}/nothing*.txt",
        output_file=output,
    )
    fails(
        "--dupe_factor=0",
        input_file=text,
        output_file=output,
        dupe_factor=0,
    )
    fails(
        "--dupe_factor=-1 uses the text never",
        input_file=text,
        output_file=output,
        dupe_factor=-1,
    )
    assert not output.exists()


def test_the_text_is_not_overwritten(tmp_path, text):
    link = tmp_path / "link"
    link.symlink_to(text)
    fails("is one of the input files", input_file=text, output_file=link)
    shard = tmp_path / "o-00000-of-00001"
    shard.write_text(TEXT)
    fails(
        "is one of the input files",
        input_file=shard,
        output_file=tmp_path / "o",
        streaming=True,
    )
    assert text.read_text() == shard.read_text() == TEXT


def test_a_refused_text_leaves_nothing_beside_the_output(tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"caf\xe9 au lait\n")
    fails("bad.txt:1", input_file=bad, output_file=tmp_path / "o", streaming=1)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def test_every_output_has_a_name_of_its_own(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    twice = f"{output},{tmp_path}/./o.tfrecord"
    fails("names a file twice", input_file=text, output_file=twice)
    fails("holds an empty name", input_file=text, output_file=f"{output},")
    assert not output.exists()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_tiny_lengths_are_refused(length):
    with pytest.raises(ValueError, match="must be at least 5 for a pair"):
        Options(max_seq_length=length)


def test_the_shortest_length_works(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    script(
        input_file=text,
        output_file=output,
        max_seq_length=5,
        short_seq_prob=1,
        dupe_factor=1,
    )
    made = read(output, 5)
    assert made and all(
        x["input_mask"] == [1] * 5 and x["segment_ids"] == [0, 0, 0, 1, 1]
        for x in made
    )
    script(
        input_file=text,
        output_file=output,
        max_seq_length=3,
        nsp="none",
        dupe_factor=1,
    )
    assert all(x["input_mask"] == [1] * 3 for x in read(output, 3))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"nsp": "previous"}, "--nsp=previous is not one of"),
        ({"max_seq_length": 2, "nsp": "none"}, "must be at least 3"),
        ({"short_seq_prob": 1.5}, "--short_seq_prob=1.5 must lie between"),
        ({"masked_lm_prob": -1}, "--masked_lm_prob=-1 must lie between"),
        ({"max_predictions_per_seq": -1}, "must be at least 0"),
        ({"dupe_factor": -1}, "--dupe_factor=-1 must be at least 0"),
        ({"max_ngram": 0}, "--max_ngram=0 must be at least 1"),
        ({"draw_per_word": True}, "--draw_per_word needs words"),
        ({"segmenter": "jieba"}, "--segmenter=jieba has no effect"),
    ],
)
def test_settings_that_cannot_work(settings, words):
    with pytest.raises(ValueError, match=words):
        Options(**settings)


def test_flags_that_do_not_go_together(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    both = dict(input_file=text, output_file=output)
    fails("--max_ngram=3 masks spans", unmasked=True, max_ngram=3, **both)
    fails(
        "give it to run_pretraining.py",
        unmasked=True,
        masked_lm_prob=0.3,
        **both,
    )
    fails("--num_shards goes with --streaming", num_shards=2, **both)
    fails(
        "--streaming takes one --output_file",
        input_file=text,
        output_file="a,b",
        streaming="true",
    )
    fails(
        "--original_labels does not go with",
        streaming="true",
        original_labels="true",
        **both,
    )
    fails("'--region=x' follows --", beam=["--region=x"], **both)


@pytest.mark.parametrize("lost", ["[MASK]", "[CLS]"])
def test_a_vocabulary_without_a_marker_is_refused(tmp_path, text, lost):
    vocab = tmp_path / "vocab.txt"
    rows = vocab_path("tiny").read_text().replace(lost + "\n", "")
    vocab.write_text(rows)
    fails(
        "vocab.txt",
        lost,
        input_file=text,
        output_file=tmp_path / "o",
        vocab_file=vocab,
    )


@pytest.mark.parametrize("streaming", ["true", "false"])
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_utf8_is_named_with_its_line(tmp_path, streaming, workers):
    path = tmp_path / "bad.txt"
    path.write_bytes(TEXT.encode() * 30 + b"caf\xe9\n")
    line = TEXT.count("\n") * 30 + 1
    fails(
        f"bad.txt:{line}: the text is not UTF-8 (byte 0xe9)",
        input_file=path,
        output_file=tmp_path / "o.tfrecord",
        streaming=streaming,
        num_shards=2 if streaming == "true" else 0,
        num_workers=workers,
    )


def test_whole_words_of_chinese_text(tmp_path):
    path = tmp_path / "zh.txt"
    sentence = "使用 语言 模型\n"
    path.write_text((sentence * 3 + "\n") * 4)
    output = tmp_path / "o.tfrecord"
    flags = dict(
        input_file=path,
        output_file=output,
        do_whole_word_mask="true",
        dupe_factor=20,
        max_seq_length=48,
    )
    flags["vocab_file"] = tmp_path / "vocab.txt"
    marks = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    flags["vocab_file"].write_text(marks + "\n".join("使用语言模型") + "\n")
    done = script(**flags)
    assert "whole-word masking has no effect" in done.stderr
    done = script(segmenter="blank", **flags)
    assert "no effect" not in done.stderr
    ids = {"使": 5, "用": 6, "语": 7, "言": 8, "模": 9, "型": 10}
    for record in read(output, 48):
        count = int(sum(record["masked_lm_weights"]))
        labels = record["masked_lm_ids"][:count]
        # Sentences are not cut here, so every word is masked whole.
        for first, second in ("使用", "语言", "模型"):
            assert labels.count(ids[first]) == labels.count(ids[second])


# --- new tasks --------------------------------------------------------------


def test_sentence_order(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    script(
        "--unmasked",
        input_file=text,
        output_file=output,
        nsp="sop",
        dupe_factor=50,
        max_seq_length=64,
    )
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    spec = records.unmasked_spec(64)
    documents = [
        " ".join(map(str, tokenizer.encode(part.replace("\n", " "))))
        for part in TEXT.split("\n\n")
    ]
    labels = []
    for record in records.read_records(output):
        values = spec.decode(record)
        ids = values["input_ids"].tolist()
        length = int(values["input_mask"].sum())
        first = ids.index(tokenizer.vocab["[SEP]"])
        a, b = ids[1:first], ids[first + 1 : length - 1]
        (label,) = values["next_sentence_labels"]
        labels.append(label)
        joined = " ".join(map(str, b + a if label else a + b))
        assert any(joined in document for document in documents)
        pieces = values["word_pieces"][:length]
        assert (pieces == 0).sum() == 3 and not pieces[first]
    assert 0.4 < sum(labels) / len(labels) < 0.6


def test_single_segments_lose_no_text(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    script(
        "--unmasked",
        input_file=text,
        output_file=output,
        nsp="none",
        dupe_factor=1,
        max_seq_length=9,
    )
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    spec = records.unmasked_spec(9)
    found = []
    for record in records.read_records(output):
        values = spec.decode(record)
        assert not values["segment_ids"].any()
        assert values["next_sentence_labels"] == [0]
        length = int(values["input_mask"].sum())
        assert 3 <= length <= 9
        found += values["input_ids"][1 : length - 1].tolist()
    assert sorted(found) == sorted(tokenizer.encode(TEXT))


def test_summary_counts_what_is_in_the_file(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    done = script(input_file=text, output_file=output, dupe_factor=4)
    made, told = read(output), summary_of(output)
    assert told["documents"] == 4 and told["sentences"] == 12
    assert told["instances"] == len(made)
    assert told["tokens"] == sum(sum(x["input_mask"]) for x in made)
    masked = sum(sum(x["masked_lm_weights"]) for x in made)
    assert told["masked_tokens"] == masked
    assert told["masked_share"] == masked / told["tokens"]
    labels = [x["next_sentence_labels"][0] for x in made]
    assert told["random_next_share"] == sum(labels) / len(labels)
    assert told["output_files"] == [str(output)]
    assert f"instances = {len(made)}" in done.stderr


def test_compressed_input_and_output(tmp_path, text):
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    script(input_file=text, output_file=tmp_path / "a", dupe_factor=2)
    script(input_file=packed, output_file=tmp_path / "b.gz", dupe_factor=2)
    wanted = (tmp_path / "a").read_bytes()
    assert gzip.decompress((tmp_path / "b.gz").read_bytes()) == wanted
    for path, name in [(text, "s.tfrecord"), (packed, "t.tfrecord")]:
        script(
            "--streaming",
            input_file=path,
            output_file=tmp_path / name,
            dupe_factor=2,
        )
    first = (tmp_path / "s-00000-of-00001.tfrecord").read_bytes()
    assert first == (tmp_path / "t-00000-of-00001.tfrecord").read_bytes()
    packed.write_bytes(gzip.compress(TEXT.encode() * 1000)[:-300])
    for streaming in ("true", "false"):
        fails(
            "packed.txt.gz: the compressed file is damaged",
            input_file=packed,
            output_file=tmp_path / "c",
            streaming=streaming,
        )


def test_files_of_a_pattern_are_sorted_and_patterns_keep_their_order(tmp_path):
    parts = TEXT.split("\n\n")
    for name, part in zip("dbca", parts, strict=True):
        (tmp_path / f"{name}.txt").write_text(part + "\n\n")
    names = list(map(str, sorted(tmp_path.glob("*.txt"))))
    made = []
    for inputs in (f"{tmp_path}/*.txt", ",".join(names), ",".join(names[::-1])):
        script(input_file=inputs, output_file=tmp_path / "x")
        made.append((tmp_path / "x").read_bytes())
    assert made[0] == made[1] != made[2]


# --- shards -----------------------------------------------------------------


def many_documents(count):
    """A text of short documents, each line of which names its place."""
    which = random.Random(7)
    words = TEXT.split()
    lines = []
    for document in range(count):
        for line in range(which.randrange(1, 12)):
            body = " ".join(which.choices(words, k=which.randrange(1, 15)))
            lines.append(f"{document} {line} {body}")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_every_line_is_in_one_shard(tmp_path, monkeypatch, shards):
    monkeypatch.setattr(pretraining_shards, "_LEAST_BLOCK", 300)
    monkeypatch.setattr(pretraining_shards, "_LONGEST_DOCUMENT", 400)
    texts = {
        "a.txt": many_documents(60),
        "b.txt": many_documents(3).replace("\n", "\r\n"),
        "c.txt": "one line without an end",
        "d.txt": "line of one long document\n" * 100,
        "e.txt": "\n\n\u3000\n  \n" + many_documents(9),
    }
    files, wanted = [], []
    for name, content in texts.items():
        path = tmp_path / name
        path.write_bytes(content.encode())
        files.append((str(path), name, path.stat().st_size))
        wanted += [x.strip() for x in content.split("\n") if x.strip()]
    plan = pretraining_shards.ShardPlan.of(files, shards, 1)
    read_lines = []

    def encode_text(data, name, line=1):
        lines = pretraining_data.decode_lines(data, name, line)
        read_lines.extend(x.strip() for x in lines if x.strip())
        return [], [], b""

    for shard in range(shards):
        before = len(read_lines)
        pretraining_shards.read_pieces(plan.pieces(shard), encode_text, open)
        assert len(read_lines) > before
    assert sorted(read_lines) == sorted(wanted)


def shards_of(tmp_path, base):
    return {
        path.name.removeprefix(base): path.read_bytes()
        for path in sorted(tmp_path.glob(f"{base}-*-of-*"))
    }


def test_shards_do_not_depend_on_the_workers(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(many_documents(300))
    flags = dict(input_file=path, dupe_factor=2, num_shards=5, streaming="true")
    for workers in (1, 2):
        script(
            output_file=tmp_path / f"w{workers}.tfrecord",
            num_workers=workers,
            **flags,
        )
    first = shards_of(tmp_path, "w1")
    assert list(first)[0] == "-00000-of-00005.tfrecord" and len(first) == 5
    assert first == shards_of(tmp_path, "w2")
    assert len(set(first.values())) == 5
    script(output_file=tmp_path / "v.tfrecord", random_seed=1, **flags)
    assert shards_of(tmp_path, "v") != first
    told = summary_of(tmp_path / "w1.tfrecord")
    assert told["documents"] == 300
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["short", "long"])
def test_shards_have_as_many_random_sentences_as_others(tmp_path, kind):
    path = tmp_path / "text.txt"
    if kind == "short":
        path.write_text(many_documents(2500))
    else:  # a sentence fills a sequence: the original calls nearly all random
        lines = ["many words " * 80 if x % 6 else "" for x in range(1500)]
        path.write_text("\n".join(lines))
    output = tmp_path / "o.tfrecord"
    script("--streaming", input_file=path, output_file=output, dupe_factor=2)
    told = summary_of(output)
    assert told["instances"] > 1500
    assert abs(told["random_next_share"] - 0.5) < 0.01
    if kind == "long":
        script(input_file=path, output_file=output, dupe_factor=2)
        assert summary_of(output)["random_next_share"] > 0.9


def test_shards_of_one_document(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {x} of it\n" for x in range(40)))
    output = tmp_path / "o.tfrecord"
    script(
        "--streaming",
        "--unmasked",
        input_file=path,
        output_file=output,
        max_seq_length=24,
    )
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    spec = records.unmasked_spec(24)
    labels = set()
    for record in records.read_records(tmp_path / "o-00000-of-00001.tfrecord"):
        values = spec.decode(record)
        ids = values["input_ids"].tolist()
        first = ids.index(tokenizer.vocab["[SEP]"])
        length = int(values["input_mask"].sum())
        parts = [
            [
                int(x)
                for x in tokenizer.convert_ids_to_tokens(part)
                if x.isdigit()
            ]
            for part in (ids[1:first], ids[first + 1 : length - 1])
        ]
        label = values["next_sentence_labels"][0]
        labels.add(label)
        if label and all(parts):
            assert parts[1][0] != parts[0][-1] + 1
            assert not set(parts[0]) & set(parts[1])
    assert labels == {0, 1}


def test_too_many_shards_are_refused(tmp_path, text):
    fails(
        "of 40, with 0 documents, is empty. Lower --num_shards",
        input_file=text,
        output_file=tmp_path / "o.tfrecord",
        streaming="true",
        num_shards=40,
    )


def test_shards_of_another_run_are_named(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    script("--streaming", input_file=text, output_file=output, num_shards=2)
    done = script("--streaming", input_file=text, output_file=output)
    assert "2 shards of another run" in done.stderr


@pytest.mark.parametrize("name", ["a", "a.gz", "a.tfrecord", "a.tf_record.gz"])
def test_names_of_shards(name):
    base, _, ending = name.partition(".")
    wanted = f"x.y/{base}-00002-of-00010{'.' + ending if ending else ''}"
    assert pretraining_shards.shard_name(f"x.y/{name}", 2, 10) == wanted


def start(flags):
    command = [sys.executable, "create_pretraining_data.py", "--streaming"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_killed_run_goes_on(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(many_documents(3000))
    flags = dict(
        input_file=path,
        output_file=tmp_path / "o.tfrecord",
        vocab_file=vocab_path("uncased"),
        dupe_factor=5,
        num_shards=6,
    )
    process = start(flags)
    note = tmp_path / ".o.tfrecord.progress" / "shard-00001.json"
    limit = time.monotonic() + 120
    while not note.exists():
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGSTOP)
    with pytest.raises(
        OSError, match=r"another run .*\.o\.tfrecord\.progress;"
    ):
        directories.hold_directory(note.parent)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {
        file: file.stat().st_mtime_ns
        for file in tmp_path.glob("o-*")
        if (note.parent / f"shard-{file.name[2:7]}.json").exists()
    }
    assert 1 < len(kept) < 6
    assert not (tmp_path / "o.tfrecord.summary.json").exists()
    (tmp_path / ".o-00005-of-00006.tfrecord.1-2.part").write_text("left over")
    emptied = min(kept)
    emptied.write_bytes(b"")
    kept.pop(emptied)
    done = script("--streaming", **flags)
    assert "6 shards are finished already" in done.stderr
    for file, modified in kept.items():
        assert file.stat().st_mtime_ns == modified
    resumed = shards_of(tmp_path, "o")
    flags["output_file"] = tmp_path / "p.tfrecord"
    script("--streaming", **flags)
    assert resumed == shards_of(tmp_path, "p") and len(resumed) == 6
    one, other = (summary_of(tmp_path / f"{x}.tfrecord") for x in "op")
    one.pop("output_files"), other.pop("output_files")
    assert one == other
    assert not list(tmp_path.glob(".*"))


def test_workers_leave_with_a_killed_script(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(many_documents(3000))
    process = start(
        dict(
            input_file=path,
            output_file=tmp_path / "o.tfrecord",
            vocab_file=vocab_path("uncased"),
            num_shards=8,
            num_workers=2,
        )
    )
    note = tmp_path / ".o.tfrecord.progress" / "shard-00000.json"
    limit = time.monotonic() + 120
    while not note.exists():
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)  # ends when the workers close stderr too


def test_other_settings_begin_anew(tmp_path, text):
    output = tmp_path / "o.tfrecord"
    progress = tmp_path / ".o.tfrecord.progress"
    progress.mkdir()
    (progress / "settings.json").write_text("{}")
    (progress / "shard-00000.json").write_text("not even JSON")
    (tmp_path / "o-00000-of-00001.tfrecord").write_text("stale")
    done = script("--streaming", input_file=text, output_file=output)
    assert "settings have changed" in done.stderr
    assert read(tmp_path / "o-00000-of-00001.tfrecord")


def test_a_killed_run_leaves_no_half_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(many_documents(3000))
    output = tmp_path / "o.tfrecord"
    output.write_text("old")
    command = [sys.executable, "create_pretraining_data.py"]
    command += [f"--input_file={path}", f"--output_file={output}"]
    command += [f"--vocab_file={vocab_path('uncased')}", "--dupe_factor=3"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    process.kill()
    process.wait()
    content = output.read_bytes()
    assert content == b"old" or read(output)


MEASURE = """
import runpy, sys
sys.argv = ["create_pretraining_data.py", *sys.argv[1:]]
try:
    runpy.run_path("create_pretraining_data.py", run_name="__main__")
except SystemExit as done:
    assert not done.code
# Not ru_maxrss, which begins with the peak of the process that forked.
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="reads /proc"
)
def test_memory_does_not_grow_with_text_or_dupes(tmp_path):
    def megabytes(text, dupe_factor, shards):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE]
            + [f"--input_file={text}", f"--output_file={tmp_path / 'o'}"]
            + [f"--vocab_file={vocab_path('uncased')}", "--streaming"]
            + [f"--dupe_factor={dupe_factor}", f"--num_shards={shards}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout) / 1024

    part = many_documents(6000)
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text(part)
    large.write_text(part * 3)
    once = megabytes(small, 1, 1)
    assert megabytes(small, 6, 1) < 1.2 * once
    assert megabytes(large, 1, 3) < 1.2 * once
    assert once < 200


def test_no_tensorflow_is_imported(tmp_path, text):
    code = (
        "import sys, create_pretraining_data, pretraining_writer\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- Beam -------------------------------------------------------------------


def beam_python():
    """An interpreter that has Apache Beam, or None."""
    for path in (
        os.environ.get("BEAM_PYTHON"),
        str(ROOT / ".venv-beam" / "bin" / "python"),
    ):
        if path and os.path.exists(path):
            code = "import apache_beam"
            if not subprocess.run([path, "-c", code]).returncode:
                return path
    return None


def test_a_beam_pipeline_makes_the_same_shards(tmp_path):
    python = beam_python()
    if python is None:
        pytest.skip("no BEAM_PYTHON or .venv-beam with apache_beam")
    path = tmp_path / "text.txt"
    path.write_text(many_documents(200))
    flags = dict(input_file=path, dupe_factor=2, num_shards=3)
    script("--streaming", output_file=tmp_path / "s.tfrecord", **flags)
    script(
        python=python,
        runner="DirectRunner",
        output_file=tmp_path / "b.tfrecord",
        beam=["--direct_num_workers=1"],
        **flags,
    )
    assert shards_of(tmp_path, "s") == shards_of(tmp_path, "b")
    one, other = (summary_of(tmp_path / f"{x}.tfrecord") for x in "sb")
    one.pop("output_files"), other.pop("output_files")
    assert one == other


def test_beam_is_asked_for_by_name(tmp_path, text):
    fails(
        "--runner=SparkRunner needs Apache Beam",
        "requirements-beam.txt",
        input_file=text,
        output_file=tmp_path / "o.tfrecord",
        runner="SparkRunner",
    )
