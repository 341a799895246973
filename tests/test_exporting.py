"""Exports answer in a fresh process what the script predicts."""

import json
import random
import shutil

import numpy as np
import pytest
from classifier_runs import (
    TINY,
    read_table,
    run_python,
    succeed,
    text,
    write_rows,
    write_set,
)
from conftest import GOLDEN

import processors
import tokenization

# Knows nothing of this project, as a server does.
READER = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text

def plain(outputs):
    return {
        name: [v.decode() for v in value.numpy()]
        if value.dtype == tf.string else value.numpy().tolist()
        for name, value in outputs.items()
    }

def example(ids, segments):
    def feature(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature={
        "input_ids": feature(ids), "segment_ids": feature(segments),
        "input_mask": feature([1] * len(ids)),
    })).SerializeToString()

asked = json.load(open(sys.argv[1]))
told = {}
for name, case in asked.items():
    loaded = tf.saved_model.load(case["path"])
    call = loaded.signatures
    answer = told[name] = {}
    texts = {key: tf.constant(v) for key, v in case["texts"].items()}
    answer["all"] = plain(call["serving_default"](**texts))
    one = {key: value[3:4] for key, value in texts.items()}
    answer["one"] = plain(call["serving_default"](**one))
    none = {key: value[:0] for key, value in texts.items()}
    answer["none"] = {
        key: value.shape.as_list()
        for key, value in call["serving_default"](**none).items()
    }
    long = {key: tf.constant([case["long"]]) for key in texts}
    answer["long"] = plain(call["serving_default"](**long))
    width = max(map(len, case["ids"]))
    def pad(rows):
        return tf.constant([r + [0] * (width - len(r)) for r in rows])
    answer["ids"] = plain(call["ids"](
        input_ids=pad(case["ids"]), segment_ids=pad(case["segments"]),
        input_mask=pad([[1] * len(row) for row in case["ids"]]),
    ))
    records = [example(*r) for r in zip(case["ids"], case["segments"])]
    answer["examples"] = plain(call["examples"](examples=tf.constant(records)))
    answer["no examples"] = {
        key: value.shape.as_list() for key, value in
        call["examples"](examples=tf.constant([], tf.string)).items()
    }
    wide = tf.ones([1, 65], tf.int32)
    try:
        call["ids"](input_ids=wide, input_mask=wide, segment_ids=wide * 0)
        answer["wide"] = ""
    except tf.errors.InvalidArgumentError as error:
        answer["wide"] = str(error)
    uneven = {key: v[i:] for i, (key, v) in enumerate(texts.items())}
    try:
        call["serving_default"](**uneven)
        answer["uneven"] = ""
    except tf.errors.InvalidArgumentError as error:
        answer["uneven"] = str(error)
    answer["signatures"] = sorted(call)
json.dump(told, open(sys.argv[2], "w"))
"""
LONG = {
    "windows": ["--long_text=windows", "--doc_stride=2"],
    "both": ["--long_text=head_tail"],
}


def kinds(top):
    """{name: (data directory, flags)}."""
    three = write_set(top / "three", ("x", "y z", "中"))
    found = {
        "three": (three, ["--pooling=mean"]),
        "pair": (write_set(top / "pair", pair=True), []),
        "numbers": (
            write_set(top / "n", ("-3.5", "0", "12")),
            ["--regression"],
        ),
        "many": (
            write_set(top / "many", ("x,y", "", "z", "x")),
            ["--multi_label", "--threshold=tuned"],
        ),
    }
    for name, flags in LONG.items():
        found[name] = (three, [*flags, "--max_seq_length=7"])
    return found


def write_texts(directory, pair):
    """A test set with odd texts; gives its columns."""
    odd = [
        "",
        "   ",
        "Ünwanted, ABLE!",
        "e\u0301 中国",
        "\u2028\u200b the",
        "want",
    ]
    rows = [text(number, 30) for number in range(9)] + odd
    columns = {"text_a": rows}
    if pair:
        columns["text_b"] = rows[::-1]
    # A number for each row: a blank line would be no row.
    table = {"id": range(len(rows)), **columns}
    table = [list(table), *zip(*table.values(), strict=True)]
    write_rows(directory / "test.tsv", table)
    return columns if pair else {"text": rows}


def encoded(columns, length):
    """Ids and segments of the test rows as the Python tokenizer gives them."""
    tokenizer = tokenization.FullTokenizer(GOLDEN / "tiny" / "vocab.txt")
    texts = list(columns.values())
    second = texts[1] if len(texts) > 1 else [None] * len(texts[0])
    pairs = zip(texts[0], second, strict=True)
    return zip(
        *(processors.encode_pair(tokenizer, a, b, length) for a, b in pairs),
        strict=True,
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Per kind of task: what do_predict and the export said."""
    top = tmp_path_factory.mktemp("exports")
    train, export, asked = [], [], {}
    for name, (data, flags) in kinds(top).items():
        output_dir = top / "out" / name
        columns = write_texts(data, name == "pair")
        same = ["--task_name=tsv", f"--output_dir={output_dir}"]
        phases = ["--do_train", "--do_eval", "--do_predict"]
        rates = ["--num_train_epochs=1", "--learning_rate=0.01"]
        train.append(
            [*TINY, *same, *phases, *rates, f"--data_dir={data}", *flags]
        )
        export.append([*same, "--do_export"])
        ids, segments = encoded(columns, 16)
        asked[name] = {
            "path": str(top / "moved" / name),
            "texts": columns,
            "long": "the want of unable ! " * 3000,
            "ids": ids,
            "segments": segments,
        }
    succeed([*train, *export], top)
    for name in asked:
        saved = top / "out" / name / "saved_model" / "1"
        shutil.move(saved, top / "moved" / name)
        (top / "out" / name / "vocab.txt").unlink()
    (top / "asked.json").write_text(json.dumps(asked))
    run_python(READER, top / "asked.json", top / "told.json")
    told = json.loads((top / "told.json").read_text())
    return top, asked, told


NAMES = ["three", "pair", "numbers", "many", *LONG]


def predicted(top, name):
    return np.array(read_table(top / "out" / name / "test_results.tsv"))


def numbers(answer):
    rows = answer.get("probabilities") or answer.get("score")
    return np.array(rows).reshape(len(rows), -1)


@pytest.mark.parametrize("name", NAMES)
def test_strings_give_the_predictions(name, answers):
    top, asked, told = answers
    rows = predicted(top, name)
    assert len(rows) == 15
    assert np.abs(rows - rows[0]).max() > 1e-4  # the model tells texts apart
    np.testing.assert_allclose(numbers(told[name]["all"]), rows, atol=1e-5)
    np.testing.assert_allclose(numbers(told[name]["one"]), rows[3:4], atol=1e-5)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "numbers"])
def test_label_by_name(name, answers):
    top, _, told = answers
    named = (top / "out" / name / "test_labels.tsv").read_text().split("\n")
    assert told[name]["all"]["label"] == named[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_and_long_rows(name, answers):
    _, _, told = answers
    shapes = told[name]["none"]
    if name == "numbers":
        assert shapes == {"score": [0]}
    else:
        count = 2 if name == "pair" else 3
        assert shapes == {"probabilities": [0, count], "label": [0]}
    assert told[name]["no examples"] == shapes
    assert np.isfinite(numbers(told[name]["long"])).all()


@pytest.mark.parametrize("name", ["three", "pair", "numbers", "many"])
@pytest.mark.parametrize("signature", ["ids", "examples"])
def test_numbers_give_the_predictions(name, signature, answers):
    top, _, told = answers
    np.testing.assert_allclose(
        numbers(told[name][signature]), predicted(top, name), atol=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_ids_beyond_the_positions_are_refused(name, answers):
    told = answers[2][name]
    assert "max_position_embeddings" in told["wide"]
    assert told["signatures"] == ["examples", "ids", "serving_default"]


def test_pairs_of_uneven_columns_are_refused(answers):
    said = answers[2]["pair"]["uneven"]
    assert "text_a and text_b must have as many rows, not: 15 14" in " ".join(
        said.replace("[", " ").replace("]", " ").split()
    )


def test_operations_and_labels_lie_beside_the_model(answers):
    top = answers[0]
    extras = top / "moved" / "three" / "assets.extra"
    operations = (extras / "ops.txt").read_text().split()
    assert operations == sorted(set(operations))
    assert "MatMul" in operations
    assert any(name.startswith("FastWordpiece") for name in operations)
    assert not any("PyFunc" in name for name in operations)
    labels = (extras / "labels.txt").read_text(encoding="utf-8")
    assert labels.splitlines() == ["x", "y z", "中"]
    assert not (
        top / "moved" / "numbers" / "assets.extra" / "labels.txt"
    ).exists()


@pytest.mark.parametrize("long_text", processors.LONG_TEXTS)
@pytest.mark.parametrize("stride", [None, 1, 4])
def test_long_text_rows_equal_the_parts_of_python(long_text, stride):
    import tensorflow as tf

    import exporting

    chance = random.Random(7)
    sizes = [
        0,
        1,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        13,
        25,
        *chance.choices(range(99), k=20),
    ]
    rows = [[chance.randrange(1000) for _ in range(size)] for size in sizes]
    expected = [
        (part, owner)
        for owner, row in enumerate(rows)
        for part in processors.long_text_parts(row, 6, long_text, stride)
    ]
    for dtype in (tf.int32, tf.int64):
        ragged = tf.ragged.constant(rows, tf.int32, row_splits_dtype=dtype)
        parts, owners = exporting.long_text_rows(ragged, 6, long_text, stride)
        found = zip(parts.to_list(), owners.numpy().tolist(), strict=True)
        assert list(found) == expected
    parts, owners = exporting.long_text_rows(ragged[:0], 6, long_text, stride)
    assert parts.to_list() == [] and owners.shape == [0]


@pytest.mark.parametrize("rows", [0, 1, 5, 8])
def test_windows_are_read_in_parts(rows):
    import tensorflow as tf

    import exporting

    sizes = []

    def call(features):
        tf.py_function(lambda ids: sizes.append(len(ids)), [features["x"]], [])
        return {"sums": tf.reduce_sum(features["input_ids"], 1, keepdims=True)}

    ids = tf.reshape(tf.range(rows * 3), [rows, 3])
    read = exporting.in_parts(call, "sums", tf.int32, [None, 1], tokens=9)
    found = tf.function(read)({"input_ids": ids, "x": ids})["sums"]
    assert found.numpy().tolist() == [[9 * row + 3] for row in range(rows)]
    assert sum(sizes) == rows and max(sizes, default=0) <= 3


def test_an_older_export_is_replaced_whole(tmp_path, monkeypatch):
    import tensorflow as tf

    import exporting

    class Broken:
        group = 1

    target = tmp_path / "saved_model" / "1"
    target.mkdir(parents=True)
    (target / "saved_model.pb").write_text("old")

    def fail(*_):
        raise ValueError("no space left")

    class Stub(tf.Module):
        def __init__(self, *_):
            super().__init__()

        texts = ids = examples = lambda self, *_: None

    monkeypatch.setattr(exporting, "ServingModel", Stub)
    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(ValueError, match="no space left"):
        exporting.export(
            str(target), None, Broken(), GOLDEN / "tiny" / "vocab.txt", True
        )
    assert [path.name for path in target.parent.iterdir()] == ["1"]
    assert (target / "saved_model.pb").read_text() == "old"
