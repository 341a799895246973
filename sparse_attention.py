"""Attention to a neighbourhood and to a few global tokens, for long texts.

`WindowLayout` answers the calls of the layouts in ops.py, so the model needs
no other line. A token sees those less than `width` positions away and the
global ones; a global token sees and is seen by all. So memory grows with L,
not with its square. After Longformer (Beltagy et al. 2020, section 3.1).

Shape letters as in ops.py, and G global tokens, W the size of a block, K
blocks of a row.
"""

import tensorflow as tf

import ops


class WindowLayout(ops.PaddedLayout):
    """A batch for attention in blocks of `width`, each with its neighbours.

    Takes int [B, L] `input_mask` and bool [B, L] `is_global`; the first token
    is always global. With a `width` of L or more it is full attention. Only
    real tokens are computed, as in PackedLayout. There are two groups: the
    global tokens' queries on all keys, and the blocks' queries on the keys of
    three blocks and the global ones. `biases` are those of the last
    `split_heads`."""

    def __init__(self, input_mask, is_global, num_heads, width, positions=None):
        packed = ops.PackedLayout(input_mask, num_heads, positions)
        self.size, self.position_ids = packed.size, packed.position_ids
        self.tokens, self.first = packed.tokens, packed.first
        self.rows, self.sequence = packed.rows, packed.sequence
        self._num_heads, self._width = num_heads, width
        mask = input_mask > 0
        self._real = mask | ~tf.reduce_any(mask, axis=1, keepdims=True)
        self._batch, self._length = tf.unstack(tf.shape(input_mask))
        first = tf.range(self._length)[None, :] == 0
        self._is_global = (is_global & self._real) | first
        self._block = tf.minimum(width, self._length)
        self._blocks = -(-self._length // self._block)  # K
        self._find_global()
        self._pair_biases = [
            self._bias(self._real[:, None, None, :]),
            self._block_bias(),
        ]
        self._selected_biases = None
        if positions is not None:
            self._selected_biases = [self._selected_bias(positions)]
        self.biases = self._pair_biases

    def _find_global(self):
        """Where the global tokens of each row stand: int [B, G]."""
        counts = tf.reduce_sum(tf.cast(self._is_global, tf.int32), axis=1)
        self._most_global = tf.reduce_max(counts)
        order = tf.argsort(
            tf.cast(~self._is_global, tf.int32), axis=1, stable=True
        )
        self._places = order[:, : self._most_global]
        # A place that only fills up is no key; nor is a first token unread.
        self._is_global_key = tf.gather(
            self._is_global & self._real, self._places, batch_dims=1
        )

    @staticmethod
    def _bias(seen):
        return tf.where(seen, 0.0, ops.MASKED_SCORE)

    def _block_bias(self):
        """[B * K, 1, W, 3 W + G]: who sees whom, but for global queries."""
        block, count = self._block, self._blocks
        query = tf.reshape(tf.range(count * block), [count, block, 1])
        key = tf.range(3 * block)[None, :] + (tf.range(count)[:, None] - 1) * (
            block
        )
        near = tf.abs(query - key[:, None, :]) < self._width
        is_key = self._real & ~self._is_global
        rest = count * block - self._length
        is_key = tf.pad(is_key, [[0, 0], [block, block + rest]])
        is_key = tf.gather(is_key, key + block, axis=1)  # [B, K, 3 W]
        seen = near[None] & is_key[:, :, None, :]
        shape = [self._batch, count, block, self._most_global]
        always = tf.broadcast_to(self._is_global_key[:, None, None, :], shape)
        seen = tf.concat([seen, always], axis=3)
        shape = [self._batch * count, 1, block, tf.shape(seen)[3]]
        return self._bias(tf.reshape(seen, shape))

    def _selected_bias(self, positions):
        """[B, 1, S, L]: whom the tokens at `positions` see."""
        slot = tf.range(self._length)
        seen = tf.abs(positions[:, :, None] - slot) < self._width
        seen |= self._is_global[:, None, :]
        asks_all = tf.gather(self._is_global, positions, batch_dims=1)
        seen = (seen | asks_all[:, :, None]) & self._real[:, None, :]
        return self._bias(seen[:, None])

    def split_heads(self, x, parts):
        """Takes [T, parts * H]; gives for each group `parts` tensors.

        Queries, keys and values for 3 parts, in two groups; keys and values
        of all tokens for 2, in one."""
        sequence = tf.ensure_shape(self.sequence(x), [None, None, x.shape[-1]])
        (x,) = super().split_heads(sequence, parts)
        if parts == 2:
            self.biases = self._selected_biases
            return [x]
        self.biases = self._pair_biases
        query, key, value = x
        return [
            [self._global_rows(query), key, value],
            [
                self._as_rows(self._in_blocks(query)),
                self._with_neighbours(key),
                self._with_neighbours(value),
            ],
        ]

    def _global_rows(self, x):
        """Picks the global tokens of [B, N, L, D]: [B, N, G, D]."""
        return tf.gather(x, self._places, axis=2, batch_dims=1)

    def _in_blocks(self, x, around=0):
        """[B, N, L, D] as [B, N, K, W, D]; `around` more blocks at each end."""
        block, count = self._block, self._blocks
        rest = count * block - self._length
        edge = around * block
        x = tf.pad(x, [[0, 0], [0, 0], [edge, edge + rest], [0, 0]])
        shape = [self._batch, self._num_heads, count + 2 * around, block]
        return tf.reshape(x, [*shape, x.shape[-1]])

    def _with_neighbours(self, x):
        """Keys or values of each block: [B * K, N, 3 W + G, D]."""
        wide = self._in_blocks(x, around=1)
        always = self._global_rows(x)[:, :, None]
        always = tf.tile(always, [1, 1, self._blocks, 1, 1])
        x = [wide[:, :, :-2], wide[:, :, 1:-1], wide[:, :, 2:], always]
        return self._as_rows(tf.concat(x, axis=3))

    def _as_rows(self, x):
        """[B, N, K, S, D] as [B * K, N, S, D]."""
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        shape = tf.shape(x)
        return tf.reshape(
            x,
            [shape[0] * shape[1], self._num_heads, shape[3], x.shape[-1]],
        )

    def merge_heads(self, contexts):
        """Takes both groups' contexts and gives [T, H]."""
        size = contexts[0].shape[-1]
        of_global = tf.transpose(contexts[0], [0, 2, 1, 3])
        of_blocks = tf.transpose(contexts[1], [0, 2, 1, 3])
        table = tf.concat(
            [
                tf.reshape(part, [-1, self._num_heads * size])
                for part in (of_blocks, of_global)
            ],
            0,
        )
        padded = self._block * self._blocks
        row = tf.range(self._batch)[:, None]
        slot = tf.cumsum(tf.cast(self._is_global, tf.int32), axis=1) - 1
        slot += self._batch * padded + row * self._most_global
        place = row * padded + tf.range(self._length)[None, :]
        index = self.tokens(tf.where(self._is_global, slot, place))
        return tf.gather(table, index)


def question_is_global(width, question_segment=0):
    """A function for BertModel.make_layout: the question sees everything.

    [CLS] and the tokens of the segment `question_segment` are global, its
    [SEP] included."""

    def make(input_mask, segment_ids, num_heads, positions):
        is_global = segment_ids == question_segment
        return WindowLayout(input_mask, is_global, num_heads, width, positions)

    return make
