"""run_ner.py: rows in, rows out, the cases its users met, its export."""

import json
import pathlib
import re

import numpy as np
import pytest
from classifier_runs import read_results, run_python
from conftest import GOLDEN, run_script, shared_data
from labelling_rows import TINY, columns, sentence, sentences
from script_runs import Script, task_maker
from toy_readers import write

import labelling_data
import run_ner


@pytest.fixture(scope="module")
def script():
    with Script("run_ner") as found:
        yield found


@pytest.fixture
def task_of(script):
    """Makes the task of some flags, with a tokenizer and no model."""
    with task_maker(run_ner.LabellingTask) as make:
        yield make


def tags_of(path, column=-1):
    """The tags of each sentence of a file of columns."""
    file = labelling_data.read_labelled_file(path, 0, column)
    return [sentence.tags for sentence in file.sentences]


# --------------------------------------------------- one model, looked at


def iobes(rows):
    return [
        (words, labelling_data.from_iob2(tags, "IOBES")) for words, tags in rows
    ]


@pytest.fixture(scope="module")
def trained(script, tmp_path_factory):
    """A CRF that learnt IOBES tags; test rows exceed the length limit."""
    top = tmp_path_factory.mktemp("ner")
    write(top / "data/train.txt", columns(iobes(sentences(320)), middle="X"))
    write(top / "data/dev.txt", columns(iobes(sentences(40, 1)), middle="X"))
    test = [*sentences(12, 2), sentence(7, 150), sentence(8, 3)]
    test.append((["is", "\u200b", "he"], ["O", "O", "B-PER"]))  # a lost word
    test.append((["\u200b"], ["O"]))
    text = columns(iobes(test), end="\r\n", middle="X")
    write(top / "data/test.txt", "\ufeff" + text)
    log = script(
        *TINY,
        f"--data_dir={top}/data",
        f"--output_dir={top}/out",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--do_export",
        "--use_crf",
        "--report",
        "--write_records",
        "--max_seq_length=24",
        "--num_train_epochs=4",
    )
    return top, test, log


def test_entities_are_learnt_and_scored_by_type(trained):
    results = read_results(trained[0] / "out/eval_results.txt")
    assert results["eval_f1"] > 0.9
    assert results["eval_accuracy"] > 0.9
    for kind in ("LOC", "PER"):
        for score in ("f1", "precision", "recall"):
            assert 0.8 < results[f"eval_{score}_{kind}"] <= 1
    assert results["global_step"] == 97
    tested = (trained[0] / "out/test_results.txt").read_text()
    assert "test_f1 = " in tested


def test_output_is_the_test_file_with_one_more_column(trained):
    """Marks, blank rows, line ends and words without pieces keep their
    place, whatever the length of a sentence."""
    top, test, _ = trained
    ours = (top / "out/test_predictions.txt").read_bytes().decode()
    given = (top / "data/test.txt").read_bytes().decode()
    rows, expected = ours.split("\r\n"), given.split("\r\n")
    assert len(rows) == len(expected)
    for row, before in zip(rows, expected, strict=True):
        if before.startswith(("\ufeff-DOCSTART-", "-DOCSTART-")) or not before:
            assert row == before
        else:
            assert row.startswith(before + "\t")
            assert re.fullmatch(r"O|[BIES]-(PER|LOC)", row.split("\t")[-1])
    found = tags_of(top / "out/test_predictions.txt")
    assert [len(tags) for tags in found] == [len(words) for words, _ in test]
    assert found[-1] == ["O"] and found[-2][1] == "O"
    long = labelling_data.from_iob2(test[12][1], "IOBES")
    right = np.mean([a == b for a, b in zip(found[12], long, strict=True)])
    assert right > 0.85


def test_crf_answers_hold_to_the_scheme(trained):
    follow = {"O": "OBS", "B": "IE", "I": "IE", "E": "OBS", "S": "OBS"}
    for tags in tags_of(trained[0] / "out/test_predictions.txt"):
        assert tags[0][0] in "OBS" and tags[-1][0] in "OES"
        for before, after in zip(tags, tags[1:], strict=False):
            assert after[0] in follow[before[0]]
            if after[0] in "IE":
                assert before[2:] == after[2:]


def test_directory_describes_the_model(trained):
    run = json.loads((trained[0] / "out/run.json").read_text())
    assert run["description"] == {
        "labels": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"],
        "scheme": "IOBES",
        "unit": "cjk",
        "use_crf": True,
    }
    assert (trained[0] / "out/train.tf_record").stat().st_size > 0


def test_checkpoint_names_the_transitions(trained):
    import checkpoints

    prefix = trained[0] / "out" / "model.ckpt-97"
    reader = checkpoints.CheckpointReader(str(prefix))
    assert reader.read("crf/transitions").shape == (5, 5)
    assert reader.read("output_weights").shape == (5, 32)
    assert np.abs(reader.read("crf/transitions")).max() > 0.3  # it learnt


def test_report_shows_types_and_the_worst_sentences(trained):
    page = (trained[0] / "out/report.html").read_text()
    for part in ("F1 by type", "Words by type", "share of right tags", "PER"):
        assert part in page


FRESH = """
import json, sys
from script_runs import Script, task_maker
import numpy as np
asked = json.load(open(sys.argv[1]))
with Script("run_ner") as script:
    script(*asked["flags"])
import tensorflow as tf
import tensorflow_text
calls = tf.saved_model.load(asked["model"]).signatures
def plain(outputs):
    return {
        name: np.vectorize(bytes.decode, otypes=[object])(value).tolist()
        if value.dtype == object else value.tolist()
        for name, value in ((n, v.numpy()) for n, v in outputs.items())
    }
told = plain(calls["serving_default"](text=tf.constant(asked["texts"])))
none = calls["serving_default"](text=tf.constant([], tf.string))
ids = tf.constant([asked["ids"]])
features = {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
feature = {
    name: tf.train.Feature(int64_list=tf.train.Int64List(value=value[0]))
    for name, value in features.items()
}
example = tf.train.Example(features=tf.train.Features(feature=feature))
examples = tf.constant([example.SerializeToString()])
json.dump({
    "texts": told,
    "none": {name: value.shape.as_list() for name, value in none.items()},
    "ids": plain(calls["ids"](**features)),
    "examples": plain(calls["examples"](examples=examples)),
}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def fresh(trained, tmp_path_factory):
    """What another process predicts, from the directory and the export."""
    top, test, _ = trained
    here = tmp_path_factory.mktemp("fresh")
    vocab = (GOLDEN / "tiny/vocab.txt").read_text().split("\n")
    first = [piece for piece in "[CLS] he was un ##w ##ed [SEP]".split()]
    asked = {
        "flags": [
            f"--output_dir={top}/out",
            f"--test_file={top}/data/test.txt",
            "--do_predict",
        ],
        "model": f"{top}/out/saved_model/1",
        "texts": [" ".join(words) for words, _ in test],
        "ids": [vocab.index(piece) for piece in first],
    }
    former = (top / "out/test_predictions.txt").read_bytes()
    write(here / "asked.json", json.dumps(asked))
    run_python(FRESH, here / "asked.json", here / "told.json")
    told = json.loads((here / "told.json").read_text())
    return former, (top / "out/test_predictions.txt").read_bytes(), told


def test_a_fresh_process_predicts_the_same(fresh):
    assert fresh[0] == fresh[1]


def test_export_tags_raw_sentences_as_the_script_does(trained, fresh):
    """Also the one of 150 words, in windows; lost words do not appear."""
    top, test, _ = trained
    found = tags_of(top / "out/test_predictions.txt")
    told = fresh[2]["texts"]
    for index, (words, _) in enumerate(test):
        text = " ".join(words)
        shown = [w for w, word in enumerate(words) if word != "\u200b"]
        for name, filler in (("words", ""), ("starts", -1), ("tags", "")):
            rest = told[name][index][len(shown) :]
            assert set(rest) <= {filler}
        names = told["words"][index][: len(shown)]
        assert names == [words[w] for w in shown]
        spans = zip(told["starts"][index], told["ends"][index], strict=True)
        spans = list(spans)[: len(shown)]
        assert [text[a:b] for a, b in spans] == names
        tags = told["tags"][index][: len(shown)]
        assert tags == [found[index][w] for w in shown]
    assert fresh[2]["none"] == {
        name: [0, 0] for name in ("words", "starts", "ends", "tags")
    }


def test_export_tags_ids_where_words_begin(fresh):
    expected = [["", "S-PER", "O", "O", "", "", ""]]  # he was un...
    (row,) = fresh[2]["ids"]["tags"]
    assert [bool(tag) for tag in row] == [bool(tag) for tag in expected[0]]
    assert row[1] == "S-PER" and row[2] == "O"
    assert fresh[2]["examples"] == fresh[2]["ids"]


def test_other_head_in_the_same_directory_is_refused(script, trained):
    with pytest.raises(ValueError, match="belongs to another run"):
        script(
            f"--output_dir={trained[0]}/out",
            f"--test_file={trained[0]}/data/test.txt",
            "--do_predict",
            "--nouse_crf",
        )


@pytest.mark.parametrize(
    "flag", ["--tag_scheme=BILOU", "--tag_scheme=plain", "--labels_file=FILE"]
)
def test_flags_that_contradict_the_model_are_refused(
    script, trained, tmp_path, flag
):
    path = write(tmp_path / "labels.txt", "O\nB-X\nI-X\n")
    with pytest.raises(ValueError, match="contradicts the trained model"):
        script(
            f"--output_dir={trained[0]}/out",
            f"--test_file={trained[0]}/data/test.txt",
            "--do_predict",
            flag.replace("FILE", str(path)),
        )


def test_accuracy_is_that_of_the_written_tags(task_of):
    """In IOB1 a wrong B- of IOB2 may be the very same tag."""
    task = task_of()
    task.scheme, task.labels = "IOB1", ["O", "B-X", "I-X"]
    words = ["a", "b", "c"]
    windows = [labelling_data.Window([0] * 5, [0, 1, 2], [1, 2, 3])]
    sentence = labelling_data.Sentence(
        words, ["B-X", "I-X", "O"], "f:1", [1, 2, 3]
    )
    found = np.array([[0, 0, 2, 0, 0]])  # O B-X O, written O I-X O
    scores = task.score(
        [run_ner.Example(sentence, windows)], {"tag_ids": found}, 1
    )
    assert scores["eval_accuracy"] == pytest.approx(2 / 3)


# --------------------------------------------------------- formats of files


def test_json_lines_come_back_with_a_field_more(script, tmp_path):
    rows = [
        {"id": number, "tokens": words, "ner_tags": tags}
        for number, (words, tags) in enumerate(sentences(20))
    ]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write(tmp_path / "train.jsonl", "".join(lines))
    write(tmp_path / "dev.jsonl", "".join(lines))
    bare = [{"tokens": row["tokens"], "id": row["id"]} for row in rows]
    write(tmp_path / "test.jsonl", "".join(json.dumps(r) + "\n" for r in bare))
    script(
        *TINY,
        f"--data_dir={tmp_path}",
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--max_seq_length=8",
        "--num_train_epochs=2",
    )
    found = (tmp_path / "out/test_predictions.jsonl").read_text().splitlines()
    assert len(found) == 20
    for line, row in zip(found, bare, strict=True):
        tags = json.loads(line).pop("predicted_tags")
        assert {k: json.loads(line)[k] for k in row} == row
        assert len(tags) == len(row["tokens"])
    assert not (tmp_path / "out/test_results.txt").exists()
    assert "eval_f1_PER" in read_results(tmp_path / "out/eval_results.txt")


def test_plain_tags_and_test_sets_without_tags(script, tmp_path):
    """Parts of speech from a column in the middle; accuracy only."""
    kinds = {".": "SYM", "he": "PRON"}
    rows = [
        (words, [kinds.get(word, "NOUN") for word in words])
        for words, _ in sentences(30)
    ]

    def text(tags):
        return "\n\n".join(
            "\n".join(
                f"{w} {t} x" if tags else w for w, t in zip(*row, strict=True)
            )
            for row in rows
        )

    write(tmp_path / "train.txt", text(True))
    write(tmp_path / "test.txt", text(False))
    script(
        *TINY,
        f"--data_dir={tmp_path}",
        f"--dev_file={tmp_path}/train.txt",
        f"--output_dir={tmp_path}/out",
        "--tag_column=1",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--report",
        "--max_seq_length=32",
        "--num_train_epochs=10",
    )
    results = read_results(tmp_path / "out/eval_results.txt")
    assert set(results) == {"eval_accuracy", "eval_loss", "global_step"}
    assert results["eval_accuracy"] > 0.8
    found = (tmp_path / "out/test_predictions.txt").read_text().split("\n")
    given = text(False).split("\n")
    assert [line.split(" ")[0] for line in found] == given
    assert {line.split(" ")[1] for line in found if line} <= {
        "NOUN",
        "SYM",
        "PRON",
    }
    assert "PRON" in (tmp_path / "out/report.html").read_text()


def test_chinese_with_a_character_on_each_line(task_of, tmp_path):
    text = "\u4e2d B-LOC\n\u56fd I-LOC\n2 O\n0 O\n\n\u4eba O\n"
    path = write(tmp_path / "train.txt", text)
    task = task_of(f"--train_file={path}")
    (first, second) = task.examples("train")[""]
    assert first.sentence.words == list("\u4e2d\u56fd20")
    assert task.describe()["unit"] == "character"
    assert second.windows[0].positions == [1]
    mixed = write(tmp_path / "mixed.txt", text.replace("\n0 O", "\n14 O"))
    task = task_of(f"--train_file={mixed}")
    task.examples("train")
    assert task.describe()["unit"] == "cjk"
    words = write(tmp_path / "words.txt", "\u4e2d\u56fd B-LOC\n\u4eba O\n")
    task = task_of(f"--train_file={words}")
    task.examples("train")
    assert task.describe()["unit"] == "word"


REAL = {
    "CoNLL-2003/eng.testa": ("IOB1", 9),
    "CoNLL-2000/train.txt": ("IOB2", None),
    "WNUT-17/emerging.dev.conll": ("IOB2", 13),
    "peopledaily/dev.txt": ("IOB2", 7),
    "MSRA-NER/msra_test_bio.txt": ("IOB2", 7),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_lose_no_row(name, task_of, tmp_path):
    """Every word gets its own tag back from perfect answers, in windows of
    32, and the file comes out with a column more on each row of words."""
    path = shared_data(name)
    scheme, labels = REAL[name]
    task = task_of(f"--dev_file={path}", "--max_seq_length=32", pieces=3)
    examples = task.examples("eval")[""]
    assert task.scheme == scheme
    assert labels in (None, len(task.labels))
    rows, owners = task.featurize_all(examples, "eval")
    outputs = {
        "tag_ids": [np.array(row["label_ids"]) for row in rows],
        "row_losses": np.zeros(len(rows)),
        "example": np.array(owners),
    }
    scores = task.score(examples, outputs, 8)
    lost = sum(
        len(e.sentence.words) - sum(len(w.words) for w in e.windows)
        for e in examples
    )
    assert scores["eval_f1"] == 1 and lost == 0
    task.files["predict"] = task.files["eval"]
    (written, _) = task.write(examples, outputs, tmp_path, "")
    given = path.read_text(encoding="utf-8").split("\n")
    ours = pathlib.Path(written).read_text(encoding="utf-8").split("\n")
    assert len(ours) == len(given)
    for before, after in zip(given, ours, strict=True):
        if not before.strip() or before.startswith("-DOCSTART-"):
            assert after == before
        else:
            assert after.startswith(before.rstrip())
            tag, gold = after.split()[-1], before.split()[-1]
            assert tag[2:] == gold[2:]  # I- that begins an entity: now B-
            assert tag == gold or scheme == "IOB1" or tag[0] == "B"


# ------------------------------------------------- cases that users met


def hand_made(task, words, tags, kind="train", length=50):
    """The example of one sentence."""
    sentence = labelling_data.Sentence(words, tags, "x:1", [1] * len(words))
    task.labels = ["O", "B-PER", "I-PER", "B-MISC", "I-MISC"]
    task.scheme = "IOB2"
    return task._example(sentence)


def test_labels_stand_at_first_pieces(task_of):
    """Jim Hen ##son was a puppet ##eer: pieces 1 2 4 5 6, 5 tags."""
    task = task_of("--max_seq_length=50", pieces=6)
    task.tokenizer = Pieces({"Henson": 2, "puppeteer": 2})
    words = "Jim Henson was a puppeteer".split()
    example = hand_made(task, words, "B-PER I-PER O O O".split())
    (row,) = task.featurize(example)
    assert np.flatnonzero(row["label_mask"]).tolist() == [1, 2, 4, 5, 6]
    assert row["label_ids"] == [0, 1, 2, 0, 0, 0, 0, 0, 0]
    answers = {"tag_ids": [np.array([4, 1, 2, 4, 0, 0, 0, 4, 4])]}
    assert task.tags([example], answers) == [["B-PER", "I-PER", *"OOO"]]


class Pieces:
    """A tokenizer that cuts some words into so many pieces, without ##."""

    def __init__(self, counts):
        self.counts = counts

    def encode(self, word):
        return [9] * self.counts.get(word, 1)

    def convert_tokens_to_ids(self, tokens):
        return list(range(1, len(tokens) + 1))


def test_words_are_told_apart_without_marks_on_pieces(task_of):
    """2013-10-23 is five pieces, none with ##, and one word."""
    task = task_of("--max_seq_length=50")
    task.tokenizer = Pieces({"2013-10-23": 5, "a.m.": 4})
    example = hand_made(task, ["on", "2013-10-23", "a.m."], ["O"] * 3)
    (row,) = task.featurize(example)
    assert np.flatnonzero(row["label_mask"]).tolist() == [1, 2, 7]
    tags = [0, 3, 1, *[4] * 4, 0, *[2] * 4]
    assert task.tags([example], {"tag_ids": [np.array(tags)]}) == [
        ["B-MISC", "B-PER", "O"]
    ]


def test_a_tag_on_a_later_piece_is_not_the_words(task_of):
    """El ##astic ##sea ##rch tagged O O I-MISC O is O."""
    task = task_of("--max_seq_length=50")
    task.tokenizer = Pieces({"Elasticsearch": 4})
    example = hand_made(task, ["Elasticsearch", "is"], ["B-MISC", "O"])
    found = {"tag_ids": [np.array([0, 0, 0, 4, 0, 0, 0])]}
    assert task.tags([example], found) == [["O", "O"]]
    found = {"tag_ids": [np.array([0, 4, 0, 0, 0, 1, 0])]}  # I- begins one
    assert task.tags([example], found) == [["B-MISC", "B-PER"]]


@pytest.mark.parametrize("crf", [False, True])
def test_long_sentences_keep_all_their_words(task_of, crf):
    """400 words at length 128; an entity may lie across two windows."""
    task = task_of("--max_seq_length=128", *["--use_crf"] * crf)
    tags = ["B-PER"] + ["I-PER"] * 399
    example = hand_made(task, [f"w{i}" for i in range(400)], tags)
    rows = task.featurize(example)
    assert [row["continues"] for row in rows] == [0, 1, 1, 1]
    assert sum(sum(row["label_mask"]) for row in rows) == 400
    answers = {"tag_ids": [np.array(row["label_ids"]) for row in rows]}
    assert task.tags([example], answers) == [tags]


def test_lost_words_leave_valid_tags_to_learn(task_of):
    """The first word of the entity has no piece: its second begins it."""
    task = task_of("--max_seq_length=50")
    task.tokenizer = Pieces({"\u200b": 0, "\u200c": 0})
    words = ["a", "\u200b", "b", "\u200c"]
    example = hand_made(task, words, ["O", "B-PER", "I-PER", "O"])
    (row,) = task.featurize(example)
    assert row["label_ids"] == [0, 0, 1, 0]
    answers = {"tag_ids": [np.array([0, 0, 1, 0])]}
    assert task.tags([example], answers) == [["O", "O", "B-PER", "O"]]
    empty = hand_made(task, ["\u200b"], ["O"])
    assert task.featurize(empty) == []
    assert task.tags([empty], {}) == [["O"]]


@pytest.mark.slow
def test_padding_is_no_word_of_class_0(script, tmp_path):
    """Class 0 is B-prov; scores are the same at length 8 and 50."""
    rows = [
        (words, [t.replace("PER", "prov") for t in tags])
        for words, tags in sentences(24, longest=3)
    ]
    path = write(tmp_path / "train.txt", columns(rows))
    labels = write(tmp_path / "labels.txt", "B-prov\nO\nB-LOC\n")
    flags = [f"--dev_file={path}", f"--output_dir={tmp_path}/out", "--do_eval"]
    script(
        *TINY,
        *flags,
        f"--train_file={path}",
        f"--labels_file={labels}",
        "--do_train",
        "--max_seq_length=16",
        "--num_train_epochs=2",
    )
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert run["description"]["labels"] == [
        "B-prov",
        "I-prov",
        "O",
        "B-LOC",
        "I-LOC",
    ]
    results = []
    for length in (16, 50):
        script(*flags, f"--max_seq_length={length}", "--eval_batch_size=5")
        results.append(read_results(tmp_path / "out/eval_results.txt"))
    assert results[0].keys() == results[1].keys()
    for key, value in results[0].items():
        assert results[1][key] == pytest.approx(value, abs=1e-6), key


def test_misspelt_tags_are_refused_where_they_stand(task_of, tmp_path):
    text = "the O\nphone B-GOODS\n\na O\nb B_GOODS\n"
    path = write(tmp_path / "train.txt", text)
    with pytest.raises(ValueError, match=r"train.txt:5: tag 'B_GOODS'"):
        task_of(f"--train_file={path}").examples("train")
    text = "he O\nis B-LOC\n"
    dev = write(tmp_path / "dev.txt", text)
    fine = write(tmp_path / "fine.txt", "the O\nphone B-GOODS\n")
    task = task_of(f"--train_file={fine}", f"--dev_file={dev}")
    task.examples("train")
    with pytest.raises(ValueError, match=r"dev.txt:2: tag 'B-LOC' is not one"):
        task.examples("eval")


@pytest.mark.parametrize("text", ["he O\nis B-LOC\n", "he O\nis B_PER\n"])
def test_unknown_tags_of_a_test_set_are_left_alone(task_of, tmp_path, text):
    fine = write(tmp_path / "fine.txt", "the O\nphone B-GOODS\n")
    test = write(tmp_path / "test.txt", text)
    task = task_of(f"--train_file={fine}", f"--test_file={test}")
    task.examples("train")
    (example,) = task.examples("predict")[""]
    assert example.sentence.tags is None
    assert len(task.featurize(example)) == 1


@pytest.mark.parametrize("count", [2, 4])
def test_marks_between_documents_and_columns(task_of, tmp_path, count):
    row = {2: "{} {}", 4: "{} NNP I-NP {}"}[count]
    words = [("-DOCSTART-", "O"), None, ("EU", "I-ORG"), ("calls", "O")]
    lines = [row.format(*pair) if pair else "" for pair in words]
    path = write(tmp_path / "train.txt", "\n".join(lines))
    task = task_of(f"--train_file={path}")
    (example,) = task.examples("train")[""]
    assert example.sentence.words == ["EU", "calls"]
    assert task.labels == ["O", "B-ORG", "I-ORG"]


@pytest.mark.slow
def test_patience_counts_evaluations_and_the_best_is_kept(script, tmp_path):
    """Nothing improves, so the second evaluation of seven is the last."""
    path = write(tmp_path / "train.txt", columns(sentences(32)))
    log = script(
        *TINY,
        "--learning_rate=1e-12",
        f"--train_file={path}",
        f"--dev_file={path}",
        f"--test_file={path}",
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--max_seq_length=16",
        "--num_train_epochs=5",
        "--eval_steps=2",
        "--early_stopping_patience=1",
    )
    results = read_results(tmp_path / "out/eval_results.txt")
    assert results["global_step"] == 2
    assert "steps 15" in log
    assert (tmp_path / "out/best").is_dir()


@pytest.mark.slow
def test_an_interrupted_run_ends_as_the_unbroken_one(
    script, tmp_path, monkeypatch
):
    import finetuning

    path = write(tmp_path / "train.txt", columns(sentences(32)))

    def run(name):
        return script(
            *TINY,
            f"--train_file={path}",
            f"--dev_file={path}",
            f"--output_dir={tmp_path}/{name}",
            "--do_train",
            "--do_eval",
            "--use_crf",
            "--max_seq_length=16",
            "--num_train_epochs=3",
            "--save_checkpoints_steps=2",
            "--eval_steps=4",
        )

    def stop(_):
        raise KeyboardInterrupt

    run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Voyage, "_dev_scores", stop)
        with pytest.raises(KeyboardInterrupt):
            run("broken")
    assert not (tmp_path / "broken/eval_results.txt").exists()
    log = run("broken")
    assert re.search(r"Resuming .* at step [24]\.", log)
    assert read_results(tmp_path / "broken/eval_results.txt") == read_results(
        tmp_path / "whole/eval_results.txt"
    )


# ------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--max_seq_length=2"], "--max_seq_length=2 is too small"),
        (["--doc_stride=40", "--max_seq_length=32"], "--doc_stride=40"),
        (["--use_crf", "--label_smoothing=.1"], "--label_smoothing does not"),
    ],
)
def test_flags_that_cannot_work_are_refused(task_of, flags, told):
    with pytest.raises(ValueError, match=told):
        task_of(*flags).check()


def test_report_without_any_entity(task_of):
    task = task_of()
    task.scheme, task.labels = "IOB2", ["O", "B-X", "I-X"]
    windows = [labelling_data.Window([0] * 4, [0, 1], [1, 2])]
    sentence = labelling_data.Sentence(["a", "b"], ["O", "O"], "f:1", [1, 2])
    outputs = {
        "tag_ids": np.zeros([1, 4], int),
        "example": np.array([0]),
        "tokens": np.array([4]),
    }
    parts = task.report([run_ner.Example(sentence, windows)], outputs)
    assert not any("F1 by type" in part for part in parts)


@pytest.mark.parametrize(
    ("script_name", "wrong", "right"),
    [
        ("run_ner.py", "f1", "eval_f1_*"),
        ("run_squad.py", "eval_loss", "eval_HasAns_f1"),
        ("run_multiple_choice.py", "eval_f1", "eval_accuracy"),
        ("run_classifier.py", "accuracy", "eval_accuracy"),
    ],
)
def test_a_wrong_best_metric_is_refused_at_once(
    script_name, wrong, right, tmp_path
):
    task = ["--task_name=cola"] if script_name == "run_classifier.py" else []
    file = write(tmp_path / "rows", "")
    dev = "predict_file" if script_name == "run_squad.py" else "dev_file"
    files = [f"--train_file={file}", f"--{dev}={file}"]
    result = run_script(
        script_name,
        *TINY,
        *task,
        *files,
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--do_eval",
        f"--best_metric={wrong}",
        check=False,
    )
    assert result.returncode == 1
    assert f"--best_metric={wrong} is not one of" in result.stderr
    assert right in result.stderr


def test_missing_files_are_named(task_of, tmp_path):
    with pytest.raises(ValueError, match="--train_file"):
        task_of().examples("train")
    with pytest.raises(ValueError, match="is no directory"):
        task_of("--data_dir=nowhere").examples("train")
    with pytest.raises(ValueError, match="has no dev.txt"):
        task_of(f"--data_dir={tmp_path}").examples("eval")
    path = write(tmp_path / "test.txt", "he\n")
    with pytest.raises(ValueError, match="tags are not known"):
        task_of(f"--test_file={path}").examples("predict")


def test_script_ends_with_one_sentence(tmp_path):
    path = write(tmp_path / "train.txt", "he O\n")
    result = run_script(
        "run_ner.py",
        *TINY,
        f"--train_file={path}",
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--max_seq_length=2",
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.strip().endswith("Raise the flag.")
    assert not (tmp_path / "out").exists()
