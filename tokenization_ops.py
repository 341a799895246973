"""The tokenizer of `tokenization.py` as graph ops, for serving and export.

Works on code points, not on strings: every code point of the batch is looked
up in a table made from the same Python functions that `FullTokenizer` uses,
so ids and places are the same whatever Unicode version TensorFlow was built
with. What a table cannot say (the final sigma, a letter that becomes several,
the order of marks, dropped characters) runs only in a batch that needs it.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

import tokenization

# What becomes of a code point. Those from DELETE on need the rare path.
KEEP, PUNCTUATION, ALONE, SPACE, DELETE, MARK, SEVERAL, SIGMA, STACKED = range(
    9
)
_KIND_BITS = 4
_KIND_MASK = (1 << _KIND_BITS) - 1
_CASED, _IGNORABLE, _CONTEXT_BITS = 1, 2, 2
_CAPITAL_SIGMA, _SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
_MAX_CHARS_PER_WORD = 200
_MAX_BYTES_PER_WORD = 4 * _MAX_CHARS_PER_WORD
_BLOCK_BITS = 8
_CODE_POINTS = 0x110000
# All that Unicode assigns today or may soon, but private use, which stays.
_ASSIGNED = (range(0xD800), range(0xE000, 0x34000), range(0xE0000, 0xE1000))


SELF_TEST_TEXTS = (
    "",
    "The quick brown fox, un-affable! [MASK]",
    "Caf\u00e9 cafe\u0301 \u039f\u0394\u039f\u03a3 Stra\u00dfe a\u200db",
    "\u4f60\u597d\u3000\ud55c\uad6d \u30d1\u30f3\u30c0 a\u2028b",
    "a" * 201 + " " + "a" * 200,
)


class Tokens(NamedTuple):
    """Ids of a batch of texts and their places: three ragged int32 [B, L].

    `starts` and `ends` count code points of the raw text, end exclusive."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


# --- tables -----------------------------------------------------------------


class _Table(tf.Module):
    """A value per code point, kept once per distinct block of 256."""

    def __init__(self, values, name=None):
        super().__init__(name=name)
        blocks, index = np.unique(
            values.reshape(-1, 1 << _BLOCK_BITS), axis=0, return_inverse=True
        )
        shifted = index.reshape(-1).astype(np.int32) << _BLOCK_BITS
        with tf.init_scope():
            self.blocks = tf.constant(blocks.reshape(-1), tf.int32)
            self.index = tf.constant(shifted)

    def __call__(self, code_points):
        high = tf.bitwise.right_shift(code_points, _BLOCK_BITS)
        low = tf.bitwise.bitwise_and(code_points, (1 << _BLOCK_BITS) - 1)
        return tf.gather(self.blocks, tf.gather(self.index, high) + low)


def _rewrite_one(char, do_lower_case, strip_accents):
    """What one character becomes without its neighbours: (kind, text)."""
    units = tokenization._units(char + "a")
    if units == ["a"]:
        return SPACE, char
    if not tokenization.BasicTokenizer(False).words(char):
        return DELETE, char
    alone = units == [char, "a"]
    if do_lower_case and ord(char) == _CAPITAL_SIGMA:
        return SIGMA, char
    text = char.lower() if do_lower_case else char
    if strip_accents:
        text = unicodedata.normalize("NFD", text)
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    if not text:
        return MARK, char
    if len(text) > 1:
        return SEVERAL, text
    if alone:
        return ALONE, text
    if tokenization._is_punctuation(text):
        return PUNCTUATION, text
    if strip_accents and unicodedata.combining(text):
        return STACKED, text
    return KEEP, text


@functools.lru_cache(maxsize=4)
def _rewriting(do_lower_case, strip_accents):
    """The table of what code points become, for one kind of model.

    Returns int32 [0x110000], kind in the low bits, above it the difference to
    the new code point, or for SEVERAL the place in the second result: int32
    [n], the length followed by so many (code point, kind) packed alike."""
    values = np.zeros(_CODE_POINTS, np.int32)
    several = []
    for code_point in (c for part in _ASSIGNED for c in part):
        kind, text = _rewrite_one(chr(code_point), do_lower_case, strip_accents)
        if kind == SEVERAL:
            payload = len(several)
            several.append(len(text))
            for char in text:
                part, _ = _rewrite_one(char, False, False)
                if strip_accents and unicodedata.combining(char):
                    part = STACKED
                several.append(ord(char) << _KIND_BITS | part)
        else:
            payload = ord(text) - code_point
        values[code_point] = payload << _KIND_BITS | kind
    return values, np.array(several or [0], np.int32)


@functools.lru_cache(maxsize=1)
def _contexts():
    """What a code point means to its neighbours: int32 [0x110000].

    Low bits: whether str.lower() takes it for cased, or looks through it,
    when it decides on a final sigma. Above: its canonical combining class."""
    values = np.zeros(_CODE_POINTS, np.int32)
    for code_point in (c for part in _ASSIGNED for c in part):
        char = chr(code_point)
        flags = 0
        if (char + "\u03a3").lower()[-1] == "\u03c2":
            flags = _CASED
        elif ("A" + char + "\u03a3").lower()[-1] == "\u03c2":
            flags = _IGNORABLE
        first = unicodedata.normalize("NFD", char)[0]
        rank = unicodedata.combining(first)
        values[code_point] = rank << _CONTEXT_BITS | flags
    return values


# --- rewriting --------------------------------------------------------------


class _Chars(NamedTuple):
    """Code points of the whole batch in one row: four int32 [n]."""

    chars: tf.Tensor
    kinds: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor

    def take(self, index):
        """The same of some places only."""
        return _Chars(*(tf.gather(values, index) for values in self))


def _where(mask):
    return tf.where(mask)[:, 0]


def _if_any(kind, chars, change):
    """Applies `change` to the _Chars if one of them is of that kind."""
    return _Chars(
        *tf.cond(
            tf.reduce_any(chars.kinds == kind),
            lambda: tuple(change(chars)),
            lambda: tuple(chars),
        )
    )


def _lower_sigma(flags, chars):
    """Makes capital sigmas small: final after a cased letter and before none.

    `flags` are the contexts of the raw code points. Both searches look
    through characters that case ignores, as str.lower() does. Spaces and CJK
    are neither cased nor ignored, so they end a word."""
    ignorable = tf.bitwise.bitwise_and(flags, _IGNORABLE) != 0
    solid = _where(~ignorable)
    # Cased or not, of every character not ignored, with a wall at both ends.
    cased = tf.bitwise.bitwise_and(tf.gather(flags, solid), _CASED)
    cased = tf.pad(cased, [[1, 1]])
    sigma = _where(chars.kinds == SIGMA)
    rank = tf.searchsorted(solid, sigma)  # of the sigma, which is solid
    final = (tf.gather(cased, rank) == 1) & (tf.gather(cased, rank + 2) == 0)
    small = tf.where(final, _FINAL_SIGMA, _SIGMA)
    place = sigma[:, None]
    return chars._replace(
        chars=tf.tensor_scatter_nd_update(chars.chars, place, small),
        kinds=tf.tensor_scatter_nd_update(
            chars.kinds, place, tf.zeros_like(small)
        ),
    )


def _expand(several, chars):
    """Replaces every character that becomes several, such as Hangul."""
    is_several = chars.kinds == SEVERAL
    entry = tf.where(is_several, chars.chars, 0)
    counts = tf.where(is_several, tf.gather(several, entry), 1)
    source = tf.repeat(tf.range(tf.size(counts)), counts)
    inside = tf.range(tf.size(source)) - tf.gather(
        tf.cumsum(counts, exclusive=True), source
    )
    taken = chars.take(source)
    is_several = taken.kinds == SEVERAL
    packed = tf.gather(
        several, tf.where(is_several, taken.chars + 1 + inside, 0)
    )
    return taken._replace(
        chars=tf.where(
            is_several,
            tf.bitwise.right_shift(packed, _KIND_BITS),
            taken.chars,
        ),
        kinds=tf.where(
            is_several,
            tf.bitwise.bitwise_and(packed, _KIND_MASK),
            taken.kinds,
        ),
    )


def _order_marks(contexts, chars):
    """Sorts runs of combining marks by class: the canonical order of NFD."""
    ranks = tf.bitwise.right_shift(
        contexts(tf.maximum(chars.chars, 0)), _CONTEXT_BITS
    )
    runs = tf.cumsum(tf.cast(ranks == 0, tf.int64))
    order = tf.argsort(runs * 256 + tf.cast(ranks, tf.int64), stable=True)
    chars = chars.take(order)
    return chars._replace(
        kinds=tf.where(chars.kinds == STACKED, KEEP, chars.kinds)
    )


def _drop_marks(chars):
    """Drops accents; the letter before them takes over their place."""
    is_kept = chars.kinds != MARK
    kept = chars.take(_where(is_kept))
    group = tf.cumsum(tf.cast(is_kept, tf.int32))
    reach = tf.math.unsorted_segment_max(
        chars.ends, group, tf.size(kept.ends) + 1
    )[1:]
    extends = (kept.kinds == KEEP) | (kept.kinds == PUNCTUATION)
    return kept._replace(ends=tf.where(extends, reach, kept.ends))


# --- the tokenizer ----------------------------------------------------------


class InGraphTokenizer(tf.Module):
    """Strings to ids and places in graph ops, as `FullTokenizer` does.

    Arguments as of FullTokenizer, whose vocabulary rules hold too. May be an
    attribute of an exported tf.Module; the vocabulary is part of the graph,
    so no file is read later and none is cached by its path. A reader of the
    export has to import tensorflow_text. Raises ValueError if the vocabulary
    lacks [UNK] or a marker of `keep`, and what load_vocab raises."""

    def __init__(
        self,
        vocab_file,
        do_lower_case=True,
        strip_accents=None,
        keep=(),
        name=None,
    ):
        super().__init__(name=name or "tokenizer")
        self._python = tokenization.FullTokenizer(
            vocab_file, do_lower_case, strip_accents, keep
        )
        vocab = self._python.vocab
        tokenization.check_vocab(vocab, None, vocab_file, needed=("[UNK]",))
        self.vocab_size = self._python.vocab_size
        self.do_lower_case = self._python.do_lower_case
        self.strip_accents = self._python.strip_accents
        self._special = {
            token: vocab[token]
            for token in ("[CLS]", "[SEP]")
            if token in vocab
        }
        longest_first = sorted(self._python.keep, key=len, reverse=True)
        self._markers = [
            ([ord(char) for char in marker], vocab[marker])
            for marker in longest_first
        ]
        values, several = _rewriting(self.do_lower_case, self.strip_accents)
        # "" and "##" match no piece of a word; the builder refuses them.
        pieces = [piece for piece in vocab if piece not in ("", "##")]
        with tf.init_scope():
            self._rewrite = _Table(values)
            self._contexts = _Table(_contexts())
            self._several = tf.constant(several)
            self._ids = tf.constant([vocab[piece] for piece in pieces])
            self._wordpiece = tf_text.FastWordpieceTokenizer(
                pieces,
                unknown_token="[UNK]",
                token_out_type=tf.int32,
                no_pretokenization=True,
                max_bytes_per_word=_MAX_BYTES_PER_WORD,
            )

    def tokenize(self, texts):
        """The `Tokens` of a batch of UTF-8 strings [B]; bad bytes are dropped.

        Places count the code points of the decoded text."""
        # A space after each text keeps words of two texts apart.
        chars, row_splits = _decode(tf.strings.join([texts, " "]))
        chars = self._rewrite_chars(chars, row_splits)
        # Words: [W] strings and, of each, the first of its characters.
        visible = _where(chars.kinds != SPACE)
        before = tf.concat([[SPACE], chars.kinds[:-1]], 0)
        first = tf.gather((chars.kinds != KEEP) | (before != KEEP), visible)
        word_starts = tf.cast(_where(first), tf.int32)
        chars_of_words = chars.take(visible)
        ids, starts, ends, word_splits = self._pieces(
            chars_of_words, word_starts
        )
        # Rows: how many words, then how many tokens, lie before each.
        words_before = tf.searchsorted(
            tf.gather(chars_of_words.starts, word_starts), row_splits
        )
        splits = tf.gather(word_splits, words_before)
        shift = tf.repeat(row_splits[:-1], splits[1:] - splits[:-1])
        rows = functools.partial(
            tf.RaggedTensor.from_row_splits, row_splits=splits, validate=False
        )
        return Tokens(rows(ids), rows(starts - shift), rows(ends - shift))

    def pack(self, ids_a, ids_b=None, max_seq_length=512):
        """Ragged ids to the model's inputs: int32 [B, L] each, by name.

        Gives [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b is not empty,
        cut as the original cuts to max_seq_length. L is the longest row.
        Raises ValueError if max_seq_length is too small or the vocabulary
        lacks [CLS] or [SEP]."""
        least = 3 if ids_b is None else 5
        if max_seq_length < least:
            raise ValueError(
                f"max_seq_length={max_seq_length} is too small: [CLS], [SEP] "
                f"and a piece of each text need at least {least}."
            )
        absent = {"[CLS]", "[SEP]"} - set(self._special)
        if absent:
            raise ValueError(
                f"{self._python.vocab_file}: lacks the reserved token "
                f"{', '.join(sorted(absent))}, so no input can be packed."
            )
        if ids_b is None:
            ids_b = ids_a[:, :0]
        special = (self._special["[CLS]"], self._special["[SEP]"], 0)
        packed, mask, segments = _lay_out(ids_a, ids_b, max_seq_length, special)
        return {
            "input_ids": packed,
            "input_mask": mask,
            "segment_ids": segments,
        }

    def self_test(self, texts=SELF_TEST_TEXTS):
        """Raises ValueError unless ids and places equal `FullTokenizer`'s.

        Guards against a tensorflow-text that builds a wrong table without a
        word (2.20.0 did for some vocabularies)."""
        tokens = self.tokenize(tf.constant(list(texts)))
        rows = zip(*(part.to_list() for part in tokens), strict=True)
        for text, row in zip(texts, rows, strict=True):
            pieces, starts, ends = self._python.tokenize_with_offsets(text)
            ids = self._python.convert_tokens_to_ids(pieces)
            if (ids, starts, ends) != row:
                raise ValueError(
                    f"The graph tokenizer of {self._python.vocab_file} gives "
                    f"{row} for {text!r}, FullTokenizer {(ids, starts, ends)}."
                    " Install tensorflow-text 2.20.1 or later."
                )

    def _rewrite_chars(self, code_points, row_splits):
        """Cleaned, lower-cased, decomposed and stripped characters."""
        place = tf.range(tf.size(code_points))
        packed = self._rewrite(code_points)
        kinds = tf.bitwise.bitwise_and(packed, _KIND_MASK)
        shifts = tf.bitwise.right_shift(packed, _KIND_BITS)
        changed = tf.where(kinds == SEVERAL, shifts, code_points + shifts)
        chars = _Chars(changed, kinds, place, place + 1)
        if self._markers:
            chars = self._find_markers(code_points, row_splits, chars)
        return _Chars(
            *tf.cond(
                tf.reduce_any(chars.kinds >= DELETE),
                lambda: tuple(self._rewrite_rare(chars, code_points)),
                lambda: tuple(chars),
            )
        )

    def _rewrite_rare(self, chars, code_points):
        """What depends on neighbours or changes the number of characters."""
        index = _where(chars.kinds != DELETE)
        chars = chars.take(index)
        # A kept marker (negative) is no neighbour: as U+0000, a plain wall.
        raw = tf.where(chars.chars < 0, 0, tf.gather(code_points, index))
        steps = (
            (SIGMA, lambda found: _lower_sigma(self._contexts(raw), found)),
            (SEVERAL, functools.partial(_expand, self._several)),
            (STACKED, functools.partial(_order_marks, self._contexts)),
            (MARK, _drop_marks),
        )
        for kind, change in steps:
            chars = _if_any(kind, chars, change)
        return chars

    def _find_markers(self, code_points, row_splits, chars):
        """Makes each kept marker one character: minus its number, ALONE.

        Leftmost first, and of those the longest, as the regular expression
        of BasicTokenizer finds them."""
        size = tf.size(code_points)
        walls = tf.fill(tf.shape(row_splits[1:]), -1)  # no marker crosses
        code_points = tf.tensor_scatter_nd_update(
            code_points, row_splits[1:, None] - 1, walls
        )
        number = tf.zeros_like(code_points)
        length = tf.zeros_like(code_points)
        for index, (marker, _) in enumerate(self._markers, 1):
            padded = tf.pad(code_points, [[0, len(marker)]], constant_values=-1)
            found = number == 0
            for offset, code_point in enumerate(marker):
                found &= padded[offset : offset + size] == code_point
            number = tf.where(found, index, number)
            length = tf.where(found, len(marker), length)
        start = tf.cast(_where(number > 0), tf.int32)
        start = tf.gather(start, _not_overlapping(start, length))
        length = tf.gather(length, start)
        inside = tf.repeat(start, length)  # places of whole markers
        inside += tf.range(tf.size(inside)) - tf.repeat(
            tf.cumsum(length, exclusive=True), length
        )
        kinds = tf.tensor_scatter_nd_update(
            chars.kinds, inside[:, None], tf.fill(tf.shape(inside), DELETE)
        )
        update = functools.partial(
            tf.tensor_scatter_nd_update, indices=start[:, None]
        )
        return _Chars(
            update(chars.chars, updates=-tf.gather(number, start)),
            update(kinds, updates=tf.fill(tf.shape(start), ALONE)),
            chars.starts,
            update(chars.ends, updates=start + length),
        )

    def _pieces(self, chars, word_starts):
        """WordPiece of words given by their characters and first places.

        Returns ids, starts, ends [T] and the row splits [W + 1] of words."""
        word_splits = tf.concat([word_starts, [tf.size(chars.chars)]], 0)
        # A marker (negative) is spelt as one letter: one piece, or [UNK].
        letters = tf.where(chars.chars < 0, ord("A"), chars.chars)
        words = _encode(letters, word_splits)
        lengths = word_splits[1:] - word_splits[:-1]
        is_long = lengths > _MAX_CHARS_PER_WORD
        words = tf.cond(
            tf.reduce_any(is_long),
            lambda: tf.where(is_long, "a" * (_MAX_BYTES_PER_WORD + 1), words),
            lambda: words,
        )
        pieces, first, last = self._wordpiece.tokenize_with_offsets(words)
        splits = tf.cast(pieces.row_splits, tf.int32)
        ids = tf.gather(self._ids, pieces.values)
        counts = splits[1:] - splits[:-1]
        word_of_piece = tf.repeat(tf.range(tf.size(counts)), counts)
        if self._markers:
            marker = tf.gather(chars.chars, word_starts)
            marker = -tf.gather(marker, word_of_piece)
            marker_ids = tf.constant([0] + [id_ for _, id_ in self._markers])
            ids = tf.where(
                marker > 0, tf.gather(marker_ids, tf.maximum(marker, 0)), ids
            )
        first, last = _characters_of_bytes(
            letters,
            tf.gather(word_starts, word_of_piece),
            tf.cast(first.values, tf.int32),
            tf.cast(last.values, tf.int32),
        )
        last = tf.where(
            tf.gather(is_long, word_of_piece),
            tf.gather(word_splits[1:], word_of_piece),
            last,
        )
        starts, ends = _span(chars, first, last)
        return ids, starts, ends, splits


def _decode(texts):
    """Code points of strings [B], one after another, and row splits [B+1]."""
    decoded = tf.raw_ops.UnicodeDecode(
        input=texts,
        input_encoding="UTF-8",
        errors="ignore",
        Tsplits=tf.int32,
    )
    return decoded.char_values, decoded.row_splits


def _encode(code_points, splits):
    """UTF-8 strings of the code points between successive splits."""
    return tf.raw_ops.UnicodeEncode(
        input_values=code_points,
        input_splits=splits,
        errors="replace",
        output_encoding="UTF-8",
        replacement_char=0xFFFD,
    )


def _not_overlapping(starts, length_at):
    """Indices of the spans that do not start inside one already taken."""
    ends = starts + tf.gather(length_at, starts)

    def one_by_one():
        """The slow way, needed where spans overlap."""
        taken_until = tf.scan(
            lambda until, span: tf.where(span[0] >= until, span[1], until),
            (starts, ends),
            initializer=tf.constant(0),
        )
        return _where(starts >= tf.concat([[0], taken_until[:-1]], 0))

    return tf.cond(
        tf.reduce_any(starts[1:] < ends[:-1]),
        one_by_one,
        lambda: tf.range(tf.size(starts, tf.int64)),
    )


def _characters_of_bytes(chars, word_starts, first, last):
    """Places of characters [T] for byte places inside the word of a piece."""

    def search():
        """Counts the bytes of every character before."""
        size = 1 + sum(
            tf.cast(chars >= limit, tf.int32)
            for limit in (0x80, 0x800, 0x10000)
        )
        byte_starts = tf.cumsum(size, exclusive=True)
        base = tf.gather(byte_starts, word_starts)
        return tuple(
            tf.searchsorted(byte_starts, base + place)
            for place in (first, last)
        )

    return tf.cond(
        tf.reduce_any(chars >= 0x80),
        search,
        lambda: (word_starts + first, word_starts + last),
    )


def _span(chars, first, last):
    """Raw places of pieces made of the characters from first to last."""

    def of_sorted_marks():  # neighbours may stand the other way round
        piece = tf.repeat(tf.range(tf.size(first)), last - first)
        return (
            tf.math.segment_min(chars.starts, piece),
            tf.math.segment_max(chars.ends, piece),
        )

    return tf.cond(
        tf.reduce_any(chars.starts[1:] < chars.starts[:-1]),
        of_sorted_marks,
        lambda: (
            tf.gather(chars.starts, first),
            tf.gather(chars.ends, last - 1),
        ),
    )


# --- packing ----------------------------------------------------------------


def truncated_lengths(lengths_a, lengths_b, max_seq_length):
    """How many pieces of each text stay beside [CLS] and [SEP]: int32 [B] x 2.

    Counts what the original's loop leaves, which takes pieces one by one from
    the end of the longer text, and from the second where both are equal. A
    row whose second text is empty is a single sentence with one [SEP]."""
    room = max_seq_length - 2 - tf.cast(lengths_b > 0, tf.int32)
    half = room // 2
    return (
        tf.minimum(lengths_a, tf.maximum(room - lengths_b, room - half)),
        tf.minimum(lengths_b, tf.maximum(room - lengths_a, half)),
    )


def _lay_out(rows_a, rows_b, max_seq_length, special):
    """Packs two ragged [B, L] into one dense [B, L] and gives segments too.

    `special` are the values for [CLS], [SEP] and padding."""
    cls, sep, padding = special
    sizes = [tf.cast(rows.row_lengths(), tf.int32) for rows in (rows_a, rows_b)]
    size_a, size_b = truncated_lengths(*sizes, max_seq_length)
    has_b = tf.cast(size_b > 0, tf.int32)
    total = size_a + size_b + 2 + has_b
    place = tf.range(tf.reduce_max(tf.concat([total, [0]], 0)))[None, :]
    start_b = size_a[:, None] + 2
    in_a = (place >= 1) & (place < start_b - 1)
    in_b = (place >= start_b) & (place < (start_b + size_b[:, None]))
    packed = tf.where(place < total[:, None], sep, padding)
    packed = tf.where(place == 0, cls, packed)
    for rows, mask, shift in ((rows_a, in_a, 1), (rows_b, in_b, start_b)):
        begin = tf.cast(rows.row_starts(), tf.int32)[:, None] - shift
        values = tf.pad(rows.values, [[0, 1]])  # a batch may be empty
        index = tf.where(mask, begin + place, 0)
        packed = tf.where(mask, tf.gather(values, index), packed)
    mask = tf.cast(place < total[:, None], tf.int32)
    segments = tf.cast(place >= start_b, tf.int32) * mask
    return packed, mask, segments
