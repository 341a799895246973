"""Reads and writes TFRecord files of tf.train.Example, without TensorFlow.

One `FeatureSpec` both writes and parses the records of a kind, so that writer
and reader cannot drift. The bytes are plain protocol buffers and plain TFRecord
framing: TensorFlow reads what this module writes, and the other way round.
"""

import glob
import gzip
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import google_crc32c
import numpy as np

import text_files

_HEADER = struct.Struct("<QI")  # length of the record, masked CRC of that
_CRC = struct.Struct("<I")
_FIELD_BYTES, _FIELD_FLOAT, _FIELD_INT64 = 1, 2, 3  # of tf.train.Feature


class Feature(NamedTuple):
    """One entry of an Example.

    `dtype` is 'int64' or 'float32'; `length` the number of values, or None for
    a scalar; `sequence` is True where the values stand for tokens, so that a
    batch may be cut to its longest row."""

    name: str
    dtype: str = "int64"
    length: int | None = None
    sequence: bool = False


def pretraining_spec(
    max_seq_length: int, max_predictions_per_seq: int
) -> "FeatureSpec":
    """The seven features that create_pretraining_data has always written."""
    tokens, predictions = max_seq_length, max_predictions_per_seq
    return FeatureSpec(
        [
            Feature("input_ids", "int64", tokens, True),
            Feature("input_mask", "int64", tokens, True),
            Feature("segment_ids", "int64", tokens, True),
            Feature("masked_lm_positions", "int64", predictions),
            Feature("masked_lm_ids", "int64", predictions),
            Feature("masked_lm_weights", "float32", predictions),
            Feature("next_sentence_labels", "int64", 1),
        ]
    )


def unmasked_spec(max_seq_length: int) -> "FeatureSpec":
    """The features of pre-training records that are masked while read.

    word_pieces is 1 for the first piece of a word, 2 for its other pieces, 0
    for [CLS], [SEP] and padding. So `word_pieces > 0` are the tokens that may
    be masked, and `cumsum(word_pieces == 1)` numbers the words."""
    return FeatureSpec(
        [
            Feature("input_ids", "int64", max_seq_length, True),
            Feature("input_mask", "int64", max_seq_length, True),
            Feature("segment_ids", "int64", max_seq_length, True),
            Feature("word_pieces", "int64", max_seq_length, True),
            Feature("next_sentence_labels", "int64", 1),
        ]
    )


class Varints(dict):
    """Integer -> its protocol buffer bytes; small ones are remembered."""

    def __missing__(self, value):
        value = int(value)
        encoded = _varint(value)
        if 0 <= value < 1 << 20:
            self[value] = encoded
        return encoded


def _varint(value: int) -> bytes:
    """A signed 64-bit integer as a protocol buffer varint."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into 64 bits")
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


VARINTS = Varints()  # b"".join(map(VARINTS.__getitem__, values)) packs values


def _tagged(field: int, payload: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return VARINTS[field << 3 | 2] + VARINTS[len(payload)] + payload


class FeatureSpec:
    """The features of one kind of record, which it writes and parses.

    Iterating gives the `Feature`s in order, `spec[name]` gives one. Raises
    ValueError for a repeated name or an unknown dtype."""

    def __init__(self, features: Iterable[Feature]):
        self._features = {}
        for feature in features:
            if feature.name in self._features:
                raise ValueError(f"feature {feature.name!r} is given twice")
            if feature.dtype not in ("int64", "float32"):
                raise ValueError(
                    f"feature {feature.name!r} has dtype {feature.dtype!r}; "
                    "it must be 'int64' or 'float32'"
                )
            self._features[feature.name] = feature
        # Everything before the values depends on their number of bytes only.
        self._prefixes = {name: {} for name in self._features}

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __contains__(self, name: str) -> bool:
        return name in self._features

    def __eq__(self, other) -> bool:
        return isinstance(other, FeatureSpec) and list(self) == list(other)

    __hash__ = None

    @property
    def names(self) -> list[str]:
        """The names in order."""
        return list(self._features)

    def encode(self, values: Mapping) -> bytes:
        """The values of one record as a serialized tf.train.Example.

        A value is a list, an array or, where `length` is None, a number; a
        `bytes` object stands for integers below 128 and is the fastest. A list
        that is too short is padded with 0.

        Raises ValueError for a missing feature and for one that is too long."""
        entry = self.entry
        try:
            return self.join([entry(x, values[x]) for x in self._features])
        except KeyError as error:
            raise ValueError(f"feature {error} has no value") from None

    def entry(self, name: str, value) -> bytes:
        """One feature encoded; worth keeping where it comes back often."""
        payload = _encode_values(self._features[name], value)
        return self.prefix(name, len(payload)) + payload

    def prefix(self, name: str, size: int) -> bytes:
        """What stands in a record before `size` bytes of packed values."""
        known = self._prefixes[name]
        if size not in known:
            known[size] = _entry_prefix(self._features[name], size)
        return known[size]

    def join(self, parts: Iterable[bytes]) -> bytes:
        """The record made of all entries in order, whole or in parts."""
        body = b"".join(parts)
        return b"\x0a" + VARINTS[len(body)] + body

    def decode(self, record: bytes) -> dict[str, np.ndarray]:
        """A serialized tf.train.Example as arrays, int64 or float32.

        The shape is [length], or [] for a scalar. Features that the
        specification does not name are left out.

        Raises ValueError where a feature is missing, has another dtype or
        another number of values, naming it and both numbers, and where the
        bytes are no tf.train.Example."""
        try:
            found = dict(_parse_example(record))
        except (IndexError, ValueError, struct.error) as error:
            raise ValueError(
                f"the record is not a tf.train.Example ({error})"
            ) from None
        return {
            name: _decode_values(feature, found.get(name))
            for name, feature in self._features.items()
        }


def _encode_values(feature: Feature, value) -> bytes:
    """The packed values of one feature, padded to its length."""
    wanted = feature.length
    if wanted is None:
        value, wanted = (value,), 1
    missing = wanted - len(value)
    if missing < 0:
        raise ValueError(
            f"feature {feature.name!r} has {len(value)} values; "
            f"the specification holds {feature.length}"
        )
    if feature.dtype == "float32":
        return struct.pack(f"<{len(value)}f", *value) + bytes(4 * missing)
    if isinstance(value, bytes):
        if not value.isascii():
            raise ValueError(
                f"feature {feature.name!r} is given as bytes, which must all "
                "be below 128; give a list"
            )
        return value + bytes(missing)
    payload = b"".join(map(VARINTS.__getitem__, value))
    return payload + bytes(missing)


def _entry_prefix(feature: Feature, size: int) -> bytes:
    """The bytes of an Example's map entry before `size` bytes of values."""
    field = _FIELD_FLOAT if feature.dtype == "float32" else _FIELD_INT64
    name = _tagged(1, feature.name.encode())
    values = _tagged(1, bytes(size))  # the placeholder is cut off below
    entry = _tagged(1, name + _tagged(2, _tagged(field, values)))
    return entry[: len(entry) - size]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than ten bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """The (field, wire type, value) triples of a protocol buffer message."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        wire = key & 7
        if wire == 0:
            value, position = _read_varint(data, position)
        elif wire in (1, 2, 5):
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                size, position = _read_varint(data, position)
            value = data[position : position + size]
            position += size
            if position > len(data):
                raise ValueError("a field runs over the end")
        else:
            raise ValueError(f"wire type {wire} is unknown")
        yield key >> 3, wire, value


def _parse_example(record: bytes):
    """Yields (name, (dtype, array)) for every feature of an Example."""
    for _, _, features in _fields(record):
        for _, _, entry in _fields(features):
            name, feature = "", b""
            for field, _, value in _fields(entry):
                if field == 1:
                    name = value.decode()
                else:
                    feature = value
            for field, _, value in _fields(feature):
                yield name, _parse_list(field, value)


def _parse_list(kind: int, data: bytes) -> tuple[str, np.ndarray]:
    """The values of an Int64List or FloatList, packed or not."""
    if kind == _FIELD_BYTES:
        return "bytes", np.zeros([sum(1 for _ in _fields(data))], np.int64)
    parts = []
    for _, wire, value in _fields(data):
        if kind == _FIELD_FLOAT:
            parts.append(np.frombuffer(value, "<f4"))
        elif wire == 0:
            parts.append(np.array([value], np.uint64).view(np.int64))
        else:
            parts.append(_unpack_varints(value))
    dtype = "float32" if kind == _FIELD_FLOAT else "int64"
    if len(parts) == 1:
        return dtype, parts[0]
    return dtype, np.concatenate([np.zeros([0], dtype), *parts])


def _unpack_varints(payload: bytes) -> np.ndarray:
    """Packed varints as int64 [number of values]."""
    data = np.frombuffer(payload, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(ends) == len(data):
        return data.astype(np.int64)
    if len(ends) == 0 or ends[-1] != len(data) - 1:
        raise ValueError("a number runs over the end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > 10:
        raise ValueError("a number is longer than ten bytes")
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, sizes))
    bits = (data & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(bits, starts).view(np.int64)


def _decode_values(feature: Feature, found) -> np.ndarray:
    """Checks one parsed feature against its description."""
    wanted = 1 if feature.length is None else feature.length
    if found is None:
        if wanted == 0:
            return np.zeros([0], feature.dtype)
        raise ValueError(f"the record has no feature {feature.name!r}")
    dtype, values = found
    if dtype != feature.dtype and len(values):
        raise ValueError(
            f"feature {feature.name!r} holds {dtype} values; "
            f"{feature.dtype} is wanted"
        )
    if len(values) != wanted:
        raise ValueError(
            f"feature {feature.name!r} holds {len(values)} values in the "
            f"record; {wanted} are wanted. Use the lengths with which the "
            "file was written"
        )
    return values[0] if feature.length is None else values


def _masked_crc(data: bytes) -> int:
    """The CRC-32C of TFRecord, rotated and shifted as its readers expect."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


_HEADERS = {}  # length of a record -> its 12 bytes


def frame(record: bytes) -> bytes:
    """The record with the length and the checksums that surround it in a file.

    Its size is that of the record + 16."""
    header = _HEADERS.get(len(record))
    if header is None:
        size = struct.pack("<Q", len(record))
        header = size + _CRC.pack(_masked_crc(size))
        if len(_HEADERS) < 1 << 16:
            _HEADERS[len(record)] = header
    return b"".join((header, record, _CRC.pack(_masked_crc(record))))


class RecordWriter:
    """Writes a TFRecord file, which appears whole or not at all.

    A name that ends in .gz is compressed. Use it in a `with` block."""

    def __init__(self, path: str | os.PathLike):
        self._whole = text_files.whole_binary(
            path, os.fspath(path).endswith(".gz")
        )
        self.write_framed = self._whole.__enter__().write

    def write(self, record: bytes):
        """Appends one record."""
        self.write_framed(frame(record))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self._whole.__exit__(*error)


def read_records(path: str | os.PathLike) -> Iterator[bytes]:
    """The records of a TFRecord file, compressed if its name ends in .gz.

    Raises ValueError naming the file and the number of the record, counted
    from 1, where one is cut off or its checksum is wrong."""
    path = os.fspath(path)
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        number = 0
        while True:
            number += 1
            try:
                record = _read_record(file)
            except (ValueError, *text_files.GZIP_ERRORS) as why:
                raise damaged_record(path, number, why) from None
            if record is None:
                return
            yield record


def damaged_record(path, number, why) -> ValueError:
    """The ValueError for a record, counted from 1, that cannot be read."""
    if number > 1:
        hint = "Write the file again"
    elif isinstance(why, gzip.BadGzipFile):
        return text_files.damaged_gzip(path, why)
    else:
        hint = "Is it no TFRecord file? If it is one, write it again"
    return ValueError(f"{path}: record {number} is damaged ({why}). {hint}")


def _read_record(file) -> bytes | None:
    """The next record, or None at the end of the file."""
    header = file.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise ValueError("the file ends within its header")
    size, crc = _HEADER.unpack(header)
    if crc != _masked_crc(header[:8]):
        raise ValueError("the checksum of its length is wrong")
    record = file.read(size)
    tail = file.read(_CRC.size)
    if len(record) < size or len(tail) < _CRC.size:
        raise ValueError("the file ends within it")
    if _CRC.unpack(tail)[0] != _masked_crc(record):
        raise ValueError("its checksum is wrong")
    return record


def expand_patterns(patterns: str | Iterable[str]) -> list[str]:
    """The files that glob patterns name, each once.

    `patterns` is a list or a comma-separated string. The files are in the
    order of the patterns, those of one pattern sorted.

    Raises ValueError naming a pattern that matches no file."""
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    files = {}  # by their real paths
    for pattern in patterns:
        pattern = os.fspath(pattern).strip()
        if not pattern:
            continue
        if os.path.isdir(pattern):
            text_files.check_input(pattern)
        matches = [x for x in glob.glob(pattern) if not os.path.isdir(x)]
        if os.path.isfile(pattern):  # a name with brackets in it
            matches.append(pattern)
        if not matches:
            raise ValueError(
                f"{pattern!r} matches no file. Check the path; a pattern with "
                "* or ? needs quotes in a shell"
            )
        for path in sorted(matches):
            files.setdefault(os.path.realpath(path), path)
    if not files:
        raise ValueError("no input file is given")
    return list(files.values())
