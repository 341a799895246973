"""Questions and passages to windows with answer labels.

Two alignments. The default works with the tokenizer's character offsets: a
label covers exactly the pieces that touch the answer. The original alignment
(`original_alignment=True`) works with white-space words and searches the
answer's pieces in them, as run_squad.py of google-research/bert does, quirks
included. `convert_examples_to_features` keeps the original's result by
default, `WindowMaker` mends it by default. The windows themselves are the same
in both: [CLS] question [SEP] passage [SEP]. Answers are chosen from logits in
squad_answers.py. Letters: T pieces of a passage.
"""

import collections
import dataclasses
import functools

import numpy as np

FIRST_UNIQUE_ID = 1000000000


class SquadExample:
    """A question with its passage, and its answers where they are known.

    `doc_tokens` (the passage's white-space words), `orig_answer_text`,
    `start_position` and `end_position` (word numbers) and `is_impossible` are
    the original's. `context_text` is the raw passage; without it the words
    joined by blanks are the passage. `answers` holds (text, first character)
    of the gold answers that stand at their place, `answer_texts` all gold
    texts ([] for an unanswerable question, None where they are not known),
    `where` the place in the file for messages."""

    def __init__(
        self,
        qas_id,
        question_text,
        doc_tokens=None,
        orig_answer_text=None,
        start_position=None,
        end_position=None,
        is_impossible=False,
        *,
        context_text=None,
        answers=(),
        answer_texts=None,
        where="",
    ):
        if context_text is None:
            context_text = " ".join(doc_tokens or ())
        self.qas_id = qas_id
        self.question_text = question_text
        self.context_text = context_text
        self._doc_tokens = doc_tokens
        self.orig_answer_text = orig_answer_text
        self.start_position = start_position
        self.end_position = end_position
        self.is_impossible = is_impossible
        self.answers = list(answers)
        self.answer_texts = answer_texts
        self.where = where or f"question {qas_id}"

    @property
    def doc_tokens(self):
        """The passage's words; one shared list for equal passages."""
        if self._doc_tokens is not None:
            return self._doc_tokens
        return white_space_words(self.context_text)[0]

    def __repr__(self):
        return (
            f"SquadExample(qas_id={self.qas_id!r}, "
            f"question_text={self.question_text!r}, "
            f"start_position={self.start_position}, "
            f"end_position={self.end_position}, "
            f"is_impossible={self.is_impossible})"
        )


@dataclasses.dataclass(eq=False)
class InputFeatures:
    """One window, padded, with the original's attribute names."""

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list
    token_to_orig_map: dict
    token_is_max_context: dict
    input_ids: list
    input_mask: list
    segment_ids: list
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool | None = None


# --- passages -----------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def white_space_words(context):
    """The words the original sees and the word of each character.

    (list of str, int32 array [characters]); a blank belongs to the word before
    it, -1 before the first. Only space, tab, line ends and U+202F part words:
    U+00A0, U+3000 and the other Unicode blanks stay inside them, as in the
    original. Remembered for the last few passages."""
    words = []
    word_of = np.empty(len(context), np.int32)
    start = None
    for place, char in enumerate(context):
        if char in " \t\r\n\u202f":
            if start is not None:
                words.append(context[start:place])
                start = None
            word_of[place] = len(words) - 1
            continue
        if start is None:
            start = place
        word_of[place] = len(words)
    if start is not None:
        words.append(context[start:])
    return words, word_of


def align_to_words(example, answer_text, answer_start):
    """Sets the original's word positions; False if the answer is not there.

    The original's rule: the words from the one of the first to the one of the
    last character, joined by blanks, must hold the answer text somewhere. An
    offset outside the passage counts as not there (the original died or took
    the last word)."""
    words, word_of = white_space_words(example.context_text)
    answer_end = answer_start + len(answer_text) - 1
    if not 0 <= answer_start <= answer_end < len(word_of):
        return False
    start, end = int(word_of[answer_start]), int(word_of[answer_end])
    found = " ".join(words[max(start, 0) : end + 1])
    if " ".join(answer_text.split()) not in found:
        return False
    example.orig_answer_text = answer_text
    example.start_position = start
    example.end_position = end
    return True


class Passage:
    """The pieces of a passage: ids, first and end characters, words; int32 [T].

    Arrays are shared by all windows of all questions about the passage."""

    def __init__(self, context, tokenizer):
        self.tokens, starts, ends = tokenizer.tokenize_with_offsets(context)
        ids = tokenizer.convert_tokens_to_ids(self.tokens)
        self.ids = np.asarray(ids, np.int32)
        self.starts = np.asarray(starts, np.int32)
        self.ends = np.asarray(ends, np.int32)
        self.words = white_space_words(context)[1][self.starts]

    def __len__(self):
        return len(self.ids)

    def span_of_characters(self, start, end):
        """(first, last) piece touching characters start..end, or None."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None

    def span_of_words(self, start_word, end_word, answer_tokens):
        """(first, last) piece as the original trains it.

        All pieces of the words, or the first run of pieces in them that
        equals the pieces of the answer."""
        first = int(np.searchsorted(self.words, start_word, side="left"))
        last = int(np.searchsorted(self.words, end_word, side="right")) - 1
        last = max(last, 0)
        size = len(answer_tokens)
        for place in range(first, last - size + 2 if size else first):
            if self.tokens[place : place + size] == answer_tokens:
                return place, place + size - 1
        return first, last


@functools.lru_cache(maxsize=64)
def window_geometry(length, room, doc_stride):
    """Where the windows of a passage of `length` pieces lie.

    Returns (starts, sizes, best): two lists and, int32 [length], the number of
    the window in which each piece has most context: the largest of min(pieces
    left, pieces right) + 0.01 * size, the earlier window on a tie. `room` is
    the number of pieces a window can hold. Do not change the results: they
    are remembered."""
    starts, sizes = [], []
    best = np.zeros(length, np.int32)
    best_score = np.full(length, -1.0)
    start = 0
    while start < length:
        size = min(length - start, room)
        place = np.arange(size)
        score = np.minimum(place, size - 1 - place) + 0.01 * size
        inside = slice(start, start + size)
        better = score > best_score[inside]
        best_score[inside][better] = score[better]
        best[inside][better] = len(starts)
        starts.append(start)
        sizes.append(size)
        if start + size == length:
            break
        start += min(size, doc_stride)
    return starts, sizes, best


def check_lengths(max_seq_length, doc_stride, max_query_length):
    """Refuses lengths with which no window could move on (ValueError)."""
    if max_query_length < 0:
        raise ValueError(
            f"--max_query_length is {max_query_length}; it must be at least 0"
        )
    if max_seq_length <= max_query_length + 3:
        raise ValueError(
            f"--max_seq_length ({max_seq_length}) must be greater than "
            f"--max_query_length ({max_query_length}) + 3, the question and "
            "[CLS], [SEP], [SEP]; raise the first or lower the second"
        )
    if doc_stride < 1:
        raise ValueError(
            f"--doc_stride is {doc_stride}; it must be at least 1, or the "
            "windows would never reach the end of the passage"
        )


# --- features -----------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class WindowMaker:
    """Callable: an example -> list of its windows (dicts), unpadded.

    A window has `input_ids`, `segment_ids` (int32 [T of the window]),
    `unique_id`, `example_index`, `doc_span_index`; for post-processing
    `length`, `doc_offset` (position of its first passage piece), `doc_start`
    (that piece's number in the passage), `doc_length`, and int32/bool arrays
    [doc_length] `starts`, `ends` (characters), `words`, `max_context` (views:
    the passage's own arrays are shared); in training `start_position`,
    `end_position` (positions in the window, 0 and 0 for no answer) and
    `is_impossible` (0 or 1).

    With `is_training` and neither `version_2_with_negative` nor
    `original_alignment`, windows that do not hold the whole answer are left
    out, and a question without any window is counted in `counts`.
    `truncate` keeps the first window only; `passage_first` gives
    [CLS] passage [SEP] question [SEP]. An empty passage has no windows.
    ValueError for impossible lengths."""

    tokenizer: object
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    is_training: bool = False
    version_2_with_negative: bool = False
    original_alignment: bool = False
    passage_first: bool = False
    truncate: bool = False

    def __post_init__(self):
        check_lengths(
            self.max_seq_length, self.doc_stride, self.max_query_length
        )
        self.next_unique_id = FIRST_UNIQUE_ID
        self.counts = collections.Counter()
        self._cls, self._sep = self.tokenizer.convert_tokens_to_ids(
            ["[CLS]", "[SEP]"]
        )
        self._passage = functools.lru_cache(maxsize=4)(self._read_passage)

    def _read_passage(self, context):
        return Passage(context, self.tokenizer)

    def passage(self, example):
        """The example's Passage; tokenized once for the last few passages."""
        return self._passage(example.context_text)

    def __call__(self, example, example_index=0):
        passage = self.passage(example)
        question = self.tokenizer.encode(example.question_text)
        if len(question) > self.max_query_length:
            self.counts["questions cut to max_query_length"] += 1
            question = question[: self.max_query_length]
        span = self.answer_span(example, passage) if self.is_training else None
        room = self.max_seq_length - len(question) - 3
        length = len(passage)
        if self.truncate and length > room:
            self.counts["passages cut to one window"] += 1
            length = room
        starts, sizes, best = window_geometry(length, room, self.doc_stride)
        windows = []
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            labels = self._labels(example, span, start, size)
            if labels is None:
                continue
            window = self._window(question, passage, start, size)
            window["max_context"] = best[start : start + size] == number
            window["doc_span_index"] = number
            window["example_index"] = example_index
            if self.is_training:
                _add_labels(window, labels, example.is_impossible)
            window["unique_id"] = self.next_unique_id
            self.next_unique_id += 1
            windows.append(window)
        self._count(windows, starts)
        return windows

    def answer_span(self, example, passage):
        """(first, last) piece of the training answer; None if it has none."""
        if example.is_impossible:
            return None
        if self.original_alignment:
            if example.start_position is None:
                return None
            answer_tokens = self.tokenizer.tokenize(example.orig_answer_text)
            return passage.span_of_words(
                example.start_position, example.end_position, answer_tokens
            )
        if not example.answers:
            return None
        text, start = example.answers[0]
        return passage.span_of_characters(start, start + len(text))

    def _labels(self, example, span, start, size):
        """(first, last) relative to the window, () for none, None to skip."""
        if span and span[0] >= start and span[1] < start + size:
            return span[0] - start, span[1] - start
        keep = (
            not self.is_training
            or self.version_2_with_negative
            or self.original_alignment
        )
        return () if keep else None

    def _window(self, question, passage, start, size):
        inside = slice(start, start + size)
        ids = passage.ids[inside]
        first, second = (
            (ids, question) if self.passage_first else (question, ids)
        )
        input_ids = np.concatenate(
            [[self._cls], first, [self._sep], second, [self._sep]]
        ).astype(np.int32)
        segment_ids = np.ones(len(input_ids), np.int32)
        segment_ids[: len(first) + 2] = 0
        return {
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "length": len(input_ids),
            "doc_start": start,
            "doc_offset": 1 if self.passage_first else len(question) + 2,
            "doc_length": size,
            "starts": passage.starts[inside],
            "ends": passage.ends[inside],
            "words": passage.words[inside],
        }

    def _count(self, windows, starts):
        self.counts["windows"] += len(windows)
        if not starts:
            self.counts["empty passages"] += 1
        if self.truncate or not self.is_training:
            return
        if starts and not windows:
            self.counts["questions left out: no window holds the answer"] += 1
        elif len(windows) < len(starts):
            dropped = len(starts) - len(windows)
            self.counts["windows left out: without the answer"] += dropped


def _add_labels(window, labels, is_impossible):
    first, last = labels or (0, 0)
    offset = window["doc_offset"] if labels else 0
    window["start_position"] = offset + first
    window["end_position"] = offset + last
    window["is_impossible"] = int(is_impossible)


def input_features(window, tokenizer, max_seq_length):
    """A window as the original's padded InputFeatures."""
    ids = window["input_ids"].tolist()
    padding = [0] * (max_seq_length - len(ids))
    offset = window["doc_offset"]
    return InputFeatures(
        unique_id=window["unique_id"],
        example_index=window["example_index"],
        doc_span_index=window["doc_span_index"],
        tokens=tokenizer.convert_ids_to_tokens(ids),
        token_to_orig_map=dict(enumerate(window["words"].tolist(), offset)),
        token_is_max_context=dict(
            enumerate(window["max_context"].tolist(), offset)
        ),
        input_ids=ids + padding,
        input_mask=[1] * len(ids) + padding,
        segment_ids=window["segment_ids"].tolist() + padding,
        start_position=window.get("start_position"),
        end_position=window.get("end_position"),
        is_impossible=bool(window.get("is_impossible")),
    )


def convert_examples_to_features(
    examples,
    tokenizer,
    max_seq_length,
    doc_stride,
    max_query_length,
    is_training,
    output_fn,
    original_alignment=True,
    version_2_with_negative=False,
):
    """Hands each window of the examples to output_fn, as InputFeatures.

    The original's function and, by default, its result. Returns the counts of
    `WindowMaker`."""
    maker = WindowMaker(
        tokenizer,
        max_seq_length,
        doc_stride,
        max_query_length,
        is_training,
        version_2_with_negative,
        original_alignment,
    )
    for index, example in enumerate(examples):
        for window in maker(example, index):
            output_fn(input_features(window, tokenizer, max_seq_length))
    return maker.counts
