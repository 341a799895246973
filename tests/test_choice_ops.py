"""choice_ops.py: in the graph the rows of choice_data.encode_choices."""

import random

import numpy as np
import pytest
import tensorflow as tf
from conftest import vocab_path

import choice_data
import choice_ops
import tokenization
import tokenization_ops

WORDS = "the cat's \u72ac unaffableness, went home \u00e9clair [x] !".split()


@pytest.fixture(scope="module")
def tokenizers():
    path = str(vocab_path("uncased"))
    return (
        tokenization.FullTokenizer(path, True),
        tokenization_ops.InGraphTokenizer(path, True),
    )


def text(generator, longest):
    return " ".join(generator.choices(WORDS, k=generator.randint(0, longest)))


def questions(seed, form, with_question, count=12, choices=4):
    """Examples of every length, some without context, question or ending."""
    generator = random.Random(seed)
    examples = []
    for _ in range(count):
        context = text(generator, 30)
        if form != "pair":
            context += choice_data.IDIOM_MARK + text(generator, 30)
        question = text(generator, 12) if with_question else ""
        endings = [
            text(generator, 12) or "\u200b"  # "" would fill up
            for _ in range(choices)
        ]
        examples.append((context, endings, question))
    return examples


@pytest.mark.parametrize("form", choice_ops.FORMS)
@pytest.mark.parametrize("cut", ["head", "tail"])
@pytest.mark.parametrize("with_question", [False, True])
def test_rows_are_those_of_python(tokenizers, form, cut, with_question):
    python, graph = tokenizers
    for length in (5, 6, 9, 17, 32, 128):
        examples = questions(length, form, with_question)
        context, endings, question = zip(*examples, strict=True)
        pack = tf.function(choice_ops.pack_choices, reduce_retracing=True)
        features = pack(
            graph,
            tf.constant(context),
            tf.constant(endings),
            tf.constant(question) if with_question else None,
            length,
            form,
            cut,
        )
        features = {name: part.numpy() for name, part in features.items()}
        assert features["input_ids"].shape[:2] == (12, 4)
        for row, (context, endings, question) in enumerate(examples):
            example = choice_data.ChoiceExample(
                "x", context, endings, None, question, cut=cut
            )
            rows = choice_data.encode_choices(
                python, example, length, form == "blank"
            )
            for choice, (ids, segments) in enumerate(rows):
                own = {name: v[row, choice] for name, v in features.items()}
                size = int(own["input_mask"].sum())
                assert own["input_ids"][:size].tolist() == ids
                assert own["segment_ids"][:size].tolist() == segments
                assert (
                    any(segments)
                    or form != "blank"
                    or endings[choice] == "\u200b"
                )
                assert not own["input_ids"][size:].any()


def test_empty_choices_fill_up(tokenizers):
    features = choice_ops.pack_choices(
        tokenizers[1],
        tf.constant(["a b", "c"]),
        tf.constant([["x", "y", "z"], ["x", "y", ""]]),
        max_seq_length=16,
    )
    real = features["input_mask"].numpy().any(axis=2)
    np.testing.assert_array_equal(real, [[1, 1, 1], [1, 1, 0]])


def test_no_questions_give_no_rows(tokenizers):
    for form in choice_ops.FORMS:
        features = choice_ops.pack_choices(
            tokenizers[1],
            tf.constant([], tf.string),
            tf.zeros([0, 4], tf.string),
            max_seq_length=16,
            form=form,
        )
        assert features["input_ids"].shape[:2] == (0, 4)
