"""SavedModels for TF Serving: raw strings, ids or tf.Examples in.

Three signatures answer from one set of weights: `serving_default` takes raw
strings and tokenizes them in the graph, with the ids of training; `ids` takes
what the encoder takes; `examples` takes serialized tf.Examples with the
features the original's serving function had. Any batch size and length.
"""

import os
import shutil

import tensorflow as tf

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
        """The signature on raw strings, [B] each."""
        names = self._task.text_inputs()

        def serve(**texts):
            return self._task.serve(texts, self.tokenizer, self._call)

        return tf.function(serve).get_concrete_function(
            **{name: tf.TensorSpec([None], tf.string, name) for name in names}
        )

    def ids(self, shape):
        """The signature on the encoder's inputs."""

        def serve(**features):
            return self._task.serving_outputs(self._call(features))

        return tf.function(serve).get_concrete_function(
            **{name: tf.TensorSpec(shape, tf.int32, name) for name in INPUTS}
        )

    def examples(self, group):
        """The signature on serialized tf.Examples, `examples` [B]."""

        def serve(examples):
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
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        tf.saved_model.save(module, temporary, signatures)
        if os.path.exists(path):
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
