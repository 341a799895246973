"""Lines of plain text, each a text or a pair `first ||| second`."""

import re
from typing import NamedTuple

import text_files

_PAIR = re.compile(r"(.*) \|\|\| (.*)", re.DOTALL)


class TextPair(NamedTuple):
    """One line of a file, stripped; `text_b` is None for a single text."""

    line: int  # from 1
    text: str
    text_a: str
    text_b: str | None


def split_pair(text):
    """Gives (first, second) of `first ||| second`, or (text, None).

    Of several marks the last one counts, as in the original."""
    match = _PAIR.fullmatch(text)
    return match.groups() if match else (text, None)


def read_pairs(path):
    """Gives a TextPair for every line of a file, blank lines included.

    Raises ValueError with file and line for bytes that are not UTF-8, and
    for a file without a line."""
    pairs = []
    for number, text in text_files.read_lines(path):
        text = text.strip()
        pairs.append(TextPair(number, text, *split_pair(text)))
    if not pairs:
        raise ValueError(f"{path}: is empty. Write one text on each line.")
    return pairs
