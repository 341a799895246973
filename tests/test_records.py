"""Tests of records.py: bytes, checksums, damage, names."""

import gzip
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import records
from records import Feature, FeatureSpec, RecordWriter, read_records

SPEC = FeatureSpec(
    [
        Feature("input_ids", "int64", 4, True),
        Feature("label_ids"),
        Feature("weights", "float32", 2),
        Feature("score", "float32"),
    ]
)
ROW = {"input_ids": [101, 30000, 5], "label_ids": 1, "weights": [0.5]}
ROW["score"] = -2.25


def test_encode_pads_and_decode_gives_the_values_back():
    back = SPEC.decode(SPEC.encode(ROW))
    assert back["input_ids"].tolist() == [101, 30000, 5, 0]
    assert back["input_ids"].dtype == np.int64
    assert back["label_ids"] == 1 and back["label_ids"].shape == ()
    assert back["weights"].tolist() == [0.5, 0.0]
    assert back["weights"].dtype == np.float32
    assert back["score"] == -2.25
    assert list(back) == SPEC.names


@pytest.mark.parametrize(
    "values",
    [
        [0, 127, 128, 16383, 16384, 2097151, 2097152],
        [1 << 40, (1 << 63) - 1, -1, -(1 << 63)],
        [],
        [0] * 300,
        list(range(300)),
    ],
)
def test_integers_of_every_size_survive(values):
    spec = FeatureSpec([Feature("x", "int64", len(values))])
    assert spec.decode(spec.encode({"x": values}))["x"].tolist() == values
    assert (
        spec.decode(spec.encode({"x": np.array(values, np.int64)}))[
            "x"
        ].tolist()
        == values
    )


def test_bytes_stand_for_small_integers():
    spec = FeatureSpec([Feature("x", "int64", 5)])
    assert spec.encode({"x": b"\1\1\0"}) == spec.encode({"x": [1, 1, 0]})
    with pytest.raises(ValueError, match="'x' is given as bytes"):
        spec.encode({"x": b"\x80"})


def test_tensorflow_reads_the_same_bytes():
    tf = pytest.importorskip("tensorflow")
    example = tf.train.Example.FromString(SPEC.encode(ROW))
    feature = example.features.feature
    assert list(feature["input_ids"].int64_list.value) == [101, 30000, 5, 0]
    assert list(feature["label_ids"].int64_list.value) == [1]
    assert list(feature["weights"].float_list.value) == [0.5, 0.0]
    assert list(feature["score"].float_list.value) == [-2.25]
    again = SPEC.decode(example.SerializeToString())
    assert again["input_ids"].tolist() == [101, 30000, 5, 0]


def test_unpacked_lists_are_read_too():
    def tagged(field, payload):
        return bytes([field << 3 | 2, len(payload)]) + payload

    integers = tagged(3, b"\x08\x07" + b"\x08\xac\x02")  # 7, then 300
    floats = tagged(2, b"\x0d\x00\x00\x80\x3f")  # 1.0
    record = tagged(
        1,
        tagged(1, tagged(1, b"x") + tagged(2, integers))
        + tagged(1, tagged(1, b"y") + tagged(2, floats)),
    )
    spec = FeatureSpec([Feature("x", "int64", 2), Feature("y", "float32", 1)])
    back = spec.decode(record)
    assert back["x"].tolist() == [7, 300] and back["y"].tolist() == [1.0]


def test_encode_names_the_feature_and_both_numbers():
    with pytest.raises(ValueError, match="'input_ids' has 5 values.*holds 4"):
        SPEC.encode(dict(ROW, input_ids=[1, 2, 3, 4, 5]))
    with pytest.raises(ValueError, match="'score' has no value"):
        SPEC.encode({k: v for k, v in ROW.items() if k != "score"})
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        SPEC.encode(dict(ROW, label_ids=1 << 63))


def test_decode_names_the_feature_and_both_numbers():
    record = records.pretraining_spec(8, 20).encode(
        dict.fromkeys(records.pretraining_spec(8, 20).names, [])
    )
    with pytest.raises(ValueError) as error:
        records.pretraining_spec(8, 76).decode(record)
    assert "'masked_lm_positions' holds 20" in str(error.value)
    assert "76 are wanted" in str(error.value)
    other = FeatureSpec([Feature("input_ids", "float32", 8)])
    with pytest.raises(ValueError, match="holds int64 values; float32"):
        other.decode(record)
    with pytest.raises(ValueError, match="no feature 'unique_ids'"):
        FeatureSpec([Feature("unique_ids")]).decode(record)
    with pytest.raises(ValueError, match="not a tf.train.Example"):
        SPEC.decode(b"\x0a\xff\xff")


def test_specification_refuses_nonsense():
    with pytest.raises(ValueError, match="'x' is given twice"):
        FeatureSpec([Feature("x"), Feature("x")])
    with pytest.raises(ValueError, match="dtype 'string'"):
        FeatureSpec([Feature("x", "string")])


def test_specification_is_a_collection():
    spec = records.pretraining_spec(128, 20)
    assert len(spec) == 7 and "input_ids" in spec and "x" not in spec
    assert [feature.name for feature in spec] == spec.names
    assert spec["input_ids"].sequence and spec["segment_ids"].length == 128
    assert spec["masked_lm_weights"].dtype == "float32"
    assert spec == records.pretraining_spec(128, 20)
    assert spec != records.pretraining_spec(128, 21)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_writer_and_reader_agree(tmp_path, name):
    rows = [b"", b"one", bytes(range(256)) * 300]
    with RecordWriter(tmp_path / name) as writer:
        for row in rows:
            writer.write(row)
        assert os.listdir(tmp_path) != [name]
    assert os.listdir(tmp_path) == [name]
    assert list(read_records(tmp_path / name)) == rows
    first = (tmp_path / name).read_bytes()
    with RecordWriter(tmp_path / name) as writer:
        for row in rows:
            writer.write_framed(records.frame(row))
    assert (tmp_path / name).read_bytes() == first


def test_tensorflow_reads_the_files(tmp_path):
    tf = pytest.importorskip("tensorflow")
    rows = [SPEC.encode(ROW), b"x" * 1000]
    for name, kind in [("a", ""), ("a.gz", "GZIP")]:
        with RecordWriter(tmp_path / name) as writer:
            for row in rows:
                writer.write(row)
        files = tf.data.TFRecordDataset(str(tmp_path / name), kind)
        assert [x.numpy() for x in files] == rows
        with tf.io.TFRecordWriter(str(tmp_path / ("t" + name)), kind) as writer:
            for row in rows:
                writer.write(row)
        assert list(read_records(tmp_path / ("t" + name))) == rows


def test_an_exception_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        with RecordWriter(path) as writer:
            writer.write(b"new")
            raise KeyError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [path.name]


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path):
    code = (
        "import os, signal, records\n"
        f"w = records.RecordWriter({str(tmp_path / 'a.tfrecord')!r})\n"
        "w.write(b'x' * 3000000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "a.tfrecord").exists()


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize("lost", [10, 3, 60])
def test_a_cut_file_is_named(tmp_path, name, lost):
    path = tmp_path / name
    with RecordWriter(path) as writer:
        writer.write(os.urandom(50))
        writer.write(os.urandom(50))
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(ValueError, match=rf"{name}: record \d is damaged"):
        list(read_records(path))


def test_a_changed_byte_is_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    with RecordWriter(path) as writer:
        for row in [b"first", b"second", b"third"]:
            writer.write(row)
    good = path.read_bytes()
    for place, words in [(21 + 13, "its checksum"), (21, "of its length")]:
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bytes(bad))
        rows = read_records(path)
        assert next(rows) == b"first"
        with pytest.raises(ValueError, match=f"record 2 is damaged.*{words}"):
            next(rows)
    (tmp_path / "b.gz").write_bytes(b"plain")
    with pytest.raises(ValueError, match="b.gz: is no gzip file"):
        list(read_records(tmp_path / "b.gz"))


def test_compressed_bytes_do_not_depend_on_time_or_name(tmp_path):
    for name in ["a.gz", "bb.gz"]:
        with RecordWriter(tmp_path / name) as writer:
            writer.write(b"row")
    first = (tmp_path / "a.gz").read_bytes()
    assert first == (tmp_path / "bb.gz").read_bytes()
    assert gzip.decompress(first) == records.frame(b"row")


def test_patterns(tmp_path):
    for name in ["b.txt", "a.txt", "c[1].txt", "d.md"]:
        (tmp_path / name).write_text("x")
    (tmp_path / "e.txt").mkdir()
    base = str(tmp_path)
    found = records.expand_patterns(f"{base}/*.txt, {base}/a.txt")
    assert [os.path.basename(x) for x in found] == [
        "a.txt",
        "b.txt",
        "c[1].txt",
    ]
    found = records.expand_patterns(f"{base}/b.txt,{base}/*.txt")
    assert [os.path.basename(x) for x in found] == [
        "b.txt",
        "a.txt",
        "c[1].txt",
    ]
    assert records.expand_patterns([f"{base}/c[1].txt"])
    with pytest.raises(ValueError, match=r"/\*\.zip' matches no file"):
        records.expand_patterns([f"{base}/*.txt", f"{base}/*.zip"])
    with pytest.raises(ValueError, match="no input file"):
        records.expand_patterns("")


def test_records_is_free_of_tensorflow():
    code = "import sys, records; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
