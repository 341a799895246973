"""The few TensorFlow forms that make BERT fast, each beside its formula.

A batch is padded to its longest row, yet a model need not compute on padding:
everything but attention works on one token at a time. `PackedLayout` keeps
only the T real tokens of a batch, as a [T, H] matrix, and knows how to bring
them into the [B, N, L, D] form that attention wants and back. `PaddedLayout`
answers the same calls with all B * L tokens and static shapes, as a TPU needs
it. The model is written once, against either.

Shape letters: B batch, L length, H hidden, N heads, D head size, T tokens that
are computed, S selected tokens, I and O a dense layer's input and output.
"""

import math

import tensorflow as tf

NUM_LENGTH_GROUPS = 4
MASKED_SCORE = -10000.0  # the original's; exp() of it is 0 in float32


# ---------------------------------------------------------------- dense


def dense(x, kernel, bias, scale=1.0, activation=None, training=False):
    """Gives activation((x @ kernel + bias) * scale), [T, I] to [T, O].

    `kernel` [I, O] and `bias` [O] are float32, or cast already where nothing
    scales them. They are scaled before they are cast to x's dtype, so that a
    scale such as 1 / 0.9 costs no bfloat16 rounding. Outside of training the
    product stays in the 2-D form whose bias
    and GELU oneDNN fuses; bfloat16 training takes a 3-D form, because only
    that one reaches the AMX kernel for weights that change each step."""
    if scale != 1.0:
        kernel, bias = kernel * scale, bias * scale
    kernel, bias = tf.cast(kernel, x.dtype), tf.cast(bias, x.dtype)
    if training and x.dtype == tf.bfloat16:
        y = tf.nn.bias_add(_matmul_3d(x, kernel), bias)
    else:
        y = tf.nn.bias_add(tf.matmul(x, kernel), bias)
    if activation is None:
        return y
    return activation(y, training)


@tf.custom_gradient
def _matmul_3d(x, kernel):
    """x @ kernel with both products of its gradient as 3-D matmuls."""
    y = tf.matmul(x[None], kernel[None])[0]

    def gradient(dy):
        dx = tf.matmul(dy[None], kernel[None], transpose_b=True)[0]
        dkernel = tf.matmul(x[None], dy[None], transpose_a=True)[0]
        return dx, dkernel

    return y, gradient


# ---------------------------------------------------------------- activations


def gelu(x, training=False):
    """The original's GELU: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if training:
        return _gelu_tanh(x)
    return tf.nn.gelu(x, approximate=True)


def gelu_erf(x, training=False):
    """x Phi(x), the exact GELU, which Hugging Face's `gelu` means."""
    if training:
        return _gelu_erf(x)
    return tf.nn.gelu(x, approximate=False)


@tf.custom_gradient
def _gelu_tanh(x):
    c = tf.constant(math.sqrt(2 / math.pi), x.dtype)
    a = tf.constant(0.044715, x.dtype)
    square = x * x
    tanh = tf.tanh(c * x * (1 + a * square))
    half = 0.5 * (1 + tanh)

    def gradient(dy):
        slope = c * (1 + 3 * a * square) * x
        return dy * (half + 0.5 * slope * (1 - tanh * tanh))

    return x * half, gradient


@tf.custom_gradient
def _gelu_erf(x):
    root = tf.constant(math.sqrt(0.5), x.dtype)
    density = tf.constant(1 / math.sqrt(2 * math.pi), x.dtype)
    phi = 0.5 * (1 + tf.math.erf(x * root))

    def gradient(dy):
        return dy * (phi + x * density * tf.exp(-0.5 * x * x))

    return x * phi, gradient


# ---------------------------------------------------------------- layer norm


def layer_norm(x, gamma, beta, scale=1.0, epsilon=1e-12):
    """Gives gamma * (x - mean) / sqrt(variance + epsilon) + beta, times scale.

    Over the last axis, biased variance, in float32 whatever x's dtype, which
    the result has again. `scale` is folded into gamma and beta."""
    if scale != 1.0:
        gamma, beta = gamma * scale, beta * scale
    return _layer_norm(x, gamma, beta, tf.constant(epsilon, tf.float32))


@tf.custom_gradient
def _layer_norm(x, gamma, beta, epsilon):
    wide = tf.cast(x, tf.float32)
    centered = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centered * centered, axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    unit = centered * inverse

    def gradient(dy):
        """Those of x, gamma and beta, in float32 until the end."""
        dy = tf.cast(dy, tf.float32)
        rows = list(range(len(dy.shape) - 1))
        dunit = dy * gamma
        along = tf.reduce_mean(dunit * unit, axis=-1, keepdims=True)
        mean = tf.reduce_mean(dunit, axis=-1, keepdims=True)
        dx = inverse * (dunit - mean - unit * along)
        dgamma = tf.reduce_sum(dy * unit, axis=rows)
        dbeta = tf.reduce_sum(dy, axis=rows)
        return tf.cast(dx, x.dtype), dgamma, dbeta, None

    return tf.cast(unit * gamma + beta, x.dtype), gradient


# ---------------------------------------------------------------- dropout


def keep_mask(shape, rate, seed, dtype):
    """A tensor of ones with a share `rate` of zeros, the same for equal seeds.

    The caller scales by 1 / (1 - rate) in float32 where it costs nothing (the
    weights before the product; see `dense`), so that dropout is one multiply.
    Each element takes 16 random bits, a quarter of the usual generator's
    work; `rate` is exact to 2^-16. `seed` is int32 [2]."""
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        [size // 4 + 1], seed, minval=None, maxval=None, dtype=tf.uint64
    )
    bits = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    threshold = round(rate * 65536) - 32768
    keep = tf.reshape(bits >= tf.constant(threshold, tf.int16), shape)
    return tf.cast(keep, dtype)


def fold_in(seed, number):
    """A seed that differs from `seed` [2] and from those of other numbers."""
    return seed + tf.constant([number * 0x3779, number], tf.int32)


# ---------------------------------------------------------------- layouts


def _gather_once(rows, index, inverse, valid=None):
    """tf.gather where `inverse` undoes `index`, so its gradient is a gather.

    Slots of `index` that are padding hold a copy of some row; what flows back
    from them is dropped. Where `rows` itself has such slots, `valid` is a
    float column of 0 and 1 for them, and their gradient is 0."""

    @tf.custom_gradient
    def gather(rows):
        def gradient(upstream):
            back = tf.gather(upstream, inverse)
            if valid is not None:
                back *= tf.cast(valid, back.dtype)
            return back

        return tf.gather(rows, index), gradient

    return gather(rows)


def _marked(positions, length):
    """Gives bool [B, L], true at int `positions` [B, S]."""
    hits = positions[:, :, None] == tf.range(length)[None, None, :]
    return tf.reduce_any(hits, axis=1)


class PackedLayout:
    """The real tokens of a batch, row after row, and the way to attention.

    Takes int [B, L] `input_mask`. A row without a single 1 is computed in full
    and attends everywhere, as in the original; the first token of a row is
    always computed, because it is pooled, and so are those at `positions`
    [B, S]. `size` is T.

    For attention the rows are ranked by length and cut into four groups of
    equal size, and each group is padded to its own longest row only.
    """

    def __init__(self, input_mask, num_heads, positions=None):
        mask = input_mask > 0
        empty = ~tf.reduce_any(mask, axis=1, keepdims=True)
        attended = mask | empty
        self._shape = tf.shape(input_mask)
        batch, length = self._shape[0], self._shape[1]
        first = tf.range(length)[None, :] == 0
        computed = attended | first  # [B, L]
        if positions is not None and positions.shape[1] != 1:
            computed |= _marked(positions, length)
        self._flat = tf.cast(
            tf.where(tf.reshape(computed, [-1]))[:, 0], tf.int32
        )  # [T] of B * L
        self.size = tf.shape(self._flat)[0]
        self._lengths = tf.reduce_sum(tf.cast(computed, tf.int32), axis=1)
        self._starts = tf.cumsum(self._lengths, exclusive=True)
        self._computed = computed
        # At which slot of its row each position was packed: [B, L].
        self._slots = tf.cumsum(
            tf.cast(computed, tf.int32), axis=1, exclusive=True
        )
        self.position_ids = self._flat % length
        self._attended = tf.gather(tf.reshape(attended, [-1]), self._flat)
        self._is_key = tf.gather(tf.reshape(mask, [-1]), self._flat)
        self._num_heads = num_heads
        self._indexes = {}
        self._make_groups(batch)
        self._make_biases()
        self._make_context_valid()

    def _make_groups(self, batch):
        """Ranks the rows by length and lays out the slots of each group."""
        self._ranked = ranked = tf.argsort(self._lengths)
        count = NUM_LENGTH_GROUPS
        cuts = [batch * i // count for i in range(count + 1)]
        self._groups = []  # of (row count, longest)
        self._tokens, self._valid = [], []  # [B, L] of each group
        rows = []
        offset = tf.constant(0)
        for low, high in zip(cuts, cuts[1:], strict=False):
            row, count = ranked[low:high], high - low
            lengths = tf.gather(self._lengths, row)
            longest = tf.maximum(tf.reduce_max(lengths), 0)  # -inf of no row
            slot = tf.range(longest)[None, :]
            last = lengths[:, None] - 1
            first = tf.gather(self._starts, row)[:, None]
            self._groups.append((count, longest))
            self._tokens.append(first + tf.minimum(slot, last))
            self._valid.append(slot <= last)
            # For each row: its group's first slot, its place, count, longest.
            place = [
                tf.fill([count], offset),
                tf.range(count),
                tf.fill([count], count),
                tf.fill([count], longest),
            ]
            rows.append(tf.stack(place, axis=1))
            offset += count * longest
        # Where each token stands among the slots, in the order of tokens.
        placed = tf.gather(tf.concat(rows, 0), tf.argsort(ranked))  # [B, 4]
        row_of = tf.repeat(tf.range(batch), self._lengths)
        slot_of = tf.range(self.size) - tf.gather(self._starts, row_of)
        first, place, count_of, longest = tf.unstack(
            tf.gather(placed, row_of), axis=1
        )
        self._place = (first, place, longest, slot_of)
        self._count_of = count_of

    def _make_biases(self):
        """What is added to each group's scores: [B, 1, 1, L]."""
        self.biases = [
            tf.where(seen & tf.gather(self._is_key, token), 0.0, MASKED_SCORE)[
                :, None, None, :
            ]
            for token, seen in zip(self._tokens, self._valid, strict=True)
        ]

    def _make_context_valid(self):
        """Which slots of `merge_heads` hold a token: 0 or 1, a column."""
        heads = self._num_heads
        seen = [tf.tile(v[:, None, :], [1, heads, 1]) for v in self._valid]
        seen = tf.concat([tf.reshape(v, [-1, 1]) for v in seen], 0)
        self._context_valid = tf.cast(seen, tf.float32)

    def tokens(self, x):
        """Takes [B, L] and gives the [T] values of the computed tokens."""
        return tf.gather(tf.reshape(x, [-1]), self._flat)

    def first(self, x):
        """Picks the first token of each row of x [T, H]: [B, H]."""
        return tf.gather(x, self._starts)

    def rows(self, x, positions):
        """Picks the tokens at `positions` [B, S] of x [T, H]: [B * S, H]."""
        slots = tf.gather(self._slots, positions, batch_dims=1)
        slots = tf.minimum(slots, self._lengths[:, None] - 1)
        return tf.gather(x, tf.reshape(self._starts[:, None] + slots, [-1]))

    def sequence(self, x):
        """Takes [T, H] and gives [B, L, H], 0 where nothing was computed.

        A first token whose mask is 0 was computed for the pooler only."""
        x = tf.where(self._attended[:, None], x, tf.zeros([], x.dtype))
        index = self._starts[:, None] + self._slots
        index = tf.reshape(tf.where(self._computed, index, self.size), [-1])
        padded = tf.concat([x, tf.zeros_like(x[:1])], 0)
        inverse = tf.concat([self._flat, [0]], 0)
        valid = tf.cast(tf.range(self.size + 1) < self.size, tf.float32)
        full = _gather_once(padded, index, inverse, valid[:, None])
        shape = tf.concat([self._shape, tf.shape(x)[1:]], 0)
        return tf.reshape(full, shape)

    def split_heads(self, x, parts):
        """Takes [T, parts * H]; gives for each group `parts` x [B, N, L, D].

        One gather of rows of D floats does it for all parts and groups, where
        a transpose per part would pass over the memory three times."""
        heads = self._num_heads
        size = x.shape[-1] // (parts * heads)
        index, inverse, sizes = self._head_indexes(parts)
        rows = tf.reshape(x, [-1, size])
        rows = _gather_once(rows, index, inverse)
        groups = []
        for part, (count, longest) in zip(
            tf.split(rows, sizes), self._groups, strict=True
        ):
            part = tf.reshape(part, [parts, count, heads, longest, size])
            groups.append(tf.unstack(part, num=parts))
        return groups

    def _head_indexes(self, parts):
        """The gather of `split_heads`, its inverse, and each group's rows."""
        if parts in self._indexes:
            return self._indexes[parts]
        heads = self._num_heads
        part = tf.range(parts)[:, None, None, None]
        head = tf.range(heads)[None, None, :, None]
        index = [
            tf.reshape(
                (token[None, :, None, :] * parts + part) * heads + head, [-1]
            )
            for token in self._tokens
        ]
        sizes = tf.stack(
            [count * longest * parts * heads for count, longest in self._groups]
        )
        first, place, longest, slot = (v[:, None, None] for v in self._place)
        part = tf.range(parts)[None, :, None]
        head = tf.range(heads)[None, None, :]
        inverse = first * parts * heads + slot  # [T, parts, N]
        inverse += (
            (part * self._count_of[:, None, None] + place) * heads + head
        ) * longest
        found = tf.concat(index, 0), tf.reshape(inverse, [-1]), sizes
        self._indexes[parts] = found
        return found

    def merge_heads(self, contexts):
        """Takes each group's [B, N, L, D] context and gives [T, H]."""
        size = contexts[0].shape[-1]
        flat = tf.concat([tf.reshape(c, [-1, size]) for c in contexts], 0)
        # What `split_heads` does to one part, the other way round.
        index, inverse, _ = self._head_indexes(1)
        rows = _gather_once(flat, inverse, index, self._context_valid)
        return tf.reshape(rows, [-1, self._num_heads * size])

    def split_selected(self, x, count):
        """Takes [B * S, H] queries, S = count; gives groups of [B, N, S, D]."""
        heads = self._num_heads
        size = x.shape[-1] // heads
        x = tf.reshape(x, [-1, count, heads, size])
        x = tf.transpose(tf.gather(x, self._ranked), [0, 2, 1, 3])
        return tf.split(x, [rows for rows, _ in self._groups])

    def merge_selected(self, contexts):
        """Takes each group's [B, N, S, D] and gives [B * S, H], in order."""
        x = tf.transpose(tf.concat(contexts, 0), [0, 2, 1, 3])
        x = tf.gather(x, tf.argsort(self._ranked))
        size = x.shape[2] * x.shape[3]
        return tf.reshape(x, [-1, size])


class PaddedLayout:
    """All B * L tokens of a batch, in shapes known before it is seen.

    The static form for TPUs and for pictures of attention; equal to the
    original at every position, padding included."""

    def __init__(self, input_mask, num_heads, positions=None):
        self._shape = tf.shape(input_mask)
        batch, length = input_mask.shape
        self._batch = self._shape[0] if batch is None else batch
        self._length = self._shape[1] if length is None else length
        self.size = self._batch * self._length
        self.position_ids = tf.tile(tf.range(self._length), [self._batch])
        seen = tf.cast(input_mask, tf.float32)[:, None, None, :]
        self.biases = [(1.0 - seen) * MASKED_SCORE]
        self._num_heads = num_heads

    def tokens(self, x):
        """Takes [B, L] and gives [B * L]."""
        return tf.reshape(x, [-1])

    def first(self, x):
        """Picks the first token of each row of x [B * L, H]: [B, H]."""
        return self.sequence(x)[:, 0]

    def rows(self, x, positions):
        """Picks the tokens at `positions` [B, S] of x [B * L, H]."""
        first = tf.range(self._batch)[:, None] * self._length
        return tf.gather(x, tf.reshape(first + positions, [-1]))

    def sequence(self, x):
        """Takes [B * L, H] and gives [B, L, H]."""
        return tf.reshape(x, [self._batch, self._length, x.shape[-1]])

    def split_heads(self, x, parts):
        """Takes [B * L, parts * H]; gives one group, `parts` x [B, N, L, D]."""
        heads = self._num_heads
        size = x.shape[-1] // (parts * heads)
        x = tf.reshape(x, [self._batch, self._length, parts, heads, size])
        return [tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]), num=parts)]

    def merge_heads(self, contexts):
        """Takes a list of one [B, N, L, D] context and gives [B * L, H]."""
        x = tf.transpose(contexts[0], [0, 2, 1, 3])
        return tf.reshape(x, [self.size, x.shape[2] * x.shape[3]])

    def split_selected(self, x, count):
        """Takes [B * S, H] queries, S = count; gives one [B, N, S, D]."""
        heads = self._num_heads
        x = tf.reshape(x, [self._batch, count, heads, x.shape[-1] // heads])
        return [tf.transpose(x, [0, 2, 1, 3])]

    def merge_selected(self, contexts):
        """Takes a list of one [B, N, S, D] context and gives [B * S, H]."""
        x = tf.transpose(contexts[0], [0, 2, 1, 3])
        return tf.reshape(x, [-1, x.shape[2] * x.shape[3]])
