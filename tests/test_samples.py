"""The data this project wrote: well-formed, apart, and honestly held out."""

import collections
import importlib.util
import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

SAMPLES = ROOT / "samples"
LABELS = {"billing", "delivery", "technical", "praise"}


def tsv(relative):
    """The rows of a TSV sample as dicts by its header."""
    lines = (SAMPLES / relative).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    header = lines[0].split("\t")
    rows = [line.split("\t") for line in lines[1:]]
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def support(split):
    """The texts of one part of samples/support."""
    return [row["text_a"] for row in tsv(f"support/{split}.tsv")]


def grams(text, size):
    """The set of word n-grams of a text, case and punctuation aside."""
    words = re.findall(r"\w+(?:'\w+)?", text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def conll(split):
    """The sentences of a part of samples/ner as lists of (word, tag)."""
    text = (SAMPLES / "ner" / f"{split}.txt").read_text(encoding="utf-8")
    return [
        [tuple(line.split(" ")) for line in block.split("\n")]
        for block in text.strip("\n").split("\n\n")
    ]


def test_support_has_its_rows_and_balanced_labels():
    for split, rows in (("train", 336), ("dev", 60)):
        counts = collections.Counter(
            row["label"] for row in tsv(f"support/{split}.tsv")
        )
        assert set(counts) == LABELS
        assert set(counts.values()) == {rows // 4}
    assert list(tsv("support/test.tsv")[0]) == ["text_a"]
    labels = (SAMPLES / "support" / "test_labels.txt").read_text().split()
    assert len(labels) == len(support("test")) == 60
    assert set(labels) == LABELS


def test_no_phrase_of_training_gives_a_held_out_row_away():
    parts = {split: support(split) for split in ("train", "dev", "test")}
    seen = {
        split: set().union(*(grams(text, 4) for text in texts))
        for split, texts in parts.items()
    }
    assert not seen["train"] & seen["dev"]
    assert not seen["train"] & seen["test"]
    assert not seen["dev"] & seen["test"]
    texts = [text.lower() for part in parts.values() for text in part]
    assert len(set(texts)) == len(texts)


def test_support_rows_are_no_templates():
    texts = support("train") + support("dev") + support("test")
    repeated = collections.Counter(g for t in texts for g in grams(t, 5))
    assert max(repeated.values()) == 1
    openings = collections.Counter(" ".join(t.split()[:3]) for t in texts)
    assert max(openings.values()) <= 3
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[len(lengths) // 40] <= 4
    assert lengths[-1] == 40
    assert lengths[-len(lengths) // 20] >= 25


def test_squad_answers_stand_where_they_say():
    data = json.loads((SAMPLES / "squad.json").read_text(encoding="utf-8"))
    assert data["version"] == "v2.0"
    paragraphs = [p for a in data["data"] for p in a["paragraphs"]]
    questions = [q for p in paragraphs for q in p["qas"]]
    assert len(paragraphs) >= 4 and len(questions) >= 12
    assert len({q["id"] for q in questions}) == len(questions)
    for paragraph in paragraphs:
        for question in paragraph["qas"]:
            assert question["is_impossible"] == (not question["answers"])
            for answer in question["answers"]:
                start = answer["answer_start"]
                end = start + len(answer["text"])
                assert paragraph["context"][start:end] == answer["text"]
    assert sum(q["is_impossible"] for q in questions) >= 3
    assert any("\u4e00" <= c <= "\u9fff" for c in paragraphs[-1]["context"])


@pytest.mark.parametrize(
    ("split", "count"), [("train", 64), ("dev", 16), ("test", 16)]
)
def test_ner_tags_are_sound(split, count):
    sentences = conll(split)
    assert len(sentences) == count
    allowed = {"O"} | {f"{p}-{t}" for p in "BI" for t in ("PER", "LOC", "ORG")}
    for sentence in sentences:
        previous = "O"
        for _, tag in sentence:
            assert tag in allowed
            if tag.startswith("I-"):
                assert previous[2:] == tag[2:]
            previous = tag


def test_ner_parts_share_no_entity_of_a_person():
    def people(split):
        return {w for s in conll(split) for w, tag in s if tag == "B-PER"}

    titles = {"Professor", "Doctor", "Minister", "Judge", "Queen"}
    assert not (people("train") & people("test")) - titles
    assert not (people("train") & people("dev")) - titles


def test_choices_have_a_label_except_in_the_test_part():
    places = collections.Counter()
    for split, count in (("train", 30), ("dev", 8), ("test", 8)):
        text = (SAMPLES / "choice" / f"{split}.jsonl").read_text("utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        assert len(rows) == count
        for row in rows:
            assert len(set(row["choices"])) == 4
            assert ("label" in row) == (split != "test")
            if split != "test":
                assert row["label"] in range(4)
                places[row["label"]] += 1
    assert min(places.values()) >= 6


def test_pairs_are_balanced_and_apart():
    train, dev = tsv("pairs/train.tsv"), tsv("pairs/dev.tsv")
    for rows, count in ((train, 80), (dev, 20)):
        labels = collections.Counter(row["label"] for row in rows)
        assert labels == {"similar": count // 2, "different": count // 2}
    assert not {r["text_a"] for r in train} & {r["text_a"] for r in dev}


def test_features_input_has_pairs_and_chinese():
    text = (SAMPLES / "features_input.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) == 8
    assert sum(" ||| " in line for line in lines) == 2
    assert any("\u4e00" <= c <= "\u9fff" for c in text)


@pytest.fixture(scope="module")
def classify():
    """The module samples/classify.py, which needs no TensorFlow to import."""
    spec = importlib.util.spec_from_file_location(
        "classify", SAMPLES / "classify.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_confusion_counts_and_picture(classify, tmp_path):
    names = ["a", "b"]
    counts = classify.confusion_counts(list("aabb"), list("abbb"), names)
    assert counts == [[1, 1], [0, 2]]
    path = tmp_path / "matrix.png"
    classify.draw_confusion_matrix(counts, names, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["matrix.png"]
    with pytest.raises(ValueError, match="'c' is not one of: a, b"):
        classify.confusion_counts(["c"], ["a"], names)


def test_read_rows_names_file_and_line(classify, tmp_path):
    assert classify.read_rows(SAMPLES / "support" / "test.tsv") == support(
        "test"
    )
    path = tmp_path / "rows.tsv"
    path.write_text("label\ttext_a\nx\tone\nx\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.tsv:3: 1 columns, but"):
        classify.read_rows(path)
    path.write_text("label\ttext\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.tsv:1: no column text_a"):
        classify.read_rows(path)


def test_label_names_come_from_the_export(classify, tmp_path):
    assert classify.label_names(tmp_path, 2) == ["class 0", "class 1"]
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "labels.txt").write_text("no\nyes\n")
    assert classify.label_names(tmp_path, 2) == ["no", "yes"]


def test_classify_refuses_in_one_sentence(tmp_path):
    command = [sys.executable, str(SAMPLES / "classify.py")]
    no_model = subprocess.run(
        [*command, f"--model={tmp_path}", "Hello."],
        capture_output=True,
        text=True,
    )
    assert no_model.returncode == 1
    assert "holds no saved_model.pb" in no_model.stderr
    assert len(no_model.stderr.strip().splitlines()) == 1
    short = tmp_path / "labels.txt"
    short.write_text("billing\n")
    rows = SAMPLES / "support" / "test.tsv"
    uneven = subprocess.run(
        [*command, "--model=x", f"--rows={rows}", f"--labels={short}"],
        capture_output=True,
        text=True,
    )
    assert uneven.returncode == 1
    assert "has 1 labels, but" in uneven.stderr
