"""SavedModels for TF Serving: raw strings, ids or tf.Examples in.

Three signatures answer from one set of weights: `serving_default` takes raw
strings and tokenizes them in the graph, with the ids of training; `ids` takes
what the encoder takes; `examples` takes serialized tf.Examples with the
features the original's serving function had. Any batch size, 0 included, and
any length up to the position table.

`serving_default` needs the operations of tensorflow_text in the process that
serves: `import tensorflow_text` in Python. Every operation the file needs is
listed in its assets.extra/ops.txt, the labels in assets.extra/labels.txt.
"""

import os
import shutil

import tensorflow as tf

import checkpoints
import common_flags
import tokenization_ops

INPUTS = ("input_ids", "input_mask", "segment_ids")


class ServingModel(tf.Module):
    """What is saved: a task's model, its tokenizer, the three signatures."""

    def __init__(self, model, task, tokenizer):
        super().__init__(name="serving")
        self.model = model
        self.tokenizer = tokenizer
        self._task = task
        self._limit = model.encoder.config.max_position_embeddings

    def _call(self, features):
        """Runs the model on dense int32 [B, L] features."""
        ids = features["input_ids"]
        shown = tf.shape(ids)[-1]
        check = tf.debugging.Assert(
            shown <= self._limit,
            [
                "input_ids are longer than max_position_embeddings:",
                shown,
                self._limit,
            ],
        )
        with tf.control_dependencies([check]):
            features = {key: tf.identity(v) for key, v in features.items()}
        return self.model(features, training=False)

    def texts(self):
        """The signature on raw strings, [B] each unless the task says so."""
        names = self._task.text_inputs()
        shapes = dict.fromkeys(names, [None]) | self._task.text_shapes

        def serve(**texts):
            """Answers raw strings, one argument per input."""
            with tf.control_dependencies(_same_batch_checks(texts)):
                texts = {name: tf.identity(v) for name, v in texts.items()}
            return self._task.serve(texts, self.tokenizer, self._call)

        return tf.function(serve).get_concrete_function(
            **{n: tf.TensorSpec(shapes[n], tf.string, n) for n in names}
        )

    def ids(self, shape):
        """The signature on the encoder's inputs."""

        def serve(**features):
            """Answers the rows of ids."""
            return self._task.serving_outputs(self._call(features))

        return tf.function(serve).get_concrete_function(
            **{name: tf.TensorSpec(shape, tf.int32, name) for name in INPUTS}
        )

    def examples(self, group):
        """The signature on serialized tf.Examples, `examples` [B]."""

        def serve(examples):
            """Answers serialized rows, filled up to the longest."""
            parsed = tf.io.parse_example(
                examples,
                {name: tf.io.RaggedFeature(tf.int64) for name in INPUTS},
            )
            features = {
                name: tf.cast(value.to_tensor(), tf.int32)
                for name, value in parsed.items()
            }
            if group > 1:
                features = {
                    name: tf.reshape(
                        value,
                        [
                            tf.shape(value)[0],
                            group,
                            tf.shape(value)[1] // group,
                        ],
                    )
                    for name, value in features.items()
                }
            return self._task.serving_outputs(self._call(features))

        return tf.function(serve).get_concrete_function(
            examples=tf.TensorSpec([None], tf.string, "examples")
        )


def _same_batch_checks(texts):
    """Checks that refuse inputs [B, ...] whose B differ, in plain words."""
    (first, wanted), *others = (
        (name, tf.shape(value)[0]) for name, value in texts.items()
    )
    return [
        tf.debugging.Assert(
            tf.equal(wanted, size),
            [
                f"{first} and {name} must have as many rows, not:",
                wanted,
                size,
            ],
        )
        for name, size in others
    ]


def long_text_rows(ids, room, long_text, stride=None):
    """What processors.long_text_parts gives, in graph ops.

    Takes the ragged ids [B, None] of texts, gives the ragged ids [R, None]
    to read, each of at most `room`, and the text int32 [R] each is of: R is B
    but for "windows"."""
    sizes = tf.cast(ids.row_lengths(), tf.int32)
    owners = tf.range(tf.size(sizes))
    if long_text != "windows":
        head = {"truncate_tail": room, "truncate_head": 0}
        head = head.get(long_text, room // 4)
        places = tf.ragged.range(sizes)
        ends = tf.gather(sizes, tf.cast(places.value_rowids(), tf.int32))
        kept = (places.values < head) | (places.values >= ends - room + head)
        kept = places.with_values(kept | (ends <= room))
        ids = ids.with_row_splits_dtype(kept.row_splits.dtype)
        return tf.ragged.boolean_mask(ids, kept), owners
    stride = stride or max(1, room // 2)
    counts = 1 + tf.maximum(0, -((room - sizes) // stride))
    owners = tf.repeat(owners, counts)
    first = tf.gather(tf.cumsum(counts, exclusive=True), owners)
    begin = (tf.range(tf.size(owners)) - first) * stride
    end = tf.minimum(begin + room, tf.gather(sizes, owners))
    shift = tf.gather(tf.cast(ids.row_starts(), tf.int32), owners)
    places = tf.ragged.range(shift + begin, shift + end)
    return places.with_values(tf.gather(ids.values, places.values)), owners


def in_parts(call, output, dtype, shape, tokens=1 << 15):
    """A `call` for any number of rows [R, L], such as windows of long texts.

    It reads at most `tokens` positions at a time and gives {output: tensor of
    `dtype` and `shape`, [R, ...]}."""

    def read(features):
        """Calls once a part; once at least, with no row if there is none."""
        total, length = tf.unstack(tf.shape(features["input_ids"]))
        size = tf.maximum(1, tokens // tf.maximum(1, length))
        count = tf.maximum(1, (total + size - 1) // size)

        def step(part, found):
            """Reads one part."""
            rows = {
                name: value[part * size : (part + 1) * size]
                for name, value in features.items()
            }
            return part + 1, found.write(part, call(rows)[output])

        found = tf.TensorArray(dtype, count, infer_shape=False)
        _, found = tf.while_loop(
            lambda part, _: part < count,
            step,
            (0, found),
            parallel_iterations=1,
        )
        return {output: tf.ensure_shape(found.concat(), shape)}

    return read


def _operations(path):
    """The names of all operations of a SavedModel, sorted."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())
    found = set()
    for graph in saved.meta_graphs:
        found.update(node.op for node in graph.graph_def.node)
        for function in graph.graph_def.library.function:
            found.update(node.op for node in function.node_def)
    return sorted(found)


def _write_extras(path, task):
    """Writes the lists of operations and labels beside the graph."""
    extras = os.path.join(path, "assets.extra")
    os.makedirs(extras)
    lists = {"ops.txt": _operations(path), "labels.txt": task.labels}
    for name, lines in lists.items():
        if lines:
            text = "".join(f"{line}\n" for line in lines)
            common_flags.write_whole(os.path.join(extras, name), text)


def export(path, model, task, vocab_file, do_lower_case):
    """Writes the SavedModel of a trained task to `path`, whole or not at all.

    An older one at `path` is replaced. Raises ValueError if the in-graph
    tokenizer does not give the ids of the Python one."""
    tokenizer = tokenization_ops.InGraphTokenizer(vocab_file, do_lower_case)
    tokenizer.self_test()
    module = ServingModel(model, task, tokenizer)
    shape = [None, None] if task.group == 1 else [None, task.group, None]
    signatures = {
        "serving_default": module.texts(),
        "ids": module.ids(shape),
        "examples": module.examples(task.group),
    }
    temporary = f"{path}.{os.getpid()}.tmp"
    former = f"{path}.{os.getpid()}.old"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with checkpoints.naming_a_full_disk(os.path.dirname(path)):
            tf.saved_model.save(module, temporary, signatures)
            _write_extras(temporary, task)
        if os.path.exists(path):
            os.replace(path, former)
        os.replace(temporary, path)
    finally:
        for leftover in (temporary, former):
            shutil.rmtree(leftover, ignore_errors=True)
