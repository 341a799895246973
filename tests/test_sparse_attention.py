"""Attention in blocks, against full attention with the same pairs masked."""

import numpy as np
import pytest
import tensorflow as tf

import heads
import modeling
import ops
import sparse_attention

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 96,
    "type_vocab_size": 2,
    "initializer_range": 0.3,
}


def batch_of(lengths, questions, width=None, seed=1):
    """Features of rows with so many tokens, the first of them a question."""
    draw = np.random.default_rng(seed)
    width = width or max(lengths)
    slot = np.arange(width)[None, :]
    mask = (slot < np.array(lengths)[:, None]).astype(np.int32)
    return {
        "input_ids": tf.constant(
            draw.integers(1, 50, mask.shape).astype(np.int32) * mask
        ),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.constant(
            (slot >= np.array(questions)[:, None]).astype(np.int32) * mask
        ),
    }


class Masked(ops.PaddedLayout):
    """Full attention where every pair has its own bias."""

    def __init__(self, mask, segments, num_heads, positions, width, question):
        super().__init__(mask, num_heads, positions)
        slot = tf.range(mask.shape[1])
        near = tf.abs(slot[:, None] - slot[None, :]) < width
        special = (segments == question) & (mask > 0) | (slot == 0)[None]
        seen = near[None] | special[:, :, None] | special[:, None, :]
        seen &= (mask > 0)[:, None, :]
        bias = tf.where(seen, 0.0, ops.MASKED_SCORE)[:, None]
        self.whole = bias
        self.biases = [bias]

    def split_selected(self, x, count):
        """Only [CLS] is ever selected here."""
        self.biases = [self.whole[:, :, :count]]
        return super().split_selected(x, count)

    def split_heads(self, x, parts):
        """As above; the first layers ask from everywhere."""
        if parts == 3:
            self.biases = [self.whole]
        return super().split_heads(x, parts)


def encoder_of(make_layout):
    modeling.keras.utils.set_random_seed(3)
    encoder = modeling.BertModel(modeling.BertConfig.from_dict(CONFIG))
    encoder.make_layout = make_layout
    return encoder


def masked(width, question=0):
    return lambda *given: Masked(*given, width, question)


ROWS = [
    ([20, 13, 1, 7, 20], [6, 3, 1, 7, 2]),
    ([33], [4]),
    ([48, 47], [1, 40]),
]


@pytest.mark.parametrize("lengths, questions", ROWS)
@pytest.mark.parametrize("width", [1, 2, 5, 16, 48, 1000])
def test_equals_full_attention_with_pairs_masked(width, lengths, questions):
    features = batch_of(lengths, questions)
    ours = encoder_of(sparse_attention.question_is_global(width))(features)
    full = encoder_of(masked(width))(features)
    real = features["input_mask"].numpy()[:, :, None]
    np.testing.assert_allclose(
        ours["sequence_output"], full["sequence_output"] * real, atol=1e-5
    )
    np.testing.assert_allclose(
        ours["pooled_output"], full["pooled_output"], atol=1e-5
    )


@pytest.mark.parametrize("width", [48, 64])
def test_a_width_of_the_length_is_full_attention(width):
    features = batch_of([48, 31, 9], [5, 1, 9])
    ours = encoder_of(sparse_attention.question_is_global(width))(features)
    plain = encoder_of(None)(features)
    for name, value in plain.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-5, err_msg=name)


def test_a_narrow_width_is_not_full_attention():
    features = batch_of([48], [3])
    ours = encoder_of(sparse_attention.question_is_global(4))(features)
    plain = encoder_of(None)(features)
    difference = ours["sequence_output"] - plain["sequence_output"]
    assert np.abs(difference).max() > 1e-3


def test_the_question_may_be_the_second_segment():
    features = batch_of([30, 22], [25, 11])
    make = sparse_attention.question_is_global(3, question_segment=1)
    ours = encoder_of(make)(features)
    full = encoder_of(masked(3, question=1))(features)
    real = features["input_mask"].numpy()[:, :, None]
    np.testing.assert_allclose(
        ours["sequence_output"], full["sequence_output"] * real, atol=1e-5
    )


def test_selected_positions_see_what_they_would():
    features = batch_of([30, 22, 5], [6, 2, 1])
    encoder = encoder_of(sparse_attention.question_is_global(4))
    whole = encoder(features)["sequence_output"]
    positions = tf.constant([[0, 3, 29], [0, 21, 1], [0, 4, 2]])
    found = encoder(features, positions=positions)["selected_output"]
    expected = tf.gather(whole, positions, batch_dims=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    first = encoder(features, positions=positions[:, :1])["selected_output"]
    np.testing.assert_allclose(first, expected[:, :1], atol=1e-5)


def test_rows_without_a_real_token_attend_everywhere():
    features = batch_of([12, 12], [3, 3])
    mask = features["input_mask"].numpy()
    mask[1] = 0
    features["input_mask"] = tf.constant(mask)
    ours = encoder_of(sparse_attention.question_is_global(12))(features)
    plain = encoder_of(None)(features)
    np.testing.assert_allclose(
        ours["sequence_output"], plain["sequence_output"], atol=1e-3
    )


def test_gradients_are_those_of_masked_pairs():
    features = batch_of([20, 13], [6, 3])
    features["start_positions"] = tf.constant([7, 0])
    features["end_positions"] = tf.constant([9, 0])
    found = []
    for make in (sparse_attention.question_is_global(4), masked(4)):
        encoder = encoder_of(make)
        model = heads.TaskModel(encoder, heads.SpanHead(16))
        with tf.GradientTape() as tape:
            outputs = model(features)
            loss = model.losses(outputs, features)["loss"]
        variables = encoder.layer[0].trainable_variables
        found.append((loss, tape.gradient(loss, variables)))
    (loss, ours), (full_loss, full) = found
    np.testing.assert_allclose(loss, full_loss, atol=1e-4)
    for one, other in zip(ours, full, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_traced_function_takes_any_shape():
    encoder = encoder_of(sparse_attention.question_is_global(5))
    spec = tf.TensorSpec([None, None], tf.int32)
    names = ("input_ids", "input_mask", "segment_ids")
    call = tf.function(
        lambda features: encoder(features)["sequence_output"],
        input_signature=[dict.fromkeys(names, spec)],
    )
    for lengths, questions in ROWS:
        features = batch_of(lengths, questions)
        expected = encoder(features)["sequence_output"]
        np.testing.assert_allclose(call(features), expected, atol=1e-5)


def test_memory_grows_with_the_length_not_its_square():
    """Counts the elements of scores and of gathered keys."""

    def elements(length):
        features = batch_of([length], [9])
        layout = sparse_attention.question_is_global(32)(
            features["input_mask"], features["segment_ids"], 4, None
        )
        groups = layout.split_heads(tf.zeros([length, 3 * 16]), 3)
        size = 0
        for (query, key, value), bias in zip(
            groups, layout.biases, strict=True
        ):
            scores = tf.matmul(query, key, transpose_b=True)
            parts = (query, key, value, bias, scores)
            size += sum(int(tf.size(part)) for part in parts)
        return size

    sizes = [elements(length) for length in (512, 1024, 2048, 4096)]
    for size, twice in zip(sizes, sizes[1:], strict=False):
        assert twice < 2.1 * size
    assert sizes[-1] < 4 * 4096 * 4096 / 10
