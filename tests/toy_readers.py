"""Small stand-ins that several reader tests share."""

import functools

from conftest import vocab_path

from processors import get_processor
from tokenization import FullTokenizer


class LetterTokenizer:
    """Words divided by blanks, pieces of at most `size` letters."""

    def __init__(self, size=99):
        self.size = size
        self.ids = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}

    def tokenize(self, text):
        return [
            ("##" if at else "") + word[at : at + self.size]
            for word in text.split()
            for at in range(0, len(word), self.size)
        ]

    def convert_tokens_to_ids(self, tokens):
        return [self.ids.setdefault(t, len(self.ids)) for t in tokens]

    def convert_ids_to_tokens(self, ids):
        names = list(self.ids)
        return [names[i] for i in ids]

    def encode(self, text):
        return self.convert_tokens_to_ids(self.tokenize(text))


@functools.cache
def tokenizer(vocab, do_lower_case=True):
    return FullTokenizer(vocab_path(vocab), do_lower_case=do_lower_case)


def read(task, directory, split="train", **options):
    processor = get_processor(task, **options)
    return getattr(processor, f"get_{split}_examples")(str(directory))


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path
