"""Multiple choice: SWAG, HellaSwag, RACE, idiom cloze and own JSON lines.

    train = read_choices("train.csv")
    ids_and_segments = encode_choices(tokenizer, train[0], max_seq_length=128)

HellaSwag, RACE and the CSV form of SWAG follow their publishers'
descriptions. Labels may be missing (test sets). What is wrong with a row is a
ValueError with file and line."""

import dataclasses
import json
import os
import re

from text_files import (
    json_text,
    json_texts,
    located,
    parse_json,
    read_csv,
    read_json_lines,
    read_lines,
)

IDIOM_MARK = "#idiom#"


@dataclasses.dataclass(eq=False, slots=True)
class ChoiceExample:
    """One question: a context and two or more endings, one of them right.

    Each choice is the pair (context, question + ending); where `context`
    holds IDIOM_MARK, it is the context alone with the ending in its place.
    `label` is the number of the right ending from 0, or None. `cut` is the
    end of a context that may be lost: 'tail' or 'head'."""

    guid: str
    context: str
    endings: list
    label: int | None = None
    question: str = ""
    source: str | None = None
    cut: str = "tail"


def is_cloze(example):
    """Whether the choices stand within the context, not behind it."""
    return IDIOM_MARK in example.context


def read_choices(path, labelled=True):
    """The ChoiceExamples of a .csv (SWAG), JSON lines, or a RACE directory.

    The form of a JSON row is known by its fields: sent1, sent2, ending0...
    (SWAG); ctx or ctx_a, endings (HellaSwag); article, question(s), options
    (RACE); content, candidates (idiom cloze); context, question, choices,
    label (own: 2 or more choices, label a number from 0 or a letter). With
    `labelled`, a row without a label is an error."""
    if os.path.isdir(path):
        rows = _race_rows(path)
    elif str(path).endswith(".csv"):
        rows = _csv_rows(path)
    else:
        rows = ((path, *row) for row in read_json_lines(path))
    examples = []
    for file, line, record in rows:
        for example in _from_record(file, line, record, len(examples)):
            if labelled and example.label is None:
                said = record.get("label", record.get("answer"))
                said = f"label {said!r} says none" if said else "has no label"
                raise located(
                    file,
                    line,
                    f"{said}, which training and evaluation need. Add one "
                    f"from 0 to {len(example.endings) - 1}, or use the file "
                    "as the test set.",
                )
            examples.append(example)
    if not examples:
        raise ValueError(f"{path}: holds no questions. Give at least one.")
    return examples


def _csv_rows(path):
    """Yields (path, line, dict) of a CSV file with a header."""
    names = None
    for line, cells in read_csv(path):
        if names is None:
            names = [cell.strip() for cell in cells]
            missing = {"sent1", "sent2", "ending0", "ending1"} - set(names)
            if missing:
                raise located(
                    path,
                    line,
                    f"the header has no column {', '.join(sorted(missing))}; "
                    "SWAG files have sent1, sent2, ending0 to ending3 and "
                    "label. Mend it, or give JSON lines.",
                )
            continue
        if len(cells) != len(names):
            raise located(
                path,
                line,
                f"{len(cells)} columns, but {len(names)} as in the header "
                "are expected. Put cells that hold commas in double quotes.",
            )
        yield path, line, dict(zip(names, cells, strict=True))


def _race_rows(directory):
    """Yields (path, 1, dict) of every .txt file below a RACE directory."""
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".txt"):
                continue
            path = os.path.join(folder, name)
            text = "\n".join(text for _, text in read_lines(path))
            remedy = (
                "A RACE file is one object with article, questions, options, "
                "answers."
            )
            record = parse_json(path, text, 1, remedy)
            if not isinstance(record, dict):
                raise located(path, 1, "is no JSON object, as RACE files are.")
            yield path, 1, record


def _from_record(path, line, record, index):
    """Yields the ChoiceExamples of one row (RACE: one for each question)."""
    source = f"{path}:{line}"
    if "sent1" in record:
        question = json_text(path, line, record, "sent2")
        endings = _numbered_endings(path, line, record)
        yield ChoiceExample(
            str(index),
            json_text(path, line, record, "sent1"),
            endings,
            _label(path, line, record.get("label"), endings),
            question,
            source,
            cut="head",
        )
    elif "endings" in record:
        key = "ctx_a" if "ctx_a" in record else "ctx"
        endings = _endings(path, line, record, "endings")
        begun = ""
        if key == "ctx_a":
            begun = json_text(path, line, record, "ctx_b", needed=False)
        yield ChoiceExample(
            str(index),
            json_text(path, line, record, key),
            endings,
            _label(path, line, record.get("label"), endings),
            begun or "",
            source,
            cut="head",
        )
    elif "article" in record:
        yield from _race_questions(path, line, record, index)
    elif "candidates" in record:
        text = json_text(path, line, record, "content")
        _check_blank(path, line, text)
        endings = _endings(path, line, record, "candidates")
        label = _label(path, line, record.get("answer"), endings)
        yield ChoiceExample(str(index), text, endings, label, source=source)
    else:
        yield _own_choice(path, line, record, index)


def _own_choice(path, line, record, index):
    """The ChoiceExample of an own row."""
    if "choices" not in record:
        raise located(
            path,
            line,
            f"has no field 'choices' (it has: {', '.join(record)}). Own "
            "rows have context, question (optional), choices and label.",
        )
    endings = _endings(path, line, record, "choices")
    question = json_text(path, line, record, "question", needed=False)
    context = json_text(path, line, record, "context", needed=question is None)
    if IDIOM_MARK in (context or ""):
        _check_blank(path, line, context)
        if question:
            raise located(
                path,
                line,
                f"a question beside a context with {IDIOM_MARK} is not read. "
                "Put it into the context.",
            )
    label = _label(path, line, record.get("label"), endings)
    source = f"{path}:{line}"
    return ChoiceExample(
        str(index), context or "", endings, label, question or "", source
    )


def _check_blank(path, line, text):
    """Refuses a cloze that has not one place to fill."""
    count = text.count(IDIOM_MARK)
    if count != 1:
        raise located(
            path,
            line,
            f"the text holds {IDIOM_MARK} {count} times, but once is expected. "
            "Mark the one place to fill.",
        )


def _race_questions(path, line, record, index):
    """The questions of a RACE file, or of a row with one question."""
    article = json_text(path, line, record, "article")
    if "questions" in record:
        columns = [record.get("questions"), record.get("options")]
        answers = record.get("answers")
        if not answers and isinstance(columns[0], list):
            answers = [None] * len(columns[0])
        columns.append(answers)
        if not all(isinstance(column, list) for column in columns) or (
            len({len(column) for column in columns}) != 1
        ):
            raise located(
                path,
                line,
                "questions, options and answers are not lists of one length. "
                "Mend the file.",
            )
    else:
        columns = [
            [record.get(key)] for key in ("question", "options", "answer")
        ]
    for shift, (question, options, answer) in enumerate(
        zip(*columns, strict=True)
    ):
        row = {"question": question, "options": options}
        question = json_text(path, line, row, "question")
        endings = _endings(path, line, row, "options")
        label = _label(path, line, answer, endings)
        if "_" in question:  # a cloze: the option stands in the blank
            left, *rest = re.split("_+", question)
            endings = [f" {e} ".join([left, *rest]) for e in endings]
            question = ""
        guid = str(record.get("id", index + shift))
        if "questions" in record:
            guid = f"{guid}-{shift}"
        yield ChoiceExample(
            guid, article, endings, label, question, f"{path}:{line}"
        )


def _numbered_endings(path, line, record):
    """The values of ending0, ending1, ... as far as they go."""
    keys = []
    while f"ending{len(keys)}" in record:
        keys.append(f"ending{len(keys)}")
    further = [k for k in record if re.fullmatch(r"ending\d+", k)]
    if len(further) > len(keys):
        raise located(
            path,
            line,
            f"has {', '.join(sorted(further))}, but no ending{len(keys)}. "
            "Number the endings from 0 without a gap.",
        )
    values = [json_text(path, line, record, key) for key in keys]
    return _endings(path, line, {"ending0, ending1, ...": values}, None)


def _endings(path, line, record, key):
    """Two or more texts under a key (None: the only one)."""
    key = key or next(iter(record))
    value = record.get(key)
    if not isinstance(value, list) or len(value) < 2:
        raise located(
            path,
            line,
            f"'{key}' is {json.dumps(value, ensure_ascii=False)[:60]}, but a "
            "list of 2 or more texts is expected. Mend the row.",
        )
    return json_texts(path, line, key, value)


def _label(path, line, value, endings):
    """The number of the right ending: from a number, its text or a letter."""
    if value is None or value == "" or value == -1:
        return None
    number, text = None, str(value).strip()
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and text in map(str, range(len(endings))):
        number = int(text)
    elif isinstance(value, str) and len(text) == 1 and "A" <= text <= "Z":
        number = ord(text) - ord("A")
    elif text in endings:
        number = endings.index(text)
    if number is None or not 0 <= number < len(endings):
        raise located(
            path,
            line,
            f"label {value!r} is not a number from 0 to {len(endings) - 1}, "
            f"a letter from A to {chr(ord('A') + len(endings) - 1)}, or one "
            "of the choices. Mend the row.",
        )
    return number


def encode_choices(tokenizer, example, max_seq_length, mark_blank=False):
    """The ids of each choice, not padded: [(ids, segment_ids), ...].

    [CLS] context [SEP] question ending [SEP]; too long, the context loses
    tokens at the end that `example.cut` names, then the question loses its
    first, and the ending, at last, its last: all choices keep their end in
    full as long as it fits. A context with IDIOM_MARK gives [CLS] left ending
    right [SEP], cut at the sides so that the ending stays in the middle; with
    `mark_blank`, the ending has segment 1 there.
    Raises ValueError if `max_seq_length` is under 5."""
    if max_seq_length < 5:
        raise ValueError(
            f"--max_seq_length={max_seq_length} is too small: a choice needs "
            "at least 5 tokens ([CLS] a [SEP] b [SEP]). Raise the flag."
        )
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    encode = tokenizer.encode
    if is_cloze(example):
        left, right = map(encode, example.context.split(IDIOM_MARK, 1))
        encoded = []
        for ending in map(encode, example.endings):
            before, ending, after = _around(left, ending, right, max_seq_length)
            ids = [cls_id, *before, *ending, *after, sep_id]
            segments = [0] * len(ids)
            if mark_blank:
                place = 1 + len(before)
                segments[place : place + len(ending)] = [1] * len(ending)
            encoded.append((ids, segments))
        return encoded
    context, question = encode(example.context), encode(example.question)
    encoded = []
    for ending in map(encode, example.endings):
        room = max_seq_length - (4 if context else 2)
        ending = ending[:room]
        asked = question[max(0, len(question) + len(ending) - room) :]
        second = asked + ending
        if not context or not second:
            single = (context or second)[: max_seq_length - 2]
            ids = [cls_id, *single, sep_id]
            encoded.append((ids, [0] * len(ids)))
            continue
        spare = max_seq_length - 3 - len(second)
        first = context[-spare:] if example.cut == "head" else context[:spare]
        ids = [cls_id, *first, sep_id, *second, sep_id]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        encoded.append((ids, segments))
    return encoded


def _around(left, ending, right, max_seq_length):
    """The three with the far sides cut off to fit between two markers."""
    ending = ending[: max_seq_length - 2]
    room = max_seq_length - 2 - len(ending)
    before = min(len(left), max(room // 2, room - len(right)))
    after = min(len(right), room - before)
    return left[len(left) - before :], ending, right[:after]
