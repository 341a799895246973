"""Turns raw text into one sentence a line, a blank line between documents.

    python recipes/prepare_text.py --output=english.txt --heldout=dev.txt \\
        raw_en/*.txt wikitext-2/valid.txt

That is what create_pretraining_data.py reads. Files are UTF-8 or else Latin-1,
with \\n or \\r\\n; lines may be paragraphs, or wrapped. Of rows the text is
taken: of tab-separated ones the longest cell, of JSON lines every text of six
characters or more (an idiom in its place), of tagged characters, one a line,
the sentence. A document ends at a heading
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
TAGGED = re.compile(r"\S\s[A-Z_-]+")  # 体 O
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


def texts_of_rows(lines):
    """The texts of a file of rows, a blank line after each, or its lines."""
    filled = [line for line in lines if line]
    if all(line.startswith("{") for line in filled):
        texts = [text for line in filled for text in json_texts(line)]
    elif all("\t" in line for line in filled):
        texts = [max(line.split("\t"), key=len) for line in filled]
    elif all(TAGGED.fullmatch(line) for line in filled):
        characters = "".join(line[:1] or "\n" for line in lines)
        texts = characters.split("\n")
    else:
        return lines
    return [line for text in texts for line in (text, "")]


def json_texts(line):
    """Yields the texts of a JSON row, the right candidate in its place."""
    row = json.loads(line)
    for key, value in row.items():
        if "label" in key or not isinstance(value, str):
            continue
        if len(value) >= SHORTEST:
            if "candidates" in row:
                right = row["candidates"][int(row["answer"])]
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
    for paragraph in paragraphs(texts_of_rows(read_lines(path))):
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
    except OSError as error:
        print(f"prepare_text.py: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
