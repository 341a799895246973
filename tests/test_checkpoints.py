"""Checkpoints: names, reports, errors, and files that others can read."""

import json
import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from conftest import GOLDEN, minilm_directory, shared_data
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.tensorflow import save_file as save_tensors

import checkpoint_names
import checkpoints
import heads
import modeling
import optimization
import tokenization

TINY = GOLDEN / "tiny"
PREFIX = str(TINY / "bert_model.ckpt")


def tiny_config(**changes):
    values = json.loads((TINY / "bert_config.json").read_text()) | changes
    return modeling.BertConfig.from_dict(values)


def tiny_model(**changes):
    return modeling.BertModel(tiny_config(**changes))


def classifier(num_labels, **changes):
    encoder = tiny_model(**changes)
    head = heads.ClassifierHead(encoder.config.hidden_size, num_labels)
    return heads.TaskModel(encoder, head)


def pretraining_model():
    encoder = tiny_model()
    head = heads.PretrainingHead(
        encoder.config, encoder.embeddings.word_embeddings
    )
    return heads.TaskModel(encoder, head)


def variables(model):
    return checkpoint_names.encoder_variables(
        model
    ) | checkpoint_names.head_variables(model)


def values_of(model):
    return {name: np.array(v.numpy()) for name, v in variables(model).items()}


def assert_same(values, expected):
    assert set(values) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, name)


@pytest.fixture(scope="module")
def golden_values():
    with np.load(TINY / "bert_model_variables.npz") as file:
        return {name: file[name] for name in file.files}


def hugging_face_tensors(values, prefix="bert.", old=False):
    """A model's values as Hugging Face would write them."""
    rows = [*checkpoint_names.encoder_rows(2), *checkpoint_names.head_rows()]
    tensors = {}
    for row in rows:
        if row.original not in values:
            continue
        value = values[row.original]
        name = row.hugging_face
        if name.startswith("bert."):
            name = prefix + name.removeprefix("bert.")
        if old:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        value = value.T if row.transposed else value
        tensors[name] = np.ascontiguousarray(value)
    return tensors


# --- reading ----------------------------------------------------------------


def test_loads_the_golden_encoder(golden_values):
    model = tiny_model()
    report = checkpoints.load_checkpoint(PREFIX, model)
    assert len(report.loaded) == 39 and not report.fresh
    assert sorted(report.unused) == sorted(
        name for name in golden_values if name.startswith("cls/")
    )
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, golden_values[name], name)
    assert "loaded 39 variables; not used by this model: 7" in report.summary()


def test_loads_both_heads_of_pretraining(golden_values):
    model = pretraining_model()
    report = checkpoints.load_checkpoint(PREFIX, model, what="all")
    assert not report.fresh and not report.unused
    assert_same(values_of(model), golden_values)


@pytest.mark.parametrize("given", ["", "/model.ckpt-3", "/model.ckpt-3.index"])
def test_slots_are_left_aside(given):  # K01
    model = tiny_model()
    report = checkpoints.load_checkpoint(str(TINY / "trained") + given, model)
    assert len(report.loaded) == 39
    assert "global_step" in report.training_state
    assert len(report.training_state) == 2 * 46 + 1
    assert not any("adam" in name for name in report.unused)
    assert "left aside 93 of training" in report.summary()


def test_loads_the_squad_head():
    encoder = tiny_model()
    model = heads.TaskModel(encoder, heads.SpanHead(32))
    path = TINY / "squad" / "bert_model.ckpt"
    report = checkpoints.load_checkpoint(path, model, what="all")
    assert "cls/squad/output_weights" in report.loaded
    expected = tf.train.load_checkpoint(str(path))
    np.testing.assert_array_equal(
        model.head.output_bias.numpy(),
        expected.get_tensor("cls/squad/output_bias"),
    )


def test_changed_number_of_labels(caplog):  # C06
    path = TINY / "classifier" / "bert_model.ckpt"
    fitting = classifier(3)
    checkpoints.load_checkpoint(path, fitting, what="all")
    model = classifier(4)
    before = model.head.output_weights.numpy().copy()
    with caplog.at_level(logging.WARNING):
        report = checkpoints.load_checkpoint(path, model)
    assert sorted(report.fresh) == ["output_bias", "output_weights"]
    np.testing.assert_array_equal(model.head.output_weights, before)
    np.testing.assert_array_equal(
        model.encoder.pooler.kernel, fitting.encoder.pooler.kernel
    )
    (warning,) = caplog.messages
    assert "[3, 32]" in warning and "[4, 32]" in warning
    assert warning.endswith("The head starts fresh.")
    with pytest.raises(ValueError, match=r"shape \[3, 32\], .* \[4, 32\]"):
        checkpoints.load_checkpoint(path, model, what="all")


def test_a_fresh_head_is_no_warning(caplog):
    with caplog.at_level(logging.WARNING):
        report = checkpoints.load_checkpoint(PREFIX, classifier(2))
    assert sorted(report.fresh) == ["output_bias", "output_weights"]
    assert "fresh, not in the checkpoint: 2 (" in report.summary()
    assert not caplog.messages
    with pytest.raises(ValueError, match="lacks 2 .*output_weights.*task"):
        checkpoints.load_checkpoint(PREFIX, classifier(2), what="all")


def test_real_checkpoint_of_2018():
    directory = shared_data("checkpoints/keras-bert-test_checkpoint")
    config = checkpoints.load_config(directory)
    encoder = modeling.BertModel(config, padded=True)
    model = heads.TaskModel(
        encoder,
        heads.PretrainingHead(
            config, encoder.embeddings.word_embeddings, padded=True
        ),
    )
    report = checkpoints.load_checkpoint(directory, model, what="all")
    assert len(report.loaded) == 46 and len(report.training_state) == 93
    assert checkpoints.global_step(directory) == 20
    golden = json.loads((directory / "golden_forward.json").read_text())
    features = {key: np.array(v) for key, v in golden["inputs"].items()}
    features["masked_lm_weights"] = np.float32(features["masked_lm_weights"])
    golden = golden["outputs"]
    outputs = model(features)
    losses = model.losses(outputs, features)
    weights = model.loss_weights(features)
    found = {name: losses[name] / weights[name] for name in losses}
    found["loss"] = sum(found.values())
    found["pooled_output"] = encoder(
        {
            name: features[name]
            for name in ("input_ids", "input_mask", "segment_ids")
        }
    )["pooled_output"]
    for name in ("masked_lm", "next_sentence"):
        found[f"{name}_log_probs"] = tf.nn.log_softmax(
            outputs[f"{name}_logits"]
        )
    assert set(found) == set(golden)
    for name, value in golden.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_only_the_index_is_there():
    directory = shared_data("checkpoints/chinese_L-12_H-768_A-12-index-only")
    with pytest.raises(
        ValueError,
        match=r"data file bert_model\.ckpt\.data-00000-of-00001 is missing; "
        "only the index of 206 variables",
    ):
        checkpoints.CheckpointReader(directory)


# --- Hugging Face -----------------------------------------------------------


def test_minilm():
    directory = minilm_directory()
    config = checkpoints.load_config(directory)
    assert config.hidden_act == "gelu_erf"
    assert not hasattr(config, "model_type")
    model = modeling.BertModel(config)
    report = checkpoints.load_checkpoint(directory, model, what="all")
    assert len(report.loaded) == 103
    assert not report.fresh and not report.unused
    with safe_open(directory / "model.safetensors", "numpy") as file:
        np.testing.assert_array_equal(
            model.layer[5].intermediate.kernel.numpy(),
            file.get_tensor("encoder.layer.5.intermediate.dense.weight").T,
        )
        np.testing.assert_array_equal(
            model.embeddings.LayerNorm.beta.numpy(),
            file.get_tensor("embeddings.LayerNorm.bias"),
        )


@pytest.mark.parametrize("prefix, old", [("bert.", True), ("", False)])
def test_names_of_every_age(tmp_path, golden_values, prefix, old):
    tensors = hugging_face_tensors(golden_values, prefix, old)
    tensors["cls.predictions.decoder.weight"] = golden_values[
        "bert/embeddings/word_embeddings"
    ].copy()
    tensors[prefix + "embeddings.position_ids"] = np.arange(64)[None]
    if not old:
        tensors["cls.predictions.decoder.bias"] = tensors.pop(
            "cls.predictions.bias"
        )
    save_file(tensors, tmp_path / "model.safetensors")
    model = pretraining_model()
    report = checkpoints.load_checkpoint(tmp_path, model, what="all")
    assert not report.unused
    assert_same(values_of(model), golden_values)


def test_heads_of_hugging_face(tmp_path, golden_values):
    values = golden_values | {
        "output_weights": np.full([3, 32], 2, np.float32),
        "output_bias": np.full([3], 1, np.float32),
    }
    tensors = hugging_face_tensors(values)
    tensors["strange.tensor"] = np.zeros([2], np.float32)
    save_file(tensors, tmp_path / "other.safetensors")
    model = classifier(3)
    report = checkpoints.load_checkpoint(
        tmp_path / "other.safetensors", model, what="all"
    )
    assert "strange.tensor" in report.unused
    assert np.all(model.head.output_weights.numpy() == 2)


def test_half_precision_and_a_missing_pooler(tmp_path, golden_values, caplog):
    tensors = {
        name: tf.cast(value, tf.bfloat16)
        for name, value in hugging_face_tensors(golden_values).items()
        if "pooler" not in name
    }
    save_tensors(tensors, str(tmp_path / "model.safetensors"))
    model = tiny_model()
    with caplog.at_level(logging.WARNING):
        report = checkpoints.load_checkpoint(tmp_path, model)
    assert report.fresh == [
        "bert/pooler/dense/kernel",
        "bert/pooler/dense/bias",
    ]
    assert "lacks 2 (bert/pooler/dense/kernel" in caplog.text
    np.testing.assert_allclose(
        model.layer[0].attention.key.kernel,
        golden_values["bert/encoder/layer_0/attention/self/key/kernel"],
        rtol=1e-2,
    )


def test_configs(tmp_path):
    assert checkpoints.load_config(TINY).hidden_act == "gelu"
    base = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2}
    path = tmp_path / "config.json"

    def load(**values):
        path.write_text(json.dumps(base | values))
        return checkpoints.load_config(path)

    assert load().hidden_act == "gelu_erf" and load().type_vocab_size == 2
    assert load(hidden_act="gelu_new").hidden_act == "gelu"
    assert load(layer_norm_eps=1e-12).hidden_size == 8
    for values, message in (
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05 is not BERT"),
        ({"model_type": "roberta"}, "model_type='roberta'"),
        ({"position_embedding_type": "relative_key"}, "'absolute'"),
        ({"hidden_act": "silu"}, "hidden_act='silu' is not one of"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"vocab_size": None}, "vocab_size"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            load(**values)
        assert "config.json" in str(error.value)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: "):
        checkpoints.load_config(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"holds no bert_config\.json or"):
        checkpoints.load_config(tmp_path)
    with pytest.raises(ValueError, match="no such config file"):
        checkpoints.load_config(path)


# --- finding ----------------------------------------------------------------


def touch(directory, *names):
    for name in names:
        (directory / name).write_text("")


def test_find_in_directory(tmp_path):
    touch(tmp_path, "model.safetensors")
    find = checkpoints.find_checkpoint
    assert find(tmp_path) == str(tmp_path / "model.safetensors")
    touch(tmp_path, "model.ckpt-9.index", "model.ckpt-10.index")
    assert find(tmp_path) == str(tmp_path / "model.ckpt-10")
    touch(tmp_path, "bert_model.ckpt.index")
    assert find(tmp_path) == str(tmp_path / "bert_model.ckpt")
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-9"\n'
        'all_model_checkpoint_paths: "/elsewhere/model.ckpt-9"\n'
    )
    assert find(tmp_path) == str(tmp_path / "model.ckpt-9")
    (tmp_path / "model.ckpt-9.index").unlink()
    with pytest.raises(ValueError, match="checkpoint names model.ckpt-9, but"):
        find(tmp_path)
    (tmp_path / "checkpoint").write_text("{}")
    with pytest.raises(ValueError, match="is not a list of checkpoints"):
        find(tmp_path)


def test_nothing_to_find(tmp_path):
    find = checkpoints.find_checkpoint
    with pytest.raises(ValueError, match="holds no checkpoint: no file"):
        find(tmp_path)
    touch(tmp_path, "pytorch_model.bin", "a.ckpt.index")
    with pytest.raises(ValueError, match="Convert its pytorch_model.bin"):
        find(tmp_path)
    with pytest.raises(
        ValueError, match=r"no b\.ckpt\.index\)\. Checkpoints in .*: a\.ckpt\."
    ):
        find(tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="not even the directory"):
        find(tmp_path / "none" / "b.ckpt")


def test_companions(tmp_path):
    config, vocab = checkpoints.companion_files(PREFIX)
    assert config == str(TINY / "bert_config.json")
    assert vocab == str(TINY / "vocab.txt")
    assert checkpoints.companion_files(str(TINY)) == (config, vocab)
    assert checkpoints.companion_files(tmp_path / "x.ckpt") == (None, None)
    config, vocab = checkpoints.companion_files(minilm_directory())
    assert config.endswith("/config.json") and vocab.endswith("/vocab.txt")


# --- errors -----------------------------------------------------------------


def test_nothing_matches(tmp_path):  # K02
    prefix = str(tmp_path / "other.ckpt")
    checkpoints.write_variables(prefix, {"model/layer-0/w": np.zeros([2])})
    model = tiny_model()
    with pytest.raises(
        ValueError,
        match="matches none of the 39 encoder variables; the first it holds "
        "is 'model/layer-0/w'. Is the path a checkpoint prefix",
    ):
        checkpoints.load_checkpoint(prefix, model)


def test_object_based_file(tmp_path):
    prefix = tf.train.Checkpoint(a=tf.Variable(1.0)).write(
        str(tmp_path / "ckpt")
    )
    with pytest.raises(ValueError, match="was written by tf.train.Checkpoint"):
        checkpoints.load_checkpoint(prefix, tiny_model())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocab_size": 120}, r"\[97, 32\], .*\[120, 32\].*grow_word"),
        ({"max_position_embeddings": 128}, r"\[64, 32\].*tile_positions"),
        ({"intermediate_size": 32}, r"\[32, 64\].*\[32, 32\].*Also: 5 \("),
        ({"num_hidden_layers": 3}, "has 2 layers, .*num_hidden_layers=3"),
        ({"hidden_size": 64}, "hidden size 32, .*hidden_size=64"),  # K04
        ({"type_vocab_size": 4}, r"\[2, 32\], the model's has \[4, 32\]"),
    ],
)
def test_wrong_sizes_change_nothing(changes, message):
    model = tiny_model(**changes)
    before = values_of(model)
    with pytest.raises(ValueError, match=message):
        checkpoints.load_checkpoint(PREFIX, model)
    assert_same(values_of(model), before)


def test_fewer_layers_than_the_checkpoint():
    report = checkpoints.load_checkpoint(
        PREFIX, tiny_model(num_hidden_layers=1)
    )
    assert sum("layer_1/" in name for name in report.unused) == 16


def test_cut_off_files(tmp_path, golden_values):
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(PREFIX + suffix, tmp_path)
    prefix = tmp_path / "bert_model.ckpt"
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:5000])
    with pytest.raises(ValueError, match="cannot be read, it is cut off"):
        checkpoints.load_checkpoint(prefix, tiny_model())
    index = tmp_path / "bert_model.ckpt.index"
    index.write_bytes(index.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"\.index: cannot be read"):
        checkpoints.load_checkpoint(prefix, tiny_model())
    path = tmp_path / "model.safetensors"
    save_file(hugging_face_tensors(golden_values), path)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(ValueError, match="safetensors: cannot be read"):
        checkpoints.load_checkpoint(path, tiny_model())


def test_what_is_checked():
    with pytest.raises(ValueError, match="what='head' is not one of"):
        checkpoints.load_checkpoint(PREFIX, tiny_model(), what="head")


def test_vocabulary_sizes():  # V07
    vocab = tokenization.load_vocab(TINY / "vocab.txt")
    rows = checkpoints.checkpoint_vocab_size(PREFIX)
    assert rows == 97
    with pytest.raises(
        ValueError, match="has 97 rows, .*vocab_size is 120, .*table has 97"
    ):
        tokenization.check_vocab(
            vocab, 120, "vocab.txt", checkpoint_vocab_size=rows
        )


# --- writing ----------------------------------------------------------------


def read_in_2018(prefix, names):
    """What the original's init_from_checkpoint makes of a file."""
    shapes = {n: v.shape for n, v in names.items()}
    with tf.Graph().as_default():
        made = {
            name: tf.compat.v1.get_variable(name, shape, use_resource=False)
            for name, shape in shapes.items()
        }
        tf.compat.v1.train.init_from_checkpoint(
            prefix, {name: name for name in made}
        )
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(made)


def test_round_trip(tmp_path, golden_values):  # K05
    model = pretraining_model()
    checkpoints.load_checkpoint(PREFIX, model, what="all")
    prefix = str(tmp_path / "new" / "model.ckpt-0")
    assert checkpoints.save_checkpoint(prefix, model) == prefix
    assert sorted(os.listdir(tmp_path / "new")) == [
        "model.ckpt-0.data-00000-of-00001",
        "model.ckpt-0.index",
    ]
    reader = tf.train.load_checkpoint(prefix)
    found = {
        n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()
    }
    assert_same(found, golden_values)
    assert_same(read_in_2018(prefix, golden_values), golden_values)


def test_a_file_of_2018_is_read(tmp_path, golden_values):
    prefix = str(tmp_path / "saver.ckpt")
    with tf.Graph().as_default():
        for name, value in golden_values.items():
            tf.compat.v1.get_variable(name, initializer=value)
        saver = tf.compat.v1.train.Saver()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            saver.save(session, prefix)
    model = pretraining_model()
    checkpoints.load_checkpoint(tmp_path, model, what="all")
    assert_same(values_of(model), golden_values)


def test_training_state_comes_back(tmp_path):
    with np.load(TINY / "trained" / "variables.npz") as file:
        trained = {name: file[name] for name in file.files}
    model = pretraining_model()
    optimizer = optimization.AdamWeightDecay(learning_rate=1e-3)
    step = checkpoints.restore_checkpoint(TINY / "trained", model, optimizer)
    assert step == 3 and int(optimizer.iterations) == 3
    prefix = str(tmp_path / "model.ckpt-3")
    checkpoints.save_checkpoint(prefix, model, optimizer, global_step=3)
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_variable_to_dtype_map()["global_step"] == tf.int64
    found = {
        n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()
    }
    assert_same(found, trained)
    small = str(tmp_path / "small.ckpt")
    checkpoints.save_checkpoint(small, model, global_step=3)
    sizes = [
        os.path.getsize(path + ".data-00000-of-00001")
        for path in (small, prefix)
    ]
    assert sizes[0] < 0.35 * sizes[1]  # K01
    with pytest.raises(ValueError, match="has no global_step"):
        checkpoints.restore_checkpoint(PREFIX, pretraining_model())


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    prefix = str(tmp_path / "model.ckpt-1")
    first = {"a": np.arange(3.0)}
    checkpoints.write_variables(prefix, first)
    checkpoints.write_variables(prefix, {"a": np.arange(4.0)})
    reader = checkpoints.CheckpointReader(prefix)
    assert reader.read("a").tolist() == [0, 1, 2, 3]

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints.os, "replace", fail)
    with pytest.raises(OSError, match="(?i)no space"):
        checkpoints.write_variables(str(tmp_path / "model.ckpt-2"), first)
    assert sorted(os.listdir(tmp_path)) == [
        "model.ckpt-1.data-00000-of-00001",
        "model.ckpt-1.index",
    ]


def test_unwritable_place(tmp_path):
    touch(tmp_path, "file")
    with pytest.raises(ValueError, match="cannot be written"):
        checkpoints.write_variables(
            str(tmp_path / "file" / "x.ckpt"), {"a": np.zeros(1)}
        )


def test_full_disk(tmp_path, monkeypatch):
    def full(**_):
        raise tf.errors.ResourceExhaustedError(
            None, None, "x.data; No space left on device"
        )

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full)
    told = f"no space is left on the disk of {tmp_path}; free some and run the"
    with pytest.raises(OSError, match=told):
        checkpoints.write_variables(tmp_path / "x.ckpt", {"a": np.zeros(1)})
    assert not os.listdir(tmp_path)


# --- growing ----------------------------------------------------------------


def test_grow_word_embeddings(tmp_path, golden_values):
    prefix = str(tmp_path / "grown.ckpt")
    checkpoints.grow_word_embeddings(TINY / "trained", prefix, 110, seed=4)
    old = tf.train.load_checkpoint(str(TINY / "trained" / "model.ckpt-3"))
    reader = checkpoints.CheckpointReader(prefix)
    assert set(reader.shapes) == set(golden_values)
    table = reader.read("bert/embeddings/word_embeddings")
    np.testing.assert_array_equal(
        table[:97], old.get_tensor("bert/embeddings/word_embeddings")
    )
    assert table.shape == (110, 32) and 0.01 < table[97:].std() < 0.02
    bias = reader.read("cls/predictions/output_bias")
    assert bias.shape == (110,) and not bias[97:].any()
    checkpoints.load_checkpoint(prefix, tiny_model(vocab_size=110))
    with pytest.raises(ValueError, match="has 97 rows .*=97 would not grow"):
        checkpoints.grow_word_embeddings(PREFIX, prefix, 97)
    with pytest.raises(ValueError, match="97 rows .*vocabulary has 200. Name"):
        checkpoints.grow_word_embeddings(PREFIX, prefix, 205, 200)
    with pytest.raises(ValueError, match="is the checkpoint that is to grow"):
        checkpoints.grow_word_embeddings(prefix, prefix, 120)


def test_tile_positions(tmp_path, golden_values):
    prefix = str(tmp_path / "long.ckpt")
    checkpoints.tile_positions(PREFIX, prefix, 150)
    model = tiny_model(max_position_embeddings=150)
    checkpoints.load_checkpoint(prefix, model)
    table = model.embeddings.position_embeddings.numpy()
    old = golden_values["bert/embeddings/position_embeddings"]
    np.testing.assert_array_equal(table[64:128], old)
    np.testing.assert_array_equal(table[128:], old[:22])
    with pytest.raises(ValueError, match="has 64 positions"):
        checkpoints.tile_positions(PREFIX, prefix, 64)


def test_the_table_has_every_name():
    model = tiny_model()
    assert len(variables(model)) == len(model.trainable_variables) == 39
    assert len(checkpoint_names.encoder_rows(12)) == 199
    rows = [*checkpoint_names.encoder_rows(3), *checkpoint_names.head_rows()]
    for column in ("original", "hugging_face"):
        names = [getattr(row, column) for row in rows]
        assert len(set(names)) == len(names)


def test_a_run_means_its_best_checkpoint(tmp_path):
    for name in ("model.ckpt-9", "best/model.ckpt-4"):
        path = tmp_path / f"{name}.index"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert checkpoints.find_checkpoint(tmp_path).endswith("model.ckpt-9")
    (tmp_path / "run.json").touch()
    found = checkpoints.find_checkpoint(tmp_path)
    assert found == str(tmp_path / "best" / "model.ckpt-4")


def test_regression_keeps_the_unit_of_its_labels(tmp_path):
    def model(unit, name="classifier"):
        encoder = tiny_model()
        head = heads.ClassifierHead(
            encoder.config.hidden_size, 1, "regression", unit=unit, name=name
        )
        return heads.TaskModel(encoder, head)

    def unit_after(path, **names):
        other = model((5.0, 6.0))
        report = checkpoints.load_checkpoint(path, other, **names)
        assert "label_unit" not in report.fresh or report.fresh == [
            "output_weights",
            "output_bias",
            "label_unit",
        ]
        return other.head.label_unit.numpy().tolist()

    path = str(tmp_path / "model.ckpt-1")
    checkpoints.save_checkpoint(path, model((2.0, 3.0)))
    assert unit_after(path) == unit_after(path, what="all") == [2, 3]
    assert unit_after(PREFIX) == [5, 6]  # the head is new: the unit is
    reader = checkpoints.CheckpointReader(path)
    elsewhere = str(tmp_path / "elsewhere")
    values = {n: reader.read(n) for n in reader.shapes if n != "label_unit"}
    checkpoints.write_variables(elsewhere, values)
    assert unit_after(elsewhere) == unit_after(elsewhere, what="all") == [0, 1]


def test_a_head_takes_another_unit_and_answers_the_same():
    import tensorflow as tf

    head = heads.ClassifierHead(4, 1, "regression", unit=(2.0, 3.0))
    head.output_bias.assign([0.3])
    encoded = {"pooled_output": tf.random.normal([5, 4], seed=1)}
    before = head(encoded, {})["score"].numpy()
    assert head.change_unit(1.0, 2.0)
    assert head.label_unit.numpy().tolist() == [1, 2]
    np.testing.assert_allclose(head(encoded, {})["score"], before, atol=1e-5)
    assert not head.change_unit(1e6, 1e5)
    scores = head(encoded, {})["score"].numpy()
    np.testing.assert_allclose(scores, 1e6, rtol=0.1)  # it begins anew


def test_the_newest_checkpoint_of_an_output_directory(tmp_path, caplog):
    assert checkpoints.newest_checkpoint(tmp_path / "nowhere") is None
    assert checkpoints.newest_checkpoint(tmp_path) is None
    for step in (8, 10):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    state = tmp_path / "checkpoint"
    state.write_text('model_checkpoint_path: "model.ckpt-8"\n')
    newest = str(tmp_path / "model.ckpt-10")
    assert checkpoints.newest_checkpoint(tmp_path) == newest[:-2] + "8"
    assert not caplog.records
    for damaged in ("", "garbage", 'model_checkpoint_path: "model.ckpt-9"\n'):
        state.write_text(damaged)
        assert checkpoints.newest_checkpoint(tmp_path, True) == newest
        assert "names none that is there" in caplog.text
        caplog.clear()
    state.unlink()
    assert checkpoints.newest_checkpoint(tmp_path, True) == newest
    assert checkpoints.newest_checkpoint(tmp_path) is None
