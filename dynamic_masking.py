"""Masks drawn while records are read, so that every epoch sees others.

For records of `create_pretraining_data.py --unmasked`, whose `word_pieces` say
which tokens may be masked and where words begin. Graph ops throughout; a mask
is a pure function of seed, epoch and record, so a resumed run draws the masks
of the unbroken one, in batches of any size.
"""

import tensorflow as tf

# The draws of a token are told apart by their purpose.
CHOICE, ACTION, RANDOM_WORD = range(3)


class DynamicMasking:
    """Adds the four masked-LM features to a batch of unmasked ones.

    vocab: token -> id. whole_word: all pieces of a word or none.
    draw_per_word: one draw decides between [MASK], random and unchanged for
    all pieces of a word. The shares are masking.Masker's: masked_lm_prob of
    the tokens, [CLS] and [SEP] counted, of which 80 % become [MASK], 10 % a
    random entry of the vocabulary, and 10 % stay.

    Raises ValueError for a vocabulary without [MASK]."""

    def __init__(
        self,
        vocab,
        seed,
        max_predictions_per_seq=20,
        masked_lm_prob=0.15,
        whole_word=False,
        draw_per_word=False,
    ):
        if "[MASK]" not in vocab:
            raise ValueError("The vocabulary lacks [MASK].")
        self._mask_id = vocab["[MASK]"]
        self._vocab_ids = list(vocab.values())
        self._seed = seed
        self._slots = max_predictions_per_seq
        self._prob = masked_lm_prob
        self._whole_word = whole_word
        self._per_word = draw_per_word

    def __call__(self, features, epochs, numbers):
        """Takes features [B, L] and int64 [B]; gives features with masks.

        `word_pieces` is gone from them; the masked_lm_* are [B, P]."""
        features = dict(features)
        pieces = features.pop("word_pieces")
        ids = features["input_ids"]
        keys = record_keys(self._seed, epochs, numbers)
        place = tf.broadcast_to(tf.range(tf.shape(ids)[1]), tf.shape(ids))
        word = tf.cumsum(tf.cast(pieces == 1, tf.int32), axis=1)
        unit = word if self._whole_word else place
        count = self._num_to_predict(features["input_mask"])
        chosen = choose_units(pieces > 0, unit, count, keys)
        features["input_ids"] = tf.where(
            chosen,
            self._replacement(
                ids, word if self._per_word else place, place, keys
            ),
            ids,
        )
        return features | self._slots_of(ids, chosen, place)

    def _num_to_predict(self, input_mask):
        """int32 [B]: as masking.Masker, a half rounded to even."""
        length = tf.cast(tf.reduce_sum(input_mask, axis=1), tf.float64)
        wanted = tf.cast(tf.round(length * self._prob), tf.int32)
        return tf.minimum(self._slots, tf.maximum(1, wanted))

    def _replacement(self, ids, unit, place, keys):
        """int32 [B, L]: what stands at each token if it is chosen."""
        action = uniform(keys, ACTION, unit)
        word = uniform(keys, RANDOM_WORD, place)
        count = len(self._vocab_ids)
        random_ids = tf.gather(
            tf.constant(self._vocab_ids, tf.int32),
            tf.minimum(tf.cast(word * count, tf.int32), count - 1),
        )
        changed = tf.where(action < 0.8, self._mask_id, random_ids)
        return tf.where(action < 0.9, changed, ids)

    def _slots_of(self, ids, chosen, place):
        """The chosen tokens in order, in P slots."""
        length = tf.shape(ids)[1]
        order = tf.argsort(tf.where(chosen, place, place + length), axis=1)
        order = tf.pad(order, [[0, 0], [0, self._slots]])[:, : self._slots]
        count = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1, keepdims=True)
        used = tf.range(self._slots) < count
        labels = tf.gather(ids, order, batch_dims=1)
        return {
            "masked_lm_positions": tf.where(used, order, 0),
            "masked_lm_ids": tf.where(used, labels, 0),
            "masked_lm_weights": tf.cast(used, tf.float32),
        }


def choose_units(candidate, unit, count, keys):
    """Gives bool [B, L]: the tokens of whole units, `count` [B] at most.

    candidate: bool [B, L]; unit: int32 [B, L], in [0, L]. Units come in random
    order; one that is longer than the room left is passed over."""
    rows, length = tf.unstack(tf.shape(unit))
    units = length + 1
    flat = tf.range(rows)[:, None] * units + unit
    sizes = tf.math.unsorted_segment_sum(
        tf.reshape(tf.cast(candidate, tf.int32), [-1]),
        tf.reshape(flat, [-1]),
        rows * units,
    )
    sizes = tf.reshape(sizes, [rows, units])
    number = tf.broadcast_to(tf.range(units), [rows, units])
    score = uniform(keys, CHOICE, number)
    score = tf.where(sizes > 0, score, 2.0)
    order = tf.argsort(score, axis=1, stable=True)
    taken = _fill(tf.gather(sizes, order, batch_dims=1), count)
    taken = tf.gather(taken, tf.argsort(order, axis=1), batch_dims=1)
    return tf.gather(taken, unit, batch_dims=1) & candidate


def _fill(sizes, room):
    """Gives bool [B, U]: units taken one after another while they fit.

    sizes: int32 [B, U], 0 for what is no unit; room: int32 [B]. All that is
    too long for the room behind the units that fit is dropped at once, until
    nothing changes: the same as going through them one by one."""
    room = room[:, None]

    def fitting(alive):
        alive_sizes = tf.where(alive, sizes, 0)
        return alive & (tf.cumsum(alive_sizes, axis=1) <= room)

    def body(alive, _):
        """One round: takes what fits, drops what no longer can."""
        taken = fitting(alive)
        used = tf.reduce_sum(tf.where(taken, sizes, 0), 1, keepdims=True)
        kept = alive & (taken | (sizes <= room - used))
        return kept, tf.reduce_any(kept != alive)

    alive, _ = tf.while_loop(
        lambda _, changed: changed, body, (sizes > 0, tf.constant(True))
    )
    return fitting(alive)


# -------------------------------------------------------------------- draws


def _mix(x):
    """SplitMix64's finalizer (Steele et al., 2014): scrambles uint64."""
    shift = tf.bitwise.right_shift
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, shift(x, tf.constant(bits, tf.uint64)))
        x *= tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(x, shift(x, tf.constant(31, tf.uint64)))


def _fold(key, number):
    """A new uint64 key from a key and numbers, shapes broadcast."""
    step = tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    return _mix(
        key + (tf.cast(number, tf.uint64) + tf.constant(1, tf.uint64)) * step
    )


def record_keys(seed, epochs, numbers):
    """Gives uint64 [B]: a key for each record of an epoch, int64 [B] each."""
    key = tf.constant(seed % 2**64, tf.uint64)
    return _fold(_fold(_mix(key), epochs), numbers)


def uniform(keys, purpose, number):
    """Gives float64 [B, K] in [0, 1): one draw for each int32 [B, K] number.

    A pure function of its arguments; `keys` are uint64 [B]."""
    mixed = _fold(_fold(keys, purpose)[:, None], number)
    bits = tf.bitwise.right_shift(mixed, tf.constant(11, tf.uint64))
    return tf.cast(tf.cast(bits, tf.int64), tf.float64) / 2.0**53
