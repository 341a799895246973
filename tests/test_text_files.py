"""Tests of text_files.py and of what the writers and readers share."""

import contextlib
import errno
import gzip
import os

import numpy as np
import pytest
from script_runs import Script
from toy_readers import read, write

import common_flags
import feature_vectors
import pretraining_data
import records
import squad_answers
import squad_data
import text_files


def write_records(path):
    with records.RecordWriter(path) as writer:
        writer.write(b"row")


WRITERS = {
    "text": lambda path: common_flags.write_whole(path, "row"),
    "lines": lambda path: feature_vectors.write_json_lines(path, [1]),
    "npy": lambda path: feature_vectors.write_npy(
        path, [1], "float32", [np.ones(1)]
    ),
    "npz": lambda path: feature_vectors.write_npz(
        path, "a", [1], "float32", [np.ones(1)]
    ),
    "records": write_records,
    "answers": lambda path: squad_answers.write_json(path, {}),
}


@pytest.fixture(params=WRITERS)
def writer(request):
    return WRITERS[request.param]


def test_a_link_keeps_its_place(tmp_path, writer):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    writer(link)
    assert link.is_symlink() and target.read_bytes() != b"old"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "new")
    writer(dangling)
    assert dangling.is_symlink() and (tmp_path / "there" / "new").is_file()
    assert len(os.listdir(tmp_path)) == 3
    assert len(os.listdir(tmp_path / "there")) == 2


def test_what_is_no_regular_file_is_not_replaced(tmp_path, writer):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(ValueError, match="folder: is a directory"):
        writer(tmp_path / "folder")
    for name in ("pipe", "null"):
        with pytest.raises(ValueError, match=f"{name}: is a device or a pipe"):
            writer(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["folder", "null", "pipe"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, ending):
    """/dev/full stands for the temporary file: every flush fails."""
    path = tmp_path / f"o{ending}"
    for content in (b"row", os.urandom(3 << 20)):
        with pytest.raises(OSError, match=f"o{ending}: no space is left"):
            with text_files.whole_binary(path, bool(ending)) as file:
                os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
                file.write(content)
        assert not os.listdir(tmp_path)
    for opener in (text_files.whole_file, text_files.whole_binary):
        with pytest.raises(OSError, match="no space is left"):
            with opener(path) as file:
                os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
                file.write("row" if opener is text_files.whole_file else b"r")
        assert not os.listdir(tmp_path)
    error = OSError(errno.EIO, "broken")
    assert text_files.named_error(path, error) is None


def test_an_error_of_the_block_is_kept(tmp_path):
    path = tmp_path / "o"
    with contextlib.suppress(KeyError), text_files.whole_binary(path):
        raise KeyError
    with pytest.raises(OSError, match="mine"):
        with text_files.whole_file(tmp_path / "o"):
            raise OSError("mine")
    assert not os.listdir(tmp_path)


def test_one_file_as_input_and_output(tmp_path):
    path, link, hard = (tmp_path / name for name in ("text", "link", "hard"))
    path.write_text("a\n")
    link.symlink_to(path)
    os.link(path, hard)
    for same in (path, link, hard, tmp_path / "." / "text"):
        with pytest.raises(ValueError, match="--o=.* is one of the input"):
            text_files.check_output("o", same, ["elsewhere", path])
    text_files.check_output("o", tmp_path / "new", [path])
    with pytest.raises(ValueError, match="new: there is no such file"):
        text_files.check_input(tmp_path / "new")
    with pytest.raises(ValueError, match="is a directory"):
        text_files.check_input(tmp_path)


def test_scripts_leave_their_input_alone(tmp_path):
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_text("a\n")
    other.symlink_to(path)
    with Script("extract_features") as run:
        common = (f"--input_file={path}", "--init_checkpoint=absent")
        with pytest.raises(ValueError, match="is one of the input files"):
            run(*common, f"--output_file={other}")
        (tmp_path / "third").write_text("b\n")
        third = tmp_path / "third"
        with pytest.raises(ValueError, match="is one of the input files"):
            run(*common, f"--other_file={third}", f"--output_file={third}")
        with pytest.raises(ValueError, match="is a directory"):
            run(
                f"--input_file={tmp_path}",
                "--init_checkpoint=absent",
                f"--output_file={tmp_path / 'o'}",
            )
    with pytest.raises(ValueError, match="is a directory"):
        records.expand_patterns(str(tmp_path))
    assert path.read_text() == "a\n"


def test_a_row_of_spaces_is_a_row(tmp_path):
    path = write(tmp_path / "test.tsv", "text_a\na\n  \n\nb\n")
    rows = list(text_files.read_tsv(path))
    assert rows == [(1, ["text_a"]), (2, ["a"]), (3, ["  "]), (5, ["b"])]
    write(tmp_path / "train.tsv", "label\ttext_a\nx\ta\ny\tb\n")
    found = read("tsv", tmp_path, "test")
    assert [example.text_a.strip() for example in found] == ["a", "", "b"]


def damaged():
    """A .gz file whose deflate stream is wrong after its header."""
    packed = bytearray(gzip.compress(os.urandom(5000)))
    packed[10] = 0xFF
    return bytes(packed)


def test_damaged_gzip_files(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(damaged())
    with pytest.raises(ValueError, match="a.gz: the compressed file is dam"):
        list(pretraining_data.read_blocks(str(path)))
    with pytest.raises(ValueError, match="a.gz: record 1 is damaged"):
        list(records.read_records(path))
    path.write_text("plain text")
    with pytest.raises(ValueError, match="a.gz: is no gzip file; rename it"):
        list(pretraining_data.read_blocks(str(path)))


def test_text_is_no_record(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_text("This is plain text.\n")
    with pytest.raises(ValueError, match="record 1 .* no TFRecord file"):
        list(records.read_records(path))


def test_deeply_nested_json(tmp_path):
    deep = "[" * 200_000
    path = write(tmp_path / "a.json", '{"a": 1}\n' + deep)
    with pytest.raises(ValueError, match="a.json:2: .*nested too deeply"):
        list(text_files.read_json_lines(path))
    write(path, deep)
    with pytest.raises(ValueError, match="a.json:1: .*nested too deeply"):
        common_flags.read_json(path)
    reader = squad_data._Reader(path, False, False, False)
    with pytest.raises(ValueError, match="a.json:1: .*nested too deeply"):
        reader.read()
    reader = squad_data._Reader(path, False, False, False)
    write(path, '{"documents": []}\n' + deep)
    reader._read_dureader = lambda row, place: None
    with pytest.raises(ValueError, match="a.json:2: .*nested too deeply"):
        reader.read()


def test_places_in_json():
    text = ' {"a": [1, {"b\\"c": "]}"}, []],\n "d": {}, "e": null}\n'
    places = text_files.json_places(text)
    assert {path: text[at] for path, at in places.items()} == {
        "": "{",
        "a": "[",
        "a[0]": "1",
        "a[1]": "{",
        'a[1].b"c': '"',
        "a[2]": "[",
        "d": "{",
        "e": "n",
    }
    assert text[: places["d"]].count("\n") == 1
