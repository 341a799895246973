"""Vectors of texts, once a model has made them: windows, pooling, files.

A text longer than the model reads is cut into windows, and each of its tokens
takes its vector from the window that shows most of what stands around it.
Shape letters as in `modeling.py`; Y layers, N texts, T tokens of all texts.
"""

import json
import zipfile
from typing import NamedTuple

import numpy as np

import processors
import text_files

MATRIX_CELLS = 1 << 26  # cosines that are in memory at once, 256 MB


class Window(NamedTuple):
    """What the model reads at once; tokens first ... end - 1 are kept."""

    ids: list
    segments: list
    first: int
    end: int


class EncodedText(NamedTuple):
    """One line: the ids of its output tokens and the windows they are in."""

    ids: list
    windows: list
    is_cut: bool


def encode(pair, tokenizer, max_seq_length, long_text, doc_stride=None):
    """Gives the EncodedText of a text_pairs.TextPair.

    `long_text` as processors.long_text_parts has it; the longer text of a
    pair loses its end whatever it says. Raises ValueError as that does."""
    cls, sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    ids = tokenizer.encode(pair.text_a)
    second = tokenizer.encode(pair.text_b) if pair.text_b else []
    if second:
        size = len(ids) + len(second) + 3
        row, segments = processors.encode_pair(
            tokenizer, pair.text_a, pair.text_b, max_seq_length
        )
        window = Window(row, segments, 0, len(row))
        return EncodedText(row, [window], len(row) < size)
    room = max_seq_length - 2
    parts = processors.long_text_parts(ids, room, long_text, doc_stride)
    is_cut = long_text != "windows" and len(ids) > room
    if len(parts) == 1:
        ids = parts[0]
    windows = _windows(parts, doc_stride or max(1, room // 2), cls, sep)
    return EncodedText([cls, *ids, sep], windows, is_cut)


def _windows(parts, stride, cls, sep):
    """The windows of a text's parts, which begin `stride` tokens apart."""
    starts = [number * stride for number in range(len(parts))]
    ends = [
        start + len(part) for start, part in zip(starts, parts, strict=True)
    ]
    # Between two windows the middle of what both hold.
    cuts = [
        (start + end + 1) // 2
        for start, end in zip(starts[1:], ends[:-1], strict=True)
    ]
    windows = []
    for number, part in enumerate(parts):
        first, end = 0, len(part) + 2
        if number:
            first = cuts[number - 1] - starts[number] + 1
        if number < len(cuts):
            end = cuts[number] - starts[number] + 1
        ids = [cls, *part, sep]
        windows.append(Window(ids, [0] * len(ids), first, end))
    return windows


def join_windows(text, outputs):
    """Gives [tokens of the text, Y, H] from each window's [L, Y, H]."""
    kept = [
        values[window.first : window.end]
        for window, values in zip(text.windows, outputs, strict=True)
    ]
    return kept[0] if len(kept) == 1 else np.concatenate(kept)


def pool(text, outputs, pooling, normalize=False):
    """Gives one vector per layer, [Y, H], of a text's windows [L, Y, H].

    mean and max run over the text's tokens, [CLS] and [SEP] among them; cls
    is the vector of [CLS], the mean of them where there are several windows."""
    if pooling == "cls":
        vectors = np.mean([values[0] for values in outputs], axis=0)
    elif pooling == "mean":
        vectors = join_windows(text, outputs).mean(axis=0)
    else:
        vectors = join_windows(text, outputs).max(axis=0)
    return unit(vectors) if normalize else vectors


def unit(vectors):
    """Divides the last axis by its length; a zero vector stays."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(length, 1e-12)


# ------------------------------------------------------------------ similarity


def nearest(left, right, count, same=False):
    """Yields (indices, cosines) of the `count` best rows of `right`.

    Takes unit vectors [N, H] and [M, H]; gives arrays [count], best first,
    the earlier of equal ones first, for each row of `left`. With `same` a row
    is not its own neighbour."""
    count = min(count, len(right) - bool(same))
    for place, row in enumerate(cosines(left, right)):
        if same:
            row[place] = -np.inf
        found = np.arange(0)
        if count > 0:  # only those at least as near as the last are sorted
            found = np.flatnonzero(row >= np.partition(row, -count)[-count])
        best = found[np.argsort(-row[found], kind="stable")[:count]]
        yield best, row[best]


def cosines(left, right):
    """Yields the rows [M] of the cosine matrix of unit vectors."""
    block = max(1, min(1024, MATRIX_CELLS // max(1, len(right))))
    for start in range(0, len(left), block):
        yield from left[start : start + block] @ right.T


# ------------------------------------------------------------------ files


def layer_values(layers, vectors):
    """Gives the original's list of {"index", "values"} for [Y, H]."""
    return [
        {"index": layer, "values": [round(float(x), 6) for x in values]}
        for layer, values in zip(layers, vectors, strict=True)
    ]


def token_object(line, tokens, layers, values):
    """Gives the original's object of a text: [tokens, Y, H] values."""
    features = [
        {"token": token, "layers": layer_values(layers, vectors)}
        for token, vectors in zip(tokens, values, strict=True)
    ]
    return {"linex_index": line, "features": features}


def write_json_lines(path, objects):
    """Writes one object a line as they come, whole or not at all."""
    with text_files.whole_file(path) as file:
        for value in objects:
            file.write(json.dumps(value) + "\n")


def _write_array(file, shape, dtype, parts):
    """Writes an .npy whose rows come in parts, never all in memory."""
    dtype = np.dtype(dtype)
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(shape),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for part in parts:
        file.write(np.ascontiguousarray(part, dtype).tobytes())


def write_npy(path, shape, dtype, parts):
    """Writes one array, given by its shape and parts of it in order."""
    with text_files.whole_binary(path) as file:
        _write_array(file, shape, dtype, parts)


def write_npz(path, name, shape, dtype, parts, **arrays):
    """Writes `arrays`, and under `name` an array that comes in parts."""
    with (
        text_files.whole_binary(path) as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for key, array in arrays.items():
            array = np.asarray(array)
            with archive.open(f"{key}.npy", "w") as member:
                _write_array(member, array.shape, array.dtype, [array])
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            _write_array(member, shape, dtype, parts)
