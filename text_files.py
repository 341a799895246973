"""Rows of text files: lines, TSV, quoted CSV and JSON lines, each with its
line number, and files that appear whole or not at all.

A row ends at \\n or \\r\\n and nowhere else: U+2028, U+0085 and a lone \\r are
text. Files are UTF-8 with or without a byte order mark. Blank rows are
skipped. Whatever is wrong with a row is a ValueError that starts with
`file:line: `."""

import contextlib
import errno
import gzip
import io
import json
import os
import re
import stat
import uuid
import zlib

GZIP_START = b"\x1f\x8b"
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


def located(path, line, message):
    """The ValueError that says what is wrong with one line of a file."""
    return ValueError(f"{path}:{line}: {message}")


class UnknownLabel(ValueError):
    """A row's label that is not one of those of the model."""


def check_label(path, line, label):
    """Raises ValueError for a label that no file of labels can hold."""
    if any(c in "\n\r\t" or 0xD800 <= ord(c) < 0xE000 for c in label):
        raise located(
            path,
            line,
            f"label {ascii(label)} holds a tab, a line end or half of a "
            "surrogate pair, so no line of a file could keep it. Rename it.",
        )


def read_lines(path, encoding="utf-8"):
    """Yields (line number from 1, text without its line end) of a file.

    Blank lines are kept. Raises ValueError with file and line for bytes that
    are not of the encoding, OSError if the file cannot be read."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                text = raw.decode(encoding)
            except UnicodeDecodeError as error:
                if number == 1 and raw.startswith(GZIP_START):
                    raise ValueError(
                        f"{path}: is a gzip file. Unpack it first."
                    ) from None
                raise located(
                    path,
                    number,
                    f"byte 0x{raw[error.start]:02x} in column "
                    f"{error.start + 1} is not valid {encoding.upper()} "
                    f"({error.reason}). Save the file as UTF-8.",
                ) from None
            if text.endswith("\r\n"):
                text = text[:-2]
            elif text.endswith("\n"):
                text = text[:-1]
            yield number, text


def is_blank(text):
    """Whether a line holds nothing but spaces; tabs make cells, so no."""
    return not text.strip(" ")


def damaged_gzip(path, error):
    """The ValueError for a .gz file whose reading gave one of GZIP_ERRORS."""
    with open(path, "rb") as file:
        start = file.read(2)
    if start and start != GZIP_START:
        return ValueError(
            f"{path}: is no gzip file; rename it, so that its name does not "
            "end in .gz"
        )
    return ValueError(f"{path}: the compressed file is damaged ({error})")


def read_tsv(path, encoding="utf-8"):
    """Yields (line number, cells) of a tab-separated file without quoting.

    Empty lines are skipped. A line of spaces is a row with one cell, so that
    a file of one column has as many results as rows."""
    for number, text in read_lines(path, encoding):
        if text:
            yield number, text.split("\t")


_QUOTED_CELL = re.compile(r'"((?:[^"]++|"")*+)"')


def _csv_cells(record):
    """Splits one record; None if a quoted cell is still open at its end."""
    cells, position = [], 0
    while True:
        if record.startswith('"', position):
            match = _QUOTED_CELL.match(record, position)
            if match is None:
                return None
            cells.append(match[1].replace('""', '"'))
            position = match.end()
            if position == len(record):
                return cells
            if record[position] != ",":
                raise ValueError(
                    f"text follows the closing quote of cell {len(cells)}"
                )
            position += 1
        else:
            end = record.find(",", position)
            if end < 0:
                cells.append(record[position:])
                return cells
            cells.append(record[position:end])
            position = end + 1


def read_csv(path, encoding="utf-8"):
    """Yields (line number, cells) of a comma-separated file.

    Cells may stand in double quotes, a quote inside one is doubled, and a
    quoted cell may hold line ends; the number is that of the record's first
    line. Raises ValueError for a stray quote, with the line it stands in."""
    remedy = 'Write a quote inside a quoted cell twice, as "".'
    open_lines, start = [], 0
    for number, text in read_lines(path, encoding):
        if not open_lines:
            if is_blank(text):
                continue
            start = number
        open_lines.append(text)
        # Only a line with an odd number of quotes can close an open cell.
        if len(open_lines) > 1 and text.count('"') % 2 == 0:
            continue
        try:
            cells = _csv_cells("\n".join(open_lines))
        except ValueError as error:
            raise located(path, start, f"{error}. {remedy}") from None
        if cells is not None:
            yield start, cells
            open_lines = []
    if open_lines:
        raise located(path, start, f"a quoted cell is never closed. {remedy}")


NESTED = "the JSON is nested too deeply. Is it the right file?"


# Half of a surrogate pair without the other, which no file can hold.
_HALF = re.compile(
    r"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w"
)
_LONG_NUMBER = re.compile(r"\d{4301}")


def parse_json(path, text, line=1, remedy=""):
    """The value of a JSON text that begins in `line` of a file.

    Raises ValueError with file and line for what is none, ending in
    `remedy`."""
    try:
        # strict=False: a raw lone \r or tab in a string is text
        value = json.loads(text, strict=False)
        half = _HALF.search(text)
        if half:  # unless it is text: an escaped backslash before a u
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        line += text.count("\n", 0, half.start())
        problem = (
            f"the text holds {half[0].lower()}, half of a character that JSON "
            "writes as two. Write both halves or none."
        )
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        problem = f"not valid JSON ({error.msg} at column {error.colno})."
    except RecursionError:
        problem = NESTED
    except ValueError:  # Python reads no integer of more than 4,300 digits
        found = _LONG_NUMBER.search(text)
        line += text.count("\n", 0, found.start() if found else 0)
        problem = "a number of thousands of digits. Mend it."
    raise located(path, line, f"{problem} {remedy}".rstrip())


_BLANKS = re.compile(r"[ \t\n\r]*")


def json_places(text):
    """Where everything in a JSON text begins: {path: place of a character}.

    Paths are such as `data[0].title`; the text must be valid."""
    decode = json.JSONDecoder(strict=False).raw_decode
    places = {}

    def after_blanks(place):
        return _BLANKS.match(text, place).end()

    def walk(place, path):
        """Notes `place` as that of `path`; gives the value's end."""
        places[path] = place
        if text[place] not in "{[":
            return decode(text, place)[1]
        is_list, number = text[place] == "[", 0
        place = after_blanks(place + 1)
        while text[place] not in "}]":
            if is_list:
                inner = f"{path}[{number}]"
            else:
                key, place = decode(text, place)
                place = after_blanks(after_blanks(place) + 1)
                inner = f"{path}.{key}" if path else key
            place = after_blanks(walk(place, inner))
            if text[place] == ",":
                place = after_blanks(place + 1)
            number += 1
        return place + 1

    walk(after_blanks(0), "")
    return places


def read_json_lines(path):
    """Yields (line number, dict) of a file with one JSON object per line."""
    for number, text in read_lines(path):
        if is_blank(text):
            continue
        remedy = "Each line must be one JSON object."
        record = parse_json(path, text, number, remedy)
        if not isinstance(record, dict):
            raise located(
                path,
                number,
                f"a JSON {type(record).__name__} stands where an object "
                "such as {...} is expected.",
            )
        yield number, record


def json_text(path, line, record, key, needed=True):
    """The string under a key of a JSON row; None if null and not needed.

    Raises ValueError with file and line if it is missing or no text."""
    if key not in record:
        if not needed:
            return None
        raise located(
            path,
            line,
            f"no field '{key}'; the fields are: {', '.join(record)}.",
        )
    value = record[key]
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise located(
            path,
            line,
            f"field '{key}' is {json.dumps(value)[:60]}, not a text.",
        )
    return str(value)


def json_texts(path, line, key, values):
    """The strings of a list that stands under a key of a JSON row.

    Raises ValueError with file, line and place for what is no text."""
    names = [f"{key}[{place}]" for place in range(len(values))]
    row = dict(zip(names, values, strict=True))
    return [json_text(path, line, row, name) for name in names]


def output_path(path):
    """The path of a file to be written, with symbolic links resolved.

    So a link keeps its place and the file it names is replaced. Raises
    ValueError for what cannot be replaced: a directory, a device, a pipe."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # not there yet; whoever opens it says what is wrong
        return os.path.realpath(path)
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path}: is a directory. Name a file to write.")
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{path}: is a device or a pipe, which cannot be written whole or "
            "not at all. Name a regular file."
        )
    return os.path.realpath(path)


def check_output(flag, path, inputs):
    """Refuses an output that is no regular file or is one of the inputs.

    `flag` names the output in the message. Raises ValueError."""
    output_path(path)
    for other in inputs:
        same = os.path.realpath(path) == os.path.realpath(other)
        if os.path.exists(path) and os.path.exists(other):
            same = os.path.samefile(path, other)
        if same:
            raise ValueError(
                f"--{flag}={path} is one of the input files. Write it "
                "elsewhere."
            )


def check_input(path):
    """Raises ValueError if there is no file at `path` to read."""
    if os.path.isdir(path):
        raise ValueError(f"{path}: is a directory. Name a file in it.")
    if not os.path.exists(path):
        raise ValueError(f"{path}: there is no such file.")


def named_error(path, error):
    """The OSError to raise for one of writing, naming the file if it is full.

    Gives None for every other error: raise that as it is."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, OSError) or error.errno not in full:
        return None
    return OSError(
        f"{path}: no space is left on the disk. Free some, or write elsewhere."
    )


@contextlib.contextmanager
def whole_binary(path, compress=False):
    """Opens a binary file that appears at `path` only if the block succeeds.

    Written as `.NAME.PROCESS-RANDOM.part` in the same directory; an exception
    removes it and leaves an older file as it was. Compressed, it has the same
    bytes for the same content (no time, no name inside). Raises ValueError
    before anything is written if `path` is no regular file, OSError naming it
    on a full disk."""
    target = output_path(path)
    directory, name = os.path.split(target)
    token = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    temporary = os.path.join(directory, f".{name}.{token}.part")
    raw = open(temporary, "xb", buffering=1 << 20)
    try:
        with raw:
            if compress:
                with gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
                    yield file
            else:
                yield raw
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if (full := named_error(path, error)) is not None:
            raise full from error
        raise


@contextlib.contextmanager
def whole_file(path):
    """Opens a text file that appears at `path` only if the block succeeds.

    Written as UTF-8 with \\n line ends; otherwise as `whole_binary`."""
    with whole_binary(path) as raw:
        with io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
            yield file
