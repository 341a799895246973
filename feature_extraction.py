"""The run of extract_features.py: texts in, vectors of their tokens out.

Texts are read in batches of like length and answered in their own order. What
is held in memory is bounded: results go to the file as they come.
"""

import os

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

import checkpoints
import common_flags
import distribution
import feature_vectors
import modeling
import runs
import text_pairs
import tokenization

FLAGS = common_flags.FLAGS
CHUNK_BYTES = 1 << 28  # of token vectors, until they are written


class Layers:
    """The chosen layers of a BertModel, called as a Predictor does.

    Gives {"values": float32 [B, L, Y, H]}, 0 at padding."""

    def __init__(self, model, layers):
        self._model, self._layers = model, layers

    def __call__(self, features, training=False):
        """Encodes a batch without computing its padding."""
        outputs = self._model(features, training=training, details="layers")
        chosen = [outputs["all_encoder_layers"][i] for i in self._layers]
        return {"values": tf.cast(tf.stack(chosen, axis=2), tf.float32)}


class Extractor:
    """A model with its tokenizer, and what of it the flags ask for.

    `layers` are the numbers as given, -1 being the last layer.
    Raises ValueError for whatever does not fit together."""

    def __init__(self, layers):
        self.files, _ = runs.find_model()
        runs.require_file(self.files, "bert_config_file")
        runs.require_file(self.files, "vocab_file")
        self.config = checkpoints.load_config(self.files.config_file)
        self.layers = layers
        self._check(self.files.config_file)
        self.tokenizer = tokenization.FullTokenizer(
            self.files.vocab_file, self.files.do_lower_case
        )
        tokenization.check_vocab(
            self.tokenizer.vocab,
            self.config.vocab_size,
            self.files.vocab_file,
            needed=("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
        )

    def _check(self, config_file):
        limit, count = (
            self.config.max_position_embeddings,
            self.config.num_hidden_layers,
        )
        if FLAGS.max_seq_length > limit:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} exceeds "
                f"max_position_embeddings={limit} of {config_file}. Lower the "
                "flag; --long_text=windows reads all of a longer text."
            )
        wrong = [i for i in self.layers if not -count <= i < count]
        if wrong:
            given = ",".join(map(str, self.layers))
            raise ValueError(
                f"--layers={given} names layer {wrong[0]}, but {config_file} "
                f"has num_hidden_layers={count}. Take layers from {-count} to "
                f"{count - 1}."
            )

    def load(self):
        """Makes the model and loads --init_checkpoint."""
        strategy = runs.make_strategy()
        padded = common_flags.on_tpu()
        self._length = FLAGS.max_seq_length if padded else None
        with strategy.scope():
            model = modeling.BertModel(
                self.config,
                dtype=distribution.dtype_policy(FLAGS.precision),
                padded=padded,
                use_one_hot_embeddings=FLAGS.use_one_hot_embeddings,
            )
        report = checkpoints.load_checkpoint(self.files.checkpoint, model)
        logging.info("%s", report.summary())
        self._predictor = distribution.Predictor(
            Layers(model, self.layers), strategy, FLAGS.run_eagerly
        )

    def encode(self, path):
        """Gives (TextPairs, EncodedTexts) of a file, one for each line."""
        pairs = text_pairs.read_pairs(path)
        texts = [
            feature_vectors.encode(
                pair,
                self.tokenizer,
                FLAGS.max_seq_length,
                FLAGS.long_text,
                FLAGS.doc_stride,
            )
            for pair in pairs
        ]
        cut = sum(text.is_cut for text in texts)
        if cut:
            logging.warning(
                "%s: %d of %d lines are longer than --max_seq_length=%d and "
                "were cut. --long_text=windows reads all of a line that is no "
                "pair.",
                path,
                cut,
                len(texts),
                FLAGS.max_seq_length,
            )
        return pairs, texts

    def outputs(self, texts):
        """Yields for each text the list of its windows' [L, Y, H], in order."""
        size = len(self.layers) * self.config.hidden_size * 4
        chunk, held = [], 0
        with tqdm.tqdm(total=len(texts), disable=None, leave=False) as bar:
            for number, text in enumerate(texts, start=1):
                chunk.append(text)
                held += size * sum(len(w.ids) for w in text.windows)
                if held >= CHUNK_BYTES or number == len(texts):
                    yield from self._chunk(chunk)
                    bar.update(len(chunk))
                    chunk, held = [], 0

    def _chunk(self, texts):
        windows = [window for text in texts for window in text.windows]
        order = sorted(range(len(windows)), key=lambda i: -len(windows[i].ids))
        size = FLAGS.batch_size
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        batches = (self._batch([windows[i] for i in part]) for part in parts)
        found = [None] * len(windows)
        for part, outputs in zip(
            parts, self._predictor.batches(batches), strict=True
        ):
            for i, values in zip(part, outputs["values"], strict=True):
                found[i] = values[: len(windows[i].ids)]
        place = 0
        for text in texts:
            end = place + len(text.windows)
            yield found[place:end]
            found[place:end] = [None] * (end - place)
            place = end

    def _batch(self, windows):
        width = self._length or max(len(window.ids) for window in windows)
        features = {
            name: np.zeros([len(windows), width], np.int32)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        for row, window in enumerate(windows):
            count = len(window.ids)
            features["input_ids"][row, :count] = window.ids
            features["input_mask"][row, :count] = 1
            features["segment_ids"][row, :count] = window.segments
        return features

    def vectors(self, texts):
        """Yields each text's pooled [Y, H]."""
        for text, outputs in zip(texts, self.outputs(texts), strict=True):
            yield feature_vectors.pool(
                text, outputs, FLAGS.pooling, FLAGS.normalize
            )

    def tokens(self, text):
        """The pieces of a text's output tokens."""
        return self.tokenizer.convert_ids_to_tokens(text.ids)


# ------------------------------------------------------------------ the run


def run(layers):
    """Does what the flags ask for, with the layers of these numbers.

    Raises ValueError or OSError for whatever is wrong with them."""
    common_flags.warn_of_unused_flags(logging.warning)
    extractor = Extractor(layers)
    pairs, texts = extractor.encode(FLAGS.input_file)
    others = extractor.encode(FLAGS.other_file) if FLAGS.other_file else None
    extractor.load()
    directory = os.path.dirname(FLAGS.output_file)
    os.makedirs(directory or ".", exist_ok=True)
    if FLAGS.similarity != "none":
        _write_similarity(extractor, texts, others, pairs)
    elif FLAGS.pooling != "none":
        _write_vectors(extractor, texts)
    else:
        _write_tokens(extractor, texts)
    logging.info("Wrote %s", FLAGS.output_file)


def _write_tokens(extractor, texts):
    layers, path = extractor.layers, FLAGS.output_file
    joined = (
        feature_vectors.join_windows(text, outputs)
        for text, outputs in zip(texts, extractor.outputs(texts), strict=True)
    )
    if FLAGS.output_format == "jsonl":
        objects = (
            feature_vectors.token_object(
                line, extractor.tokens(text), layers, values
            )
            for line, (text, values) in enumerate(
                zip(texts, joined, strict=True)
            )
        )
        return feature_vectors.write_json_lines(path, objects)
    lengths = [len(text.ids) for text in texts]
    hidden = extractor.config.hidden_size
    return feature_vectors.write_npz(
        path,
        "values",
        (sum(lengths), len(layers), hidden),
        FLAGS.output_dtype,
        joined,
        layers=layers,
        lengths=lengths,
        tokens=[token for text in texts for token in extractor.tokens(text)],
    )


def _write_vectors(extractor, texts):
    layers, path = extractor.layers, FLAGS.output_file
    vectors = extractor.vectors(texts)
    if FLAGS.output_format == "jsonl":
        objects = (
            {
                "linex_index": line,
                "layers": feature_vectors.layer_values(layers, values),
            }
            for line, values in enumerate(vectors)
        )
        return feature_vectors.write_json_lines(path, objects)
    shape = [len(texts), len(layers), extractor.config.hidden_size]
    if len(layers) == 1:
        del shape[1]
    if FLAGS.output_format == "npy":
        return feature_vectors.write_npy(
            path, shape, FLAGS.output_dtype, vectors
        )
    return feature_vectors.write_npz(
        path, "vectors", shape, FLAGS.output_dtype, vectors, layers=layers
    )


def _write_similarity(extractor, texts, others, pairs):
    def unit(some):
        rows = np.array([values[0] for values in extractor.vectors(some)])
        return feature_vectors.unit(rows)

    left = unit(texts)
    right = unit(others[1]) if others else left
    if FLAGS.similarity == "matrix":
        return _write_matrix(left, right)
    found = feature_vectors.nearest(left, right, FLAGS.top_k, not others)
    if FLAGS.output_format == "jsonl":
        lines = others[0] if others else pairs
        return feature_vectors.write_json_lines(
            FLAGS.output_file, _neighbours(found, lines)
        )
    found = list(found)
    similarities = np.array([cosines for _, cosines in found])
    return feature_vectors.write_npz(
        FLAGS.output_file,
        "similarities",
        similarities.shape,
        FLAGS.output_dtype,
        [similarities],
        indices=np.array([best for best, _ in found]),
    )


def _neighbours(found, lines):
    for line, (best, cosines) in enumerate(found):
        neighbours = [
            {
                "linex_index": int(i),
                "similarity": round(float(cosine), 6),
                "text": lines[i].text,
            }
            for i, cosine in zip(best, cosines, strict=True)
        ]
        yield {"linex_index": line, "nearest": neighbours}


def _write_matrix(left, right):
    rows = feature_vectors.cosines(left, right)
    path = FLAGS.output_file
    if FLAGS.output_format == "jsonl":
        objects = (
            {
                "linex_index": line,
                "similarities": [round(float(x), 6) for x in row],
            }
            for line, row in enumerate(rows)
        )
        return feature_vectors.write_json_lines(path, objects)
    shape = (len(left), len(right))
    if FLAGS.output_format == "npy":
        return feature_vectors.write_npy(path, shape, FLAGS.output_dtype, rows)
    return feature_vectors.write_npz(
        path, "similarities", shape, FLAGS.output_dtype, rows
    )
