"""Heads that tag words: a linear layer on every token, or a CRF over words.

A word's tag is read at its first piece. Which tokens those are, the feature
`label_mask` says (1 at the first piece of each word to be tagged); without
it, as in the signatures on ids, all tokens count that begin no later piece
(`##`) and are not special. The rest is in neither loss nor answer.

Shape letters as in `modeling.py`; W words of the longest row.
"""

import numpy as np
import tensorflow as tf

import heads
import modeling
import ops

SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[MASK]")


def word_starts(vocab):
    """bool [V]: the ids that may begin a word, for rows without label_mask."""
    starts = np.ones(max(vocab.values()) + 1, bool)
    for token, number in vocab.items():
        if token.startswith("##") or token in SPECIAL:
            starts[number] = False
    return starts


class TokenHead(heads.Head):
    """Scores every tag at every token, each on its own.

    `starts` is `word_starts` of the vocabulary. Outputs: float32 `logits`
    [B, L, C] and int32 `tag_ids` [B, L], -1 where no word begins; of rows
    that have `label_ids`, outside training, also `row_losses` [B]. The loss
    is the mean over all words of the batch."""

    def __init__(
        self,
        hidden_size,
        num_labels,
        starts=None,
        label_smoothing=0.0,
        name="token",
    ):
        super().__init__(name)
        self.linear("", num_labels, hidden_size)
        self._starts = starts
        self._label_smoothing = label_smoothing

    def call(self, encoded, features, training=False, seed=None):
        """Takes the encoder's outputs, gives logits and tags."""
        x = heads.dropout(encoded["sequence_output"], seed, training)
        outputs = {"logits": self.logits(x)}
        if training:
            return outputs
        mask = self.mask(features)
        tags = self.decode(outputs["logits"], mask, features)
        outputs["tag_ids"] = tf.where(mask, tags, -1)
        if "label_ids" in features:
            outputs["row_losses"] = self.example_losses(outputs, features)
        return outputs

    def mask(self, features):
        """bool [B, L]: where a word to be tagged begins."""
        mask = features.get("label_mask")
        if mask is not None:
            return mask > 0
        ids = features["input_ids"]
        if self._starts is None:
            raise ValueError(
                "Features without label_mask need a head that was made with "
                "word_starts(vocab)."
            )
        mask = tf.gather(tf.constant(self._starts), ids)
        real = features.get("input_mask")
        return mask if real is None else mask & (real > 0)

    def decode(self, logits, mask, features):
        """The best tag of each token on its own: int32 [B, L]."""
        return tf.argmax(logits, axis=-1, output_type=tf.int32)

    def example_losses(self, outputs, features):
        """float32 [B]: the cross-entropy summed over the words of a row."""
        losses = heads.cross_entropy(
            outputs["logits"], features["label_ids"], self._label_smoothing
        )
        words = tf.cast(self.mask(features), tf.float32)
        return tf.reduce_sum(losses * words, axis=1)

    def loss_weights(self, features):
        """Counts the words of the real rows."""
        words = tf.cast(self.mask(features), tf.float32)
        words = tf.reduce_sum(words, axis=1)
        return {"loss": tf.reduce_sum(words * heads.example_weights(features))}


class CrfHead(TokenHead):
    """A linear-chain CRF over the words of a row, on top of TokenHead's logits.

    `can_start` bool [C] and `can_follow` bool [C, C] (row: before, column:
    after) are the tag scheme: what they forbid has probability 0 and is never
    decoded. `transitions` [C, C] are learned. Rows whose feature `continues`
    is 1 go on in the middle of a sentence and may start with any tag. The
    loss is minus the log-likelihood of the rows' tags, divided by the words
    of the batch. With `padded` no shape depends on the number of words."""

    def __init__(
        self,
        hidden_size,
        can_start,
        can_follow,
        starts=None,
        padded=False,
        name="crf",
    ):
        super().__init__(hidden_size, len(can_start), starts, name=name)
        with modeling.scope("crf"):
            self.transitions = self.variable(
                "transitions", (len(can_start), len(can_start))
            )
        self.original_names = self.original_names | {
            "transitions": "crf/transitions"
        }
        self._start = _penalties(can_start)
        self._follow = _penalties(can_follow)
        self._padded = padded

    def _chain(self, logits, mask, features):
        """Words only: their scores [B, W, C], the scores of a start [B, C].

        Returns also the number of words [B] and places [B, W] in the row."""
        length = tf.shape(mask)[1]
        order = tf.range(length) + length * tf.cast(~mask, tf.int32)
        places = tf.argsort(order, axis=1)
        counts = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        if not self._padded:  # two at least, even of no rows at all
            places = tf.pad(places, [[0, 0], [0, 2]])
            places = places[:, : tf.maximum(tf.reduce_max(counts), 2)]
        scores = tf.gather(logits, places, batch_dims=1)
        begins = tf.ones_like(counts, tf.float32)
        if "continues" in features:
            begins -= tf.cast(tf.reshape(features["continues"], [-1]), "float")
        start = begins[:, None] * tf.constant(self._start)
        return scores, start, counts, places

    def _steps(self):
        return tf.convert_to_tensor(self.transitions) + self._follow

    def decode(self, logits, mask, features):
        """The best allowed chain of tags: int32 [B, L], any off the mask."""
        scores, start, counts, _ = self._chain(logits, mask, features)
        tags = viterbi(scores, start, self._steps(), counts)
        rank = tf.cumsum(tf.cast(mask, tf.int32), axis=1) - 1
        return tf.gather(tags, tf.maximum(rank, 0), batch_dims=1)

    def example_losses(self, outputs, features):
        """float32 [B]: minus the log-likelihood of a row's tags."""
        mask = self.mask(features)
        scores, start, counts, places = self._chain(
            outputs["logits"], mask, features
        )
        labels = tf.gather(features["label_ids"], places, batch_dims=1)
        steps = self._steps()
        found = path_score(scores, start, steps, counts, labels)
        losses = log_partition(scores, start, steps, counts) - found
        return tf.where(counts > 0, losses, 0.0)


def _penalties(allowed):
    return np.where(allowed, 0.0, ops.MASKED_SCORE).astype(np.float32)


# ------------------------------------------------------- linear-chain CRFs
#
# scores [B, W, C], start [B, C], steps [C, C] (before, after), counts [B]:
# the score of a path is the sum over its words; what lies behind counts is
# padding. W is 2 or more.


def _times(scores, counts):
    """Time-major [W - 1, B, C] scores from word 1 on, and whether each is."""
    later = tf.transpose(scores[:, 1:], [1, 0, 2])
    index = tf.range(1, tf.shape(scores)[1])
    return later, index[:, None] < counts[None, :]


def log_partition(scores, start, steps, counts):
    """float32 [B]: the log of the sum of exp(score) over all paths."""

    def step(before, now):
        """From [B, C] to the next word's, where there is one."""
        score, real = now
        joined = before[:, :, None] + steps
        after = tf.reduce_logsumexp(joined, axis=1) + score
        return tf.where(real[:, None], after, before)

    last = tf.foldl(step, _times(scores, counts), start + scores[:, 0])
    return tf.reduce_logsumexp(last, axis=1)


def path_score(scores, start, steps, counts, labels):
    """float32 [B]: the score of the path `labels`, int [B, W]."""
    labels = tf.cast(labels, tf.int32)
    real = tf.sequence_mask(counts, tf.shape(labels)[1], tf.float32)
    own = tf.gather(scores, labels, batch_dims=2)
    pairs = tf.stack([labels[:, :-1], labels[:, 1:]], axis=-1)
    moves = tf.gather_nd(steps, pairs)
    first = tf.gather(start, labels[:, 0], batch_dims=1)
    return (
        first
        + tf.reduce_sum(own * real, axis=1)
        + tf.reduce_sum(moves * real[:, 1:], axis=1)
    )


def viterbi(scores, start, steps, counts):
    """int32 [B, W]: the path of the highest score; any tag behind counts."""
    first = start + scores[:, 0]
    itself = tf.zeros_like(first, tf.int32) + tf.range(tf.shape(first)[1])

    def forward(state, now):
        """The best total per tag, and the tag it came from."""
        before, _ = state
        score, real = now
        joined = before[:, :, None] + steps
        after = tf.reduce_max(joined, axis=1) + score
        origin = tf.argmax(joined, axis=1, output_type=tf.int32)
        real = real[:, None]
        return tf.where(real, after, before), tf.where(real, origin, itself)

    totals, origins = tf.scan(forward, _times(scores, counts), (first, itself))
    last = tf.argmax(totals[-1], axis=1, output_type=tf.int32)

    def backward(tag, origin):
        return tf.gather(origin, tag, batch_dims=1)

    earlier = tf.scan(backward, origins, last, reverse=True)
    return tf.transpose(tf.concat([earlier, last[None]], axis=0))
