"""Sequence labelling: files of words with tags, tag schemes, word windows.

    train = read_labelled_file("train.txt")
    scheme = convert_to_iob2(train)            # 'IOB1', ..., or 'plain'
    labels = labels_of(train.sentences, scheme)
    windows = encode_words(tokenizer, train.sentences[0].words, 128)
    write_predictions(train, tags_of_each_sentence, "predictions.txt")

Files are CoNLL-style columns (token first, tag last, divided by tabs or
blanks, sentences by blank lines) or JSON lines. Rows end at \\n or \\r\\n
only. What is wrong with a row is a ValueError with file and line."""

import dataclasses
import json
import logging
import re
from typing import NamedTuple

from text_files import (
    UnknownLabel,
    check_label,
    json_texts,
    located,
    read_json_lines,
    read_lines,
    whole_file,
)

DOCUMENT_MARK = "-DOCSTART-"


@dataclasses.dataclass(eq=False, slots=True)
class Sentence:
    """Words, their tags (None if there are none) and where they stand.

    `rows` are the line numbers of the words, `source` is 'file:line' of the
    first; a JSON sentence has one line for all its words."""

    words: list
    tags: list | None
    source: str
    rows: list


class LabelledFile(NamedTuple):
    """What read_labelled_file found.

    `columns` is the number of columns of each row, None for JSON lines;
    `separator` divides them: a tab, a blank, or None for JSON lines."""

    path: str
    sentences: list
    columns: int | None
    separator: str | None


def read_labelled_file(
    path, token_column=0, tag_column=-1, labelled=True, columns=None
):
    """Reads the sentences of a file of columns, or of .json / .jsonl lines.

    Columns are positions, from 0 or from the end; -DOCSTART- lines and lines
    of white space divide sentences. JSON rows keep words under tokens or
    words (or text: one word per character) and tags under tags, labels or
    ner_tags, or under the names given as columns. Without `labelled` (test
    sets) tags may be missing: a file with one column, or with less than
    `columns` (those of the training set), has none."""
    if str(path).endswith((".json", ".jsonl")):
        sentences = [
            _json_sentence(path, line, row, token_column, tag_column, labelled)
            for line, row in read_json_lines(path)
        ]
        found = LabelledFile(str(path), sentences, None, None)
    else:
        found = _read_columns(path, token_column, tag_column, labelled, columns)
    if not found.sentences:
        raise ValueError(
            f"{path}: holds no sentences. Give one word per line, its tag in "
            "the last column, and a blank line after each sentence."
        )
    return found


def _cells(text, separator):
    if separator == "\t":
        return text.split("\t")
    return re.split(r"[ \t]+", text.strip(" \t"))


def _is_divider(text):
    return not text.strip(" \t") or text.startswith(DOCUMENT_MARK)


def _read_columns(path, token_column, tag_column, labelled, columns):
    sentences, words, tags, rows = [], [], [], []
    separator = count = None
    has_tags = labelled

    def finish():
        """Makes a sentence of the words read since the last."""
        if words:
            sentences.append(
                Sentence(
                    words[:],
                    tags[:] if has_tags else None,
                    f"{path}:{rows[0]}",
                    rows[:],
                )
            )
        for part in (words, tags, rows):
            part.clear()

    for line, text in read_lines(path):
        if _is_divider(text):
            finish()
            continue
        if separator is None:
            separator = "\t" if "\t" in text else " "
            count = len(_cells(text, separator))
            if not labelled:
                has_tags = count > 1 and count >= (columns or 0)
                has_tags = has_tags and tag_column in range(-count, count)
            tag = tag_column if has_tags else None
            _check_columns(path, line, count, token_column, tag)
        cells = _cells(text, separator)
        if len(cells) != count:
            raise located(
                path,
                line,
                f"{len(cells)} columns, but {count} as in the first row are "
                f"expected, divided by "
                f"{'one tab each' if separator == chr(9) else 'blanks'}. Mend "
                "the row; sentences are divided by blank lines.",
            )
        words.append(cells[token_column])
        rows.append(line)
        if has_tags:
            tags.append(cells[tag_column])
    finish()
    return LabelledFile(str(path), sentences, count, separator)


def _check_columns(path, line, count, token_column, tag_column):
    """Refuses columns that the first row of a file does not have."""
    if tag_column is not None and count < 2:
        raise located(
            path,
            line,
            "1 column, but a token and its tag are expected, divided by a "
            "tab or a blank. Mend the row, or use the file as the test set.",
        )
    used = {"token_column": token_column}
    if tag_column is not None:
        used["tag_column"] = tag_column
    for name, column in used.items():
        if not isinstance(column, int) or not -count <= column < count:
            raise located(
                path,
                line,
                f"--{name}={column} is not one of the {count} columns. Give "
                f"a position from 0 to {count - 1}, or -1 for the last.",
            )
    if tag_column is not None and (token_column - tag_column) % count == 0:
        raise located(
            path,
            line,
            f"--token_column={token_column} and --tag_column={tag_column} are "
            f"the same of {count} columns: the tags would be read from the "
            "words. Set one of them to another column.",
        )


def _json_sentence(path, line, record, token_column, tag_column, labelled):
    """The Sentence of one JSON row."""

    def pick(given, names):
        wanted = (given,) if isinstance(given, str) else names
        return next((name for name in wanted if name in record), None)

    word_key = pick(token_column, ("tokens", "words", "text"))
    tag_key = pick(tag_column, ("tags", "labels", "ner_tags"))
    if word_key is None or (labelled and tag_key is None):
        raise located(
            path,
            line,
            f"has no field for {'words' if word_key is None else 'tags'} (it "
            f"has: {', '.join(record)}). Name them 'tokens' and 'tags', or "
            "set --token_column and --tag_column.",
        )
    words = record[word_key]
    words = list(words) if isinstance(words, str) else words
    tags = record[tag_key] if tag_key else None
    for key, value in ((word_key, words), (tag_key, tags)):
        if value is not None and not isinstance(value, list):
            raise located(path, line, f"'{key}' is no list. Mend the row.")
    if labelled and tags is None:
        raise located(path, line, f"'{tag_key}' is null. Mend the row.")
    if not words or (tags is not None and len(tags) != len(words)):
        raise located(
            path,
            line,
            f"{len(words or [])} words but {len(tags or [])} tags; each word "
            "needs one. Mend the row.",
        )

    return Sentence(
        json_texts(path, line, word_key, words),
        None if tags is None else json_texts(path, line, tag_key, tags),
        f"{path}:{line}",
        [line] * len(words),
    )


def write_predictions(labelled_file, predictions, path):
    """Writes the input again with each word's predicted tag added.

    `predictions`: a list of tags for each sentence. Columns get one column
    more, JSON rows a field predicted_tags; all other lines, line ends and a
    byte order mark stay as they are. The file appears whole or not at all.
    Raises ValueError if a number of tags differs from that of the words."""
    added = {}
    for sentence, tags in zip(
        labelled_file.sentences, predictions, strict=True
    ):
        if len(tags) != len(sentence.words):
            raise ValueError(
                f"{sentence.source}: {len(sentence.words)} words but "
                f"{len(tags)} predicted tags."
            )
        if labelled_file.separator is None:
            added[sentence.rows[0]] = list(tags)
        else:
            added.update(zip(sentence.rows, tags, strict=True))
    with whole_file(path) as output, open(labelled_file.path, "rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.decode("utf-8")
            if line in added:
                row = text.rstrip(" \t\r\n")
                end = text[len(text.rstrip("\r\n")) :]
                if labelled_file.separator is None:
                    row = _without_predictions(row)
                    tags = json.dumps(added[line], ensure_ascii=False)
                    row = f'{row[:-1].rstrip()}, "predicted_tags": {tags}}}'
                elif labelled_file.separator == "\t":
                    row = f"{text.rstrip(chr(13) + chr(10))}\t{added[line]}"
                else:
                    row = f"{row} {added[line]}"
                text = row + end
            output.write(text)


def _without_predictions(row):
    """A JSON row as it is, or written anew without its predicted_tags."""
    if '"predicted_tags"' not in row:
        return row
    record = json.loads(row.removeprefix("\ufeff"), strict=False)
    record.pop("predicted_tags", None)
    return json.dumps(record, ensure_ascii=False)


# ---------------------------------------------------------------- tag schemes

LETTERS = {
    "IOB1": "IB",
    "IOB2": "BI",
    "IOBES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
}
_PARTS = re.compile(r"([BIESLUM])-(.+)", re.DOTALL)
_MISSPELT = re.compile(r"[BIESLUM][_:./|+ ].+|[bieslum][-_].+|[BIESLUM]-|o|0")


def tag_parts(tag):
    """('B', 'PER') of 'B-PER'; ('O', None) of any tag without a prefix."""
    match = _PARTS.fullmatch(tag)
    return match.groups() if match else ("O", None)


def detect_scheme(sentences):
    """The scheme of all tags: IOB1, IOB2, IOBES, BILOU, BMES or plain.

    Tags such as NN, none of them with a prefix, are plain. Raises ValueError
    with file and line for a tag that fits no scheme, such as B_PER. Entities
    that begin with I- among others that begin with B- are counted in one
    warning; they are entities all the same, as conlleval has it."""
    tags = {tag for sentence in sentences for tag in sentence.tags}
    prefixed = {tag for tag in tags if _PARTS.fullmatch(tag)}
    wrong = {tag for tag in tags if _MISSPELT.fullmatch(tag) or not tag}
    if prefixed:
        wrong |= tags - prefixed - {"O"}
    elif "O" not in tags and "o" not in tags and "" not in wrong:
        return "plain"
    if wrong:
        _refuse_tag(sentences, wrong)
    if not prefixed:
        return "plain" if tags != {"O"} else "IOB2"
    prefixes = {tag[0] for tag in prefixed}
    for scheme, letters in (("BILOU", "LU"), ("BMES", "M"), ("IOBES", "ES")):
        if prefixes & set(letters):
            unfit = prefixes - set("BMES" if scheme == "BMES" else scheme)
            if unfit:
                _refuse_tag(
                    sentences, {t for t in prefixed if t[0] in unfit}, scheme
                )
            return scheme
    return _iob_version(sentences)


def _refuse_tag(sentences, wrong, scheme="prefix-type, such as B-PER, or O"):
    """Raises the ValueError about the first of the wrong tags."""
    for sentence in sentences:
        for line, tag in zip(sentence.rows, sentence.tags, strict=True):
            if tag in wrong:
                path = sentence.source.rpartition(":")[0]
                raise located(
                    path,
                    line,
                    f"tag '{tag}' is not of the form {scheme}. Mend the tag, "
                    "or set --tag_column to the column of the tags, or "
                    "--tag_scheme=plain to take tags as they are.",
                )


def _iob_version(sentences):
    """IOB1 if B- only divides neighbours of one type, else IOB2."""
    needless = bare = 0
    for sentence in sentences:
        before = None
        for tag in sentence.tags:
            prefix, kind = tag_parts(tag)
            if kind is not None and kind != before:
                needless += prefix == "B"
                bare += prefix == "I"
            before = kind
    if bare and needless:
        logging.warning(
            "%s: %d entities begin with I- and %d with B-; both are taken "
            "for entities.",
            sentences[0].source.rpartition(":")[0],
            bare,
            needless,
        )
    return "IOB1" if bare and not needless else "IOB2"


def to_iob2(tags):
    """Any prefix scheme as IOB2: each entity B-, then I-; O stays.

    A tag continues an entity only if it is of its type and may follow: I-
    without a beginning begins one, as conlleval has it."""
    converted, before, is_open = [], None, False
    for tag in tags:
        prefix, kind = tag_parts(tag)
        if kind is None:
            converted.append("O")
        elif prefix in "IMEL" and is_open and kind == before:
            converted.append(f"I-{kind}")
        else:
            converted.append(f"B-{kind}")
        before, is_open = kind, prefix in "BIM"
    return converted


def from_iob2(tags, scheme):
    """IOB2 tags in another scheme (plain and IOB2: as they are)."""
    if scheme in ("IOB2", "plain"):
        return list(tags)
    converted = []
    for index, tag in enumerate(tags):
        prefix, kind = tag_parts(tag)
        follows = index + 1 < len(tags) and tags[index + 1] == f"I-{kind}"
        if kind is None:
            converted.append("O")
        elif scheme == "IOB1":
            beside = index > 0 and tag_parts(tags[index - 1])[1] == kind
            keep = prefix == "B" and beside
            converted.append(f"{'B' if keep else 'I'}-{kind}")
        else:
            single, last = ("U", "L") if scheme == "BILOU" else ("S", "E")
            inside = "M" if scheme == "BMES" else "I"
            if prefix == "B":
                letter = "B" if follows else single
            else:
                letter = inside if follows else last
            converted.append(f"{letter}-{kind}")
    return converted


def describe_tags(words, tags):
    """The entities of IOB2 tags as texts such as 'PER: Jim Henson'.

    Without any entity: each word with its tag, such as 'dog/NN', unless O."""
    entities = []
    for word, tag in zip(words, tags, strict=True):
        prefix, kind = tag_parts(tag)
        if prefix == "B":
            entities.append(f"{kind}: {word}")
        elif prefix == "I" and entities:
            entities[-1] += f" {word}"
    if entities:
        return entities
    pairs = zip(words, tags, strict=True)
    return [" ".join(f"{word}/{tag}" for word, tag in pairs if tag != "O")]


def convert_to_iob2(labelled_file, scheme=None):
    """Detects the scheme (unless given) and turns the tags into IOB2.

    Returns the scheme; plain tags stay. Raises what detect_scheme raises, and
    ValueError for a tag that is not of the given scheme."""
    sentences = [s for s in labelled_file.sentences if s.tags is not None]
    if scheme in LETTERS:
        tags = {tag for sentence in sentences for tag in sentence.tags}
        wrong = {
            tag
            for tag in tags - {"O"}
            if not _PARTS.fullmatch(tag) or tag[0] not in LETTERS[scheme]
        }
        if wrong:
            _refuse_tag(sentences, wrong, scheme)
    scheme = scheme or detect_scheme(sentences)
    if scheme != "plain":
        for sentence in sentences:
            sentence.tags = to_iob2(sentence.tags)
    return scheme


def labels_of(sentences, scheme="IOB2"):
    """The label list of a training set: O, then B- and I- of each type.

    Both are listed even where the data have but one; plain tags are sorted.
    Raises ValueError for a tag that holds a tab or a line end."""
    tags = set()
    for sentence in sentences:
        for tag in set(sentence.tags or ()) - tags:
            check_label(*sentence.source.rsplit(":", 1), tag)
            tags.add(tag)
    if scheme == "plain":
        return sorted(tags)
    kinds = sorted({tag_parts(tag)[1] for tag in tags} - {None})
    return ["O"] + [f"{p}-{kind}" for kind in kinds for p in "BI"]


def check_known_tags(labelled_file, labels, labelled=True):
    """Refuses tags that are not among the labels, with file and line.

    In a test set (`labelled` False) one warning tells instead, and all its
    tags become None: it is predicted but not scored."""
    known = set(labels)
    for sentence in labelled_file.sentences:
        for line, tag in zip(sentence.rows, sentence.tags or (), strict=False):
            if tag in known:
                continue
            if labelled:
                raise UnknownLabel(
                    f"{labelled_file.path}:{line}: tag '{tag}' is not one of: "
                    f"{', '.join(labels[:20])}{', ...' * (len(labels) > 20)}. "
                    "Mend the row, or add it to the training set or "
                    "--labels_file."
                )
            logging.warning(
                "%s:%d: tag '%s' is not known from training; the tags of "
                "this test set are not used.",
                labelled_file.path,
                line,
                tag,
            )
            for other in labelled_file.sentences:
                other.tags = None
            return


def read_labels(path, scheme="IOB2"):
    """The labels of a file with one on each line, in the file's order.

    Blank lines are skipped; tags of other schemes count as those of IOB2 that
    they become. Raises ValueError for a file without labels."""
    labels = []
    for _, text in read_lines(path):
        label = text.strip()
        prefix, kind = tag_parts(label)
        if scheme != "plain" and kind is not None:
            begins = prefix in "BSU" or scheme == "IOB1"
            label = f"{'B' if begins else 'I'}-{kind}"
            other = f"{'I' if begins else 'B'}-{kind}"
            labels += [label, other]
        elif label:
            labels.append(label)
    if not labels:
        raise ValueError(f"{path}: holds no labels. Give one on each line.")
    return list(dict.fromkeys(labels))


def allowed_transitions(labels, scheme="IOB2"):
    """Which label may follow which: (starts bool [C], follows bool [C, C]).

    I-X stands only after B-X or I-X; everything else is free. Plain tags all
    are, whatever they look like."""
    import numpy

    starts = numpy.ones(len(labels), bool)
    follows = numpy.ones((len(labels), len(labels)), bool)
    for column, label in enumerate(labels):
        prefix, kind = tag_parts(label)
        if prefix == "I" and scheme != "plain":
            starts[column] = False
            follows[:, column] = [tag_parts(row)[1] == kind for row in labels]
    return starts, follows


# -------------------------------------------------------------------- windows


class Window(NamedTuple):
    """A part of a sentence as model input.

    ids: [CLS], pieces, [SEP]; words: which words of the sentence this window
    answers for; positions: where in ids the first piece of each stands."""

    ids: list
    words: list
    positions: list


def window_sizes(max_seq_length, doc_stride=None):
    """The pieces that a window holds, and those that two windows share.

    `doc_stride` is the step from one window to the next; without it they
    share a quarter. Raises ValueError for sizes that cannot be."""
    if max_seq_length < 3:
        raise ValueError(
            f"--max_seq_length={max_seq_length} is too small: a word needs at "
            "least 3 tokens ([CLS] a [SEP]). Raise the flag."
        )
    room = max_seq_length - 2
    if doc_stride is None:
        return room, room // 4
    if not 1 <= doc_stride <= room:
        raise ValueError(
            f"--doc_stride={doc_stride} is not between 1 and {room}, the "
            f"pieces that --max_seq_length={max_seq_length} holds. Change "
            "one of the two."
        )
    return room, room - doc_stride


def encode_words(tokenizer, words, max_seq_length, doc_stride=None):
    """Splits words into pieces and these into windows of at most that length.

    A sentence that fits is one window; a longer one is read in windows that
    overlap (`window_sizes`), each word answered by the window in which it has
    more around it. Words without pieces (only control characters) are
    answered by none. A word longer than a window is cut. Raises what
    `window_sizes` raises."""
    room, overlap = window_sizes(max_seq_length, doc_stride)
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    pieces = [tokenizer.encode(word)[:room] for word in words]
    shown = [word for word, part in enumerate(pieces) if part]
    pieces = [part for part in pieces if part]
    sizes = [len(part) for part in pieces]
    windows, first, answered = [], 0, 0
    while True:
        last, used = first, 0
        while last < len(sizes) and used + sizes[last] <= room:
            used += sizes[last]
            last += 1
        following, shared = last, 0
        while following > first + 1 and last < len(sizes):
            if shared + sizes[following - 1] > overlap:
                break
            following -= 1
            shared += sizes[following]
        end = last
        if last < len(sizes):  # half of what is shared: who sees more around
            end, half = following, 0
            while end < last and 2 * (half + sizes[end]) <= shared:
                half += sizes[end]
                end += 1
        ids, places, answers = [cls_id], [], []
        for word in range(first, last):
            if answered <= word < end:
                answers.append(shown[word])
                places.append(len(ids))
            ids.extend(pieces[word])
        windows.append(Window([*ids, sep_id], answers, places))
        if last == len(sizes):
            return windows
        first, answered = following, max(answered, end)


def merge_windows(word_count, windows, predictions, default="O"):
    """One tag for each word from the tags of each window's answered words.

    Words that no window answers get `default`."""
    tags = [default] * word_count
    for window, found in zip(windows, predictions, strict=True):
        for word, tag in zip(window.words, found, strict=True):
            tags[word] = tag
    return tags
