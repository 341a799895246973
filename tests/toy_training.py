"""A toy task for the training loop, and a process that trains it.

    python toy_training.py '{"output_dir": "DIR", "num_train_steps": 20, ...}'

trains and writes DIR/losses-INDEX.json; test_training.py starts it to be
killed, and as one of two workers.
"""

import json
import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import keras
import numpy as np
import tensorflow as tf

import distribution
import optimization
import training

ROWS, LENGTH, VOCABULARY, CLASSES = 96, 6, 20, 3
STEPS = 20  # the data ends there, as that of a script does


class ToyTask(keras.Model):
    """Embeds ids, averages, and has two losses of unequal weights."""

    def __init__(self, rate=0.0):
        super().__init__(name="toy")
        self.table = keras.layers.Embedding(
            VOCABULARY, 8, name="word_embeddings"
        )
        self.hidden = keras.layers.Dense(8, "tanh", name="layer_0")
        self.classes = keras.layers.Dense(CLASSES, name="classes")
        self.score = keras.layers.Dense(1, name="score")
        self.unused = keras.layers.Dense(2, name="pooler")
        self._rate = rate
        self.table.build((None, None))
        self.hidden.build((None, 8))
        self.classes.build((None, 8))
        self.score.build((None, 8))
        self.unused.build((None, 8))
        self.built = True

    def call(self, features, training=False, seed=None):
        mask = tf.cast(features["input_ids"] > 0, tf.float32)[:, :, None]
        x = self.hidden(self.table(features["input_ids"]) * mask)
        if training and self._rate:
            x = tf.nn.experimental.stateless_dropout(x, self._rate, seed)
        pooled = tf.reduce_sum(x * mask, 1) / tf.reduce_sum(mask, 1)
        return {
            "logits": self.classes(pooled),
            "score": self.score(pooled)[:, 0],
            "tokens": x,
        }

    def loss_weights(self, features):
        rows = tf.cast(tf.shape(features["label"])[0], tf.float32)
        return {"class": rows, "score": tf.reduce_sum(features["weight"])}

    def losses(self, outputs, features):
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
            features["label"], outputs["logits"]
        )
        squares = tf.square(outputs["score"] - features["value"])
        return {
            "class": tf.reduce_sum(entropy),
            "score": tf.reduce_sum(features["weight"] * squares),
        }


def rows():
    """The toy's data: numpy features of ROWS examples."""
    random = np.random.default_rng(0)
    ids = random.integers(1, VOCABULARY, (ROWS, LENGTH))
    ids *= np.arange(LENGTH) < random.integers(1, LENGTH + 1, ROWS)[:, None]
    return {
        "input_ids": ids.astype(np.int32),
        "label": (ids[:, 0] % CLASSES).astype(np.int32),
        "value": 3 * random.normal(size=ROWS).astype(np.float32),
        "weight": random.integers(0, 3, ROWS).astype(np.float32),
    }


def dataset_fn_of(batch_size, seed=0, change=None, action=(None, None)):
    """The data of a run: shuffled per epoch, sharded by pipeline.

    `change` may edit the features; `action` is a step and what to call when
    that step's batch is read."""
    data = rows()
    if change:
        change(data)
    per_epoch = ROWS // batch_size

    def batch_of(step, shard, shards):
        epoch, place = divmod(int(step), per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(ROWS)
        chosen = order[place * batch_size : (place + 1) * batch_size]
        share = batch_size // shards
        return chosen[shard * share : (shard + 1) * share]

    def dataset_fn(first_step, context):
        shards = context.num_replicas_in_sync
        local = shards // context.num_input_pipelines
        first_shard = context.input_pipeline_id * local

        def batches():
            step = first_step
            while step < STEPS:
                if step == action[0]:
                    action[1]()
                for shard in range(first_shard, first_shard + local):
                    chosen = batch_of(step, shard, shards)
                    yield {k: v[chosen] for k, v in data.items()}
                step += 1

        spec = {
            k: tf.TensorSpec([None, *v.shape[1:]], v.dtype)
            for k, v in data.items()
        }
        return tf.data.Dataset.from_generator(batches, output_signature=spec)

    return dataset_fn


def save(prefix, model, optimizer=None, global_step=None):
    """A stand-in for checkpoints.save_checkpoint, for models without names."""
    variables = model.variables
    names = [f"v{i}" for i in range(len(variables))]
    tensors = [v.value.read_value() for v in variables]
    for name, variable in zip(list(names), variables, strict=True):
        for slot in ("adam_m", "adam_v"):
            value = optimizer and optimizer.slot(variable, slot)
            if value is not None:
                names.append(f"{name}/{slot}")
                tensors.append(value.value.read_value())
    names.append("global_step")
    tensors.append(tf.constant(global_step, tf.int64))
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=tensors,
    )


def load(prefix, model, optimizer=None):
    """A stand-in for checkpoints.load_checkpoint; returns the step."""
    reader = tf.train.load_checkpoint(prefix)
    for i, variable in enumerate(model.variables):
        variable.assign(reader.get_tensor(f"v{i}"))
        for slot in ("adam_m", "adam_v"):
            if optimizer and reader.has_tensor(f"v{i}/{slot}"):
                optimizer.slot(variable, slot).assign(
                    reader.get_tensor(f"v{i}/{slot}")
                )
    return reader.get_tensor("global_step")


def make_trainer(
    strategy,
    output_dir,
    num_train_steps=20,
    train_batch_size=32,
    rate=0.0,
    seed=0,
    init_lr=0.05,
    planned_steps=None,
    original_embedding_clip=False,
    **options,
):
    """A Trainer of the toy, clipping active, its weights fixed by a seed."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = ToyTask(rate)
        optimizer = optimization.create_optimizer(
            init_lr,
            planned_steps or num_train_steps,
            3,
            clip_norm=0.5,
            original_embedding_clip=original_embedding_clip,
        )
    return training.Trainer(
        model,
        optimizer,
        strategy,
        str(output_dir),
        num_train_steps,
        train_batch_size,
        seed=seed,
        save_checkpoint=save,
        load_checkpoint=load,
        **options,
    )


def predict(model, batches, strategy=None, run_eagerly=False):
    """One dict of all batches' outputs, numpy arrays [rows, ...]."""
    predictor = distribution.Predictor(model, strategy, run_eagerly)
    outputs = list(predictor.batches(batches))
    return {
        name: np.concatenate([batch[name] for batch in outputs])
        for name in outputs[0]
    }


def main():
    """Trains as the JSON in the first argument says; writes the losses."""
    options = json.loads(sys.argv[1])
    strategy = distribution.make_strategy(options.pop("strategy"))
    kill_at = options.pop("kill_at", None)
    trainer = make_trainer(strategy, **options)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    result = trainer.train(dataset_fn_of(32, action=(kill_at, die)))
    index = json.loads(os.environ.get("TF_CONFIG", "{}"))
    index = index.get("task", {}).get("index", 0)
    outputs = predict(
        trainer.model, [{"input_ids": rows()["input_ids"][:7]}], strategy
    )
    written = {
        "losses": result.losses.tolist(),
        "chief": distribution.is_chief(strategy),
        "workers": distribution.num_workers(strategy),
        "replicas": strategy.num_replicas_in_sync,
        "logits": outputs["logits"].tolist(),
    }
    path = pathlib.Path(options["output_dir"], f"losses-{index}.json")
    path.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
