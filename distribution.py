"""Where a run computes: tf.distribute strategies, seeds, and prediction.

One device, several devices of one machine (MirroredStrategy) and several
machines (MultiWorkerMirroredStrategy, TF_CONFIG) are tested, the last two on
CPU only. The path for TPUs is kept and was never run.
"""

import json
import math
import os

import keras
import numpy as np
import tensorflow as tf

import modeling
from common_flags import STRATEGIES

MOST_CONSTANTS = 32_000_000  # numbers that Predictor.freeze keeps in a graph
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


# --------------------------------------------------------------- strategies


def make_strategy(name="auto", use_tpu=False, tpu_name=None, num_tpu_cores=8):
    """Gives the tf.distribute.Strategy of a name in STRATEGIES.

    `auto` is `multi_worker_mirrored` where TF_CONFIG names several workers,
    `mirrored` on several GPUs, else `one_device` (the GPU, or the CPU).
    `mirrored` without a GPU takes all logical CPU devices. `use_tpu` is the
    original's flag for `tpu`. Call it before any other use of TensorFlow:
    workers can only be joined first.

    Raises ValueError for an unknown name or one that cannot work here."""
    if name not in STRATEGIES:
        raise ValueError(
            f"distribution_strategy={name!r} is not one of: "
            f"{', '.join(STRATEGIES)}."
        )
    if use_tpu or name == "tpu":
        return _tpu_strategy(tpu_name, num_tpu_cores)
    workers = _workers_of_tf_config()
    if name == "multi_worker_mirrored" or (name == "auto" and workers > 1):
        if not workers:
            raise ValueError(
                "distribution_strategy='multi_worker_mirrored' needs the "
                "environment variable TF_CONFIG, such as "
                '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
                '"task": {"type": "worker", "index": 0}}.'
            )
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        devices = gpus or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([d.name for d in devices])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


def _workers_of_tf_config():
    """The number of workers in TF_CONFIG, 0 without one."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return 0
    try:
        cluster = json.loads(text).get("cluster", {})
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"The environment variable TF_CONFIG is no JSON object: {text!r}."
        ) from error
    return len(cluster.get("worker", [])) + len(cluster.get("chief", []))


def _tpu_strategy(tpu_name, num_tpu_cores):
    """A TPUStrategy over all cores that `tpu_name` stands for."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu_name or ""
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"No TPU called {tpu_name!r} answers ({reason}). Check "
            "--tpu_name, or leave out --use_tpu."
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    if strategy.num_replicas_in_sync != num_tpu_cores:
        raise ValueError(
            f"num_tpu_cores={num_tpu_cores}, but {tpu_name!r} has "
            f"{strategy.num_replicas_in_sync} cores."
        )
    return strategy


def is_chief(strategy):
    """Whether this process writes the files; of one process, it does."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or resolver.task_type is None:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return not has_chief and not resolver.task_id


def num_workers(strategy):
    """The number of processes that train together."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return max(1, _workers_of_tf_config())
    return 1


def per_replica_batch_size(
    batch_size, strategy, accumulation_steps=1, name="train_batch_size"
):
    """Gives each replica's share of a global batch size.

    Raises ValueError where replicas times accumulation steps do not divide
    it; both numbers are in the message."""
    replicas = strategy.num_replicas_in_sync
    if batch_size < 1:
        raise ValueError(f"{name}={batch_size} must be at least 1.")
    if batch_size % replicas:
        raise ValueError(
            f"{name}={batch_size} cannot be shared equally by {replicas} "
            f"replicas. It is the global size; take a multiple of {replicas}."
        )
    share = batch_size // replicas
    if accumulation_steps < 1 or share % accumulation_steps:
        raise ValueError(
            f"{name}={batch_size} gives {share} examples to each of "
            f"{replicas} replicas, which --gradient_accumulation_steps="
            f"{accumulation_steps} does not divide. Take a divisor of {share}, "
            "such as 1."
        )
    return share


# ------------------------------------------------------ precision and seeds


def dtype_policy(precision):
    """Gives the Keras dtype policy of `float32` or `bfloat16`.

    Variables stay float32 under both. Raises ValueError for another name."""
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision={precision!r} is not one of: {', '.join(PRECISIONS)}."
        )
    return PRECISIONS[precision]


def make_deterministic(seed):
    """Seeds Python, NumPy and Keras, and on GPUs asks for exact kernels.

    Two runs with one seed on CPU have equal bits without more; on GPUs some
    kernels add in any order unless TensorFlow is told otherwise."""
    keras.utils.set_random_seed(seed)
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()


def dropout_seed(seed, step, replica, micro_batch=0):
    """Gives the int32 [2] seed of one forward pass in training.

    A pure function of its arguments, so that there is no random state to
    save: a resumed run draws the masks of the unbroken one."""
    folded = tf.constant([seed & 0x7FFFFFFF, 0x0B357], tf.int32)
    for number in (step, replica, micro_batch):
        folded = tf.random.fold_in(folded, tf.cast(number, tf.int32))
    return folded


# --------------------------------------------------------------- prediction


class Predictor:
    """Runs a model over batches, on all replicas of this process.

    Keep one for a model: it traces the model once for all batch shapes.
    Every worker of several computes all batches, so all know all outputs."""

    def __init__(self, model, strategy=None, run_eagerly=False):
        self._model = model
        self._strategy = strategy or tf.distribute.get_strategy()
        self._run_eagerly = run_eagerly
        self._functions = {}
        self._constants = []

    def freeze(self):
        """Takes the kernels as constants from now on, in bfloat16 on a CPU.

        oneDNN then keeps them reordered, which saves an eighth of the time of
        a small model. Later changes of the weights are not seen. Large models
        are left as they are: TensorFlow holds a graph's constants about ten
        times."""
        one = self._strategy.num_replicas_in_sync < 2
        narrow = self._model.compute_dtype == "bfloat16"
        if not (one and narrow) or tf.config.list_logical_devices("GPU"):
            return
        kernels = [
            layer.kernel
            for layer in self._model._flatten_layers()
            if isinstance(layer, modeling.Dense)
            and layer.compute_dtype == "bfloat16"
        ]
        if sum(math.prod(k.shape) for k in kernels) > MOST_CONSTANTS:
            return
        # Queries are scaled before they are rounded; see modeling.Attention.
        self._constants = [
            (k, k.numpy() if "/query/" in k.path else _narrowed(k))
            for k in kernels
        ]
        self._functions = {}

    def batches(self, batches):
        """Gives the dict of numpy outputs of each batch, rows in order.

        Takes an iterable of dicts of arrays or tensors with one row for each
        example: a tf.data.Dataset or a list."""
        for features in batches:
            features = {
                name: np.asarray(value) for name, value in features.items()
            }
            count = len(next(iter(features.values())))
            parts = self._split(features, count)
            outputs = self._function(features)(parts)
            yield {
                name: np.concatenate([part[name].numpy() for part in outputs])[
                    :count
                ]
                for name in outputs[0]
            }

    def _split(self, features, count):
        """Shares the rows of a batch out to this process's replicas.

        The last row fills up, so that no replica has none; `batches` cuts
        the copies off again."""
        replicas = self._strategy.num_replicas_in_sync
        if replicas > 1:
            replicas = len(self._strategy.extended.worker_devices)
        if replicas < 2:
            return [features]
        share = -(-count // replicas)
        rows = np.minimum(np.arange(share * replicas), count - 1)
        return [
            {
                n: v[rows[i * share : (i + 1) * share]]
                for n, v in features.items()
            }
            for i in range(replicas)
        ]

    def _function(self, features):
        """The traced forward pass for features of these names and types."""
        if self._run_eagerly:
            return self._forward
        key = tuple((n, v.dtype.str, v.ndim) for n, v in features.items())
        if key not in self._functions:
            spec = {
                n: tf.TensorSpec([None] * v.ndim, v.dtype)
                for n, v in features.items()
            }
            replicas = len(self._split(features, 1))
            function = tf.function(
                self._forward, input_signature=[[spec] * replicas]
            )
            self._functions[key] = function
        return self._functions[key]

    def _forward(self, parts):
        """The outputs of every local replica for its part."""
        if self._constants:
            with keras.StatelessScope() as scope:
                for variable, value in self._constants:
                    scope.add_update((variable, tf.constant(value)))
                return [self._model(parts[0], training=False)]
        if len(parts) == 1:
            return [self._model(parts[0], training=False)]
        strategy = self._strategy
        shares = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group % len(parts)]
        )
        outputs = strategy.run(
            lambda part: self._model(part, training=False), (shares,)
        )
        local = {
            name: strategy.experimental_local_results(value)
            for name, value in outputs.items()
        }
        return [{n: v[i] for n, v in local.items()} for i in range(len(parts))]


def _narrowed(variable):
    return variable.numpy().astype(tf.bfloat16.as_numpy_dtype)
