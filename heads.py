"""What tasks put on the encoder: one head per task, and the model of both.

A head turns the encoder's outputs into a dict of float32 tensors, says which
positions it reads (so that the last layer computes no others), and gives its
loss as sums and weights: the training loop adds both up over all replicas
before it divides, so that a batch means the same on any number of devices.
Shape letters as in `modeling.py`; S selected positions.
"""

import keras
import tensorflow as tf

import modeling
import ops

HEAD_STDDEV = 0.02  # fixed in the original, whatever the config says
HEAD_DROPOUT = 0.1
HEAD_PLACE = 1001  # behind those that modeling.Dropout numbers


class Head(modeling.BertLayer):
    """A task's head. `original_names` maps attributes to checkpoint names.

    `implied`: {checkpoint name: value} of variables that a checkpoint with
    all others of the head may lack."""

    original_names = {}
    implied = {}

    def encoder_inputs(self, inputs):
        """Gives what the encoder sees of the rows' token features."""
        return inputs

    def positions(self, features):
        """Gives int [B, S], the positions read, the first being 0; or None."""
        return None

    def row_weights(self, features):
        """Gives float32 [B]: how much the loss of each row counts."""
        return example_weights(features)

    def example_losses(self, outputs, features):
        """Gives float32 [B], the loss of each row."""
        raise ValueError(f"{type(self).__name__} has no loss.")

    def loss_weights(self, features):
        """Gives {name: scalar} that the sums of `losses` are divided by."""
        return {"loss": tf.reduce_sum(self.row_weights(features))}

    def losses(self, outputs, features):
        """Gives {name: scalar}, each loss summed over the batch."""
        losses = self.example_losses(outputs, features)
        return {"loss": tf.reduce_sum(losses * self.row_weights(features))}

    def linear(self, names, outputs, inputs, stddev=HEAD_STDDEV):
        """Adds output_weights [outputs, inputs] and output_bias [outputs]."""
        self.output_weights = self.variable(
            "output_weights",
            (outputs, inputs),
            modeling.truncated_normal(stddev),
        )
        self.output_bias = self.variable("output_bias", (outputs,))
        self.original_names = {
            "output_weights": f"{names}output_weights",
            "output_bias": f"{names}output_bias",
        }

    def logits(self, x):
        """Gives float32 x W^T + b, which no precision setting lowers."""
        weights = tf.convert_to_tensor(self.output_weights)
        x = tf.cast(x, tf.float32)
        return tf.matmul(x, weights, transpose_b=True) + self.output_bias


def example_weights(features):
    """Gives float32 [B]: 1, or 0 for rows that only fill up a batch."""
    real = features.get("is_real_example")
    if real is None:
        return tf.ones([tf.shape(features["input_ids"])[0]], tf.float32)
    return tf.cast(tf.reshape(real, [-1]), tf.float32)


def cross_entropy(logits, labels, label_smoothing=0.0):
    """Gives float32 [...] of -log softmax at int labels [...].

    With smoothing e, the target is 1 - e on the label plus e / C on each."""
    labels = tf.cast(labels, tf.int32)
    log_probs = tf.nn.log_softmax(logits)
    chosen = tf.gather(log_probs, labels, batch_dims=labels.shape.rank)
    if not label_smoothing:
        return -chosen
    even = tf.reduce_mean(log_probs, axis=-1)
    return -(1 - label_smoothing) * chosen - label_smoothing * even


def dropout(x, seed, training):
    """x in float32, in training with HEAD_DROPOUT that `seed` [2] fixes."""
    x = tf.cast(x, tf.float32)
    if not training:
        return x
    seed = ops.fold_in(seed, HEAD_PLACE)
    mask = ops.keep_mask(tf.shape(x), HEAD_DROPOUT, seed, x.dtype)
    return x * mask / (1 - HEAD_DROPOUT)


class ClassifierHead(Head):
    """Scores a text or a pair of texts.

    `kind`: "classification" (softmax, label_ids int [B]), "multi_label"
    (sigmoid, label_ids [B, C] of 0 and 1) or "regression" (label_values [B]).
    `pooling`: "cls" is BERT's pooled output; "mean" and "max" run over the
    real tokens. Outputs: `logits` [B, C] and `probabilities` [B, C], or
    `score` [B] for regression.

    `bias`, float [C], is where the output bias begins, for 0. `unit`, the
    (mean, deviation) of regression's labels, is what the layer counts in, so
    that labels of any range are as near to its first guesses. It is kept in
    checkpoints; weights from elsewhere, which lack it, count as they are."""

    def __init__(
        self,
        hidden_size,
        num_labels,
        kind="classification",
        pooling="cls",
        class_weights=None,
        label_smoothing=0.0,
        bias=None,
        unit=(0.0, 1.0),
        name="classifier",
    ):
        super().__init__(name)
        self.linear("", num_labels, hidden_size)
        if bias is not None:
            self.output_bias.assign(bias)
        if kind == "regression":
            self.label_unit = self.variable("label_unit", (2,), trainable=False)
            self.label_unit.assign(unit)
            self.original_names["label_unit"] = "label_unit"
            self.implied = {"label_unit": (0.0, 1.0)}
        self.kind, self.pooling = kind, pooling
        self._class_weights = class_weights
        self._label_smoothing = label_smoothing

    def change_unit(self, mean, deviation):
        """Counts in another unit of labels, with the same answers as before.

        Where the units are of another order the head begins anew: its answers
        would be too far from the labels to be led there. Gives whether it
        kept its answers."""
        old_mean, old_deviation = self.label_unit.numpy().astype(float)
        ratio = old_deviation / deviation
        shift = (old_mean - mean) / deviation
        is_like = 0.1 < ratio < 10 and abs(shift) < 10
        self.label_unit.assign((mean, deviation))
        if is_like:
            self.output_weights.assign(self.output_weights * ratio)
            self.output_bias.assign(self.output_bias * ratio + shift)
        else:
            make = modeling.truncated_normal(HEAD_STDDEV)
            self.output_weights.assign(make(self.output_weights.shape))
            self.output_bias.assign(tf.zeros_like(self.output_bias))
        return is_like

    def positions(self, features):
        """Only [CLS] is read, unless another pooling is asked for."""
        if self.pooling != "cls":
            return None
        return tf.zeros([tf.shape(features["input_ids"])[0], 1], tf.int32)

    def _pool(self, encoded, features):
        if self.pooling == "cls":
            return encoded["pooled_output"]
        return pool_tokens(
            encoded["sequence_output"], features["input_mask"], self.pooling
        )

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs, gives logits and probabilities."""
        pooled = self._pool(encoded, features)
        logits = self.logits(dropout(pooled, seed, training))
        if self.kind == "regression":
            mean, deviation = tf.unstack(tf.convert_to_tensor(self.label_unit))
            logits = mean + deviation * logits
            return {"logits": logits, "score": logits[:, 0]}
        if self.kind == "multi_label":
            return {"logits": logits, "probabilities": tf.sigmoid(logits)}
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def row_weights(self, features):
        """The real rows, times their class weights."""
        weights = example_weights(features)
        if self._class_weights is None or self.kind != "classification":
            return weights
        table = tf.constant(self._class_weights, tf.float32)
        return weights * tf.gather(table, features["label_ids"])

    def example_losses(self, outputs, features):
        """Gives float32 [B]: cross-entropy, mean binary one, or square."""
        logits = outputs["logits"]
        if self.kind == "regression":
            error = logits[:, 0] - features["label_values"]
            return tf.square(error / self.label_unit[1])
        if self.kind == "multi_label":
            labels = tf.cast(features["label_ids"], tf.float32)
            smooth = self._label_smoothing
            labels = labels * (1 - smooth) + 0.5 * smooth
            return tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels, logits), -1
            )
        return cross_entropy(
            logits, features["label_ids"], self._label_smoothing
        )


def pool_tokens(sequence, input_mask, pooling):
    """Gives the "mean" or "max" over the real tokens: float32 [B, H]."""
    sequence = tf.cast(sequence, tf.float32)
    real = tf.cast(input_mask > 0, tf.float32)[:, :, None]
    if pooling == "max":
        return tf.reduce_max(sequence - 1e30 * (1 - real), axis=1)
    total = tf.reduce_sum(sequence * real, axis=1)
    return total / tf.maximum(tf.reduce_sum(real, axis=1), 1e-9)


class ChoiceHead(Head):
    """Scores every choice of a question; its rows are [B, C, L] features.

    A choice without a token fills up a question that has less than C: its
    logit is -10000, its probability 0, and smoothing leaves it out. Outputs:
    `logits` and `probabilities`, float32 [B, C]."""

    def __init__(self, hidden_size, label_smoothing=0.0, name="choice"):
        super().__init__(name)
        self.linear("", 1, hidden_size)
        self._label_smoothing = label_smoothing

    def encoder_inputs(self, inputs):
        """Leaves one token of each choice that only fills up, not a row."""
        mask = inputs.get("input_mask")
        if mask is None:
            return inputs
        filler = ~tf.reduce_any(mask > 0, axis=1, keepdims=True)
        first = tf.range(tf.shape(mask)[1]) == 0
        one = tf.cast(filler & first, mask.dtype)
        return {**inputs, "input_mask": mask + one}

    def positions(self, features):
        """Only [CLS] is read, of all B * C choices."""
        return tf.zeros([tf.shape(features["input_ids"])[0], 1], tf.int32)

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs of B * C rows, scores [B, C]."""
        pooled = dropout(encoded["pooled_output"], seed, training)
        return self._scored(self.logits(pooled), features)

    def _scored(self, logits, features):
        """Takes the logits of B * C rows, gives the head's outputs."""
        there = _choices(features)
        logits = tf.reshape(logits, tf.shape(there))
        logits = tf.where(there, logits, ops.MASKED_SCORE)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def example_losses(self, outputs, features):
        """Gives float32 [B]: the cross-entropy of the right choices."""
        share = self._label_smoothing
        logits = outputs["logits"]
        losses = (1 - share) * cross_entropy(logits, features["label_ids"])
        if share:
            real = _choices(features)
            shown = tf.where(real, tf.nn.log_softmax(logits), 0.0)
            count = tf.reduce_sum(tf.cast(real, tf.float32), axis=1)
            losses -= share * tf.reduce_sum(shown, axis=1) / count
        return losses


def _choices(features):
    """bool [B, C]: which choices are there."""
    mask = features.get("input_mask")
    if mask is None:
        return tf.ones(tf.shape(features["input_ids"])[:2], tf.bool)
    return tf.reduce_any(mask > 0, axis=-1)


class MaskedLMHead(Head):
    """Guesses the pieces behind the masks; its output weights are the word
    embeddings."""

    original_names = {
        "transform.kernel": "cls/predictions/transform/dense/kernel",
        "transform.bias": "cls/predictions/transform/dense/bias",
        "transform_norm.gamma": "cls/predictions/transform/LayerNorm/gamma",
        "transform_norm.beta": "cls/predictions/transform/LayerNorm/beta",
        "output_bias": "cls/predictions/output_bias",
    }

    def __init__(self, config, word_embeddings, dtype=None, name="masked_lm"):
        super().__init__(name, dtype)
        hidden = config.hidden_size
        with modeling.scope("cls/predictions/transform"):
            self.transform = modeling.Dense(
                hidden,
                hidden,
                config.initializer_range,
                "dense",
                dtype,
                modeling.get_activation(config.hidden_act),
            )
            self.transform_norm = modeling.LayerNorm(hidden, dtype=dtype)
        self.output_bias = self.variable("output_bias", (config.vocab_size,))
        self._word_embeddings = word_embeddings

    def call(self, x, training=False):
        """Takes [S, H] tokens, gives float32 logits [S, V]."""
        x = self.transform(tf.cast(x, self.compute_dtype), training=training)
        x = self.transform_norm(x)
        table = tf.cast(tf.convert_to_tensor(self._word_embeddings), x.dtype)
        logits = tf.matmul(x, table, transpose_b=True)
        return tf.cast(logits, tf.float32) + self.output_bias


class BlankHead(ChoiceHead):
    """Scores choices by the masked-LM head: how well does each fill a blank?

    The pieces of segment 1 are the choice. The encoder sees [MASK] in their
    places; the logit is the mean of their log-probabilities there, so that
    the head of pre-training answers without any training (the "verbalizer"
    of Schick and Schuetze, 2021). A choice without a piece is never taken.

        features  [CLS] to be  or not [SEP]    segments  0 0 0 1 1 0
        encoder   [CLS] to be [M] [M] [SEP]    positions read  0 3 4

    `padded` computes the slots of all positions, as TPUs need it."""

    def __init__(self, encoder, mask_id, padded=False, label_smoothing=0.0):
        # Not the parent's: there is no layer on the pooled output.
        Head.__init__(self, "blank", encoder.dtype_policy)
        self.masked_lm = MaskedLMHead(
            encoder.config,
            encoder.embeddings.word_embeddings,
            encoder.dtype_policy,
        )
        self.original_names = {
            f"masked_lm.{key}": name
            for key, name in self.masked_lm.original_names.items()
        }
        self._mask_id, self._padded = mask_id, padded
        self._label_smoothing = label_smoothing

    def encoder_inputs(self, inputs):
        """Hides the choice, and that it was marked."""
        inputs = super().encoder_inputs(inputs)
        segments = inputs["segment_ids"]
        mask_id = tf.constant(self._mask_id, inputs["input_ids"].dtype)
        hidden = tf.where(segments > 0, mask_id, inputs["input_ids"])
        zeros = tf.zeros_like(segments)
        return {**inputs, "input_ids": hidden, "segment_ids": zeros}

    def positions(self, features):
        """[CLS], then the places of the choice; [CLS] where it has fewer."""
        chosen = features["segment_ids"] > 0  # [B * C, L]
        # A stable sort puts the places of the choice first, in their order.
        first = tf.argsort(tf.cast(~chosen, tf.int32), axis=1, stable=True)
        if not self._padded:
            sizes = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
            first = first[:, : tf.reduce_max(sizes)]
        first *= tf.gather(tf.cast(chosen, tf.int32), first, batch_dims=1)
        return tf.concat([tf.zeros_like(first[:, :1]), first], axis=1)

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs of B * C rows, scores [B, C]."""
        positions = encoded["positions"][:, 1:]  # [B * C, S], 0 for none
        slots = _chosen_slots(positions, self._padded)
        used = tf.gather(tf.reshape(positions > 0, [-1]), slots)
        ids = _as_rows(features["input_ids"])
        pieces = tf.gather(ids, positions, batch_dims=1)
        pieces = tf.gather(tf.reshape(pieces, [-1]), slots)
        x = encoded["selected_output"][:, 1:]
        x = tf.gather(tf.reshape(x, [-1, x.shape[-1]]), slots)
        scores = -cross_entropy(self.masked_lm(x, training=training), pieces)
        weights = tf.cast(used, tf.float32)
        count, size = tf.unstack(tf.shape(positions))
        total, sizes = (
            tf.math.unsorted_segment_sum(values, slots // size, count)
            for values in (scores * weights, weights)
        )
        mean = total / tf.maximum(sizes, 1)
        mean = tf.where(sizes > 0, mean, ops.MASKED_SCORE)
        return self._scored(mean, features)


class NextSentenceHead(Head):
    """Says whether the second text follows the first; 1 means it is random."""

    def __init__(self, config, name="next_sentence"):
        super().__init__(name)
        self.linear(
            "cls/seq_relationship/",
            2,
            config.hidden_size,
            config.initializer_range,
        )

    def call(self, pooled):
        """Takes [B, H], gives float32 logits [B, 2]."""
        return self.logits(pooled)


class PretrainingHead(Head):
    """The two heads of pre-training; only masked positions are computed.

    Outputs: `masked_lm_logits` [M, V] of the M slots whose weight is not 0 (of
    all B * P slots if `padded`), `masked_lm_slots` [M], which they are, and
    `next_sentence_logits` [B, 2]."""

    def __init__(
        self,
        config,
        word_embeddings,
        dtype=None,
        padded=False,
        next_sentence=True,
        name="pretraining",
    ):
        super().__init__(name, dtype)
        self.masked_lm = MaskedLMHead(config, word_embeddings, dtype)
        self.next_sentence = NextSentenceHead(config)
        self._padded = padded
        self._use_next_sentence = next_sentence
        self.original_names = {
            f"{attribute}.{key}": name
            for attribute in ("masked_lm", "next_sentence")
            for key, name in getattr(self, attribute).original_names.items()
        }

    def positions(self, features):
        """[CLS] for the pooler, then the masked positions."""
        positions = tf.cast(features["masked_lm_positions"], tf.int32)
        return tf.concat([tf.zeros_like(positions[:, :1]), positions], axis=1)

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs at `positions`, gives both logits."""
        selected = encoded["selected_output"][:, 1:]
        size = selected.shape[-1]
        slots = _chosen_slots(features["masked_lm_weights"], self._padded)
        rows = tf.gather(tf.reshape(selected, [-1, size]), slots)
        return {
            "masked_lm_logits": self.masked_lm(rows, training=training),
            "masked_lm_slots": slots,
            "next_sentence_logits": self.next_sentence(
                encoded["pooled_output"]
            ),
        }

    def loss_weights(self, features):
        """The sum of the slots' weights + 1e-5, and the number of rows."""
        weights = {
            "masked_lm_loss": tf.reduce_sum(features["masked_lm_weights"])
            + 1e-5
        }
        if self._use_next_sentence:
            weights["next_sentence_loss"] = tf.reduce_sum(
                example_weights(features)
            )
        return weights

    def example_losses(self, outputs, features):
        """Gives each prediction's loss [M], its weight, and each row's [B]."""
        slots = outputs["masked_lm_slots"]
        labels = tf.gather(tf.reshape(features["masked_lm_ids"], [-1]), slots)
        weights = tf.gather(
            tf.reshape(features["masked_lm_weights"], [-1]), slots
        )
        masked = cross_entropy(
            outputs["masked_lm_logits"], tf.cast(labels, tf.int32)
        )
        follows = cross_entropy(
            outputs["next_sentence_logits"],
            tf.cast(
                tf.reshape(features["next_sentence_labels"], [-1]), "int32"
            ),
        )
        return masked, weights, follows

    def losses(self, outputs, features):
        """Sums both losses."""
        masked, weights, follows = self.example_losses(outputs, features)
        losses = {"masked_lm_loss": tf.reduce_sum(masked * weights)}
        if self._use_next_sentence:
            losses["next_sentence_loss"] = tf.reduce_sum(
                follows * example_weights(features)
            )
        return losses


class SpanHead(Head):
    """Finds where an answer starts and ends.

    Outputs float32 `start_logits` and `end_logits` [B, L]. Padding scores
    -10000, so that neither loss nor answer depends on how far a batch was
    padded; with `padded` it has the original's scores."""

    def __init__(self, hidden_size, padded=False, name="squad"):
        super().__init__(name)
        self.linear("cls/squad/", 2, hidden_size)
        self._padded = padded

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs, gives logits over all positions."""
        logits = self.logits(encoded["sequence_output"])
        if not self._padded:
            mask = features["input_mask"] > 0
            mask |= ~tf.reduce_any(mask, axis=1, keepdims=True)
            logits = tf.where(mask[:, :, None], logits, ops.MASKED_SCORE)
        start, end = tf.unstack(logits, axis=-1)
        return {"start_logits": start, "end_logits": end}

    def example_losses(self, outputs, features):
        """Gives float32 [B]: the mean of the start's and end's entropies."""
        total = 0.0
        for side in ("start", "end"):
            labels = tf.reshape(features[f"{side}_positions"], [-1])
            total += cross_entropy(outputs[f"{side}_logits"], labels)
        return total / 2


class NoAnswerSpanHead(SpanHead):
    """A SpanHead with a classifier on [CLS]: is there an answer at all?

    Further output float32 `null_logits` [B], positive for "no answer". The
    span is learnt from rows that hold an answer only, those whose
    `start_positions` is not 0."""

    def __init__(self, hidden_size, padded=False, name="squad"):
        super().__init__(hidden_size, padded, name)
        self.null_weights = self.variable(
            "null_weights",
            (1, hidden_size),
            modeling.truncated_normal(HEAD_STDDEV),
        )
        self.null_bias = self.variable("null_bias", (1,))
        self.original_names |= {
            "null_weights": "cls/no_answer/output_weights",
            "null_bias": "cls/no_answer/output_bias",
        }

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs, gives the logits of both."""
        outputs = super().call(encoded, features, training, seed)
        pooled = dropout(encoded["pooled_output"], seed, training)
        weights = tf.convert_to_tensor(self.null_weights)
        logits = tf.matmul(pooled, weights, transpose_b=True) + self.null_bias
        return outputs | {"null_logits": logits[:, 0]}

    def example_losses(self, outputs, features):
        """Gives float32 [B]: binary cross-entropy, plus the span's if any."""
        starts = tf.reshape(features["start_positions"], [-1])
        null = tf.cast(starts == 0, tf.float32)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=null, logits=outputs["null_logits"]
        )
        return losses + (1 - null) * super().example_losses(outputs, features)


def _chosen_slots(weights, padded):
    """The flat slots [M] of [B, P] weights that are not 0, all if `padded`."""
    weights = tf.reshape(weights, [-1])
    if padded:
        return tf.range(tf.size(weights))
    return tf.cast(tf.where(weights > 0)[:, 0], tf.int32)


def _as_rows(tokens):
    """Gives [B, L] as it is and [B, C, L] as [B * C, L]."""
    if len(tokens.shape) < 3:
        return tokens
    shape = tf.shape(tokens)
    return tf.reshape(tokens, [shape[0] * shape[1], shape[2]])


class TaskModel(keras.Model):
    """An encoder with one head: what a script trains, exports and loads.

    Called with a dict of features (the encoder's inputs and, in training, the
    labels); gives the head's dict of float32 outputs."""

    def __init__(self, encoder, head, name="task"):
        super().__init__(name=name, dtype=encoder.dtype_policy, autocast=False)
        self.encoder = encoder
        self.head = head
        self.supports_jit = encoder.supports_jit

    def build(self, input_shape=None):
        """Nothing is left to build."""

    def call(self, features, training=False, seed=None):
        """Runs the encoder where the head reads, then the head.

        Token features [B, C, L] (choices) go through the encoder as B * C
        rows. `seed`, int32 [2], fixes all dropout of a training call."""
        if training and seed is None:
            seed = self.encoder.next_seed()
        inputs = {
            key: _as_rows(features[key])
            for key in ("input_ids", "input_mask", "segment_ids")
            if key in features
        }
        encoded = self.encoder(
            self.head.encoder_inputs(inputs),
            training=training,
            positions=self.head.positions({**features, **inputs}),
            seed=seed,
        )
        return self.head(
            encoded, features=features, training=training, seed=seed
        )

    def loss_weights(self, features):
        """See the head."""
        return self.head.loss_weights(features)

    def losses(self, outputs, features):
        """See the head."""
        return self.head.losses(outputs, features)
