"""Fills the [MASK]s of texts with a pre-trained model.

A line of the input is a text or a pair `first ||| second`; `[MASK]` in it
stays whole. The answer holds, in the order of the text, the best pieces for
each mask, and for a pair how probable it is that the second follows the first.
"""

import json
import logging
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import processors
import text_files

_log = logging.getLogger(__name__)


class MaskedRow(NamedTuple):
    """A line as ids; `positions` are its masks that were not cut off."""

    pair: object  # text_pairs.TextPair
    ids: list
    segments: list
    positions: list
    num_masks: int


def encode(pair, tokenizer, max_seq_length):
    """Gives the MaskedRow of a TextPair; the longer text loses its end."""
    (mask,) = tokenizer.convert_tokens_to_ids(["[MASK]"])
    texts = pair.text_a, pair.text_b or ""
    count = sum(tokenizer.encode(text).count(mask) for text in texts)
    ids, segments = processors.encode_pair(tokenizer, *texts, max_seq_length)
    positions = [place for place, token in enumerate(ids) if token == mask]
    return MaskedRow(pair, ids, segments, positions, count)


def features_of(rows):
    """Gives the model's features of some rows, int32/float32 [B, ...]."""

    def padded(values, dtype=np.int32):
        width = max(1, *map(len, values))
        return np.array([[*v, *[0] * (width - len(v))] for v in values], dtype)

    return {
        "input_ids": padded([row.ids for row in rows]),
        "input_mask": padded([[1] * len(row.ids) for row in rows]),
        "segment_ids": padded([row.segments for row in rows]),
        "masked_lm_positions": padded([row.positions for row in rows]),
        "masked_lm_weights": padded(
            [[1] * len(row.positions) for row in rows], np.float32
        ),
    }


class BestPieces:
    """What a heads.TaskModel of pre-training puts in place of its masks.

    Called with features, as distribution.Predictor does; gives `ids` and
    `probabilities` [B, P, top_k] and `follows` [B]. Ids from `vocab_size` on,
    which no token has, are left out."""

    def __init__(self, model, top_k, vocab_size):
        self._model = model
        self._top_k = min(top_k, vocab_size)
        self._vocab_size = vocab_size

    def __call__(self, features, training=False):
        """Runs the model and picks the best of each mask."""
        outputs = self._model(features, training=training)
        probabilities = tf.nn.softmax(outputs["masked_lm_logits"])
        best, ids = tf.math.top_k(
            probabilities[:, : self._vocab_size], self._top_k
        )
        rows, slots = tf.unstack(tf.shape(features["masked_lm_positions"]))

        def placed(values):
            """Puts values [S, K] back into their slots, [B, P, K]."""
            flat = tf.scatter_nd(
                outputs["masked_lm_slots"][:, None],
                values,
                [rows * slots, self._top_k],
            )
            return tf.reshape(flat, [rows, slots, self._top_k])

        follows = tf.nn.softmax(outputs["next_sentence_logits"])[:, 0]
        return {
            "ids": placed(ids),
            "probabilities": placed(best),
            "follows": follows,
        }


def fill(rows, predictor, tokenizer, batch_size):
    """Gives one dict for each MaskedRow, in order, as predictions.jsonl has.

    `predictor` is a distribution.Predictor of BestPieces."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
    chunks = [
        order[i : i + batch_size] for i in range(0, len(order), batch_size)
    ]
    batches = (features_of([rows[i] for i in chunk]) for chunk in chunks)
    answers = [None] * len(rows)
    for chunk, outputs in zip(chunks, predictor.batches(batches), strict=True):
        for place, i in enumerate(chunk):
            row = {name: value[place] for name, value in outputs.items()}
            answers[i] = _answer(rows[i], row, tokenizer)
    cut = sum(row.num_masks - len(row.positions) for row in rows)
    if cut:
        _log.warning(
            "%d [MASK]s lie beyond --max_seq_length and have no prediction.",
            cut,
        )
    return answers


def _answer(row, outputs, tokenizer):
    masks = []
    for place in range(row.num_masks):
        best = []
        if place < len(row.positions):
            tokens = tokenizer.convert_ids_to_tokens(
                outputs["ids"][place].tolist()
            )
            values = outputs["probabilities"][place].tolist()
            best = [
                {"token": token, "probability": round(value, 6)}
                for token, value in zip(tokens, values, strict=True)
            ]
        masks.append({"predictions": best})
    answer = {"line": row.pair.line, "text": row.pair.text, "masks": masks}
    if row.pair.text_b:
        follows = round(float(outputs["follows"]), 6)
        answer["next_sentence_probability"] = follows
    return answer


def write(path, answers):
    """Writes one JSON object a line, whole or not at all."""
    with text_files.whole_file(path) as file:
        for answer in answers:
            file.write(json.dumps(answer, ensure_ascii=False) + "\n")
