"""optimization.py against golden runs, plain numpy and its own edges."""

import json
import logging
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import GOLDEN, ROOT

import checkpoints
import heads
import modeling
import optimization
import training

MODELING = GOLDEN / "modeling"

# Before any test starts TensorFlow: two replicas need two devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)


class Named(keras.Variable):
    """A Keras variable whose path the test chooses."""

    def __init__(self, path, value):
        super().__init__(np.asarray(value, np.float32), name="v")
        self._path = path


def reference_adamw(w, grads, rates, decay, state=None):
    """BERT's AdamW on one variable in float64; returns every w."""
    w = w.astype(np.float64)
    m, v = state or (0.0, 0.0)
    values = []
    for gradient, rate in zip(grads, rates, strict=True):
        gradient = gradient.astype(np.float64)
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        w = w - rate * (m / (np.sqrt(v) + 1e-6) + decay * w)
        values.append(w)
    return values


def reference_lamb(w, grads, rate, decay):
    """LAMB on one variable in float64; returns the last w."""
    w = w.astype(np.float64)
    m = v = 0.0
    for step, gradient in enumerate(grads, 1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        update = m / (1 - 0.9**step)
        update = update / (np.sqrt(v / (1 - 0.999**step)) + 1e-6)
        ratio = 1.0
        if decay:
            update = update + decay * w
            ratio = np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate * ratio * update
    return w


# ------------------------------------------------------------ learning rate


def test_schedules_equal_the_golden_ones():
    table = json.loads((MODELING / "lr_schedules.json").read_text())
    assert len(table) == 7
    for name, expected in table.items():
        given = dict(part.split("=") for part in name.split(","))
        rate = optimization.WarmupSchedule(
            float(given["lr"]),
            int(given["num_train_steps"]),
            int(given["num_warmup_steps"]),
        )
        got = [
            rate(tf.constant(step, tf.int64)).numpy()
            for step in range(len(expected))
        ]
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-7)


def test_original_rate_drops_after_warmup_and_peak_does_not():
    original = optimization.WarmupSchedule(1e-4, 100, 50)
    peak = optimization.WarmupSchedule(1e-4, 100, 50, warmup_schedule="peak")
    for step, expected in {0: 0, 49: 9.8e-5, 50: 5e-5, 99: 1e-6}.items():
        assert original(step).numpy() == pytest.approx(expected, rel=1e-5)
    for step, expected in {25: 5e-5, 50: 1e-4, 75: 5e-5, 100: 0}.items():
        assert peak(step).numpy() == pytest.approx(expected, abs=1e-10)


def test_rate_after_the_last_step_is_zero_for_every_decay():
    for kind in ("linear", "cosine"):
        for warmup in ("original", "peak"):
            rate = optimization.WarmupSchedule(3e-5, 12, 4, kind, warmup)
            assert abs(rate(12).numpy()) < 1e-12
            assert abs(rate(500).numpy()) < 1e-12


def test_cosine_and_constant_schedules():
    cosine = optimization.WarmupSchedule(2.0, 40, 0, "cosine")
    assert cosine(10).numpy() == pytest.approx(1 + np.sqrt(0.5), rel=1e-6)
    constant = optimization.WarmupSchedule(2.0, 40, 8, "constant")
    assert [constant(s).numpy() for s in (2, 8, 39)] == [0.5, 2.0, 2.0]


def test_schedule_keeps_its_config():
    rate = optimization.WarmupSchedule(3e-5, 9, 2, "cosine", "peak")
    config = keras.optimizers.schedules.serialize(rate)
    again = keras.optimizers.schedules.deserialize(config)
    assert again.get_config() == rate.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1e-4, 0, 0), "num_train_steps=0 leaves nothing"),
        ((1e-4, 5, -1), "num_warmup_steps=-1 is below 0"),
        ((1e-4, 5, 1, "step"), "schedule='step' is not one of: linear"),
        ((1e-4, 5, 1, "linear", "x"), "warmup_schedule='x' is not one of"),
    ],
)
def test_bad_schedules_say_why(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimization.WarmupSchedule(*arguments)


# ------------------------------------------------------------------- AdamW


def toy():
    """The golden toy: variables, gradients per step, expected values."""
    data = np.load(MODELING / "adamw_toy.npz")
    names = [str(name) for name in data["names"]]
    count = range(len(names))
    return (
        [Named(name, data[f"init_{i}"]) for i, name in enumerate(names)],
        [data[f"grads_{i}"] for i in count],
        [data[f"traj_{i}"] for i in count],
    )


@pytest.mark.parametrize("in_graph", [False, True])
def test_adamw_equals_the_golden_toy(in_graph):
    variables, grads, expected = toy()
    optimizer = optimization.AdamWeightDecay(0.1, clip_norm=None)
    optimizer.build(variables)
    step = optimizer.apply
    if in_graph:
        step = tf.function(lambda grads: optimizer.apply(grads, variables))
    for number in range(10):
        step([tf.constant(g[number]) for g in grads])
        for variable, values in zip(variables, expected, strict=True):
            np.testing.assert_allclose(
                variable.numpy(), values[number], rtol=1e-6, atol=1e-6
            )
    assert optimizer.iterations.numpy() == 10
    assert optimizer.iterations.numpy().dtype == np.int64


def test_adamw_equals_numpy_with_clipping_and_a_schedule():
    random = np.random.default_rng(3)
    shapes = {"a/kernel": (5, 4), "a/bias": (4,), "LayerNorm/gamma": (4,)}
    start = {k: random.normal(size=s) for k, s in shapes.items()}
    grads = {k: random.normal(size=(12, *s)) for k, s in shapes.items()}
    variables = [Named(k, w) for k, w in start.items()]
    schedule = optimization.WarmupSchedule(0.02, 12, 3)
    optimizer = optimization.AdamWeightDecay(schedule)
    norms = []
    for step in range(12):
        given = [tf.constant(g[step], tf.float32) for g in grads.values()]
        norms.append(optimizer.apply_with_norm(given, variables).numpy())
    expected = np.sqrt(
        sum((g**2).reshape(12, -1).sum(1) for g in grads.values())
    )
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    rates = [float(schedule(step)) for step in range(12)]
    for variable, (key, w) in zip(variables, start.items(), strict=True):
        clipped = [
            g / max(norm, 1)
            for g, norm in zip(grads[key], expected, strict=True)
        ]
        decay = 0.01 if key == "a/kernel" else 0
        last = reference_adamw(w, clipped, rates, decay)[-1]
        np.testing.assert_allclose(variable.numpy(), last, atol=5e-7)


def test_repeated_ids_are_summed_before_they_are_squared():
    start = np.zeros((4, 2), np.float32)
    slices = tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [0.5, 0.5], [3.0, -1.0]]),
        tf.constant([2, 0, 2]),
        tf.constant([4, 2]),
    )
    dense = np.array([[0.5, 0.5], [0, 0], [4, 1], [0, 0]], np.float32)
    values = []
    for gradient in (slices, tf.constant(dense)):
        variable = Named("bert/embeddings/word_embeddings", start)
        optimizer = optimization.AdamWeightDecay(0.1)
        norm = optimizer.apply_with_norm([gradient], [variable]).numpy()
        assert norm == pytest.approx(np.linalg.norm(dense), rel=1e-6)
        values.append(variable.numpy())
    np.testing.assert_array_equal(*values)


def test_original_embedding_clip_counts_every_lookup():
    slices = tf.IndexedSlices(
        tf.constant([[3.0, 0.0], [4.0, 0.0]]), tf.constant([1, 1])
    )
    tied = tf.constant([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    other = tf.constant([2.0])
    moved = []
    for switch in (True, False):
        table = Named("bert/embeddings/word_embeddings", np.zeros((3, 2)))
        bias = Named("output_bias", [0.0])
        optimizer = optimization.AdamWeightDecay(
            0.1, original_embedding_clip=switch
        )
        norm = optimizer.apply_with_norm([[tied, slices], other], [table, bias])
        squared = 4 + 5 + (9 + 16 if switch else 49)
        assert norm.numpy() == pytest.approx(np.sqrt(squared), rel=1e-6)
        moment = optimizer.slot(table, "adam_m").numpy()
        np.testing.assert_allclose(
            moment,
            0.1 * np.array([[0, 0], [7, 2], [1, 0]]) / np.sqrt(squared),
            rtol=1e-5,
        )
        moved.append(moment)
    assert not np.allclose(*moved)


def test_quirk_concerns_the_word_embedding_only():
    slices = tf.IndexedSlices(tf.constant([[3.0], [4.0]]), tf.constant([0, 0]))
    optimizer = optimization.AdamWeightDecay(0.1, original_embedding_clip=True)
    table = Named("bert/embeddings/token_type_embeddings", [[0.0], [0.0]])
    assert optimizer.apply_with_norm([slices], [table]).numpy() == 7


def test_zero_rate_moves_the_moments_only_and_then_the_expected_amount():
    variable = Named("kernel", [1.0, -1.0])
    schedule = optimization.WarmupSchedule(1e-3, 100, 10)
    optimizer = optimization.AdamWeightDecay(schedule, weight_decay_rate=0)
    gradient = tf.constant([0.5, -0.5])
    optimizer.apply([gradient], [variable])
    np.testing.assert_array_equal(variable.numpy(), [1, -1])
    assert (optimizer.slot(variable, "adam_m").numpy() != 0).all()
    optimizer.apply([gradient], [variable])
    # m = 0.19 * 0.5, v = 0.001999 * 0.25, rate 1e-4
    moved = 1e-4 * 0.095 / np.sqrt(0.001999 * 0.25)
    np.testing.assert_allclose(
        variable.numpy(), [1 - moved, -1 + moved], rtol=1e-6
    )


# --------------------------------------------------- choosing the variables


def test_variables_without_gradient_and_frozen_ones_stay():
    names = ["m/embeddings/w", "m/layer_0/w", "m/layer_1/w", "m/pooler/w"]
    variables = [Named(name, [1.0]) for name in names]
    optimizer = optimization.create_optimizer(
        0.1, 10, 0, freeze_layers=1, num_hidden_layers=2
    )
    one = tf.constant([1.0])
    optimizer.apply([one, one, one, None], variables)
    assert [v.numpy()[0] == 1 for v in variables] == [True, True, False, True]
    slots = [optimizer.slot(v, "adam_v") is None for v in variables]
    assert slots == [True, True, False, True]
    assert optimizer.updated(variables) == variables[2:]


def test_nothing_to_update_is_an_error():
    optimizer = optimization.AdamWeightDecay(0.1)
    with pytest.raises(ValueError, match="No variable has a gradient"):
        optimizer.apply([None], [Named("w", [1.0])])


def test_layer_decay_slows_lower_layers():
    names = ["b/embeddings/w", "b/layer_0/w", "b/layer_11/w", "b/pooler/w"]
    variables = [Named(name, [0.0]) for name in names]
    optimizer = optimization.create_optimizer(
        1e-3, 10, 0, layer_decay=0.5, num_hidden_layers=12
    )
    optimizer.apply([tf.constant([0.1])] * 4, variables)
    moved = np.array([v.numpy()[0] for v in variables])
    np.testing.assert_allclose(
        moved / moved[3], [0.5**13, 0.5**12, 0.5, 1], rtol=1e-5
    )


def test_layer_1_is_not_layer_11():
    frozen = optimization.frozen_patterns(2, 12)
    optimizer = optimization.AdamWeightDecay(0.1, frozen=frozen)
    variables = [Named(f"bert/layer_{i}/w", [0.0]) for i in (1, 11)]
    assert optimizer.updated(variables) == variables[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_decay": 0.0}, r"layer_decay=0.0 is not in \(0, 1\]"),
        (
            {"freeze_layers": 3},
            "--freeze_layers=3 is not between 0 .* Freeze at most",
        ),
        ({"optimizer": "sgd"}, "optimizer='sgd' is not one of: adamw, lamb"),
    ],
)
def test_bad_options_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        optimization.create_optimizer(
            1e-3, 10, 0, num_hidden_layers=2, **options
        )


# --------------------------------------------------------------------- LAMB


def test_lamb_equals_numpy():
    random = np.random.default_rng(8)
    start = [random.normal(size=(6, 3)), random.normal(size=3)]
    grads = [0.05 * random.normal(size=(15, *w.shape)) for w in start]
    variables = [Named("d/kernel", start[0]), Named("d/bias", start[1])]
    optimizer = optimization.Lamb(0.02)

    @tf.function
    def step(given):
        return optimizer.apply_with_norm(given, variables)

    optimizer.build(variables)
    for number in range(15):
        norm = step([tf.constant(g[number], tf.float32) for g in grads])
        assert norm.numpy() < 1
    for variable, w, g, decay in zip(
        variables, start, grads, (0.01, 0), strict=True
    ):
        expected = reference_lamb(w, g, 0.02, decay)
        np.testing.assert_allclose(variable.numpy(), expected, atol=2e-6)


def test_lamb_moves_weights_that_are_zero():
    variable = Named("kernel", [0.0, 0.0])
    optimizer = optimization.Lamb(0.1)
    optimizer.apply([tf.constant([0.5, -0.5])], [variable])
    np.testing.assert_allclose(variable.numpy(), [-0.1, 0.1], rtol=1e-4)


# ---------------------------------------------------------- Keras, replicas


def test_it_works_in_fit_and_learns():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    model.compile(optimization.AdamWeightDecay(0.01), "mse")
    history = model.fit(x, x.sum(1, keepdims=True), epochs=20, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < 0.2 * losses[0]


def test_optimizer_keeps_its_config():
    optimizer = optimization.create_optimizer(
        3e-5, 20, 5, layer_decay=0.9, num_hidden_layers=2, freeze_layers=0
    )
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(json.loads(json.dumps(config)))
    assert again.learning_rate_multipliers[0][1] == pytest.approx(0.9**3)
    assert again.frozen == optimizer.frozen
    assert float(again.learning_rate) == float(optimizer.learning_rate)


def run_alone(nodeid):
    """Runs one test in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", nodeid],
        cwd=ROOT,
        env=os.environ | {"OWN_PROCESS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def mirrored():
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.mark.parametrize(
    "make", [optimization.AdamWeightDecay, optimization.Lamb]
)
def test_two_replicas_sum_then_clip_once(mirrored, make, request):
    """Shares of one gradient on two replicas equal the whole on one."""
    if os.environ.get("OWN_PROCESS") != "1":
        # TensorFlow numbers collectives by process, not by strategy: those
        # of two strategies with other shapes would meet.
        run_alone(request.node.nodeid)
        return
    random = np.random.default_rng(4)
    start = random.normal(size=(5, 3))
    ids = np.array([[1, 4], [4, 0]])
    rows = random.normal(size=(8, 2, 2, 3)).astype(np.float32)

    alone = Named("w", start)
    optimizer = make(0.05)
    for step in range(8):
        whole = tf.IndexedSlices(
            rows[step].reshape(4, 3), tf.constant(ids.reshape(4))
        )
        optimizer.apply([whole], [alone])

    with mirrored.scope():
        shared = Named("w", start)
        optimizer = make(0.05)
        optimizer.build([shared])

    def replica_step(index, step):
        mine = tf.gather(tf.constant(ids), index)
        part = tf.gather(tf.gather(tf.constant(rows), step), index)
        return optimizer.apply_with_norm(
            [tf.IndexedSlices(part, mine)], [shared]
        )

    @tf.function
    def train(step):
        index = mirrored.experimental_distribute_values_from_function(
            lambda context: tf.constant(context.replica_id_in_sync_group)
        )
        return mirrored.run(replica_step, (index, step))

    for step in range(8):
        train(tf.constant(step))
    copies = [v.numpy() for v in shared.value.values]
    np.testing.assert_array_equal(*copies)
    np.testing.assert_allclose(copies[0], alone.numpy(), atol=5e-7)
    assert optimizer.iterations.numpy() == 8


def test_several_replicas_refuse_what_they_cannot_do(mirrored):
    with mirrored.scope():
        variable = Named("w", [1.0])
        optimizer = optimization.AdamWeightDecay(
            0.1, original_embedding_clip=True
        )
        with pytest.raises(ValueError, match="outside of a replica"):
            optimizer.apply([tf.constant([1.0])], [variable])
    with pytest.raises(ValueError, match="asked for on 2 replicas"):
        mirrored.run(lambda: optimizer.apply([tf.constant([1.0])], [variable]))


# ------------------------------------------------------------- golden runs


def golden_model(prefix, padded):
    """The tiny pre-training model, without dropout, from a checkpoint."""
    values = json.loads((GOLDEN / "tiny" / "bert_config.json").read_text())
    config = modeling.BertConfig.from_dict(
        values
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    encoder = modeling.BertModel(config, padded=padded)
    head = heads.PretrainingHead(
        config, encoder.get_embedding_table(), padded=padded
    )
    model = heads.TaskModel(encoder, head)
    checkpoints.load_checkpoint(str(GOLDEN / prefix), model, what="all")
    return model


def run_golden(name, padded, quirk=False):
    """Trains as a golden run did; gives its data, figures and state.

    The session that wrote these files read the global step after it was
    counted up: its update n used the rate of step n + 1, though its own list
    of rates says n. So the counter starts one further here. The original's
    script itself uses the rate of step n, as the next test shows."""
    data = np.load(MODELING / f"{name}.npz")
    resumed = "resume" in name
    prefix = "tiny/trained/model.ckpt-3" if resumed else "tiny/bert_model.ckpt"
    model = golden_model(prefix, padded)
    optimizer = optimization.create_optimizer(
        float(data["init_lr"]),
        int(data["num_train_steps"]),
        int(data["num_warmup_steps"]),
        original_embedding_clip=quirk,
    )
    optimizer.build(model.trainable_variables)
    if resumed:
        checkpoints.restore_checkpoint(str(GOLDEN / prefix), model, optimizer)
    optimizer.iterations.assign_add(1)
    step = tf.function(training.TrainStep(model, optimizer, seed=0))
    features = {
        key.removeprefix("in:"): tf.constant(data[key])
        for key in data.files
        if key.startswith("in:")
    }
    named = checkpoints.encoder_variables(model)
    named = named | checkpoints.head_variables(model)
    figures, states = [], {}
    for number in range(1, len(data["losses"]) + 1):
        figures.append(step(features, tf.constant(0.0)).numpy())
        state = {name: v.numpy() for name, v in named.items()}
        for name, variable in named.items():
            for slot in ("adam_m", "adam_v"):
                value = optimizer.slot(variable, slot).numpy()
                state[f"{name}/{slot}"] = value
        state["global_step"] = optimizer.iterations.numpy() - 1
        states[f"step{number}"] = state
    return data, np.stack(figures), states


@pytest.mark.parametrize(
    ("name", "padded", "tolerance"),
    [
        ("optim_lr1e-3_w5_t20", True, 1e-5),
        ("optim_lr1e-3_w5_t20", False, 1e-5),
        ("optim_lr1e-3_w0_t20", False, 1e-5),
        ("optim_resume_from_trained", False, 1e-5),
        # Chaotic on purpose: by so much did the original differ from itself.
        ("optim_lr5e-2_w5_t20", False, 5e-3),
    ],
)
def test_golden_runs(name, padded, tolerance):
    data, figures, states = run_golden(name, padded)
    close = {"atol": tolerance, "rtol": tolerance}
    np.testing.assert_allclose(figures[:, 0], data["losses"], **close)
    np.testing.assert_allclose(
        figures[:-1, 2], data["lrs"][1:], rtol=1e-6, atol=1e-10
    )
    if "grad_global_norms" in data.files:
        norms = data["grad_global_norms"]
        np.testing.assert_allclose(figures[:, 1], norms, rtol=10 * tolerance)
    keys = [key for key in data.files if key.startswith("step")]
    assert len(keys) > 100
    for key in keys:
        number, name = key.split(":", 1)
        np.testing.assert_allclose(
            states[number][name], data[key], err_msg=key, **close
        )


def test_the_original_script_used_the_rate_of_its_own_step():
    """run_pretraining.py, 3 steps, warm-up 1, rate 1e-3: rates 0, 2/3, 1/3.

    The longest way a weight can go by these rates is also the longest that
    any went; with the rates of the next steps (2/3, 1/3, 0) it is shorter."""
    before = np.load(GOLDEN / "tiny" / "bert_model_variables.npz")
    after = np.load(GOLDEN / "tiny" / "trained" / "variables.npz")
    moved = max(
        np.abs(after[name] - before[name]).max()
        for name in before.files
        if "bias" in name or "LayerNorm" in name
    )

    def longest(rates):
        m = v = way = 0.0
        for rate in rates:
            m, v = 0.9 * m + 0.1, 0.999 * v + 0.001
            way += rate * m / np.sqrt(v)
        return way

    schedule = optimization.WarmupSchedule(1e-3, 3, 1)
    rates = [float(schedule(step)) for step in range(4)]
    assert longest(rates[1:]) < 0.9 * moved
    assert 0.99 * moved < longest(rates[:3]) < 1.01 * moved


def test_the_quirk_on_a_tied_table():
    """The norm over what the tape adds up: one row per lookup, and the rest.

    The golden runs have the sum; the quirk's norm is smaller here."""
    data, figures, _ = run_golden("optim_resume_from_trained", False, True)
    assert np.abs(figures[:, 0] - data["losses"]).max() > 1e-4
    model = golden_model("tiny/trained/model.ckpt-3", False)
    features = {
        key.removeprefix("in:"): tf.constant(data[key])
        for key in data.files
        if key.startswith("in:")
    }
    lookups = []
    model.encoder.embeddings.on_lookup = lambda *seen: lookups.append(seen)
    with tf.GradientTape() as tape:
        losses = model.losses(model(features), features)
        weights = model.loss_weights(features)
        loss = sum(losses[name] / weights[name] for name in losses)
    variables = model.trainable_variables
    table, ids, rows = lookups[0]
    sources = [v.value for v in variables]
    *grads, by_lookup = tape.gradient(loss, [*sources, rows])
    squares = 0.0
    for variable, gradient in zip(variables, grads, strict=True):
        dense = optimization.dense_gradient(gradient, variable).numpy()
        if variable is table:
            np.subtract.at(dense, ids.numpy(), by_lookup.numpy())
            squares += (by_lookup.numpy() ** 2).sum()
        squares += (dense.astype(np.float64) ** 2).sum()
    assert figures[0, 1] == pytest.approx(np.sqrt(squares), rel=1e-5)
