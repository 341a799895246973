"""Sentences whose tags a tiny model learns, in several layouts."""

import random

from conftest import GOLDEN

TINY = (
    f"--vocab_file={GOLDEN}/tiny/vocab.txt",
    f"--bert_config_file={GOLDEN}/tiny/bert_config.json",
    f"--init_checkpoint={GOLDEN}/tiny/bert_model.ckpt",
    "--train_batch_size=16",
    "--learning_rate=5e-3",
    "--tensorboard=false",
    "--verbosity=0",
)
# Words and their tags in IOB2; pieces such as un ##want ##ed are one word.
PHRASES = [
    ("he", "B-PER"),
    ("unwanted he", "B-PER I-PER"),
    ("to in the", "B-LOC I-LOC I-LOC"),
    ("\u4e2d", "B-LOC"),
    ("was", "O"),
    ("a-b.c", "O"),
    ("able", "O"),
    ("is", "O"),
    (".", "O"),
]


def sentence(seed, length):
    """(words, IOB2 tags) of about so many words."""
    generator = random.Random(seed)
    words, tags, before = [], [], None
    while len(words) < length:
        phrase = generator.choice(PHRASES)
        kind = phrase[1][2:5]
        if kind and kind == before:  # neighbours of one type are not learnt
            continue
        before = kind
        words += phrase[0].split()
        tags += phrase[1].split()
    return words, tags


def sentences(count, seed=0, longest=12):
    """So many of them, of different lengths."""
    return [
        sentence(seed * 1000 + number, 2 + number % longest)
        for number in range(count)
    ]


def columns(rows, separator="\t", end="\n", tags=True, middle=()):
    """The text of a file of columns, with a -DOCSTART- mark before all."""
    lines = [separator.join(["-DOCSTART-", *middle, "O"][: 2 + len(middle)])]
    for words, marks in rows:
        lines.append("")
        for word, tag in zip(words, marks, strict=True):
            lines.append(separator.join([word, *middle, *[tag] * tags]))
    return end.join([*lines, ""])
