"""BERT's optimizers and learning-rate schedules for Keras 3.

Stock Keras optimizers differ from BERT's in ways that no error message tells:
they correct the bias of the moments, put epsilon elsewhere, square sparse
gradients before repeated ids are summed, and clip every replica by itself.
Here one base class densifies, sums over replicas and clips once;
AdamWeightDecay and Lamb say what one variable's update is.

Source: the original `optimization.py`; LAMB after You et al., 2019.
"""

import math
import re

import keras
import numpy as np
import tensorflow as tf

EXCLUDED_FROM_DECAY = ("LayerNorm", "layer_norm", "bias")
SCHEDULES = ("linear", "constant", "cosine")
WARMUP_SCHEDULES = ("original", "peak")
_PACKAGE = "bert"
_WORD_TABLE = "word_embeddings"


# ------------------------------------------------------------ learning rate


@keras.saving.register_keras_serializable(_PACKAGE)
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate as a function of the global step.

    The rate rises linearly from 0 at step 0 over `num_warmup_steps`, then
    decays to 0 at `num_train_steps` (`linear`, `cosine`) or stays
    (`constant`). As in the original, the decay counts from step 0, not from
    the end of the warm-up, so the rate drops by a step there;
    `warmup_schedule='peak'` decays from the full rate instead. After
    `num_train_steps` the rate is 0, never negative.

    Raises ValueError for an unknown name or a negative number of steps."""

    def __init__(
        self,
        init_lr,
        num_train_steps,
        num_warmup_steps=0,
        schedule="linear",
        warmup_schedule="original",
    ):
        super().__init__()
        _check_choice("schedule", schedule, SCHEDULES)
        _check_choice("warmup_schedule", warmup_schedule, WARMUP_SCHEDULES)
        if num_train_steps < 1:
            raise ValueError(
                f"num_train_steps={num_train_steps} leaves nothing to train; "
                "it must be at least 1."
            )
        if num_warmup_steps < 0:
            raise ValueError(
                f"num_warmup_steps={num_warmup_steps} is below 0; use 0 for "
                "no warm-up."
            )
        self.init_lr = float(init_lr)
        self.num_train_steps = int(num_train_steps)
        self.num_warmup_steps = int(num_warmup_steps)
        self.schedule = schedule
        self.warmup_schedule = warmup_schedule

    def __call__(self, step):
        """Gives the float32 rate of the update that `step` updates precede."""
        step = tf.cast(tf.convert_to_tensor(step), tf.float32)
        init_lr = tf.constant(self.init_lr, tf.float32)
        rate = init_lr * self._decay(step)
        if self.num_warmup_steps:
            warmup = tf.constant(self.num_warmup_steps, tf.float32)
            rate = tf.where(step < warmup, init_lr * (step / warmup), rate)
        return rate

    def _decay(self, step):
        """The share of the full rate that is left, warm-up aside."""
        total = self.num_train_steps
        if self.warmup_schedule == "peak":
            step = step - self.num_warmup_steps
            total = max(1, total - self.num_warmup_steps)
        share = tf.clip_by_value(step / tf.constant(total, tf.float32), 0, 1)
        if self.schedule == "constant":
            return tf.ones_like(share)
        if self.schedule == "cosine":
            return 0.5 * (1 + tf.cos(math.pi * share))
        return 1 - share

    def get_config(self):
        """The constructor's arguments."""
        return {
            "init_lr": self.init_lr,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "schedule": self.schedule,
            "warmup_schedule": self.warmup_schedule,
        }


# ------------------------------------------------- which variables move, how


def layer_decay_multipliers(layer_decay, num_hidden_layers):
    """Gives (regex, factor) pairs that slow the lower layers of an encoder.

    Layer k of n learns at `layer_decay` ** (n - k) times the rate, the
    embeddings at `layer_decay` ** (n + 1); the pooler and the heads at 1.

    Raises ValueError unless 0 < layer_decay <= 1."""
    if not 0 < layer_decay <= 1:
        raise ValueError(
            f"layer_decay={layer_decay} is not in (0, 1]; 1 means equal rates."
        )
    if layer_decay == 1:
        return []
    pairs = [(r"(^|/)embeddings/", layer_decay ** (num_hidden_layers + 1))]
    for layer in range(num_hidden_layers):
        factor = layer_decay ** (num_hidden_layers - layer)
        pairs.append((rf"(^|/)layer_{layer}/", factor))
    return pairs


def frozen_patterns(freeze_layers, num_hidden_layers):
    """Gives regexes for the embeddings and the first `freeze_layers` layers.

    None freezes nothing and 0 the embeddings alone.

    Raises ValueError for more layers than the encoder has."""
    if freeze_layers is None:
        return []
    if not 0 <= freeze_layers <= num_hidden_layers:
        raise ValueError(
            f"--freeze_layers={freeze_layers} is not between 0 and "
            f"num_hidden_layers={num_hidden_layers} of the config. Freeze at "
            "most so many; the head and pooler still learn."
        )
    layers = [rf"(^|/)layer_{layer}/" for layer in range(freeze_layers)]
    return [r"(^|/)embeddings/", *layers]


# --------------------------------------------------------------- optimizers


class ClippingOptimizer(keras.optimizers.Optimizer):
    """What BERT's optimizers share: sum over replicas, clip once, then update.

    Subclasses give `_update_variable`. Call `apply` (or `fit`) in replica
    context, that is inside `strategy.run`, with gradients of this replica's
    share of the loss: they are summed, not averaged.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        clip_norm=1.0,
        exclude_from_weight_decay=EXCLUDED_FROM_DECAY,
        learning_rate_multipliers=(),
        frozen=(),
        original_embedding_clip=False,
        name=None,
    ):
        """Takes rates and the patterns that tell variables apart.

        learning_rate: float or a Keras schedule.
        clip_norm: the global norm that gradients are cut to; None for no cut.
        exclude_from_weight_decay: regexes searched in `variable.path`.
        learning_rate_multipliers: (regex, factor) pairs; the first match wins.
        frozen: regexes; these variables have no slots and never change.
        original_embedding_clip: measure the word embedding's share of the
          global norm as the original did on CPU and GPU: over one row for
          each looked-up token, repeated ids not summed."""
        super().__init__(learning_rate=learning_rate, name=name)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.clip_norm = clip_norm
        self.exclude_from_weight_decay = list(exclude_from_weight_decay or ())
        self.learning_rate_multipliers = [
            (pattern, factor) for pattern, factor in learning_rate_multipliers
        ]
        self.frozen = list(frozen)
        self.original_embedding_clip = original_embedding_clip
        self._without_gradient = set()

    def build(self, variables):
        """Makes the slots of all variables but frozen ones."""
        if self.built:
            return
        variables = self.updated(variables)
        super().build(variables)
        self._adam_m, self._adam_v = self.add_optimizer_variables(
            variables, ["adam_m", "adam_v"]
        )

    def updated(self, variables):
        """Those of `variables` that are not frozen, in order."""
        return [v for v in variables if not _matches(self.frozen, v)]

    def slot(self, variable, name):
        """The slot 'adam_m' or 'adam_v' of a variable, None if it has none.

        Frozen variables have none, nor those that got no gradient (a pooler
        without a head on it), as in the original's checkpoints."""
        slots = {"adam_m": self._adam_m, "adam_v": self._adam_v}[name]
        key = self._var_key(variable)
        index = self._trainable_variables_indices.get(key)
        if index is None or key in self._without_gradient:
            return None
        return slots[index]

    def apply(self, grads, trainable_variables=None):
        """Updates the variables once; see `apply_with_norm`."""
        self.apply_with_norm(grads, trainable_variables)

    def apply_with_norm(self, grads, variables=None):
        """Updates the variables and returns the global norm before clipping.

        A gradient is a tensor, tf.IndexedSlices, None (the variable stays) or
        a list of tensors and tf.IndexedSlices that are to be summed.

        Raises ValueError without a gradient, or outside of a replica."""
        variables = list(variables or self._trainable_variables)
        self._check_context()
        with tf.init_scope():
            self.build(variables)
        pairs = self._with_gradient(grads, variables)
        grads, norm = self._reduce_and_clip(pairs)
        rate = tf.cast(self.learning_rate, tf.float32)
        for gradient, (_, variable) in zip(grads, pairs, strict=True):
            self._update_variable(
                variable,
                gradient,
                rate * self._multiplier(variable),
                self._decay_of(variable),
            )
        # Not assign_add, which would wait for all replicas once more.
        tf.raw_ops.AssignAddVariableOp(
            resource=self._iterations.handle,
            value=tf.ones([], self._iterations.dtype),
        )
        return norm

    def _check_context(self):
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1 and tf.distribute.in_cross_replica_context():
            raise ValueError(
                "apply() was called outside of a replica; call it inside "
                "strategy.run(), where it sums the gradients of all replicas."
            )
        if replicas > 1 and self.original_embedding_clip:
            raise ValueError(
                f"original_embedding_clip was asked for on {replicas} "
                "replicas; it is defined on one only. Use one device."
            )

    def _with_gradient(self, grads, variables):
        """The (gradient, variable) pairs of the variables that move."""
        pairs = []
        for gradient, variable in zip(grads, variables, strict=True):
            if _matches(self.frozen, variable):
                continue
            if gradient is None:
                self._without_gradient.add(self._var_key(variable))
            else:
                pairs.append((gradient, variable))
        if not pairs:
            raise ValueError(
                "No variable has a gradient: the loss depends on none of "
                f"{len(variables)} variables, or all of them are frozen."
            )
        self._check_variables_are_known([v for _, v in pairs])
        return pairs

    def _reduce_and_clip(self, pairs):
        """The dense gradients of all replicas, clipped, and their norm."""
        grads = [dense_gradient(g, v) for g, v in pairs]
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            context = tf.distribute.get_replica_context()
            grads = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        halves = []
        for (gradient, variable), dense in zip(pairs, grads, strict=True):
            parts = [dense]
            if self.original_embedding_clip and _matches(
                [_WORD_TABLE], variable
            ):
                parts = [_values(part) for part in _parts(gradient)]
            halves.extend(tf.nn.l2_loss(part) for part in parts)
        norm = tf.sqrt(2 * tf.add_n(halves))
        if self.clip_norm is None:
            return grads, norm
        limit = tf.constant(self.clip_norm, tf.float32)
        factor = limit / tf.maximum(norm, limit)
        return [gradient * factor for gradient in grads], norm

    def _multiplier(self, variable):
        for pattern, factor in self.learning_rate_multipliers:
            if re.search(pattern, variable.path):
                return factor
        return 1.0

    def _decay_of(self, variable):
        """The weight decay of a variable: the common one, or 0."""
        if _matches(self.exclude_from_weight_decay, variable):
            return 0.0
        return self.weight_decay_rate or 0.0

    def _slots_of(self, variable):
        index = self._get_variable_index(variable)
        return self._adam_m[index], self._adam_v[index]

    def get_config(self):
        """The constructor's arguments; the schedule serialized."""
        config = super().get_config()
        return {
            "name": config["name"],
            "learning_rate": config["learning_rate"],
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "clip_norm": self.clip_norm,
            "exclude_from_weight_decay": self.exclude_from_weight_decay,
            "learning_rate_multipliers": self.learning_rate_multipliers,
            "frozen": self.frozen,
            "original_embedding_clip": self.original_embedding_clip,
        }


@keras.saving.register_keras_serializable(_PACKAGE)
class AdamWeightDecay(ClippingOptimizer):
    """Adam as BERT was trained with: no bias correction, decay in the update.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
    w = w - rate * (m / (sqrt(v) + epsilon) + decay * w)

    Keras's AdamW corrects the bias of m and v, which makes the first steps
    3 times smaller."""

    def _update_variable(self, variable, gradient, rate, decay):
        # Two fused kernels instead of a dozen passes over the weights. With
        # both beta powers at 0, ResourceApplyAdam corrects no bias. The decay
        # comes first, so that it sees the old weights, as a step of gradient
        # descent: w * (1 - rate * decay) would round most of it away.
        if decay:
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle,
                alpha=rate * decay,
                delta=_read(variable),
            )
        m, v = self._slots_of(variable)
        root = self._root_of_beta_2_error()
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=0.0,
            beta2_power=0.0,
            lr=rate * root,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon * root,
            grad=gradient,
        )

    def _root_of_beta_2_error(self):
        """What undoes the kernel's rounding of 1 - beta_2, in the update.

        Subtracted in float32, 1 - 0.999 is 1.3e-5 too small, and so is v all
        along; its root then cancels out of rate and epsilon."""
        rounded = 1 - float(np.float32(self.beta_2))
        return math.sqrt(rounded / (1 - self.beta_2))


@keras.saving.register_keras_serializable(_PACKAGE)
class Lamb(ClippingOptimizer):
    """Adam whose step has, layer by layer, the length of the weights.

    m and v as in Adam, corrected for bias; u = m / (sqrt(v) + epsilon) +
    decay * w; w = w - rate * |w| / |u| * u. Variables without weight decay
    take u as it is. Source: You et al., 2019, algorithm 2."""

    def _update_variable(self, variable, gradient, rate, decay):
        m, v = self._slots_of(variable)
        step = tf.cast(_read(self._iterations) + 1, tf.float32)
        m_new = self.beta_1 * _read(m) + (1 - self.beta_1) * gradient
        v_new = self.beta_2 * _read(v)
        v_new += (1 - self.beta_2) * tf.square(gradient)
        update = (m_new / (1 - self.beta_1**step)) / (
            tf.sqrt(v_new / (1 - self.beta_2**step)) + self.epsilon
        )
        weights = _read(variable)
        if decay:
            update += decay * weights
            length, wanted = tf.norm(update), tf.norm(weights)
            usable = (length > 0) & (wanted > 0)
            rate *= tf.where(usable, tf.math.divide_no_nan(wanted, length), 1.0)
        _assign(m, m_new)
        _assign(v, v_new)
        _assign(variable, weights - rate * update)


def create_optimizer(
    init_lr,
    num_train_steps,
    num_warmup_steps,
    optimizer="adamw",
    schedule="linear",
    warmup_schedule="original",
    layer_decay=1.0,
    freeze_layers=None,
    num_hidden_layers=0,
    learning_rate_multipliers=(),
    **options,
):
    """Gives the optimizer of a training run, `adamw` or `lamb`.

    `learning_rate_multipliers` come before those of `layer_decay`; further
    options go to ClippingOptimizer. Raises ValueError for an unknown
    name or a value out of range."""
    classes = {"adamw": AdamWeightDecay, "lamb": Lamb}
    _check_choice("optimizer", optimizer, tuple(classes))
    return classes[optimizer](
        WarmupSchedule(
            init_lr,
            num_train_steps,
            num_warmup_steps,
            schedule,
            warmup_schedule,
        ),
        learning_rate_multipliers=[
            *learning_rate_multipliers,
            *layer_decay_multipliers(layer_decay, num_hidden_layers),
        ],
        frozen=frozen_patterns(freeze_layers, num_hidden_layers),
        **options,
    )


# ------------------------------------------------------------------ helpers


def dense_gradient(gradient, variable):
    """The sum of a gradient's parts as a tensor of the variable's shape.

    Rows of tf.IndexedSlices with the same id are summed first: squaring them
    one by one would give a wrong second moment."""
    dense = [
        tf.math.unsorted_segment_sum(
            part.values, part.indices, variable.shape[0]
        )
        if isinstance(part, tf.IndexedSlices)
        else part
        for part in _parts(gradient)
    ]
    return dense[0] if len(dense) == 1 else tf.add_n(dense)


def _parts(gradient):
    """A gradient that comes as a list of parts, or as one, as a list."""
    if isinstance(gradient, (list, tuple)) and not isinstance(
        gradient, tf.IndexedSlices
    ):
        return list(gradient)
    return [gradient]


def _values(part):
    """The numbers of a part; of slices, one row for each lookup."""
    return part.values if isinstance(part, tf.IndexedSlices) else part


def _matches(patterns, variable):
    """Whether any regex is found in the variable's path."""
    return any(re.search(pattern, variable.path) for pattern in patterns)


def _read(variable):
    """This replica's value of a Keras variable, as a tensor."""
    return tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
    )


def _assign(variable, value):
    """Sets this replica's copy; all replicas compute the same value."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(
            f"{name}={value!r} is not one of: {', '.join(choices)}."
        )
