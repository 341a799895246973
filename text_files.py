"""Rows of text files: lines, TSV, quoted CSV and JSON lines, each with its
line number, and files that appear whole or not at all.

A row ends at \\n or \\r\\n and nowhere else: U+2028, U+0085 and a lone \\r are
text. Files are UTF-8 with or without a byte order mark. Blank rows are
skipped. Whatever is wrong with a row is a ValueError that starts with
`file:line: `."""

import contextlib
import json
import os
import re
import tempfile


def located(path, line, message):
    """The ValueError that says what is wrong with one line of a file."""
    return ValueError(f"{path}:{line}: {message}")


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


def read_tsv(path, encoding="utf-8"):
    """Yields (line number, cells) of a tab-separated file without quoting."""
    for number, text in read_lines(path, encoding):
        if not is_blank(text):
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


def read_json_lines(path):
    """Yields (line number, dict) of a file with one JSON object per line."""
    for number, text in read_lines(path):
        if is_blank(text):
            continue
        try:
            # strict=False: a raw lone \r or tab in a string is text
            record = json.loads(text, strict=False)
        except json.JSONDecodeError as error:
            raise located(
                path,
                number,
                f"not valid JSON ({error.msg} at column {error.colno}). "
                "Each line must be one JSON object.",
            ) from None
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


@contextlib.contextmanager
def whole_file(path):
    """Opens a text file that appears at `path` only if the block succeeds.

    Written as UTF-8 with \\n line ends under a temporary name in the same
    directory; an exception removes it and leaves an older file as it was."""
    directory, name = os.path.split(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        mode = os.umask(0)
        os.umask(mode)
        os.chmod(temporary, 0o666 & ~mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
