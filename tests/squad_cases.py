"""Golden files and small helpers of the reading comprehension tests."""

import functools
import gzip
import json
import random

import numpy as np
from conftest import GOLDEN, vocab_path

import reading_comprehension as rc
import squad_answers
import squad_data
import tokenization

SQUAD = GOLDEN / "squad"


INDEX = json.loads((SQUAD / "index.json").read_text())


VOCAB_NAMES = {
    "bert-base-uncased": "uncased",
    "bert-base-cased": "cased",
    "bert-base-chinese": "chinese",
    "bert-base-multilingual-cased": "multi_cased",
}


@functools.cache
def tokenizer_of(vocab, do_lower_case=True):
    return tokenization.FullTokenizer(
        str(vocab_path(vocab)), do_lower_case=do_lower_case
    )


def read_gzip_json(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def read_gzip_lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().splitlines()]


def features_of(examples, settings, is_training, **options):
    features = []
    rc.convert_examples_to_features(
        examples,
        tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        settings["max_seq_length"],
        settings["doc_stride"],
        settings["max_query_length"],
        is_training,
        features.append,
        **options,
    )
    return features


def read_golden(source, is_training, version_2, **options):
    examples = squad_data.read_squad_examples(
        str(SQUAD / source), is_training, version_2, **options
    )
    if is_training:
        random.Random(12345).shuffle(examples)
    return examples


def as_golden(feature):
    row = dict(vars(feature))
    for name in ("token_to_orig_map", "token_is_max_context"):
        row[name] = [list(pair) for pair in sorted(row[name].items())]
    return row


class LetterTokenizer:
    """White-space words as pieces, every id of its own; for small cases."""

    def __init__(self):
        self.names = ["[CLS]", "[SEP]"]

    def tokenize(self, text):
        return text.split()

    def encode(self, text):
        return self.convert_tokens_to_ids(self.tokenize(text))

    def tokenize_with_offsets(self, text):
        tokens, starts, ends = [], [], []
        place = 0
        for token in text.split():
            place = text.index(token, place)
            tokens.append(token)
            starts.append(place)
            place += len(token)
            ends.append(place)
        return tokens, starts, ends

    def convert_tokens_to_ids(self, tokens):
        for token in tokens:
            if token not in self.names:
                self.names.append(token)
        return [self.names.index(token) for token in tokens]

    def convert_ids_to_tokens(self, ids):
        return [self.names[number] for number in ids]


def question(context, answer=None, start=None, text="what", **more):
    if answer is not None and start is None:
        start = context.index(answer)
    return rc.SquadExample(
        "q",
        text,
        context_text=context,
        answers=[] if answer is None else [(answer, start)],
        orig_answer_text=answer,
        **more,
    )


def windows_of(example, length=12, stride=3, query=4, **options):
    tokenizer = options.pop("tokenizer", None) or LetterTokenizer()
    maker = rc.WindowMaker(tokenizer, length, stride, query, **options)
    return maker(example), maker


S04 = "a b c d e f g h"


def span_text(example, window, start, end, **options):
    logits = np.zeros((2, window["length"]), np.float32)
    logits[0, start] = logits[1, end] = 9
    options.setdefault("max_answer_length", 100)
    answers = squad_answers.answers_from_logits(
        [example], [window], logits[:1], logits[1:], **options
    )
    return answers.predictions[example.qas_id]
