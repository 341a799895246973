"""BERT: its configuration and its encoder; `heads.py` has what goes on it.

The model of "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding" (Devlin et al., 2018), with the variables and the numbers of the
original release. It reads like the paper; what makes it fast stands in
`ops.py`. Shape letters, used everywhere: B batch, L length, H hidden, N heads,
D head size, P predictions, V vocabulary, C classes, T tokens that are computed
(those that are not padding).
"""

import contextlib
import copy
import json
import math
import types

import keras
import tensorflow as tf

import ops

LAYER_NORM_EPSILON = 1e-12

ACTIVATIONS = {
    "gelu": ops.gelu,
    "gelu_erf": ops.gelu_erf,
    "relu": lambda x, training=False: tf.nn.relu(x),
    "tanh": lambda x, training=False: tf.tanh(x),
    "linear": None,
    "": None,
}

# name: (num_hidden_layers, hidden_size, num_attention_heads)
PRESETS = {
    f"bert_L-{layers}_H-{hidden}": (layers, hidden, hidden // 64)
    for hidden in (128, 256, 512, 768)
    for layers in (2, 4, 6, 8, 10, 12)
} | {
    "bert_base": (12, 768, 12),
    "bert_large": (24, 1024, 16),
}


def get_activation(name):
    """Gives the function (or None, linear) that a config's hidden_act names.

    Raises ValueError for an unknown name."""
    key = (name or "").lower()
    if key not in ACTIVATIONS:
        known = ", ".join(sorted(k for k in ACTIVATIONS if k))
        raise ValueError(f"hidden_act={name!r} is not one of: {known}.")
    return ACTIVATIONS[key]


class BertConfig:
    """The sizes and rates of a model, as `bert_config.json` holds them.

    Unknown keys are kept and written again. `hidden_act` is `gelu` for the
    tanh form of the released models and `gelu_erf` for the exact form, which
    Hugging Face calls `gelu`. The default `type_vocab_size` is 16 as in the
    original, though every released model has 2."""

    def __init__(
        self,
        vocab_size,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=16,
        initializer_range=0.02,
        **others,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        for key, value in others.items():
            setattr(self, key, value)

    @classmethod
    def from_dict(cls, values):
        """Gives the config of a dict; only `vocab_size` has no default."""
        if values.get("vocab_size") is None:
            raise ValueError("The BERT config has no 'vocab_size'.")
        return cls(**values)

    @classmethod
    def from_json_file(cls, path):
        """Reads a `bert_config.json`. Raises ValueError naming the file."""
        with open(path, encoding="utf-8-sig") as file:
            try:
                values = json.load(file)
                if not isinstance(values, dict):
                    raise ValueError("it is not a JSON object")
                return cls.from_dict(values)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_preset(cls, name, vocab_size=30522):
        """Gives a released size: bert_base, bert_large or bert_L-2_H-128 ..."""
        if name not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(f"Preset {name!r} is not one of: {known}.")
        layers, hidden, heads = PRESETS[name]
        return cls(
            vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            type_vocab_size=2,
        )

    def to_dict(self):
        """Gives a deep copy of every key."""
        return copy.deepcopy(self.__dict__)

    def to_json_string(self):
        """Gives sorted, indented JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def check(self):
        """Raises ValueError where the sizes cannot make a model."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}."
            )
        get_activation(self.hidden_act)


def truncated_normal(stddev):
    """Normal, cut at two standard deviations, as BERT draws its weights."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


@contextlib.contextmanager
def scope(path):
    """Names the variables made inside after the original's, `a/b/c`."""
    with contextlib.ExitStack() as stack:
        for name in path.split("/"):
            stack.enter_context(keras.name_scope(name))
        yield


# ------------------------------------------------------------------- layers


class BertLayer(keras.layers.Layer):
    """A layer whose float32 variables exist from its construction on.

    `compute_dtype` comes from Keras's dtype policy; casts are written out, so
    that layer norm, softmax, logits and losses stay float32."""

    def __init__(self, name, dtype=None):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.supports_jit = False  # shapes follow the number of real tokens

    def variable(self, name, shape, initializer="zeros", trainable=True):
        """Adds a float32 variable."""
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype="float32",
            trainable=trainable,
        )

    def build(self, input_shape=None):
        """Nothing is left to build."""


class Dense(BertLayer):
    """kernel [I, O] and bias [O] of a dense layer on [T, I] tokens."""

    def __init__(self, inputs, outputs, stddev, name, dtype=None, act=None):
        super().__init__(name, dtype)
        self.kernel = self.variable(
            "kernel", (inputs, outputs), truncated_normal(stddev)
        )
        self.bias = self.variable("bias", (outputs,))
        self._activation = act

    def call(self, x, training=False, scale=1.0):
        """Takes [T, I], gives activation((x @ kernel + bias) * scale)."""
        return ops.dense(
            x, self.kernel, self.bias, scale, self._activation, training
        )


class LayerNorm(BertLayer):
    """Normalises the last axis; gamma and beta [H]."""

    def __init__(self, size, name="LayerNorm", dtype=None):
        super().__init__(name, dtype)
        self.gamma = self.variable("gamma", (size,), "ones")
        self.beta = self.variable("beta", (size,))

    def call(self, x, scale=1.0):
        """Takes and gives [T, H]."""
        gamma = tf.convert_to_tensor(self.gamma)
        beta = tf.convert_to_tensor(self.beta)
        return ops.layer_norm(x, gamma, beta, scale, LAYER_NORM_EPSILON)


class Dropout:
    """Dropout in two halves: `scale` goes into what makes x, `mask` onto x.

    Numbers the places of a model in the order of their calls, so that each
    place draws its own mask from the one seed of a step."""

    def __init__(self, seed):
        self._seed = seed  # None outside of training
        self._place = 0

    def scale(self, rate):
        """The factor that keeps the mean: 1 / (1 - rate) in training."""
        return 1.0 if self._seed is None or not rate else 1.0 / (1.0 - rate)

    def mask(self, x, rate):
        """Zeroes a share `rate` of x, which was scaled already."""
        if self._seed is None or not rate:
            return x
        self._place += 1
        seed = ops.fold_in(self._seed, self._place)
        return x * ops.keep_mask(tf.shape(x), rate, seed, x.dtype)


class Embeddings(BertLayer):
    """Word + position + segment embeddings, layer norm, dropout."""

    def __init__(self, config, dtype=None, one_hot=False):
        super().__init__("embeddings", dtype)
        hidden = config.hidden_size
        init = truncated_normal(config.initializer_range)
        self.word_embeddings = self.variable(
            "word_embeddings", (config.vocab_size, hidden), init
        )
        self.token_type_embeddings = self.variable(
            "token_type_embeddings", (config.type_vocab_size, hidden), init
        )
        self.position_embeddings = self.variable(
            "position_embeddings",
            (config.max_position_embeddings, hidden),
            init,
        )
        with scope("embeddings"):
            self.LayerNorm = LayerNorm(hidden, dtype=dtype)
        self._rate = config.hidden_dropout_prob
        self._one_hot = one_hot
        self.on_lookup = None  # called with (table, ids, rows) if set

    def call(self, input_ids, segment_ids, layout, dropout):
        """Takes int [B, L] ids and segments, gives [T, H].

        A segment id out of range adds nothing, as in the original; a word id
        out of range is an error on CPU."""
        ids = layout.tokens(input_ids)
        if self._one_hot:
            table = tf.convert_to_tensor(self.word_embeddings)
            words = tf.one_hot(ids, table.shape[0]) @ table
        else:
            words = tf.gather(self.word_embeddings.value, ids)
        if self.on_lookup is not None:
            self.on_lookup(self.word_embeddings, ids, words)
        positions = tf.gather(
            self.position_embeddings.value, layout.position_ids
        )
        types = tf.convert_to_tensor(self.token_type_embeddings)
        segments = tf.one_hot(layout.tokens(segment_ids), types.shape[0])
        x = words + segments @ types + positions
        x = self.LayerNorm(x, scale=dropout.scale(self._rate))
        return dropout.mask(tf.cast(x, self.compute_dtype), self._rate)


class Attention(BertLayer):
    """Multi-head self-attention with its output product and layer norm."""

    def __init__(self, config, dtype=None):
        super().__init__("attention", dtype)
        hidden, stddev = config.hidden_size, config.initializer_range

        def dense(name):
            return Dense(hidden, hidden, stddev, name, dtype)

        with scope("attention/self"):
            self.query = dense("query")
            self.key = dense("key")
            self.value = dense("value")
        with scope("attention/output"):
            self.output_dense = dense("dense")
            self.output_norm = LayerNorm(hidden, dtype=dtype)
        self._size = hidden // config.num_attention_heads
        self._probs_rate = config.attention_probs_dropout_prob
        self._hidden_rate = config.hidden_dropout_prob

    def call(self, x, layout, dropout, training=False, positions=None):
        """Takes [T, H]; gives [T, H] and each group's probabilities.

        With int [B, S] `positions`, only those tokens ask and the result is
        [B * S, H]: the last layer of a task that reads few tokens."""
        if positions is None:
            asking, queries = x, None
            parts = self._project(x, (0, 1, 2), dropout, training)
            groups = layout.split_heads(parts, 3)
        else:
            asking = layout.rows(x, positions)
            queries = layout.split_selected(
                self._project(asking, (0,), dropout, training),
                positions.shape[1] or tf.shape(positions)[1],
            )
            parts = self._project(x, (1, 2), dropout, training)
            groups = [
                (query, *pair)
                for query, pair in zip(
                    queries, layout.split_heads(parts, 2), strict=True
                )
            ]
        contexts, probabilities = [], []
        for (query, key, value), bias in zip(
            groups, layout.biases, strict=True
        ):
            scores = tf.matmul(query, key, transpose_b=True)  # [B, N, L, L]
            probs = tf.nn.softmax(tf.cast(scores, tf.float32) + bias)
            probabilities.append(probs)
            probs = dropout.mask(tf.cast(probs, value.dtype), self._probs_rate)
            contexts.append(tf.matmul(probs, value))  # [B, N, L, D]
        if positions is None:
            context = layout.merge_heads(contexts)
        else:
            context = layout.merge_selected(contexts)
        y = self.output_dense(
            context, training=training, scale=dropout.scale(self._hidden_rate)
        )
        y = dropout.mask(y, self._hidden_rate)
        return self.output_norm(y + asking), probabilities

    def _project(self, x, parts, dropout, training):
        """Queries (0), keys (1), values (2) side by side in one product.

        Queries carry 1 / sqrt(D), values the scale of the dropout that falls
        on the probabilities: both are cheaper here than on [B, N, L, L]."""
        layers = [(self.query, self.key, self.value)[part] for part in parts]
        factors = (
            1.0 / math.sqrt(self._size),
            1.0,
            dropout.scale(self._probs_rate),
        )
        kernels, biases = [], []
        for part, layer in zip(parts, layers, strict=True):
            kernel = tf.convert_to_tensor(layer.kernel)
            bias = tf.convert_to_tensor(layer.bias)
            if factors[part] != 1.0:
                kernel, bias = kernel * factors[part], bias * factors[part]
            kernels.append(tf.cast(kernel, x.dtype))
            biases.append(tf.cast(bias, x.dtype))
        kernel, bias = tf.concat(kernels, 1), tf.concat(biases, 0)
        return ops.dense(x, kernel, bias, training=training)


class TransformerLayer(BertLayer):
    """Attention, then the two-layer network, each added to its input."""

    def __init__(self, config, index, dtype=None):
        super().__init__(f"layer_{index}", dtype)
        hidden, inner = config.hidden_size, config.intermediate_size
        stddev = config.initializer_range
        self.attention = Attention(config, dtype)
        with scope("intermediate"):
            self.intermediate = Dense(
                hidden,
                inner,
                stddev,
                "dense",
                dtype,
                get_activation(config.hidden_act),
            )
        with scope("output"):
            self.output_dense = Dense(inner, hidden, stddev, "dense", dtype)
            self.output_norm = LayerNorm(hidden, dtype=dtype)
        self._rate = config.hidden_dropout_prob

    def call(self, x, layout, dropout, training=False, positions=None):
        """Takes [T, H], gives [T, H] (or [B * S, H]) and probabilities."""
        x, probabilities = self.attention(
            x,
            layout=layout,
            dropout=dropout,
            training=training,
            positions=positions,
        )
        y = self.intermediate(x, training=training)
        y = self.output_dense(
            y, training=training, scale=dropout.scale(self._rate)
        )
        y = dropout.mask(y, self._rate)
        return self.output_norm(y + x), probabilities


# ------------------------------------------------------------------ encoder


class BertModel(keras.Model):
    """The encoder, a Keras 3 model: dict of int32 [B, L] in, dict out.

    Inputs: `input_ids`, and optionally `input_mask` (1 for real tokens; all
    ones by default) and `segment_ids` (zeros). Outputs: `sequence_output`
    [B, L, H] and `pooled_output` [B, H], in the compute dtype of `dtype`
    ("float32" or "mixed_bfloat16"; variables are float32 either way).

    Tokens that are padding are not computed, and `sequence_output` is 0 there;
    with `padded=True` (static shapes, for TPUs) they are, and every position
    has the original's value."""

    def __init__(
        self,
        config,
        name="bert",
        dtype=None,
        padded=False,
        use_one_hot_embeddings=False,
        seed=None,
    ):
        super().__init__(name=name, dtype=dtype, autocast=False)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        config.check()
        self.config = config
        self.padded = padded
        self._one_hot = use_one_hot_embeddings
        self.supports_jit = padded
        # (input_mask, segment_ids, num_heads, positions) -> another layout
        self.make_layout = None
        policy = self.dtype_policy
        with scope("bert"):
            self.embeddings = Embeddings(config, policy, use_one_hot_embeddings)
        self.layer = []
        for index in range(config.num_hidden_layers):
            with scope(f"bert/encoder/layer_{index}"):
                self.layer.append(TransformerLayer(config, index, policy))
        with scope("bert/pooler"):
            self.pooler = Dense(
                config.hidden_size,
                config.hidden_size,
                config.initializer_range,
                "dense",
                policy,
                get_activation("tanh"),
            )
        self._seeds = keras.random.SeedGenerator(seed)
        self._last = types.SimpleNamespace(outputs=None)

    def build(self, input_shape=None):
        """Nothing is left to build."""

    def get_config(self):
        """Gives what the constructor needs to make this model again."""
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "padded": self.padded,
            "use_one_hot_embeddings": self._one_hot,
        }

    @classmethod
    def from_config(cls, values):
        """Makes the model of `get_config`."""
        values = dict(values)
        if isinstance(values.get("dtype"), dict):
            values["dtype"] = keras.saving.deserialize_keras_object(
                values["dtype"]
            )
        return cls(**values)

    def call(
        self, inputs, training=False, positions=None, seed=None, details=False
    ):
        """Encodes a batch.

        With int [B, S] `positions`, the last layer computes only those tokens:
        `selected_output` [B, S, H] takes the place of `sequence_output`, and
        the pooler reads the first of them, which must be position 0.
        `seed` (int32 [2]) fixes the dropout of a training call. `details` adds
        `embedding_output`, `all_encoder_layers` and `attention_probs` (a list
        of [B, N, L, L]), all computed in the padded form; details="layers"
        adds the first two, 0 at padding as `sequence_output` is.
        Raises ValueError for a batch longer than the position table."""
        ids, mask, segments = self._check(inputs)
        if training and seed is None:
            seed = self.next_seed()
        dropout = Dropout(seed if training else None)
        layout = self._layout(mask, segments, positions, details is True)
        x = self.embeddings(ids, segments, layout=layout, dropout=dropout)
        embedded, hidden, attention = x, [], []
        for layer in self.layer:
            last = layer is self.layer[-1]
            x, probabilities = layer(
                x,
                layout=layout,
                dropout=dropout,
                training=training,
                positions=positions if last else None,
            )
            hidden.append(x)
            attention.extend(probabilities)
        outputs = self._outputs(x, layout, positions, training)
        if details:
            outputs["embedding_output"] = layout.sequence(embedded)
            outputs["all_encoder_layers"] = [layout.sequence(h) for h in hidden]
        if details is True:
            outputs["attention_probs"] = attention
        if tf.executing_eagerly():
            self._last.outputs = outputs
        return outputs

    def _layout(self, mask, segments, positions, padded):
        """How the tokens of a batch come to attention."""
        heads = self.config.num_attention_heads
        if self.padded or padded:
            return ops.PaddedLayout(mask, heads, positions)
        if self.make_layout is not None:
            return self.make_layout(mask, segments, heads, positions)
        return ops.PackedLayout(mask, heads, positions)

    def next_seed(self):
        """Draws an int32 [2] seed for the dropout of one training call."""
        return tf.cast(self._seeds.next(), tf.int32)

    def _check(self, inputs):
        """Gives ids, mask and segments of a batch, with defaults."""
        if not isinstance(inputs, dict) or "input_ids" not in inputs:
            raise ValueError(
                "BertModel takes a dict with 'input_ids' and optionally "
                f"'input_mask' and 'segment_ids'. Received: {type(inputs)}."
            )
        ids = tf.cast(inputs["input_ids"], tf.int32)
        if ids.shape.rank != 2:
            raise ValueError(f"input_ids must be [B, L]. Received: {ids.shape}")
        limit = self.config.max_position_embeddings
        if ids.shape[1] is not None and ids.shape[1] > limit:
            raise ValueError(
                f"The batch is {ids.shape[1]} tokens long, and the model has "
                f"max_position_embeddings={limit}."
            )
        mask, segments = inputs.get("input_mask"), inputs.get("segment_ids")
        if mask is None:
            mask = tf.ones_like(ids)
        if segments is None:
            segments = tf.zeros_like(ids)
        return ids, tf.cast(mask, tf.int32), tf.cast(segments, tf.int32)

    def _outputs(self, x, layout, positions, training):
        """Pools the first token and brings [T, H] into its batch form."""
        hidden = self.config.hidden_size
        if positions is None:
            first = layout.first(x)
            outputs = {"sequence_output": layout.sequence(x)}
        else:
            shape = tf.concat([tf.shape(positions), [hidden]], 0)
            selected = tf.reshape(x, shape)
            first = selected[:, 0]
            outputs = {"selected_output": selected, "positions": positions}
        first = tf.ensure_shape(first, [None, hidden])
        outputs["pooled_output"] = self.pooler(first, training=training)
        return outputs

    def _result(self, key):
        """One output of the last eager call."""
        outputs = self._last.outputs
        if outputs is None or key not in outputs:
            raise ValueError(
                f"There is no {key} yet. Call the model eagerly first; "
                "layers and embeddings need details=True."
            )
        return outputs[key]

    def get_pooled_output(self):
        """Gives [B, H] of the last eager call."""
        return self._result("pooled_output")

    def get_sequence_output(self):
        """Gives [B, L, H] of the last eager call."""
        return self._result("sequence_output")

    def get_all_encoder_layers(self):
        """Gives each layer's [B, L, H] of the last call with details=True."""
        return self._result("all_encoder_layers")

    def get_embedding_output(self):
        """Gives [B, L, H] of the last call with details=True."""
        return self._result("embedding_output")

    def get_embedding_table(self):
        """Gives the word embeddings, a variable of [V, H]."""
        return self.embeddings.word_embeddings
