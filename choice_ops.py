"""Contexts and choices to the model's rows in graph ops, for exported models.

The rows are those of `choice_data.encode_choices`, token by token, and so is
what is cut off. Shape letters: B questions, C choices of each, L length.
"""

import tensorflow as tf

from choice_data import IDIOM_MARK

FORMS = ("pair", "cloze", "blank")


def pack_choices(
    tokenizer,
    context,
    choices,
    question=None,
    max_seq_length=128,
    form="pair",
    cut="tail",
):
    """The model's inputs of questions, int32 [B, C, L] each, by name.

    `context` and `question` are strings [B], `choices` [B, C]; where a
    question has less than C, "" fills up, whose mask is 0 everywhere. With
    the form "cloze" each choice stands where the context has IDIOM_MARK, and
    with "blank" it has segment 1 there. `cut` is the end of a context, "head"
    or "tail", that may be lost."""
    shape = tf.shape(choices)
    of_choice = tf.repeat(tf.range(shape[0]), shape[1])
    flat = tf.reshape(choices, [-1])
    endings = tokenizer.tokenize(flat).ids
    if form != "pair":
        parts = tf.strings.split(context, IDIOM_MARK, maxsplit=1)
        parts = parts.to_tensor("", shape=[None, 2])
        left, right = (
            tf.gather(tokenizer.tokenize(parts[:, side]).ids, of_choice)
            for side in (0, 1)
        )
        parts = _around(left, endings, right, max_seq_length)
        rows = tf.concat(parts, axis=1)
        features = tokenizer.pack(rows, max_seq_length=max_seq_length)
        if form == "blank":
            place = tf.range(tf.shape(features["segment_ids"])[1])
            begin = 1 + _sizes(parts[0])[:, None]
            end = begin + _sizes(parts[1])[:, None]
            chosen = (place >= begin) & (place < end)
            features["segment_ids"] = tf.cast(chosen, tf.int32)
    else:
        first = tf.gather(tokenizer.tokenize(context).ids, of_choice)
        if question is None:
            asked = first[:, :0]
        else:
            asked = tf.gather(tokenizer.tokenize(question).ids, of_choice)
        pair = _pairs(first, asked, endings, max_seq_length, cut)
        features = tokenizer.pack(*pair, max_seq_length=max_seq_length)
    features["input_mask"] *= tf.cast(flat != "", tf.int32)[:, None]
    length = tf.shape(features["input_ids"])[1]
    whole = [shape[0], shape[1], length]
    return {name: tf.reshape(part, whole) for name, part in features.items()}


def _sizes(rows):
    return tf.cast(rows.row_lengths(), tf.int32)


def _slice(rows, begin, size):
    """Of each row of a ragged [B, n], `size` [B] values from `begin` [B]."""
    start = tf.cast(rows.row_starts(), tf.int32) + begin
    return tf.gather(rows.values, tf.ragged.range(start, start + size))


def _head(rows, size):
    return _slice(rows, 0, tf.minimum(_sizes(rows), size))


def _tail(rows, size):
    whole = _sizes(rows)
    size = tf.minimum(whole, size)
    return _slice(rows, whole - size, size)


def _pairs(context, question, endings, max_seq_length, cut):
    """The two segments of each choice, ragged; the second may be empty."""
    has_context = _sizes(context) > 0
    room = max_seq_length - tf.where(has_context, 4, 2)
    endings = _head(endings, room)
    asked = _tail(question, room - _sizes(endings))
    second = tf.concat([asked, endings], axis=1)
    size = _sizes(second)
    is_pair = has_context & (size > 0)
    spare = max_seq_length - 3 - size
    keep = _tail if cut == "head" else _head
    first = keep(context, tf.where(is_pair, spare, 0))
    alone = tf.where(is_pair, 0, max_seq_length - 2)
    first = tf.concat(
        [
            first,
            _head(context, alone),
            _head(second, tf.where(has_context, 0, alone)),
        ],
        axis=1,
    )
    return first, _head(second, tf.where(is_pair, size, 0))


def _around(left, endings, right, max_seq_length):
    """The three with the far sides cut off to fit between two markers."""
    endings = _head(endings, max_seq_length - 2)
    room = max_seq_length - 2 - _sizes(endings)
    before = tf.maximum(room // 2, room - _sizes(right))
    before = tf.minimum(_sizes(left), before)
    return _tail(left, before), endings, _head(right, room - before)
