"""Turns raw text into one sentence a line, a blank line between documents.

    python recipes/prepare_text.py --output=english.txt --heldout=dev.txt \\
        raw_en/*.txt wikitext-2/valid.txt

That is what create_pretraining_data.py reads. Files are UTF-8 or else Latin-1,
with \\n or \\r\\n; lines may be paragraphs, or wrapped. Of rows the text is
taken: of tab-separated ones the longest cell, of JSON lines every text of six
characters or more under a name of the row (an idiom in its place), of tagged
words or characters, one a line, the sentence. A document ends at a heading
(`= Title =`, or the 第一回 of a novel) and at the first blank line or row after
ten sentences. Every 20th document is held out for evaluation. A second for
5 MB.
"""

import argparse
import json
import os
import re
import sys

HEADING = re.compile(r"\s*(=+ .* =+\s*$|第\S{1,6}[回章] )")
# After . ! ? and closing quotes where a new sentence seems to begin, and
# after their Chinese forms anywhere.
SENTENCE_END = re.compile(
    r"""(?<=[.!?])\s+(?=["'(]?\s*[A-Z0-9])|(?<=[.!?]["')])\s+(?=["'(]?[A-Z])"""
    r"""|(?<=[。！？])(?![。！？”’」』）])|(?<=[。！？][”’」』])"""
)
# A word, perhaps other columns, a tag such as O or B-PER.
TAGGED = re.compile(r"\S+\s(\S+\s)*(O|[BIESLUM]-\S+)")
# The marks of wikitext: in-word signs, and words that are not there.
WIKITEXT = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk> ", ""))
LEAST, MOST = 10, 60  # sentences after which a document ends
WRAPPED = 80  # lines shorter than this are wrapped text
SHORTEST = 6  # characters of a text in JSON; labels and keys are shorter


def read_lines(path):
    """The lines of a file without their ends, decoded as the text needs."""
    with open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    for mark, plain in WIKITEXT:
        text = text.replace(mark, plain)
    return [line.strip() for line in text.split("\n")]


def texts_of_rows(path, lines):
    """The texts of a file of rows, a blank line after each, or its lines."""
    filled = [line for line in lines if line]
    if filled and all(line.startswith("{") for line in filled):
        texts = [
            text
            for number, line in enumerate(lines, start=1)
            if line
            for text in json_texts(f"{path}:{number}", line)
        ]
    elif all(TAGGED.fullmatch(line) for line in filled):
        texts = tagged_sentences(lines)
    elif all("\t" in line for line in filled):
        texts = [max(line.split("\t"), key=len) for line in filled]
    else:
        return lines
    return [line for text in texts for line in (text, "")]


def tagged_sentences(lines):
    """The sentences of words or characters with tags, one a line."""
    sentences = [[]]
    for line in lines:
        if line and not line.startswith("-DOCSTART-"):
            sentences[-1].append(line.split()[0])
        elif sentences[-1]:
            sentences.append([])
    single = all(len(word) == 1 for words in sentences for word in words)
    return [("" if single else " ").join(words) for words in sentences]


def json_texts(place, line):
    """Yields the texts of a JSON row, the right candidate in its place.

    Raises ValueError, `place` in it, for what is no such row."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: is no JSON row ({error}).") from None
    texts = {k: v for k, v in row.items() if isinstance(v, str)}
    for key, value in texts.items():
        if "label" in key or len(value) < SHORTEST:
            continue
        if "candidates" in row:
            if not isinstance(row.get("answer"), int):
                raise ValueError(
                    f"{place}: has candidates but no answer from 0 on. Leave "
                    "test sets out."
                )
            right = row["candidates"][row["answer"]]
            value = value.replace("#idiom#", right)
        yield " ".join(value.split())


def paragraphs(lines):
    """Yields each paragraph, '' for a blank line and None for a heading."""
    lengths = sorted(len(line) for line in lines if line)
    wrapped = bool(lengths) and lengths[len(lengths) * 19 // 20] < WRAPPED
    open_lines = []
    for line in [*lines, ""]:
        heading = HEADING.match(line)
        if line and not heading:
            open_lines.append(line)
        if open_lines and (not wrapped or heading or not line):
            yield " ".join(open_lines)
            open_lines = []
        if heading:
            yield None
        elif not line:
            yield ""


def documents(path):
    """Yields the documents of a file, each a list of sentences."""
    document = []
    for paragraph in paragraphs(texts_of_rows(path, read_lines(path))):
        if not paragraph:  # a heading always ends one, a blank line if long
            if document and (paragraph is None or len(document) >= LEAST):
                yield document
                document = []
            continue
        for sentence in SENTENCE_END.split(paragraph):
            if sentence.strip():
                document.append(sentence.strip())
            if len(document) >= MOST:
                yield document
                document = []
    if document:
        yield document


def write(path, parts):
    """Writes documents; the file appears whole or not at all."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines("\n".join(part) + "\n\n" for part in parts)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    print(f"{path}: {len(parts)} documents, {sum(map(len, parts))} sentences")


def main():
    """Reads the files in the order given, writes one or two."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", help="Raw text files.")
    parser.add_argument("--output", required=True, help="The text to write.")
    parser.add_argument("--heldout", help="Gets every 20th document.")
    flags = parser.parse_args()
    try:
        parts = [part for path in flags.files for part in documents(path)]
        if not parts:
            raise ValueError("no sentence was found. Is it text, or rows?")
        heldout = parts[19::20] if flags.heldout else []
        if flags.heldout and not heldout:
            sys.exit(
                f"prepare_text.py: the text gives {len(parts)} documents, and "
                "the 20th would be the first for --heldout. Give more text, "
                "or leave --heldout out."
            )
        if heldout:
            del parts[19::20]
            write(flags.heldout, heldout)
        write(flags.output, parts)
    except (OSError, ValueError) as error:
        print(f"prepare_text.py: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
