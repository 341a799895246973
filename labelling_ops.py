"""Raw strings to tagged words in graph ops, for exported taggers.

Words, windows and tags are those of `labelling_data`, so that an export tags
a sentence whose words are joined by blanks as run_ner.py tags its rows. Only
words without a piece (control characters) do not appear here.

Everything is computed over the words of the whole batch in one row: W words,
T pieces, N windows.
"""

import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import labelling_data
import tokenization

UNITS = ("word", "cjk", "character")
_SPACES = np.array(
    [
        code_point
        for code_point in range(0x3001)
        if chr(code_point).isspace()
        and chr(code_point) not in tokenization._GLUE
    ],
    np.int32,
)
_CJK = [
    (ord(first), ord(last))
    for first, last in re.findall("(.)-(.)", tokenization.CJK)
]


class Words(NamedTuple):
    """The words of a batch of texts.

    `texts`, `starts`, `ends`, `sizes` [W]: the words, their places in code
    points of their text (end exclusive), their numbers of pieces; `ids` [T]
    the pieces; `splits` [B + 1] says which words are whose."""

    texts: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    sizes: tf.Tensor
    ids: tf.Tensor
    splits: tf.Tensor


def _is_cjk(chars):
    found = tf.zeros_like(chars, tf.bool)
    for first, last in _CJK:
        found |= (chars >= first) & (chars <= last)
    return found


def _groups(chars, unit):
    """int32 like the flat `chars` of a ragged [B, n]: a number per word."""
    values = chars.values
    place = tf.range(tf.size(values))
    if unit == "character":
        return place
    divides = tf.reduce_any(values[:, None] == _SPACES, axis=1)
    if unit == "cjk":
        divides |= _is_cjk(values)
    before = tf.concat([[True], divides], 0)[:-1]
    rows = tf.cast(chars.value_rowids(), tf.int32)
    other = rows != tf.concat([[-1], rows], 0)[:-1]
    return tf.cumsum(tf.cast(divides | before | other, tf.int32))


def find_words(texts, tokenizer, unit="word"):
    """The `Words` of strings [B] by an InGraphTokenizer.

    `unit`: "word": what stands between white space; "cjk": each CJK
    character is a word, too; "character": every character is one."""
    chars = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    row_starts = tf.cast(chars.row_starts(), tf.int32)
    if unit == "character":
        spaced = tf.reshape(
            tf.stack([chars.values, tf.fill(tf.shape(chars.values), 32)], 1),
            [-1],
        )
        spaced = tf.RaggedTensor.from_row_splits(spaced, 2 * chars.row_splits)
        tokens = tokenizer.tokenize(tf.strings.unicode_encode(spaced, "UTF-8"))
        starts, ends = tokens.starts.values // 2, (tokens.ends.values + 1) // 2
    else:
        tokens = tokenizer.tokenize(texts)
        starts, ends = tokens.starts.values, tokens.ends.values
    rows = tf.cast(tokens.ids.value_rowids(), tf.int32)
    shift = tf.gather(row_starts, rows)
    group = tf.gather(_groups(chars, unit), starts + shift)
    is_first = group != tf.concat([[-1], group], 0)[:-1]
    word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    first = tf.where(is_first)[:, 0]
    count = tf.size(first)
    ends = tf.math.unsorted_segment_max(ends, word, count)
    starts = tf.gather(starts, first)
    rows = tf.gather(rows, first)
    shift = tf.gather(shift, first)
    spans = tf.ragged.range(starts + shift, ends + shift)
    splits = tf.searchsorted(rows, tf.range(tf.size(row_starts) + 1))
    return Words(
        tf.strings.unicode_encode(tf.gather(chars.values, spans), "UTF-8"),
        starts,
        ends,
        tf.math.bincount(word, minlength=count, maxlength=count),
        tokens.ids.values,
        splits,
    )


def _windows(offsets, splits, room, overlap):
    """The windows that `labelling_data.encode_words` makes, N of all rows.

    `offsets` [W + 1] counts the pieces before each word. Returns int32 [N]
    row, first word, end of words, first answered word, end of those."""
    begin, limit = splits[:-1], splits[1:]

    def at(words):
        return tf.gather(offsets, words)

    def search(pieces, side):
        found = tf.searchsorted(offsets, pieces, side=side)
        return found - 1 if side == "right" else found

    def step(index, active, first, answered, arrays):
        """One window of every sentence that is not done."""
        last = tf.minimum(search(at(first) + room, "right"), limit)
        following = search(at(last) - overlap, "left")
        following = tf.minimum(tf.maximum(following, first + 1), last)
        half = (at(last) - at(following)) // 2
        end = search(at(following) + half, "right")
        done = last == limit
        end = tf.where(done, last, end)
        now = (tf.cast(active, tf.int32), first, last, answered, end)
        arrays = tuple(
            array.write(index, part)
            for array, part in zip(arrays, now, strict=True)
        )
        answered = tf.maximum(answered, end)
        return index + 1, active & ~done, following, answered, arrays

    arrays = tuple(
        tf.TensorArray(tf.int32, 1, dynamic_size=True, element_shape=[None])
        for _ in range(5)
    )
    found = tf.while_loop(
        lambda index, active, *_: (index == 0) | tf.reduce_any(active),
        step,
        (0, tf.ones_like(begin, tf.bool), begin, begin, arrays),
    )[-1]
    active, *parts = (tf.transpose(array.stack()) for array in found)
    places = tf.where(active > 0)
    rows = tf.cast(places[:, 0], tf.int32)
    return (rows, *(tf.gather_nd(part, places) for part in parts))


def tag_words(words, tokenizer, call, max_seq_length, doc_stride=None):
    """The label ids int32 [W] that a model gives to `Words`.

    `call` takes features and gives a dict with `tag_ids` [N, L]."""
    room, overlap = labelling_data.window_sizes(max_seq_length, doc_stride)
    firsts = tf.cumsum(words.sizes, exclusive=True)
    places = tf.range(tf.size(words.ids)) - tf.repeat(firsts, words.sizes)
    ids = tf.boolean_mask(words.ids, places < room)
    sizes = tf.minimum(words.sizes, room)
    offsets = tf.concat([[0], tf.cumsum(sizes)], 0)
    rows, first, last, answered, end = _windows(
        offsets, words.splits, room, overlap
    )
    pieces = tf.ragged.range(
        tf.gather(offsets, first), tf.gather(offsets, last)
    )
    features = tokenizer.pack(
        tf.gather(ids, pieces), max_seq_length=max_seq_length
    )
    answers = tf.ragged.range(answered, tf.maximum(answered, end))
    window = tf.cast(answers.value_rowids(), tf.int32)
    position = 1 + tf.gather(offsets, answers.values)
    position -= tf.gather(offsets, tf.gather(first, window))
    cells = tf.stack([window, position], axis=1)
    features["label_mask"] = tf.scatter_nd(
        cells, tf.ones_like(window), tf.shape(features["input_ids"])
    )
    begins = tf.gather(words.splits, rows)
    features["continues"] = tf.cast(answered > begins, tf.int32)
    return tf.gather_nd(call(features)["tag_ids"], cells)


class TagWriter:
    """Label ids as tags of a scheme, as `labelling_data.from_iob2` has it.

    An I- that continues nothing begins an entity, as in `to_iob2`."""

    def __init__(self, labels, scheme):
        parts = [labelling_data.tag_parts(label) for label in labels]
        if scheme == "plain":
            parts = [("O", None) for _ in labels]
        kinds = {kind: number for number, (_, kind) in enumerate(parts)}
        known = {label: number for number, label in enumerate(labels)}
        self._kinds = np.array(
            [-1 if kind is None else kinds[kind] for _, kind in parts], np.int32
        )
        self._inside = np.array([prefix == "I" for prefix, _ in parts])
        self._begin = np.array(
            [
                known.get(f"B-{kind}", number)
                for number, (_, kind) in enumerate(parts)
            ],
            np.int32,
        )
        self._forms = np.array(
            [
                [
                    [_form(label, kind, b, f, scheme) for f in (0, 1)]
                    for b in (0, 1)
                ]
                for label, (_, kind) in zip(labels, parts, strict=True)
            ]
        )

    def __call__(self, tags, splits):
        """Strings [W] of label ids [W]; `splits` [B + 1] are the rows'."""
        kinds = tf.gather(self._kinds, tags)
        place = tf.range(tf.size(tags))
        is_first = tf.scatter_nd(
            splits[:, None], tf.ones_like(splits), [tf.size(tags) + 1]
        )
        is_first = is_first > 0
        before = tf.gather(kinds, tf.maximum(place - 1, 0))
        beside = (before == kinds) & ~is_first[:-1] & (kinds >= 0)
        inside = tf.gather(self._inside, tags)
        tags = tf.where(inside & ~beside, tf.gather(self._begin, tags), tags)
        inside &= beside
        followed = tf.concat([inside, [False]], 0)[1:] & ~is_first[1:]
        cells = [tags, tf.cast(beside, "int32"), tf.cast(followed, "int32")]
        return tf.gather_nd(self._forms, tf.stack(cells, axis=1))


def _form(label, kind, beside, followed, scheme):
    """A label between neighbours of its kind, in a scheme."""
    before = [f"B-{kind}"] if beside else ["O"]
    after = [f"I-{kind}"] if followed else ["O"]
    return labelling_data.from_iob2([*before, label, *after], scheme)[1]
