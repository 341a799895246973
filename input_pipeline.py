"""Features in, batches out, in an order that seed and step alone decide.

Fine-tuning holds its features in memory without padding (`FeatureTable`);
pre-training reads TFRecord files of any size. Both give batches from any
global step on without having gone through the steps before, so that a resumed
run continues the very order of the unbroken one, on any number of replicas.
"""

import numpy as np
import tensorflow as tf

import records

NUMPY_DTYPES = {"int64": np.int32, "float32": np.float32}


class FeatureTable:
    """The features of many rows, column by column, without padding.

    Takes a records.FeatureSpec and a list of dicts. Features with the token
    axis may be shorter than the spec's length; where `input_mask` is left out
    it is 1 for every token. `group` is 1, or the number of token sequences
    that make one row (the choices of a multiple-choice question): then such a
    feature is a list of `group` lists and its batches are [B, group, L].
    """

    def __init__(self, spec, rows, group=1):
        self.spec = spec
        self.group = group
        self._count = len(rows)
        self._columns = {}
        self._flat = {}
        lengths = None
        for feature in spec:
            dtype = NUMPY_DTYPES[feature.dtype]
            if not feature.sequence:
                values = [row[feature.name] for row in rows]
                self._columns[feature.name] = np.asarray(values, dtype)
            elif feature.name != "input_mask" or self._has_mask(rows):
                parts = self._sequences(rows, feature.name)
                lengths = np.fromiter(map(len, parts), np.int64, len(parts))
                self._flat[feature.name] = _joined(parts, dtype, lengths.sum())
        self._sizes = lengths
        self._starts = np.cumsum(lengths) - lengths
        per_row = lengths.reshape(self._count, group)
        self.lengths = per_row.sum(axis=1)

    @staticmethod
    def _has_mask(rows):
        return bool(rows) and "input_mask" in rows[0]

    def _sequences(self, rows, name):
        if self.group == 1:
            return [row[name] for row in rows]
        return [part for row in rows for part in row[name]]

    def __len__(self):
        return self._count

    def share_of(self, name, value):
        """The share of a value among the tokens of a feature."""
        return float(np.mean(self._flat[name] == value)) if self._count else 0.0

    def batch(self, indices, length=None):
        """Gives the rows of some indices as a dict of int32/float32 arrays.

        Token features are [B, L] (or [B, group, L]), L the longest of these
        rows, or `length`."""
        indices = np.asarray(indices)
        group = self.group
        sequences = indices
        if group > 1:
            sequences = (indices[:, None] * group + np.arange(group)).ravel()
        sizes = self._sizes[sequences]
        width = length or int(sizes.max(initial=1))
        slots = np.arange(width)
        real = slots < sizes[:, None]
        places = self._starts[sequences][:, None] + slots
        places[~real] = 0
        shape = (len(indices), width)
        if group > 1:
            shape = (len(indices), group, width)
        batch = {}
        for feature in self.spec:
            name = feature.name
            if name in self._columns:
                batch[name] = self._columns[name][indices]
            elif name in self._flat:
                flat = self._flat[name]
                cells = np.where(real, flat[places], 0).astype(flat.dtype)
                batch[name] = cells.reshape(shape)
            else:
                batch[name] = real.astype(np.int32).reshape(shape)
        return batch

    def signature(self, batch_size=None, length=None):
        """The tf.TensorSpec of each entry of `batch`."""
        shape = [batch_size, length]
        if self.group > 1:
            shape = [batch_size, self.group, length]
        signature = {}
        for feature in self.spec:
            dtype = NUMPY_DTYPES[feature.dtype]
            if feature.sequence:
                signature[feature.name] = tf.TensorSpec(shape, dtype)
            else:
                column = self._columns[feature.name]
                signature[feature.name] = tf.TensorSpec(
                    [batch_size, *column.shape[1:]], dtype
                )
        return signature

    def write(self, path):
        """Writes every row as a tf.train.Example to a TFRecord file.

        The token features of a group stand one after another, each filled up
        to its share of the spec's length."""
        length = None
        if self.group > 1:
            whole = next(f.length for f in self.spec if f.sequence)
            length = whole // self.group
        with records.RecordWriter(path) as writer:
            for index in range(self._count):
                row = self.batch([index], length)
                writer.write(
                    self.spec.encode(
                        {
                            name: value[0]
                            if value.ndim == 1
                            else value[0].ravel()
                            for name, value in row.items()
                        }
                    )
                )


def _joined(parts, dtype, size):
    """One array of many lists or arrays of `size` numbers altogether."""
    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, dtype=dtype, casting="same_kind")
    return np.fromiter((v for part in parts for v in part), dtype, size)


class EpochOrder:
    """The endless stream of row numbers: epoch after epoch, each shuffled.

    The shuffle of an epoch is a function of (seed, epoch) alone."""

    def __init__(self, count, seed):
        self._count, self._seed = count, seed
        self._epoch, self._rows = -1, None

    def take(self, start, size):
        """Gives the row numbers at positions start ... start + size."""
        taken = []
        while size > 0:
            epoch, place = divmod(start, self._count)
            if epoch != self._epoch:
                key = np.random.Philox(key=[self._seed % 2**64, epoch])
                self._rows = np.random.Generator(key).permutation(self._count)
                self._epoch = epoch
            part = self._rows[place : place + size]
            taken.append(part)
            start += len(part)
            size -= len(part)
        return np.concatenate(taken)


def replica_slices(batch_size, context=None):
    """The slices of a global batch that the replicas of this worker get.

    `context` is the tf.distribute.InputContext, None for one device."""
    workers, worker, replicas = 1, 0, 1
    if context is not None:
        workers = context.num_input_pipelines
        worker = context.input_pipeline_id
        replicas = context.num_replicas_in_sync // workers
    share = batch_size // (workers * replicas)
    first = worker * replicas * share
    return [
        slice(start, start + share)
        for start in range(first, first + replicas * share, share)
    ]


def training_batches(table, batch_size, num_steps, seed, length=None):
    """Gives dataset_fn(first_step, input_context) for Trainer.train.

    Its dataset holds, for every step from `first_step` to `num_steps`, one
    batch for each replica of this worker; `batch_size` is the global one.
    `length` fixes L, as TPUs need it."""

    def dataset_fn(first_step, context=None):
        """The batches from a step on, as the docstring above says."""
        parts = replica_slices(batch_size, context)
        size = parts[0].stop - parts[0].start

        def generate():
            order = EpochOrder(len(table), seed)
            for step in range(first_step, num_steps):
                rows = order.take(step * batch_size, batch_size)
                for part in parts:
                    yield table.batch(rows[part], length)

        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=table.signature(size, length)
        )
        return dataset.prefetch(4)

    return dataset_fn


def sorted_batches(table, batch_size, length=None):
    """Yields (row numbers, batch), rows of like length together.

    Every row comes once; the last batch may be smaller."""
    order = np.argsort(-table.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, table.batch(rows, length)
