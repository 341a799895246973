"""Reading comprehension inside an exported graph: raw strings to answers.

What reading_comprehension.WindowMaker and squad_answers do before and after
the model, as graph ops: questions and passages of any length are tokenized,
cut into windows, read a few windows at a time, and the best span of each
question becomes text. The answers are those of prediction. Letters: B
questions, T passage pieces of all questions, W windows, L positions.
"""

from typing import NamedTuple

import tensorflow as tf

import reading_comprehension
import squad_answers

WINDOWS_AT_ONCE = 32  # of 384 pieces, and fewer if they are longer
NO_SPAN_SCORE = -20000.0
_NOTHING = -1e30


class Windows(NamedTuple):
    """Where the windows of a batch lie, int32 [W] each.

    `row` is the question, `number` counts the windows of a question, `start`
    and `size` are in pieces of its passage, `count` is how many windows and
    `length` how many pieces its passage has, `room` what a window holds,
    `step` how far apart windows are."""

    row: tf.Tensor
    number: tf.Tensor
    start: tf.Tensor
    size: tf.Tensor
    count: tf.Tensor
    length: tf.Tensor
    room: tf.Tensor
    step: tf.Tensor


def lay_windows(lengths, rooms, doc_stride):
    """Cuts passages of `lengths` pieces into `Windows` for `rooms`, int32 [B].

    The geometry of reading_comprehension.window_geometry; an empty passage has
    no window."""
    steps = tf.minimum(rooms, doc_stride)
    more = -(-tf.maximum(lengths - rooms, 0) // steps)
    counts = tf.where(lengths > 0, 1 + more, 0)
    row = tf.repeat(tf.range(tf.size(counts)), counts)
    number = tf.range(tf.size(row)) - tf.gather(
        tf.cumsum(counts, exclusive=True), row
    )
    count, length, room, step = (
        tf.gather(values, row) for values in (counts, lengths, rooms, steps)
    )
    start = number * step
    size = tf.minimum(length - start, room)
    return Windows(row, number, start, size, count, length, room, step)


def max_context(windows, width):
    """bool [W, width]: has the window most context of its n-th piece?

    Of the windows of full size, the two whose middles are nearest to the
    piece can have it, or else the last window, which may be shorter."""
    number, start, size, count, length, room, step = (
        value[:, None] for value in windows[1:]
    )
    slot = tf.range(width)[None, :]
    piece = start + slot
    nearest = (2 * piece - room + 1) // (2 * step)
    last = count - 1
    full = tf.maximum(last - 1, 0)  # the last window of full size
    best = tf.zeros_like(piece)
    best_score = tf.fill(tf.shape(piece), tf.constant(-1.0, tf.float64))
    for candidate in (
        tf.clip_by_value(nearest, 0, full),
        tf.clip_by_value(nearest + 1, 0, full),
        tf.zeros_like(piece) + last,
    ):
        left = piece - candidate * step
        own = tf.minimum(length - candidate * step, room)
        right = own - 1 - left
        context = tf.cast(tf.minimum(left, right), tf.float64)
        score = context + 0.01 * tf.cast(own, tf.float64)
        better = (left >= 0) & (right >= 0) & (score > best_score)
        best = tf.where(better, candidate, best)
        best_score = tf.where(better, score, best_score)
    return (best == number) & (slot < size)


class _Passages(NamedTuple):
    """Pieces of all questions and passages, one after another, with splits."""

    question_ids: tf.Tensor
    question_splits: tf.Tensor
    ids: tf.Tensor
    splits: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class _Spans(NamedTuple):
    """What is known of each window after the model has read it, [W] each.

    `score` (float64) of the best span among the n best starts and ends, where
    it stands in characters, the best score of any span, and the score of "no
    answer": that of [CLS], or the classifier's logit."""

    score: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    anywhere: tf.Tensor
    null: tf.Tensor


class Reader:
    """Answers questions about passages, in graph ops.

    `tokenizer` is an InGraphTokenizer, `threshold` the null odds above which
    there is no answer (None: there always is one, if any span can be it);
    `classifier` says that the model gives `null_logits`. Raises ValueError for
    lengths that leave no room."""

    def __init__(
        self,
        tokenizer,
        max_seq_length=384,
        doc_stride=128,
        max_query_length=64,
        n_best_size=20,
        max_answer_length=30,
        threshold=None,
        classifier=False,
        passage_first=False,
        truncate=False,
    ):
        reading_comprehension.check_lengths(
            max_seq_length, doc_stride, max_query_length
        )
        at_once = WINDOWS_AT_ONCE * 384 // max_seq_length
        self._at_once = min(max(at_once, 1), WINDOWS_AT_ONCE)
        self._tokenizer = tokenizer
        self._length = max_seq_length
        self._stride = doc_stride
        self._max_query = max_query_length
        self._n_best = n_best_size
        self._max_answer = min(max_answer_length, max_seq_length)
        self._threshold = threshold
        self._classifier = classifier
        self._passage_first = passage_first
        self._truncate = truncate
        frame = tokenizer.pack(
            tf.ragged.constant([[0]], tf.int32, row_splits_dtype=tf.int32)
        )
        self._cls, _, self._sep = tf.unstack(frame["input_ids"][0])

    def answer(self, questions, contexts, call):
        """Answers string [B] questions about string [B] contexts.

        `call` runs the model on features. Gives, [B] each: `answer`, "" for
        none; `start` and `end`, code points of the context, end exclusive, -1
        for no answer; `score`, the sum of the best span's logits whether it
        is the answer or not (NO_SPAN_SCORE without one); `null_odds`, how far
        "no answer" stands above it."""
        passages = self._read(questions, contexts)
        windows = self._windows(passages)
        spans = self._all_spans(passages, windows, call)
        best, score = _best_of_rows(spans, windows, tf.size(questions))
        odds = self._odds(spans, windows, score, tf.size(questions))
        found = score > _NOTHING
        if self._threshold is not None:
            found &= odds <= self._threshold
        # One more entry, for a batch without any window.
        first, last = (
            tf.where(found, tf.gather(tf.pad(values, [[0, 1]]), best), -1)
            for values in (spans.first, spans.last)
        )
        score = tf.where(score > _NOTHING, score, NO_SPAN_SCORE)
        return {
            "answer": cut_text(contexts, first, last),
            "start": first,
            "end": last,
            "score": tf.cast(score, tf.float32),
            "null_odds": tf.cast(odds, tf.float32),
        }

    def _read(self, questions, contexts):
        question = self._tokenizer.tokenize(questions).ids
        question = question[:, : self._max_query]
        passage = self._tokenizer.tokenize(contexts)
        return _Passages(
            question.values,
            tf.cast(question.row_splits, tf.int32),
            passage.ids.values,
            tf.cast(passage.ids.row_splits, tf.int32),
            passage.starts.values,
            passage.ends.values,
        )

    def _windows(self, passages):
        splits, query = passages.splits, passages.question_splits
        rooms = self._length - 3 - (query[1:] - query[:-1])
        lengths = splits[1:] - splits[:-1]
        if self._truncate:
            lengths = tf.minimum(lengths, rooms)
        return lay_windows(lengths, rooms, self._stride)

    def _all_spans(self, passages, windows, call):
        """Reads all windows, a few at a time: _Spans [W]."""
        total = tf.size(windows.row)
        empty = _Spans(
            *(
                tf.zeros([0], dtype)
                for dtype in (
                    tf.float64,
                    tf.int32,
                    tf.int32,
                    tf.float64,
                    tf.float64,
                )
            )
        )

        def step(done, spans):
            """Reads the next windows and keeps their best spans."""
            until = tf.minimum(done + self._at_once, total)
            part = Windows(*(value[done:until] for value in windows))
            more = self._spans(passages, part, call)
            joined = [
                tf.concat([old, new], 0)
                for old, new in zip(spans, more, strict=True)
            ]
            return until, _Spans(*joined)

        shapes = _Spans(*(tf.TensorShape([None]) for _ in empty))
        _, spans = tf.while_loop(
            lambda done, _: done < total,
            step,
            (tf.constant(0), empty),
            shape_invariants=(tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return spans

    def _spans(self, passages, windows, call):
        """Reads some windows; _Spans of the best span of each."""
        features, offset = self._pack(passages, windows)
        outputs = call(features)
        mask = features["input_mask"] > 0
        slot = tf.range(tf.shape(mask)[1])[None, :] - offset[:, None]
        inside = (slot >= 0) & (slot < windows.size[:, None])
        may_start = max_context(windows, tf.reduce_max(windows.size))
        may_start = inside & tf.gather(
            may_start,
            tf.clip_by_value(slot, 0, tf.shape(may_start)[1] - 1),
            batch_dims=1,
        )
        logits = [
            tf.where(mask, outputs[f"{side}_logits"], -float("inf"))
            for side in ("start", "end")
        ]
        score, start, end = best_span(
            *logits, may_start, inside, self._n_best, self._max_answer
        )
        anywhere = best_anywhere(*logits, may_start, inside, self._max_answer)
        base = tf.gather(passages.splits, windows.row) + windows.start
        piece = tf.stack([start, end]) - offset + base
        piece = tf.where(score > _NOTHING, piece, 0)
        null = sum(tf.cast(side[:, 0], tf.float64) for side in logits)
        return _Spans(
            score,
            tf.gather(passages.starts, piece[0]),
            tf.gather(passages.ends, piece[1]),
            anywhere,
            tf.cast(outputs["null_logits"], tf.float64)
            if self._classifier
            else null,
        )

    def _pack(self, passages, windows):
        """The features of windows, and where their first piece stands [W]."""
        first = tf.gather(passages.question_splits, windows.row)
        query = tf.gather(passages.question_splits, windows.row + 1) - first
        parts = [
            (passages.question_ids, first, query),
            (
                passages.ids,
                tf.gather(passages.splits, windows.row) + windows.start,
                windows.size,
            ),
        ]
        offset = query + 2
        if self._passage_first:
            parts.reverse()
            offset = tf.ones_like(query)
        total = query + windows.size + 3
        place = tf.range(tf.reduce_max(total))[None, :]
        ids = tf.where(place < total[:, None], self._sep, 0)
        ids = tf.where(place == 0, self._cls, ids)
        begin = tf.ones_like(query)
        for values, source, size in parts:
            slot = place - begin[:, None]
            here = (slot >= 0) & (slot < size[:, None])
            index = tf.where(here, source[:, None] + slot, 0)
            values = tf.concat([values, [0]], 0)
            ids = tf.where(here, tf.gather(values, index), ids)
            begin += size + 1
        mask = tf.cast(place < total[:, None], tf.int32)
        second = place > parts[0][2][:, None] + 1
        features = {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": tf.cast(second, tf.int32) * mask,
        }
        return features, offset

    def _odds(self, spans, windows, best, batch):
        """float64 [B]: how far the lowest null score stands above `best`.

        Without a span among the n best it is compared with any span. With a
        classifier it is the lowest logit."""
        lowest = tf.math.unsorted_segment_min(spans.null, windows.row, batch)
        if self._classifier:
            has_window = lowest < -_NOTHING
            return tf.where(has_window, lowest, squad_answers.NO_SPAN_ODDS)
        anywhere = tf.math.unsorted_segment_max(
            spans.anywhere, windows.row, batch
        )
        best = tf.where(best > _NOTHING, best, anywhere)
        odds = lowest - best
        return tf.where(best > _NOTHING, odds, squad_answers.NO_SPAN_ODDS)


def best_span(starts, ends, may_start, may_end, n_best, max_answer):
    """The best of the spans from the n best starts to the n best ends.

    Takes float32 logits and bool masks [W, L]; gives its score (float64,
    -1e30 if none is valid), start and end [W]. Ties go to the start, then the
    end, that stands first."""
    count = tf.minimum(n_best, tf.shape(starts)[1])
    start_logit, start = tf.math.top_k(starts, count)
    end_logit, end = tf.math.top_k(ends, count)
    size = end[:, None, :] - start[:, :, None]
    valid = (size >= 0) & (size < max_answer)
    valid &= tf.gather(may_start, start, batch_dims=1)[:, :, None]
    valid &= tf.gather(may_end, end, batch_dims=1)[:, None, :]
    score = tf.cast(start_logit, tf.float64)[:, :, None]
    score += tf.cast(end_logit, tf.float64)[:, None, :]
    score = tf.where(valid, score, tf.constant(_NOTHING, tf.float64))
    score = tf.reshape(score, [-1, count * count])
    score, place = (value[:, 0] for value in tf.math.top_k(score, 1))
    return (
        score,
        tf.gather(start, place // count, batch_dims=1),
        tf.gather(end, place % count, batch_dims=1),
    )


def best_anywhere(starts, ends, may_start, may_end, max_answer):
    """float64 [W]: the score of the best valid span, -1e30 if there is none."""
    ends = tf.where(may_end, ends, _NOTHING)
    padded = tf.pad(
        ends, [[0, 0], [0, max_answer - 1]], constant_values=_NOTHING
    )
    best_end = tf.nn.max_pool1d(padded[:, :, None], max_answer, 1, "VALID")
    best_end = best_end[:, :, 0]
    valid = may_start & (best_end > _NOTHING)
    score = tf.cast(starts, tf.float64) + tf.cast(best_end, tf.float64)
    score = tf.where(valid, score, tf.constant(_NOTHING, tf.float64))
    return tf.reduce_max(score, axis=1)


def _best_of_rows(spans, windows, batch):
    """Of each question the window with the best span, and its score, [B].

    Ties go to the earlier window; the score is below -1e29 where no window
    has a span, and the window 0."""
    score = tf.math.unsorted_segment_max(spans.score, windows.row, batch)
    is_best = spans.score == tf.gather(score, windows.row)
    number = tf.range(tf.size(windows.row))
    number = tf.where(is_best, number, tf.int32.max)
    best = tf.math.unsorted_segment_min(number, windows.row, batch)
    return tf.where(score > _NOTHING, best, 0), score


def cut_text(contexts, first, last):
    """The text of string [B] contexts between code points, "" where first < 0.

    As squad_answers, blanks in a row become one space."""
    contexts = tf.strings.unicode_transcode(
        contexts, "UTF-8", "UTF-8", errors="ignore"
    )
    found = first >= 0
    texts = tf.strings.substr(
        contexts,
        tf.where(found, first, 0),
        tf.where(found, last - first, 0),
        unit="UTF8_CHAR",
    )
    return tf.strings.regex_replace(texts, "[ \t\r\n\u202f]+", " ")
