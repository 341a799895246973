"""Adds words of a domain to the vocabulary of a trained model.

The command line is `python tokenization.py --extend_vocab=...`; see
vocabulary.py. Old rows keep their numbers, so that the model keeps what it
learned. Nothing here imports TensorFlow.
"""

import json
import os
import re

import common_flags


def choose_new_words(counts, tokenizer, number, min_frequency=1):
    """The words whose own row would save the most pieces, best first.

    counts: word -> occurrences, of the tokenizer's casing. A word that is
    [UNK] counts as one piece per character."""
    ranked = []
    for word, times in counts.items():
        if times < min_frequency or word in tokenizer.vocab:
            continue
        pieces = len(tokenizer.wordpiece_tokenizer.pieces(word))
        saved = pieces - 1 if pieces > 1 else len(word)
        ranked.append((-saved * times, word))
    return [word for _, word in sorted(ranked)[:number]]


def read_new_words(path, tokenizer):
    """The words of a file, one a line, in the casing of the tokenizer.

    Words that the vocabulary holds are left out. Raises ValueError naming
    file and line of a word that the tokenizer would cut before looking it
    up, so that its row could never be reached."""
    words = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}:{number}: the line is not UTF-8."
                ) from error
            cut = tokenizer.basic_tokenizer.tokenize(text)
            if len(cut) > 1 or (text and not cut):
                raise ValueError(
                    f"{path}:{number}: {text!r} is cut into {cut} before the "
                    "vocabulary is asked, so a row of its own is never used. "
                    "Remove it."
                )
            if cut and cut[0] not in tokenizer.vocab:
                words[cut[0]] = number
    return list(words)


def extend_rows(vocab_file, words, use_unused_rows=False):
    """The bytes of a vocabulary file with new words, and its number of rows.

    Old rows keep their bytes and places. The words come at the end or, with
    use_unused_rows, in place of the [unused...] rows, in their order. Raises
    ValueError, with both numbers, for more words than such rows."""
    with open(vocab_file, "rb") as file:
        rows = file.read().split(b"\n")
    if not rows[-1]:
        rows.pop()
    new = [word.encode() for word in words]
    if not use_unused_rows:
        return b"\n".join([*rows, *new, b""]), len(rows) + len(new)
    unused = [
        place
        for place, row in enumerate(rows)
        if re.fullmatch(rb"\[unused\d+\]", row.strip())
    ]
    if len(new) > len(unused):
        raise ValueError(
            f"{vocab_file} has {len(unused)} [unused] rows for {len(new)} new "
            "words. Lower --num_new_words, or leave --use_unused_rows away to "
            "add rows."
        )
    for place, word in zip(unused, new, strict=False):
        rows[place] = word
    return b"\n".join([*rows, b""]), len(rows)


def write_config(init_checkpoint, output_checkpoint, vocab_size):
    """Writes the old bert_config.json with the new size beside the new
    checkpoint, and gives a note for the user.

    A file that is there already is left alone."""
    source, target = (
        os.path.join(
            path if os.path.isdir(path) else os.path.dirname(path),
            "bert_config.json",
        )
        for path in (init_checkpoint, output_checkpoint)
    )
    if not os.path.isfile(source) or os.path.exists(target):
        return f"; set vocab_size to {vocab_size} in the model's config"
    config = common_flags.read_json(source)
    config["vocab_size"] = vocab_size
    common_flags.write_whole(target, json.dumps(config, indent=2) + "\n")
    return f"; {target} has the new vocab_size"
