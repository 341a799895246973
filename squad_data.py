"""Readers of reading comprehension files.

SQuAD 1.1 and 2.0 (and what shares their layout: CMRC 2018, DRCD,
DuReader-robust, XQuAD), the flat layout with an answers table, CMRC 2018's own
nesting, and DuReader 2.0 JSON lines. The layout is told from the content.
Everything is checked when read; messages name file, line, path in the file and
question id.
"""

import bisect
import collections
import json
import re
from typing import NamedTuple

from reading_comprehension import SquadExample, align_to_words
from text_files import GZIP_START, json_places, parse_json

_SHOWN = 20  # messages kept in a report
_NEARBY = (0, -1, 1, -2, 2)
_SENTENCE = re.compile(r"[^。！？!?；;\n]*[。！？!?；;\n]?")
_LEAST_OVERLAP = 0.5


class ReadReport:
    """What was found in a file: `layout`, `counts` and the first messages."""

    def __init__(self, path):
        self.path = str(path)
        self.shown = _SHOWN
        self.layout = None
        self.counts = collections.Counter()
        self.messages = []

    def note(self, kind, message):
        """Counts a finding and keeps its message if there is room."""
        self.counts[kind] += 1
        if len(self.messages) < self.shown:
            self.messages.append(message)

    def lines(self):
        """The report as lines for the log."""
        counts = [f"{number} {kind}" for kind, number in self.counts.items()]
        lines = [f"{self.path} ({self.layout}): " + ", ".join(counts)]
        return lines + self.messages


ReadResult = collections.namedtuple("ReadResult", "examples report")


def read_examples(
    path,
    is_training=False,
    version_2_with_negative=False,
    original_alignment=False,
    shown=_SHOWN,
):
    """Reads any known layout; returns ReadResult(examples, report).

    An answer that is not at its offset is looked for within 2 characters;
    elsewhere it is reported and counted. In training a question has its first
    usable answer (the count "questions with several answers" says how many
    had more), a question without any usable one is left out and counted, and
    without `version_2_with_negative` an unanswerable one is an error.
    `original_alignment` uses the offsets as they are, by the original's rule.
    The report keeps the first `shown` messages.
    ValueError for bad UTF-8 or JSON, missing or wrong fields, duplicate ids
    and files without a question."""
    reader = _Reader(
        path, is_training, version_2_with_negative, original_alignment
    )
    reader.report.shown = shown
    reader.read()
    return ReadResult(reader.examples, reader.report)


def read_squad_examples(
    input_file,
    is_training,
    version_2_with_negative=False,
    original_alignment=True,
):
    """The original's reader: a list of SquadExample with word positions.

    As there, a training question must have exactly one answer unless it is
    unanswerable (ValueError)."""
    reader = _Reader(
        input_file,
        is_training,
        version_2_with_negative,
        original_alignment,
        several_answers=False,
    )
    reader.read()
    return reader.examples


class _Place(NamedTuple):
    """Where in the file something stands, for messages."""

    reader: "_Reader"
    path: str
    needle: str | None = None
    line: int | None = None

    def __str__(self):
        line = self.line or self.reader.line_of(self.path)
        path = self.path or "the file"
        where = f"{self.reader.report.path}:{line}: {path}"
        return f"{where} (id {self.needle})" if self.needle else where

    def child(self, path, needle=None):
        """A place further down."""
        needle = self.needle if needle is None else needle
        return _Place(self.reader, self.path + path, needle, self.line)


class _Reader:
    """Reads one file into `examples` and `report`."""

    def __init__(
        self,
        path,
        is_training,
        version_2_with_negative,
        original_alignment,
        several_answers=True,
    ):
        self.report = ReadReport(path)
        self.is_training = is_training
        self.version_2 = version_2_with_negative
        self.original_alignment = original_alignment
        self.several_answers = several_answers
        self.examples = []
        self.ids = {}
        self.text = ""
        self._places = self._line_ends = None  # until a line is asked for

    # --- the file ---

    def read(self):
        """Reads the whole file."""
        with open(self.report.path, "rb") as file:
            raw = file.read()
        if raw.startswith(GZIP_START):
            raise ValueError(
                f"{self.report.path}: is a gzip file. Unpack it first."
            )
        try:
            self.text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ValueError(
                f"{self.report.path}:{line}: not valid UTF-8 "
                f"({error.reason}, byte {error.start}); save the file as UTF-8"
            ) from None
        if not self.text.strip():
            raise ValueError(
                f"{self.report.path}: is empty. Is it the right file, and "
                "whole?"
            )
        first_line = self.text.lstrip().split("\n", 1)[0]
        if self._is_json_line(first_line):
            self._read_json_lines()
        else:
            self._read_json()
        if not self.ids:
            raise ValueError(f"{self.report.path}: holds no question")
        self.report.counts["examples"] = len(self.examples)
        self.text = ""
        self._places = self._line_ends = None

    def _is_json_line(self, line):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and "documents" in value

    def _read_json(self):
        content = parse_json(self.report.path, self.text)
        if isinstance(content, list):
            self.report.layout = "CMRC 2018 nesting"
            for number, entry in enumerate(content):
                self._read_cmrc(entry, _Place(self, f"[{number}]"))
            return
        place = _Place(self, "data")
        entries = self._field(content, "data", list, _Place(self, ""))
        self.report.layout = "SQuAD layout"
        for number, entry in enumerate(entries):
            self._read_entry(entry, place.child(f"[{number}]"))

    def _read_json_lines(self):
        self.report.layout = "DuReader JSON lines"
        for number, line in enumerate(self.text.split("\n"), 1):
            if not line.strip():
                continue
            row = parse_json(self.report.path, line, number)
            self._read_dureader(row, _Place(self, "row", line=number))

    def line_of(self, path):
        """The line of the id of what has this path, or where it begins."""
        if self._places is None:
            try:
                self._places = json_places(self.text)
            except RecursionError:  # nested as deeply as can be read
                self._places = {}
            self._line_ends = [
                match.start() for match in re.finditer("\n", self.text)
            ]
        names = [f"{path}.id", f"{path}.query_id"]
        while path:  # what the file has another form of is not found itself
            names.append(path)
            path = re.sub(r"(\.?[^.\[]+|\[\d+\])$", "", path)
        found = (self._places[name] for name in names if name in self._places)
        place = next(found, 0)
        return bisect.bisect_left(self._line_ends, place) + 1

    # --- layouts ---

    def _read_entry(self, entry, place):
        """An article of SQuAD, or a question of the flat layout."""
        if isinstance(entry, dict) and "paragraphs" not in entry:
            if "context" in entry and "question" in entry:
                self.report.layout = "flat layout"
                context = self._field(entry, "context", str, place)
                self._read_question(entry, context, place)
                return
        paragraphs = self._field(entry, "paragraphs", list, place)
        for number, paragraph in enumerate(paragraphs):
            inner = place.child(f".paragraphs[{number}]")
            context = self._field(paragraph, "context", str, inner)
            questions = self._field(paragraph, "qas", list, inner)
            for question_number, question in enumerate(questions):
                self._read_question(
                    question, context, inner.child(f".qas[{question_number}]")
                )

    def _read_question(self, question, context, place):
        qas_id = self._id(question, "id", place)
        place = place.child("", qas_id)
        text = self._field(question, "question", str, place)
        answers = self._answers(question, place)
        impossible = self._is_impossible(question, answers, place)
        self._add(qas_id, text, context, answers, impossible, place)

    def _answers(self, question, place):
        """List of (text, offset), None if the file does not say.

        The flat layout has an object of two lists instead."""
        answers = question.get("answers")
        if answers is None:
            if self.is_training and not question.get("is_impossible"):
                raise ValueError(
                    f"{place}: the field 'answers' is missing; training needs "
                    "it"
                )
            return [] if question.get("is_impossible") else None
        if isinstance(answers, dict):
            texts = self._field(answers, "text", list, place)
            starts = self._field(answers, "answer_start", list, place)
            if len(texts) != len(starts):
                raise ValueError(
                    f"{place}: {len(texts)} answer texts but {len(starts)} "
                    "answer starts"
                )
            answers = [
                {"text": text, "answer_start": start}
                for text, start in zip(texts, starts, strict=True)
            ]
        if not isinstance(answers, list):
            raise ValueError(f"{place}: the field 'answers' must be a list")
        pairs = []
        for number, answer in enumerate(answers):
            inner = place.child(f".answers[{number}]")
            pairs.append(
                (
                    self._field(answer, "text", str, inner),
                    self._field(answer, "answer_start", int, inner),
                )
            )
        return pairs

    def _read_cmrc(self, entry, place):
        """A passage of CMRC 2018's own nesting: answers without offsets."""
        context = self._field(entry, "context_text", str, place)
        for number, question in enumerate(
            self._field(entry, "qas", list, place)
        ):
            inner = place.child(f".qas[{number}]")
            qas_id = self._id(question, "query_id", inner)
            inner = inner.child("", qas_id)
            text = self._field(question, "query_text", str, inner)
            answers = self._texts(question, inner)
            pairs = answers and [(item, context.find(item)) for item in answers]
            self._add(qas_id, text, context, pairs, not answers, inner)

    def _texts(self, question, place, name="answers"):
        """Answers without offsets: a list of str, None if not given."""
        answers = question.get(name)
        if answers is None and not (self.is_training and name == "answers"):
            return None
        if not isinstance(answers, list) or not all(
            isinstance(answer, str) for answer in answers
        ):
            raise ValueError(
                f"{place}: the field '{name}' must be a list of strings"
            )
        return answers

    def _read_dureader(self, row, place):
        """A question with documents: their paragraphs, one a line, are the
        passage. In training, only documents marked is_selected, if any."""
        qas_id = self._id(row, "question_id", place)
        place = place.child("", qas_id)
        question = self._field(row, "question", str, place)
        documents = self._field(row, "documents", list, place)
        paragraphs = []
        for number, document in enumerate(documents):
            inner = place.child(f".documents[{number}]")
            own = self._field(document, "paragraphs", list, inner)
            if not all(isinstance(paragraph, str) for paragraph in own):
                raise ValueError(f"{inner}: a paragraph is not a string")
            paragraphs.append((bool(document.get("is_selected")), own))
        chosen = [own for selected, own in paragraphs if selected]
        if not (self.is_training and chosen):
            chosen = [own for _, own in paragraphs]
        context = "\n".join(text for own in chosen for text in own)
        answers = self._texts(row, place)
        pairs = [(answer, context.find(answer)) for answer in answers or ()]
        if self.is_training and all(start < 0 for _, start in pairs):
            written = self._written_answers(row, context, answers, place)
            pairs = written + pairs
        self._add(qas_id, question, context, pairs, not answers, place, answers)

    def _written_answers(self, row, context, answers, place):
        """Spans for answers that were written freely, not copied.

        The file's own `fake_answers` where they stand in the passage, else
        the run of sentences that shares most characters with an answer."""
        for answer in self._texts(row, place, "fake_answers") or []:
            if answer and answer in context:
                self.report.counts["answers by fake_answers"] += 1
                return [(answer, context.find(answer))]
        found = [closest_sentences(context, answer) for answer in answers]
        found = [span for span in found if span is not None]
        if not found:
            return []
        _, start, end = max(found)
        self.report.counts["answers by the closest sentences"] += 1
        return [(context[start:end], start)]

    # --- checks ---

    def _field(self, mapping, name, kind, place):
        if not isinstance(mapping, dict):
            raise ValueError(f"{place}: must be a JSON object")
        if name not in mapping:
            raise ValueError(f"{place}: the field '{name}' is missing")
        value = mapping[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(
                f"{place}: the field '{name}' must be of type "
                f"{kind.__name__}, not {type(value).__name__}"
            )
        return value

    def _id(self, mapping, name, place):
        value = mapping.get(name) if isinstance(mapping, dict) else None
        if isinstance(value, int) and not isinstance(value, bool):
            mapping = {name: str(value)}
        qas_id = self._field(mapping, name, str, place)
        if qas_id in self.ids:
            raise ValueError(
                f"{place.child('', qas_id)}: this question id stands at "
                f"{self.ids[qas_id]} already; ids must be unique, or "
                "predictions would be lost"
            )
        self.ids[qas_id] = place
        return qas_id

    def _is_impossible(self, question, answers, place):
        value = question.get("is_impossible")
        if value is None:
            return not answers
        if not isinstance(value, bool):
            raise ValueError(
                f"{place}: the field 'is_impossible' must be true or false"
            )
        return value

    # --- examples ---

    def _add(
        self, qas_id, question, context, answers, impossible, place, texts=None
    ):
        """Adds an example, or counts why not."""
        if texts is None and answers is not None:
            texts = [] if impossible else [text for text, _ in answers]
        example = SquadExample(
            qas_id,
            question,
            context_text=context,
            answer_texts=texts,
            where=place.path,
        )
        if impossible or answers is None:
            answers = []
        if not self.is_training:
            example.answers = self._usable(context, answers, place)
            self.examples.append(example)
            return
        if impossible:
            self._add_impossible(example, place)
            return
        self._check_number(answers, place)
        if self.original_alignment:
            usable = self._align_as_original(example, answers[0], place)
        else:
            example.answers = self._usable(context, answers, place)
            usable = bool(example.answers)
            if usable:
                example.orig_answer_text = example.answers[0][0]
        if usable:
            self.examples.append(example)
        else:
            self.report.counts["questions left out: no usable answer"] += 1

    def _add_impossible(self, example, place):
        if not self.version_2:
            raise ValueError(
                f"{place}: this training question has no answer; give "
                "--version_2_with_negative to learn unanswerable questions, "
                "or remove it"
            )
        example.is_impossible = True
        example.orig_answer_text = ""
        example.start_position = example.end_position = -1
        self.examples.append(example)

    def _check_number(self, answers, place):
        if not answers or (len(answers) > 1 and not self.several_answers):
            raise ValueError(
                f"{place}: For training, each question should have exactly 1 "
                f"answer. This one has {len(answers)}."
            )
        if len(answers) > 1:
            self.report.counts["questions with several answers"] += 1

    def _align_as_original(self, example, answer, place):
        text, start = answer
        if align_to_words(example, text, start):
            example.answers = [answer]
            return True
        self.report.note(
            "answers not found in the passage",
            f"{place}: the answer {_short(text)} is not in the words at its "
            f"offset {start}",
        )
        return False

    def _usable(self, context, answers, place):
        """The answers that stand at their place, offsets repaired."""
        usable = []
        for text, start in answers:
            found = locate_answer(context, text, start)
            if found is None:
                where = (
                    f"at offset {start} of the passage, nor within 2 "
                    "characters of it"
                )
                if start < 0:  # the layout has no offsets
                    where = "in the passage"
                self.report.note(
                    "answers not at their offset",
                    f"{place}: the answer {_short(text)} is not {where}",
                )
                continue
            if found[1] != start or found[0] != text:
                self.report.counts["answer offsets repaired"] += 1
            usable.append(found)
        return usable


def _short(text):
    return repr(text if len(text) <= 40 else text[:37] + "...")


def locate_answer(context, text, start):
    """(text, offset) of an answer within 2 characters of `start`, or None.

    Tries the text as it is, then without the blanks around it. A text of
    blanks only is never found."""
    bare = text.strip()
    if not bare:
        return None
    lead = len(text) - len(text.lstrip())
    for wanted, place in ((text, start), (bare, start + lead), (bare, start)):
        for distance in _NEARBY:
            here = place + distance
            if here >= 0 and context.startswith(wanted, here):
                return wanted, here
    return None


def closest_sentences(context, answer):
    """(overlap, start, end) of the sentences nearest to a free answer, or None.

    The run of at most 8 sentences of one paragraph with the highest F1 of
    character counts; None below 0.5."""
    wanted = collections.Counter(answer)
    best = None
    spans = [match.span() for match in _SENTENCE.finditer(context)]
    spans = [span for span in spans if context[span[0] : span[1]].strip()]
    for first in range(len(spans)):
        have, shared = collections.Counter(), 0
        start = done = spans[first][0]
        for _, end in spans[first : first + 8]:
            for char in context[done:end]:
                have[char] += 1
                shared += have[char] <= wanted[char]
            done = end
            score = 2 * shared / (end - start + len(answer))
            if best is None or score > best[0]:
                best = score, start, end
            if context[end - 1] == "\n" or end - start > 2 * len(answer):
                break
    if best is None or best[0] < _LEAST_OVERLAP:
        return None
    score, start, end = best
    found = context[start:end]
    start += len(found) - len(found.lstrip())
    return score, start, start + len(found.strip())
