"""TFRecord files of pre-training in, batches out, whatever their size.

An epoch reads every record once. Which record comes at which place follows
from (seed, epoch) alone: files in a drawn order, several open at a time, and
blocks of records drawn into another order. So a resumed run, or one on another
number of replicas, goes on with the very batches of the unbroken one. Nothing
but one block is held in memory.
"""

import contextlib
import itertools
import os
import re
import struct

import numpy as np
import tensorflow as tf
from absl import logging

import input_pipeline
import records

BLOCK_RECORDS = 10_000  # shuffled at a time
OPEN_FILES = 16  # read in turn, so that a block mixes shards
SUMMARY_ENDING = ".summary.json"
SAMPLE_RECORDS = 50  # of each file, looked at before the model is built

_LENGTH = struct.Struct("<Q")
_FRAME_BYTES = 16  # around each record: length 8, two checksums of 4


class DataMismatch(ValueError):
    """Records that do not fit the flags or the model."""


def count_records(path):
    """Gives the number of records of a TFRecord file, read by its lengths.

    A .gz file has to be unpacked for it. Raises ValueError naming the file
    and the record where the file ends within one."""
    if os.fspath(path).endswith(".gz"):
        return sum(1 for _ in records.read_records(path))
    size = os.path.getsize(path)
    count, position = 0, 0
    with open(path, "rb", buffering=1 << 16) as file:
        while header := file.read(8):
            if len(header) == 8:
                position += _LENGTH.unpack(header)[0] + _FRAME_BYTES
            if len(header) < 8 or position > size:
                raise records.damaged_record(
                    path, count + 1, "the file ends within it"
                )
            count += 1
            file.seek(position)
    return count


class RecordFiles:
    """The records of some files: how many there are, and streams of them.

    Attributes: paths, sorted; counts of records in each; `mean_tokens` of a
    record, once `check_agreement` has looked; `error`, what a stream died of,
    for the reader at the other end of a tf.data pipeline, which hides it.

    Raises ValueError for a pattern without a file, a damaged file, or no
    record at all."""

    def __init__(self, patterns):
        paths = records.expand_patterns(patterns)
        # A pattern finds what create_pretraining_data.py lays beside, too.
        data = [path for path in paths if not path.endswith(SUMMARY_ENDING)]
        self.paths = data or paths
        self.counts = [count_records(path) for path in self.paths]
        self._starts = np.cumsum([0, *self.counts])
        self.error = self.mean_tokens = None
        if not len(self):
            raise ValueError(
                f"{', '.join(self.paths)}: there is no record. Run "
                "create_pretraining_data.py again and look at its summary"
            )
        for path, count in zip(self.paths, self.counts, strict=True):
            if not count:
                logging.warning("%s holds no record.", path)

    def __len__(self):
        return int(self._starts[-1])

    def _read(self, file):
        """(number over all files, record) of one file, in order."""
        numbers = itertools.count(int(self._starts[file]))
        stream = records.read_records(self.paths[file])
        yield from zip(numbers, stream, strict=False)

    def in_order(self):
        """Yields (number, record) of all files, as they are written."""
        for file in range(len(self.paths)):
            yield from self._read(file)

    def _in_turn(self, order):
        """The same, one record of each of OPEN_FILES files in turn."""
        waiting = iter(order)
        streams = [
            self._read(file) for file in itertools.islice(waiting, OPEN_FILES)
        ]
        while streams:
            for place, stream in enumerate(streams):
                item = next(stream, None)
                while item is None and stream is not None:
                    file = next(waiting, None)
                    stream = None if file is None else self._read(file)
                    streams[place] = stream
                    item = stream and next(stream, None)
                if item is not None:
                    yield item
            streams = [stream for stream in streams if stream is not None]

    def _epoch(self, seed, epoch, skip):
        """(number, record) of one epoch without the first `skip`."""
        draw = np.random.default_rng([seed % 2**64, epoch, 0])
        stream = self._in_turn(draw.permutation(len(self.paths)).tolist())
        for block in itertools.count(1):
            items = list(itertools.islice(stream, BLOCK_RECORDS))
            if not items:
                return
            if skip < len(items):
                draw = np.random.default_rng([seed % 2**64, epoch, block])
                for place in draw.permutation(len(items))[skip:]:
                    yield items[place]
            skip = max(0, skip - len(items))

    def shuffled(self, seed, first=0):
        """Yields (epoch, number, record) without end, from a place on.

        `first` records of the stream are left out; what follows does not
        depend on how many they are."""
        epoch, skip = divmod(first, len(self))
        while True:
            for number, record in self._epoch(seed, epoch, skip):
                yield epoch, number, record
            epoch, skip = epoch + 1, 0

    @contextlib.contextmanager
    def noting_errors(self):
        """Keeps the ValueError or OSError of a stream in `error`."""
        try:
            yield
        except (ValueError, OSError) as error:
            self.error = error
            raise


# -------------------------------------------------------------------- checks


def check_agreement(files, spec, config, first_id=None, pairs=False):
    """Looks at the first records of every file before a model is built.

    Takes a records.FeatureSpec, a BertConfig, the id that every sequence
    begins with if it is known, and whether second segments are wanted,
    for which it warns. Notes their mean number of tokens. Raises DataMismatch
    with both numbers and the flag."""
    lengths = []
    has_pairs = False
    for path in files.paths:
        sample = itertools.islice(records.read_records(path), SAMPLE_RECORDS)
        for number, record in enumerate(sample, start=1):
            row = decode(spec, record, f"{path}: record {number}")
            check_ids(row, config, f"{path}: record {number}")
            lengths.append(int(row["input_mask"].sum()))
            has_pairs = has_pairs or bool(row["segment_ids"].any())
            found = int(row["input_ids"][0])
            if first_id not in (None, found):
                raise DataMismatch(
                    f"{path}: record {number} begins with the id {found}, but "
                    f"[CLS] has the id {first_id} in --vocab_file. The data "
                    "was made with another vocabulary; name that one."
                )
    if pairs and not has_pairs:
        logging.warning(
            "%s: the records have one segment, so there is no next sentence to "
            "learn. If they were made with --nsp=none, add it here too.",
            ", ".join(files.paths[:3]),
        )
    files.mean_tokens = float(np.mean(lengths))


def decode(spec, record, place):
    """Gives a record's dict of arrays. Raises DataMismatch naming `place`."""
    try:
        return spec.decode(record)
    except ValueError as error:
        raise DataMismatch(f"{place}: {_explain(str(error))}") from None


def _explain(message):
    """Says what a disagreement between record and spec means in flags."""
    match = re.search(
        r"'(\w+)' holds (\d+) values in the record; (\d+)", message
    )
    if match:
        name, found, wanted = match.groups()
        flag = "max_seq_length"
        if name.startswith("masked_lm"):
            flag = "max_predictions_per_seq"
        return (
            f"it holds {found} values of {name}, but --{flag}={wanted}. Set "
            f"--{flag}={found}, with which the data was made."
        )
    if "no feature 'masked_lm" in message:
        return (
            f"{message}; it was written with --unmasked. Add --dynamic_masking."
        )
    if "no feature 'word_pieces'" in message:
        return (
            f"{message}; it has its masks already. Leave out "
            "--dynamic_masking, or make the data with --unmasked."
        )
    return message


def check_ids(row, config, place):
    """Raises DataMismatch for a number that the model has no row for."""
    sizes = {
        "input_ids": config.vocab_size,
        "masked_lm_ids": config.vocab_size,
        "segment_ids": config.type_vocab_size,
        "masked_lm_positions": row["input_ids"].size,
        "next_sentence_labels": 2,
    }
    for name, size in sizes.items():
        ids = row.get(name)
        if ids is None or not ids.size:
            continue
        low, high = int(ids.min()), int(ids.max())
        if 0 <= low and high < size:
            continue
        what = f"{place}: {name} holds {high if low >= 0 else low}, but "
        if name in ("input_ids", "masked_lm_ids"):
            raise DataMismatch(
                f"{what}the model's vocab_size is {size}. The data was made "
                "with another vocabulary than the config is for."
            )
        raise DataMismatch(
            f"{what}it must be from 0 to {size - 1}. Make the data again."
        )


def find_bad_record(files, spec, config):
    """Reads everything and raises the ValueError of the first bad record.

    Returns where all are good: for finding the cause once a run has died."""
    for path in files.paths:
        stream = records.read_records(path)
        for number, record in enumerate(stream, start=1):
            place = f"{path}: record {number}"
            check_ids(decode(spec, record, place), config, place)


# ------------------------------------------------------------------- batches


class Parser:
    """Makes batches of features from raw records, in graph ops.

    Token features are cut to the longest row of the batch, to a fixed length
    where `padded`. `mask` gets (features, epochs [B], numbers [B]) and adds
    the masked positions to unmasked records; see dynamic_masking.py."""

    def __init__(self, spec, padded=False, mask=None):
        self._spec = spec
        self._padded = padded
        self._mask = mask
        self._parsing = {
            feature.name: tf.io.FixedLenFeature(
                [feature.length],
                {"int64": tf.int64, "float32": tf.float32}[feature.dtype],
            )
            for feature in spec
        }

    def __call__(self, raw, epochs, numbers):
        """Takes string [B], int64 [B], int64 [B]; gives int32/float32."""
        features = {
            name: value
            if value.dtype == tf.float32
            else tf.cast(value, "int32")
            for name, value in tf.io.parse_example(raw, self._parsing).items()
        }
        if not self._padded:
            self._trim(features)
        if self._mask is not None:
            features = self._mask(features, epochs, numbers)
        return features

    def _trim(self, features):
        """Cuts the token axis behind the last token that anything names."""
        mask = features["input_mask"]
        place = tf.range(1, tf.shape(mask)[1] + 1)
        longest = tf.reduce_max(tf.where(mask > 0, place, 1))
        if "masked_lm_positions" in features:
            last = tf.reduce_max(features["masked_lm_positions"])
            longest = tf.maximum(longest, last + 1)
        for feature in self._spec:
            if feature.sequence:
                features[feature.name] = features[feature.name][:, :longest]


def _columns(batch):
    """Lists of (epoch, number, record) as three arrays."""
    epochs, numbers, raw = zip(*batch, strict=True)
    content = np.empty([len(raw)], object)  # fixed-width bytes lose zeros
    content[:] = raw
    return content, np.array(epochs, np.int64), np.array(numbers, np.int64)


def _dataset(generate, rows, parse):
    """A dataset of parsed batches of a generator of raw ones."""
    signature = tuple(
        tf.TensorSpec([rows], dtype)
        for dtype in (tf.string, tf.int64, tf.int64)
    )
    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )
    dataset = dataset.map(
        parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    return dataset.prefetch(4)


def training_batches(files, parse, batch_size, num_steps, seed):
    """Gives dataset_fn(first_step, input_context) for training.Trainer.

    Its dataset holds, for every step from `first_step` to `num_steps`, one
    batch for each replica of this worker; `batch_size` is the global one.
    Every worker reads all records and takes its own share of each batch."""

    def dataset_fn(first_step, context=None):
        """The batches from a step on."""
        parts = input_pipeline.replica_slices(batch_size, context)

        def generate():
            """Yields the part of each replica, step by step."""
            with files.noting_errors():
                stream = files.shuffled(seed, first_step * batch_size)
                for _ in range(first_step, num_steps):
                    batch = list(itertools.islice(stream, batch_size))
                    for part in parts:
                        yield _columns(batch[part])

        size = parts[0].stop - parts[0].start
        return _dataset(generate, size, parse)

    return dataset_fn


def evaluation_batches(files, parse, batch_size, max_batches=None):
    """Gives a dataset in which every record comes once, in order.

    The last batch may be smaller. `max_batches` ends it early. Unmasked
    records get the masks of epoch -1: other than in training, and the same
    in every evaluation."""

    def generate():
        """Yields batches until the records end."""
        with files.noting_errors():
            stream = files.in_order()
            for _ in (
                itertools.count() if max_batches is None else range(max_batches)
            ):
                items = itertools.islice(stream, batch_size)
                batch = [(-1, number, record) for number, record in items]
                if not batch:
                    return
                yield _columns(batch)

    return _dataset(generate, None, parse)
