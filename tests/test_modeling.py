"""The encoder and heads against the original's values and gradients."""

import json
import operator

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import GOLDEN

import heads
import modeling
import ops

INPUTS = ("input_ids", "input_mask", "segment_ids")
BATCHES = [
    "batch_a_b6_s16",
    "batch_b_b2_s64",
    "batch_c_b3_s1",
    "batch_d_b1_s5_nomask_notype",
    "batch_e_b4_s12_holes",
    "batch_f_b3_s10_zero_weights",
]
EMPTY_ROW = 5  # of batch_a: its mask is all 0, see the golden README


def tiny_config(**changes):
    values = json.loads((GOLDEN / "tiny" / "bert_config.json").read_text())
    return modeling.BertConfig.from_dict(values | changes)


def golden_inputs(golden, *labels):
    return {
        key: golden[f"in:{key}"]
        for key in INPUTS + labels
        if f"in:{key}" in golden.files
    }


def original_variables(model):
    """Original name -> variable, by path and by each head's own table."""
    encoder = getattr(model, "encoder", model)
    table = {v.path: v for v in encoder.trainable_variables}
    if model is not encoder:
        for attribute, name in model.head.original_names.items():
            table[name] = operator.attrgetter(attribute)(model.head)
    return table


def load_values(model, directory="tiny"):
    values = tf.train.load_checkpoint(
        str(GOLDEN / directory / "bert_model.ckpt")
    )
    for name, variable in original_variables(model).items():
        variable.assign(values.get_tensor(name))


def task_model(kind, padded, directory="tiny", **changes):
    config = tiny_config(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes
    )
    encoder = modeling.BertModel(config, padded=padded)
    if kind == "pretraining":
        head = heads.PretrainingHead(
            config, encoder.get_embedding_table(), padded=padded
        )
    elif kind == "squad":
        head = heads.SpanHead(config.hidden_size, padded=padded)
    else:
        head = heads.ClassifierHead(config.hidden_size, kind)
    model = heads.TaskModel(encoder, head)
    load_values(model, directory)
    return model


def loss_and_gradients(model, features):
    table = original_variables(model)
    with tf.GradientTape() as tape:
        outputs = model(features)
        sums = model.losses(outputs, features)
        weights = model.loss_weights(features)
        loss = sum(sums[name] / weights[name] for name in sums)
    variables = [v.value for v in table.values()]
    gradients = tape.gradient(loss, variables)
    return loss, outputs, dict(zip(table, gradients, strict=True))


def assert_gradients(golden, gradients, tolerance=1e-5):
    names = [key[5:] for key in golden.files if key.startswith("grad:")]
    assert names
    for name in names:
        gradient = tf.convert_to_tensor(gradients[name])
        np.testing.assert_allclose(
            gradient, golden[f"grad:{name}"], atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_encoder_equals_the_original(batch, padded):
    golden = np.load(GOLDEN / "modeling" / f"{batch}.npz")
    model = modeling.BertModel(tiny_config(), padded=padded)
    load_values(model)
    inputs = golden_inputs(golden)
    outputs = model(inputs)
    mask = inputs.get("input_mask", np.ones_like(inputs["input_ids"]))
    tolerance = np.full(len(mask), 1e-5)
    tolerance[mask.sum(1) == 0] = 1e-3
    difference = np.abs(
        outputs["sequence_output"].numpy() - golden["out:sequence_output"]
    )
    if not padded:
        real = np.where(mask.sum(1, keepdims=True) == 0, 1, mask)
        difference *= real[:, :, None]
        hidden = outputs["sequence_output"].numpy()[real == 0]
        assert not np.any(hidden)
    assert np.all(difference.max(axis=(1, 2)) < tolerance)
    pooled = np.abs(outputs["pooled_output"] - golden["out:pooled_output"])
    assert np.all(pooled.max(axis=1) < tolerance)


def test_details_are_the_original_layers():
    golden = np.load(GOLDEN / "modeling" / "batch_b_b2_s64.npz")
    model = modeling.BertModel(tiny_config())
    load_values(model)
    model(golden_inputs(golden), details=True)
    np.testing.assert_allclose(
        model.get_embedding_output(), golden["out:embedding_output"], atol=1e-5
    )
    for index, layer in enumerate(model.get_all_encoder_layers()):
        np.testing.assert_allclose(
            layer, golden[f"out:layer_{index}"], atol=1e-5
        )
    np.testing.assert_allclose(
        model.get_pooled_output(), golden["out:pooled_output"], atol=1e-5
    )
    assert model.get_embedding_table().shape == (97, 32)


def test_getters_need_a_call():
    model = modeling.BertModel(tiny_config())
    with pytest.raises(ValueError, match="Call the model eagerly first"):
        model.get_pooled_output()


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("batch", BATCHES)
def test_pretraining_losses_and_gradients(batch, padded):
    golden = np.load(GOLDEN / "modeling" / f"{batch}.npz")
    model = task_model("pretraining", padded)
    features = golden_inputs(
        golden,
        "masked_lm_positions",
        "masked_lm_ids",
        "masked_lm_weights",
        "next_sentence_labels",
    )
    features.setdefault("input_mask", np.ones_like(features["input_ids"]))
    loss, outputs, gradients = loss_and_gradients(model, features)
    np.testing.assert_allclose(loss, golden["out:total_loss"], atol=1e-5)
    np.testing.assert_allclose(
        outputs["next_sentence_logits"],
        golden["out:next_sentence_logits"],
        atol=1e-3 if batch.startswith("batch_a") else 1e-5,
    )
    slots = outputs["masked_lm_slots"].numpy()
    assert padded or len(slots) == np.sum(features["masked_lm_weights"] > 0)
    weights = features["masked_lm_weights"].reshape(-1)[slots]
    masked, _, _ = model.head.example_losses(outputs, features)
    expected = golden["out:masked_lm_example_loss"][slots]
    wrong = np.abs(masked - expected) * (weights > 0)
    assert np.max(wrong, initial=0) < 1e-3
    assert_gradients(golden, gradients)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("labels", [2, 3])
def test_classifier_losses_and_gradients(labels, padded):
    golden = np.load(GOLDEN / "modeling" / f"head_classifier{labels}.npz")
    directory = "tiny/classifier" if labels == 3 else "tiny/classifier2"
    model = task_model(labels, padded, directory)
    features = golden_inputs(golden, "label_ids")
    loss, outputs, gradients = loss_and_gradients(model, features)
    np.testing.assert_allclose(loss, golden["out:loss"], atol=1e-5)
    rows = [i for i in range(6) if i != EMPTY_ROW]
    np.testing.assert_allclose(
        outputs["probabilities"].numpy()[rows],
        golden["out:probabilities"][rows],
        atol=1e-5,
    )
    assert_gradients(golden, gradients)


@pytest.mark.parametrize("padded", [False, True])
def test_blanks_are_scored_by_the_masked_lm_head(padded):
    """The mean log-probability of a choice's pieces, all of them masked."""
    lm = task_model("pretraining", False)
    encoder = modeling.BertModel(lm.encoder.config, padded=padded)
    model = heads.TaskModel(encoder, heads.BlankHead(encoder, 4, padded))
    load_values(model)
    left, right = [5, 6, 7], [8, 9]
    choices = [[11, 12], [13], []], [[20, 21, 22], [30, 31], [40]]
    ids = np.zeros((2, 3, 12), np.int32)
    segments, mask = np.zeros_like(ids), np.zeros_like(ids)
    expected = np.full((2, 3), -10000.0)
    for place in np.ndindex(2, 3):
        choice = choices[place[0]][place[1]]
        if place == (0, 2):  # fills up: a row without a piece
            continue
        row = [2, *left, *choice, *right, 3]
        ids[place][: len(row)], mask[place][: len(row)] = row, 1
        at = np.arange(4, 4 + len(choice))
        segments[place][at] = 1
        hidden = np.array([row])
        hidden[0, at] = 4
        outputs = lm(
            {
                "input_ids": hidden,
                "masked_lm_positions": at[None],
                "masked_lm_weights": np.ones((1, len(at)), np.float32),
            }
        )
        scores = tf.nn.log_softmax(outputs["masked_lm_logits"]).numpy()
        expected[place] = scores[range(len(choice)), choice].mean()
    features = {"input_ids": ids, "segment_ids": segments, "input_mask": mask}
    found = model(features)["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    features["label_ids"] = np.array([1, 2])
    loss, _, gradients = loss_and_gradients(model, features)
    losses = np.log(np.exp(expected).sum(axis=1)) - expected[[0, 1], [1, 2]]
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-5)
    table = gradients["bert/embeddings/word_embeddings"]
    assert np.abs(tf.convert_to_tensor(table)).max() > 0


def test_span_losses_and_gradients():
    golden = np.load(GOLDEN / "modeling" / "head_squad.npz")
    model = task_model("squad", True, "tiny/squad")
    features = golden_inputs(golden, "start_positions", "end_positions")
    loss, outputs, gradients = loss_and_gradients(model, features)
    np.testing.assert_allclose(loss, golden["out:loss"], atol=1e-5)
    for side in ("start_logits", "end_logits"):
        np.testing.assert_allclose(
            outputs[side], golden[f"out:{side}"], atol=1e-5
        )
    assert gradients["bert/pooler/dense/kernel"] is None
    assert_gradients(golden, gradients)


def test_span_scores_without_padding_do_not_depend_on_it():
    golden = np.load(GOLDEN / "modeling" / "head_squad.npz")
    features = golden_inputs(golden, "start_positions", "end_positions")
    rows = [i for i in range(6) if i != EMPTY_ROW]
    features = {key: value[rows] for key, value in features.items()}
    model = task_model("squad", False, "tiny/squad")
    wide = {
        key: np.pad(value, [(0, 0), (0, 7)]) if value.ndim == 2 else value
        for key, value in features.items()
    }
    loss, outputs, _ = loss_and_gradients(model, features)
    wide_loss, _, _ = loss_and_gradients(model, wide)
    np.testing.assert_allclose(loss, wide_loss, rtol=1e-6)
    mask = features["input_mask"] > 0
    np.testing.assert_allclose(
        outputs["start_logits"].numpy()[mask],
        golden["out:start_logits"][rows][mask],
        atol=1e-5,
    )


@pytest.mark.parametrize("act", ["relu", "tanh", "linear", "GELU"])
@pytest.mark.parametrize("padded", [True, False])
def test_activations(act, padded):
    golden = np.load(GOLDEN / "modeling" / f"act_{act}.npz")
    model = modeling.BertModel(tiny_config(hidden_act=act), padded=padded)
    load_values(model)
    batch = np.load(GOLDEN / "modeling" / "batch_a_b6_s16.npz")
    rows = [i for i in range(6) if i != EMPTY_ROW]
    inputs = {k: v[rows] for k, v in golden_inputs(batch).items()}
    pooled = model(inputs)["pooled_output"]
    np.testing.assert_allclose(
        pooled, golden["out:pooled_output"][rows], atol=1e-5
    )


def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match="'swish' is not one of"):
        modeling.BertModel(tiny_config(hidden_act="swish"))


def test_every_length_up_to_the_position_table():
    golden = np.load(GOLDEN / "modeling" / "lengths_1_to_64.npz")
    model = modeling.BertModel(tiny_config())
    load_values(model)
    outputs = model(golden_inputs(golden))
    np.testing.assert_allclose(
        outputs["pooled_output"], golden["out:pooled_output"], atol=1e-5
    )


def test_selected_positions_equal_the_whole_sequence():
    golden = np.load(GOLDEN / "modeling" / "batch_e_b4_s12_holes.npz")
    inputs = golden_inputs(golden)
    positions = np.array(
        [[0, np.nonzero(m)[0][-1]] for m in inputs["input_mask"]]
    )
    for padded in (False, True):
        model = modeling.BertModel(tiny_config(), padded=padded)
        load_values(model)
        selected = model(inputs, positions=tf.constant(positions, tf.int32))
        expected = np.take_along_axis(
            golden["out:sequence_output"], positions[:, 1:, None], axis=1
        )
        np.testing.assert_allclose(
            selected["selected_output"][:, 1:], expected, atol=1e-5
        )
        np.testing.assert_allclose(
            selected["pooled_output"], golden["out:pooled_output"], atol=1e-5
        )


def test_padded_ids_change_nothing():
    golden = np.load(GOLDEN / "modeling" / "lengths_1_to_64.npz")
    model = modeling.BertModel(tiny_config())
    load_values(model)
    inputs = golden_inputs(golden)
    other = dict(inputs)
    noise = np.random.RandomState(5).randint(0, 97, other["input_ids"].shape)
    other["input_ids"] = np.where(
        inputs["input_mask"] > 0, inputs["input_ids"], noise
    )
    first = model(inputs)["sequence_output"]
    second = model(other)["sequence_output"]
    np.testing.assert_array_equal(first, second)


def test_gelu_table():
    golden = np.load(GOLDEN / "modeling" / "gelu.npz")
    keys = golden.files
    x, expected = golden[keys[0]], golden[keys[1]]
    for training in (False, True):
        np.testing.assert_allclose(
            ops.gelu(tf.constant(x), training), expected, atol=1e-6
        )


@pytest.mark.parametrize("form", [ops.gelu, ops.gelu_erf])
def test_gelu_gradients_equal_automatic_ones(form):
    x = tf.constant(np.linspace(-6, 6, 101), tf.float32)
    gradients = []
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = form(x, training)
        gradients.append(tape.gradient(y, x))
    np.testing.assert_allclose(*gradients, atol=5e-6)


def test_layer_norm_equals_its_formula():
    random = np.random.RandomState(3)
    x = tf.constant(random.randn(5, 8) * 3 + 1, tf.float32)
    gamma = tf.constant(random.randn(8), tf.float32)
    beta = tf.constant(random.randn(8), tf.float32)
    target = tf.constant(random.randn(5, 8), tf.float32)

    def plain(x, gamma, beta):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-12) * gamma + beta

    results = []
    for function in (plain, ops.layer_norm):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            y = function(x, gamma, beta)
            loss = tf.reduce_sum(y * target)
        results.append([y, *tape.gradient(loss, [x, gamma, beta])])
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_layer_norm_of_a_constant_is_beta(dtype):
    beta = tf.constant([1.0, -2.0, 0.5])
    x = tf.fill([2, 3], tf.cast(7.0, dtype))
    y = ops.layer_norm(x, tf.ones([3]), beta)
    np.testing.assert_array_equal(tf.cast(y, tf.float32), [beta, beta])


def test_keep_mask_has_its_rate_and_repeats():
    seed = tf.constant([3, 4])
    mask = ops.keep_mask([1000, 100], 0.1, seed, tf.float32).numpy()
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert abs(mask.mean() - 0.9) < 0.003
    again = ops.keep_mask([1000, 100], 0.1, seed, tf.float32)
    np.testing.assert_array_equal(mask, again)
    other = ops.keep_mask([1000, 100], 0.1, ops.fold_in(seed, 1), tf.float32)
    assert abs(np.mean(other.numpy() == mask) - 0.82) < 0.01


def test_dropout_keeps_the_mean():
    config = tiny_config(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    model = modeling.BertModel(config)
    load_values(model)
    inputs = {"input_ids": np.arange(24).reshape(2, 12) + 5}
    plain = model(inputs)["sequence_output"].numpy()
    draws = [
        model(inputs, training=True, seed=tf.constant([7, step]))[
            "sequence_output"
        ].numpy()
        for step in range(200)
    ]
    assert not np.array_equal(draws[0], draws[1])
    correlation = np.corrcoef(np.mean(draws, 0).ravel(), plain.ravel())[0, 1]
    assert correlation > 0.99
    again = model(inputs, training=True, seed=tf.constant([7, 0]))
    np.testing.assert_array_equal(again["sequence_output"], draws[0])


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", ["pretraining", 3])
def test_bfloat16_is_near_and_trains(kind, padded):
    golden = np.load(GOLDEN / "modeling" / "batch_a_b6_s16.npz")
    config = tiny_config()
    encoder = modeling.BertModel(config, dtype="mixed_bfloat16", padded=padded)
    load_values(encoder)
    inputs = golden_inputs(golden)
    outputs = encoder(inputs)
    assert outputs["pooled_output"].dtype == tf.bfloat16
    difference = tf.cast(outputs["pooled_output"], tf.float32).numpy()
    difference = np.abs(difference - golden["out:pooled_output"])
    assert difference[:EMPTY_ROW].max() < 0.05
    assert np.isfinite(difference).all()
    assert all(v.dtype == "float32" for v in encoder.trainable_variables)
    if kind == "pretraining":
        head = heads.PretrainingHead(
            config, encoder.get_embedding_table(), encoder.dtype_policy
        )
        labels = [key[3:] for key in golden.files if key.startswith("in:")]
        features = {key: golden[f"in:{key}"] for key in labels}
    else:
        head = heads.ClassifierHead(config.hidden_size, kind)
        features = inputs | {"label_ids": np.array([0, 1, 2, 0, 1, 2])}
    model = heads.TaskModel(encoder, head)
    with tf.GradientTape() as tape:
        outputs = model(features, training=True, seed=tf.constant([1, 2]))
        loss = sum(model.losses(outputs, features).values())
    assert loss.dtype == tf.float32
    gradients = tape.gradient(
        loss, [v.value for v in model.trainable_variables]
    )
    for gradient in gradients:
        if gradient is not None:
            assert gradient.dtype == tf.float32
            assert np.isfinite(tf.convert_to_tensor(gradient)).all()


def test_a_row_of_padding_does_no_harm():
    """Rows that only fill a batch are finite and change no other row."""
    for dtype in ("float32", "mixed_bfloat16"):
        model = modeling.BertModel(tiny_config(), dtype=dtype)
        load_values(model)
        ids = np.array([[2, 5, 6, 3], [0, 0, 0, 0]])
        mask = np.array([[1, 1, 1, 1], [0, 0, 0, 0]])
        both = model({"input_ids": ids, "input_mask": mask})["pooled_output"]
        one = model({"input_ids": ids[:1]})["pooled_output"]
        both, one = tf.cast(both, tf.float32), tf.cast(one, tf.float32)
        assert np.isfinite(both).all()
        np.testing.assert_allclose(both[:1], one, atol=1e-6)


def test_segment_id_out_of_range_adds_nothing():
    model = modeling.BertModel(tiny_config())
    load_values(model)
    model.embeddings.token_type_embeddings.assign(np.full((2, 32), 0.25))
    ids = np.array([[2, 5, 6, 3]])
    outside = {"input_ids": ids, "segment_ids": np.full((1, 4), 7)}
    before = model(outside)["pooled_output"]
    model.embeddings.token_type_embeddings.assign(np.zeros((2, 32)))
    after = model({"input_ids": ids})["pooled_output"]
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_too_long_a_batch_names_both_lengths():
    model = modeling.BertModel(tiny_config())
    with pytest.raises(ValueError, match="65 tokens.*embeddings=64"):
        model({"input_ids": np.zeros((1, 65), np.int32)})


def test_one_hot_embeddings_are_the_same():
    ids = {"input_ids": np.array([[2, 5, 6, 3]])}
    results = []
    for one_hot in (False, True):
        model = modeling.BertModel(
            tiny_config(), use_one_hot_embeddings=one_hot
        )
        load_values(model)
        results.append(model(ids)["pooled_output"])
    np.testing.assert_allclose(*results, atol=1e-6)


def test_it_is_an_ordinary_keras_model(tmp_path):
    """Inside a functional model, trained by fit, saved and loaded."""
    encoder = modeling.BertModel(tiny_config())
    load_values(encoder)
    inputs = {
        "input_ids": keras.Input((None,), dtype="int32", name="input_ids"),
        "input_mask": keras.Input((None,), dtype="int32", name="input_mask"),
    }
    pooled = encoder(inputs)["pooled_output"]
    output = keras.layers.Dense(2, activation="softmax")(pooled)
    model = keras.Model(inputs, output)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    ids = np.random.RandomState(1).randint(5, 97, (16, 9))
    data = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    history = model.fit(data, ids[:, 1] % 2, epochs=40, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(
        path, custom_objects={"BertModel": modeling.BertModel}
    )
    np.testing.assert_allclose(
        loaded.predict(data, verbose=0),
        model.predict(data, verbose=0),
        atol=1e-6,
    )


PARAMETERS = {  # vocabulary 30,522, without task heads
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "bert_L-2_H-128": 4_385_920,
    "bert_L-4_H-256": 11_170_560,
    "bert_L-4_H-512": 28_763_648,
    "bert_L-8_H-512": 41_373_184,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name):
    config = modeling.BertConfig.from_preset(name)
    assert count_parameters(config) == PARAMETERS[name]


def count_parameters(config):
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + 5 * hidden
    tables = config.vocab_size + config.max_position_embeddings
    tables += config.type_vocab_size
    return (
        (tables + 2) * hidden
        + config.num_hidden_layers * layer
        + hidden * (hidden + 1)
    )


def test_counted_parameters_are_those_of_a_model():
    config = modeling.BertConfig.from_preset("bert_L-2_H-128")
    model = modeling.BertModel(config)
    counted = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert counted == count_parameters(config)
    assert len(modeling.PRESETS) == 26


def test_config_keeps_unknown_keys_and_names_what_is_wrong(tmp_path):
    config = modeling.BertConfig.from_dict({"vocab_size": 7, "pooler_size": 3})
    assert json.loads(config.to_json_string())["pooler_size"] == 3
    assert config.type_vocab_size == 16
    path = tmp_path / "bert_config.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="bert_config.json"):
        modeling.BertConfig.from_json_file(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="vocab_size"):
        modeling.BertConfig.from_json_file(path)
    with pytest.raises(ValueError, match="hidden_size=30 .*heads=4"):
        modeling.BertModel(tiny_config(hidden_size=30))
