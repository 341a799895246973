"""Windows, pooling, neighbours and array files, without a model."""

import json
import zipfile

import numpy as np
import pytest

import feature_vectors
import text_pairs
from feature_vectors import EncodedText, Window


class Words:
    """A tokenizer whose texts are numbers."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def convert_tokens_to_ids(self, tokens):
        return [{"[CLS]": -1, "[SEP]": -2}[token] for token in tokens]


def encoded(text, length, long_text="windows", stride=None):
    pair = text_pairs.TextPair(1, text, *text_pairs.split_pair(text))
    return feature_vectors.encode(pair, Words(), length, long_text, stride)


@pytest.mark.parametrize("count", [0, 1, 8, 9, 10, 23, 100])
@pytest.mark.parametrize("stride", [None, 1, 3, 8])
def test_windows_give_every_token_once_with_room_around_it(count, stride):
    text = encoded(" ".join(map(str, range(count))), 10, stride=stride)
    assert text.ids == [-1, *range(count), -2] and not text.is_cut
    outputs = [np.array(window.ids)[:, None] for window in text.windows]
    joined = feature_vectors.join_windows(text, outputs)[:, 0]
    assert joined.tolist() == text.ids
    for window in text.windows:
        assert len(window.ids) <= 10
    if stride is None and count == 100:
        for window in text.windows[1:-1]:  # two of eight on either side
            assert window.first == 3 and window.end == 7


@pytest.mark.parametrize(
    "long_text, ids",
    [
        ("truncate_tail", [0, 1, 2, 3]),
        ("truncate_head", [6, 7, 8, 9]),
        ("head_tail", [0, 7, 8, 9]),
    ],
)
def test_cut_texts_are_counted(long_text, ids):
    text = encoded("0 1 2 3 4 5 6 7 8 9", 6, long_text)
    assert text.ids == [-1, *ids, -2] == text.windows[0].ids
    assert text.is_cut
    assert not encoded("0 1 2 3", 6, long_text).is_cut


def test_pairs():
    text = encoded("1 2 3 ||| 4", 7)
    assert text.ids == [-1, 1, 2, 3, -2, 4, -2]
    assert text.windows[0].segments == [0, 0, 0, 0, 0, 1, 1]
    assert not text.is_cut and encoded("1 2 3 ||| 4", 6).is_cut
    assert encoded("1 2 ||| ", 6).ids == [-1, 1, 2, -2]


def test_the_last_mark_divides_a_line(tmp_path):
    assert text_pairs.split_pair("a ||| b ||| c") == ("a ||| b", "c")
    assert text_pairs.split_pair("a|||b") == ("a|||b", None)
    assert text_pairs.split_pair("a \x85 ||| b") == ("a \x85", "b")
    path = tmp_path / "x"
    path.write_bytes("\ufeffa\r\n\n b\u2028c \rd\n".encode())
    found = [(p.line, p.text) for p in text_pairs.read_pairs(path)]
    assert found == [(1, "a"), (2, ""), (3, "b\u2028c \rd")]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match="x:2: byte 0xff"):
        text_pairs.read_pairs(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="x: is empty"):
        text_pairs.read_pairs(path)


def test_pooling():
    draw = np.random.default_rng(1)
    values = draw.normal(size=(5, 2, 3)).astype(np.float32)
    text = EncodedText([0] * 5, [Window([0] * 5, [0] * 5, 0, 5)], False)
    pool = feature_vectors.pool
    np.testing.assert_allclose(pool(text, [values], "mean"), values.mean(0))
    np.testing.assert_array_equal(pool(text, [values], "max"), values.max(0))
    np.testing.assert_array_equal(pool(text, [values], "cls"), values[0])
    lengths = np.linalg.norm(pool(text, [values], "mean", True), axis=-1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    assert not feature_vectors.unit(np.zeros([2, 3])).any()
    two = EncodedText([0] * 6, [Window([], [], 0, 4), Window([], [], 2, 4)], 0)
    parts = [values[:4], values[1:]]
    kept = np.concatenate([values[:4], values[3:]])
    np.testing.assert_allclose(pool(two, parts, "mean"), kept.mean(0))
    np.testing.assert_allclose(pool(two, parts, "cls"), values[:2].mean(0))


@pytest.mark.parametrize("same", [True, False])
def test_nearest_rows(same, monkeypatch):
    monkeypatch.setattr(feature_vectors, "MATRIX_CELLS", 20)
    draw = np.random.default_rng(1)
    left = feature_vectors.unit(draw.normal(size=(9, 4)))
    right = left if same else feature_vectors.unit(draw.normal(size=(6, 4)))
    matrix = np.array(list(feature_vectors.cosines(left, right)))
    np.testing.assert_allclose(matrix, left @ right.T)
    found = list(feature_vectors.nearest(left, right, 3, same))
    assert len(found) == 9
    for row, (best, cosines) in enumerate(found):
        wanted = matrix[row].copy()
        if same:
            wanted[row] = -2
        assert best.tolist() == np.argsort(-wanted)[:3].tolist()
        np.testing.assert_allclose(cosines, wanted[best])
    more = list(feature_vectors.nearest(left, right, 99, same))
    assert len(more[0][0]) == (8 if same else 6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_array_files_come_in_parts_and_whole(tmp_path, dtype):
    values = np.random.default_rng(1).normal(size=(7, 2, 3))
    parts = [values[:3], values[3:4], values[4:]]
    path = tmp_path / "a.npy"
    feature_vectors.write_npy(path, values.shape, dtype, parts)
    found = np.load(path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values.astype(dtype))
    path = tmp_path / "a.npz"
    feature_vectors.write_npz(
        path, "values", values.shape, dtype, parts, tokens=["a", "中"]
    )
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["values"], values.astype(dtype))
        assert archive["tokens"].tolist() == ["a", "中"]
    assert zipfile.ZipFile(path).testzip() is None

    def broken():
        yield values[:3]
        raise RuntimeError("no more")

    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        feature_vectors.write_npz(path, "v", values.shape, dtype, broken())
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "a.npz"]


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    values = np.array([[[0.1234567, 1.0]]])
    line = feature_vectors.token_object(4, ["中"], [-1], values)
    feature_vectors.write_json_lines(path, [line])
    assert path.read_text() == (
        '{"linex_index": 4, "features": [{"token": "\\u4e2d", "layers": '
        '[{"index": -1, "values": [0.123457, 1.0]}]}]}\n'
    )
    assert json.loads(path.read_text()) == line
