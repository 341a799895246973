"""Answers of reading comprehension from the logits of spans.

By default an answer is the slice of the raw passage from its first to its last
piece, with its character offsets; as in the original, blanks in a row (space,
tab, line ends, U+202F) become one space. An answer may start or end inside a
word, where a piece does. The original alignment guesses it from the pieces and
the white-space words around them, as run_squad.py of google-research/bert
does, quirks included. Which spans compete is the same in both: the n best
starts and ends of each window. Everything up to the n-best list is worked out
with numpy for many windows at once.
Letters: W windows, L positions.
"""

import collections
import functools
import json
import math
import os
import re
from typing import NamedTuple

import numpy as np

import text_files
import tokenization

# Null odds of a question for which no span at all can be an answer: so large
# that every threshold says "no answer", and finite, as JSON needs it.
NO_SPAN_ODDS = 10000.0
_WINDOWS_AT_ONCE = 256
_BLANKS = re.compile("[ \t\r\n\u202f]+")


# --- the original's small functions -------------------------------------------


def get_best_indexes(logits, n_best_size):
    """Positions of the n largest logits, best first; ties: lower first."""
    order = np.argsort(-np.asarray(logits, np.float64), kind="stable")
    return order[:n_best_size].tolist()


def compute_softmax(scores):
    """Probabilities of raw scores; [] for none."""
    if not scores:
        return []
    highest = max(scores)
    exponents = [math.exp(score - highest) for score in scores]
    total = 0.0
    for exponent in exponents:
        total += exponent
    return [exponent / total for exponent in exponents]


@functools.lru_cache(maxsize=4)
def _basic_tokenizer(do_lower_case):
    return tokenization.BasicTokenizer(do_lower_case=do_lower_case)


@functools.lru_cache(maxsize=1 << 14)
def _spaced_and_dense(text, do_lower_case):
    """(basic tokens joined by blanks, that without blanks, place of each)."""
    spaced = " ".join(_basic_tokenizer(do_lower_case).tokenize(text))
    return (spaced, *_without_blanks(spaced))


def _without_blanks(text):
    places = [place for place, char in enumerate(text) if char != " "]
    return "".join(text[place] for place in places), places


def get_final_text(pred_text, orig_text, do_lower_case):
    """The original's guess which part of orig_text pred_text stands for.

    `pred_text` is joined pieces, `orig_text` the words they come from. The
    first place where pred_text occurs in the tokenized words is taken; the
    whole of orig_text if there is none or if tokenizing changed the number of
    characters. Kept for `original_alignment`: offsets need no guess."""
    spaced, dense, places = _spaced_and_dense(orig_text, do_lower_case)
    start = spaced.find(pred_text)
    if start < 0 or not pred_text:
        return orig_text
    orig_dense, orig_places = _without_blanks(orig_text)
    if len(dense) != len(orig_dense):
        return orig_text
    dense_place = {place: number for number, place in enumerate(places)}
    first = dense_place.get(start)
    last = dense_place.get(start + len(pred_text) - 1)
    if first is None or last is None:
        return orig_text
    return orig_text[orig_places[first] : orig_places[last] + 1]


# --- answers ------------------------------------------------------------------


class Answers:
    """What post-processing gives, keyed by question id in example order.

    `predictions`: id -> text ("" for no answer). `nbest`: id -> list of dicts
    text, probability, start_logit, end_logit and, but for the original
    alignment, answer_start and answer_end (characters of the raw passage, end
    exclusive, None for no answer). `null_odds`: id -> score of "no answer"
    minus score of the best answer (2.0 only). `best_texts`: id -> best text
    that is not empty ("" if there is none), for choosing a threshold."""

    def __init__(self):
        self.predictions = collections.OrderedDict()
        self.nbest = collections.OrderedDict()
        self.null_odds = collections.OrderedDict()
        self.best_texts = collections.OrderedDict()

    def write(self, directory, version_2_with_negative=False):
        """Writes predictions.json, nbest_predictions.json, null_odds.json."""
        write_json(
            os.path.join(directory, "predictions.json"), self.predictions
        )
        write_json(
            os.path.join(directory, "nbest_predictions.json"), self.nbest
        )
        if version_2_with_negative:
            write_json(
                os.path.join(directory, "null_odds.json"), self.null_odds
            )


def write_json(path, value):
    """Writes JSON as the original does (4 blanks, ASCII), whole or not."""
    with text_files.whole_file(path) as file:
        file.write(json.dumps(value, indent=4) + "\n")


class _Candidates(NamedTuple):
    """Spans, one entry of each array: where they are, and their logits."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


class _Entry(NamedTuple):
    """An answer, "" for none, its logits and its place in the passage."""

    text: str
    start_logit: float
    end_logit: float
    answer_start: int | None = None
    answer_end: int | None = None

    @property
    def score(self):
        """The sum of both logits."""
        return self.start_logit + self.end_logit


class _Settings:
    """The post-processing options, checked once."""

    def __init__(self, **options):
        self.__dict__.update(options)
        for name in ("n_best_size", "max_answer_length"):
            if options[name] < 1:
                raise ValueError(
                    f"--{name} is {options[name]}; it must be at least 1"
                )
        if self.original_alignment and self.tokenizer is None:
            raise ValueError(
                "original_alignment rebuilds answers from pieces and needs "
                "the tokenizer"
            )


def answers_from_logits(
    examples,
    windows,
    start_logits,
    end_logits,
    *,
    n_best_size=20,
    max_answer_length=30,
    version_2_with_negative=False,
    null_score_diff_threshold=0.0,
    null_logits=None,
    original_alignment=False,
    padding_competes=None,
    tokenizer=None,
    do_lower_case=True,
):
    """Chooses the answers; returns Answers.

    `windows`: what WindowMaker gave for prediction, any order, with
    `example_index` counting `examples`; `start_logits`, `end_logits`: float
    [W, L], or W rows of at least the window's length. Per window the
    n_best_size best starts and ends over all positions are paired, as in the
    original; columns beyond a window's length count only with
    `padding_competes` (None: with original_alignment). `null_logits`: float
    [W] of a no-answer classifier, positive for "no answer", instead of the
    logits of [CLS].

    Without any valid span the answer is "" (the word "empty" with
    original_alignment and no 2.0), and in 2.0 the odds compare with the best
    span outside the n-best, or are NO_SPAN_ODDS. ValueError for rows that are
    too short or not numbers. `tokenizer` and `do_lower_case` serve
    original_alignment only. Memory is bounded: 256 windows at a time."""
    if padding_competes is None:
        padding_competes = original_alignment
    settings = _Settings(
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        version_2_with_negative=version_2_with_negative,
        threshold=null_score_diff_threshold,
        original_alignment=original_alignment,
        padding_competes=padding_competes,
        tokenizer=tokenizer,
        do_lower_case=do_lower_case,
    )
    return _choose_all(
        examples, windows, start_logits, end_logits, null_logits, settings
    )


def _choose_all(
    examples, windows, start_logits, end_logits, null_logits, settings
):
    for name, rows in (("start", start_logits), ("end", end_logits)):
        if len(rows) != len(windows):
            raise ValueError(
                f"{len(rows)} rows of {name} logits for {len(windows)} windows"
            )
    by_example = [[] for _ in examples]
    for number, window in enumerate(windows):
        by_example[window["example_index"]].append(number)
    answers = Answers()
    for group in _groups(by_example):
        numbers = [number for index in group for number in by_example[index]]
        table = _LogitTable(
            windows, start_logits, end_logits, numbers, settings
        )
        for index in group:
            chooser = _Chooser(examples[index], table, settings)
            own = by_example[index]
            chooser.choose(own, null_logits)
            chooser.store(answers)
    return answers


def _groups(by_example):
    """Runs of example numbers with about _WINDOWS_AT_ONCE windows each."""
    group, size = [], 0
    for index, numbers in enumerate(by_example):
        if group and size + len(numbers) > _WINDOWS_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(index)
        size += len(numbers)
    if group:
        yield group


class _LogitTable:
    """The candidates and null scores of some windows, worked out together."""

    def __init__(self, windows, start_logits, end_logits, numbers, settings):
        self.windows = windows
        self.start_logits = start_logits
        self.end_logits = end_logits
        self.settings = settings
        self.null = {}
        self.candidates = {}
        for first in range(0, len(numbers), _WINDOWS_AT_ONCE):
            self._work_out(numbers[first : first + _WINDOWS_AT_ONCE])

    def _rows(self, logits, numbers, name):
        """Rows as float32 [W, L], -inf where a row or a window has ended."""
        rows = [np.asarray(logits[number], np.float32) for number in numbers]
        widest = max(len(row) for row in rows)
        table = np.full((len(rows), widest), -np.inf, np.float32)
        for place, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            length = self.windows[number]["length"]
            if len(row) < length:
                raise ValueError(
                    f"window {number} has {length} positions but only "
                    f"{len(row)} {name} logits"
                )
            if not self.settings.padding_competes:
                row = row[:length]
            table[place, : len(row)] = row
        if np.isnan(table).any():
            number = numbers[int(np.isnan(table).any(axis=1).argmax())]
            raise ValueError(
                f"the {name} logits of window {number} are not numbers (NaN): "
                "the checkpoint has diverged"
            )
        return table

    def _allowed(self, numbers, width):
        """bool [W, L] twice: may a span start, may it end here."""
        starts = np.zeros((len(numbers), width), bool)
        ends = np.zeros((len(numbers), width), bool)
        for place, number in enumerate(numbers):
            window = self.windows[number]
            first = window["doc_offset"]
            inside = slice(first, first + window["doc_length"])
            starts[place, inside] = window["max_context"]
            ends[place, inside] = True
        return starts, ends

    def _work_out(self, numbers):
        settings = self.settings
        starts = self._rows(self.start_logits, numbers, "start")
        ends = self._rows(self.end_logits, numbers, "end")
        may_start, may_end = self._allowed(numbers, starts.shape[1])
        best = settings.n_best_size
        top_s = np.argsort(-starts, axis=1, kind="stable")[:, :best]
        top_e = np.argsort(-ends, axis=1, kind="stable")[:, :best]
        size = top_e[:, None, :] - top_s[:, :, None]
        valid = (size >= 0) & (size < settings.max_answer_length)
        valid &= np.take_along_axis(may_start, top_s, 1)[:, :, None]
        valid &= np.take_along_axis(may_end, top_e, 1)[:, None, :]
        row, s_rank, e_rank = np.nonzero(valid)
        start, end = top_s[row, s_rank], top_e[row, e_rank]
        start_logit = starts[row, start].astype(np.float64)
        end_logit = ends[row, end].astype(np.float64)
        bounds = np.searchsorted(row, np.arange(len(numbers) + 1))
        null = starts[:, 0].astype(np.float64), ends[:, 0].astype(np.float64)
        for place, number in enumerate(numbers):
            own = slice(bounds[place], bounds[place + 1])
            self.candidates[number] = _Candidates(
                np.full(bounds[place + 1] - bounds[place], number),
                start[own],
                end[own],
                start_logit[own],
                end_logit[own],
            )
            self.null[number] = float(null[0][place]), float(null[1][place])

    def best_anywhere(self, number):
        """(score, start, end) of the best valid span of a window, or None."""
        starts = self._rows(self.start_logits, [number], "start")
        ends = self._rows(self.end_logits, [number], "end")
        may_start, may_end = self._allowed([number], starts.shape[1])
        starts = np.where(may_start, starts, -np.inf)[0].astype(np.float64)
        ends = np.where(may_end, ends, -np.inf)[0].astype(np.float64)
        best = None
        for size in range(min(self.settings.max_answer_length, len(starts))):
            scores = starts[: len(starts) - size] + ends[size:]
            place = int(scores.argmax())
            score = float(scores[place])
            if np.isfinite(score) and (best is None or score > best[0]):
                best = score, place, place + size
        return best


class _Chooser:
    """Picks the n best answers of one example."""

    def __init__(self, example, table, settings):
        self.example = example
        self.table = table
        self.settings = settings
        self.entries = []
        self.best = None  # the best entry that is not empty
        self.odds = None

    def choose(self, numbers, null_logits):
        """Fills `entries`, `best` and `odds` from the windows `numbers`."""
        settings = self.settings
        spans = [self.table.candidates[number] for number in numbers]
        columns = zip(*spans, strict=True) if spans else [[np.empty(0)]] * 5
        found = _Candidates(*map(np.concatenate, columns))
        scores = found.start_logit + found.end_logit
        order = np.argsort(-scores, kind="stable")
        null = None
        if settings.version_2_with_negative and numbers:
            null = self._null_entry(numbers, null_logits, found, order)
        self._take(found, scores, order, null)
        if settings.version_2_with_negative:
            self._add_null(null)
            self._set_odds(numbers, null)
        elif not self.entries:
            text = "empty" if settings.original_alignment else ""
            self.entries.append(_Entry(text, 0.0, 0.0))

    def _null_entry(self, numbers, null_logits, found, order):
        """The lowest of the windows' "no answer" scores, as an entry.

        With a classifier's logits it stands that much above the best span, so
        that the odds are the logit."""
        if null_logits is not None:
            logit = min(float(null_logits[number]) for number in numbers)
            self.odds = logit
            if not len(order):
                return _Entry("", logit, 0.0)
            start = float(found.start_logit[order[0]]) + logit
            end = float(found.end_logit[order[0]])
            return _Entry("", start, end)
        lowest = min(numbers, key=lambda number: sum(self.table.null[number]))
        return _Entry("", *self.table.null[lowest])

    def _take(self, found, scores, order, null):
        """Goes down the candidates until n different texts are found."""
        seen = set()
        wanted = self.settings.n_best_size
        for rank in order:
            if null is not None and null.score > scores[rank]:
                self._keep(null, seen, wanted)
                null = None
            if len(self.entries) >= wanted and self.best is not None:
                return
            entry = self._entry(
                self.table.windows[int(found.window[rank])],
                int(found.start[rank]),
                int(found.end[rank]),
                float(found.start_logit[rank]),
                float(found.end_logit[rank]),
            )
            self._keep(entry, seen, wanted)
        if null is not None:
            self._keep(null, seen, wanted)

    def _keep(self, entry, seen, wanted):
        if self.best is None and entry.text:
            self.best = entry
        if len(self.entries) < wanted and entry.text not in seen:
            seen.add(entry.text)
            self.entries.append(entry)

    def _entry(self, window, start, end, start_logit, end_logit):
        offset = window["doc_offset"]
        if not self.settings.original_alignment:
            first = int(window["starts"][start - offset])
            last = int(window["ends"][end - offset])
            text = _BLANKS.sub(" ", self.example.context_text[first:last])
            return _Entry(text, start_logit, end_logit, first, last)
        ids = window["input_ids"][start : end + 1].tolist()
        pieces = " ".join(self.settings.tokenizer.convert_ids_to_tokens(ids))
        pieces = pieces.replace(" ##", "").replace("##", "")
        words = window["words"]
        first, last = int(words[start - offset]), int(words[end - offset])
        text = get_final_text(
            " ".join(pieces.split()),
            " ".join(self.example.doc_tokens[first : last + 1]),
            self.settings.do_lower_case,
        )
        return _Entry(text, start_logit, end_logit)

    def _add_null(self, null):
        if all(entry.text for entry in self.entries):
            empty = _Entry("", 0.0, 0.0)
            self.entries.append(empty if null is None else null)

    def _set_odds(self, numbers, null):
        if null is None:
            self.odds = NO_SPAN_ODDS
        if self.odds is not None:
            return
        if self.best is not None:
            self.odds = null.score - self.best.score
            return
        found = (self.table.best_anywhere(number) for number in numbers)
        found = [best[0] for best in found if best is not None]
        self.odds = null.score - max(found) if found else NO_SPAN_ODDS

    def store(self, answers):
        """Puts the choice into `answers`."""
        key = self.example.qas_id
        probabilities = compute_softmax([entry.score for entry in self.entries])
        rows = []
        for entry, probability in zip(self.entries, probabilities, strict=True):
            row = collections.OrderedDict(
                text=entry.text,
                probability=probability,
                start_logit=entry.start_logit,
                end_logit=entry.end_logit,
            )
            if not self.settings.original_alignment:
                row["answer_start"] = entry.answer_start
                row["answer_end"] = entry.answer_end
            rows.append(row)
        answers.nbest[key] = rows
        best = "" if self.best is None else self.best.text
        answers.best_texts[key] = best
        if not self.settings.version_2_with_negative:
            answers.predictions[key] = self.entries[0].text
            return
        answers.null_odds[key] = self.odds
        no_answer = self.odds > self.settings.threshold
        answers.predictions[key] = "" if no_answer else best
