"""Multiple-choice files and their features."""

import json

import pytest
from conftest import shared_data
from toy_readers import LetterTokenizer, tokenizer, write

import choice_data

SWAG_ROW = {"sent1": "He sits.", "sent2": "Then he", "label": 1,
            "ending0": "flies.", "ending1": "eats, \"slowly\".",
            "ending2": "is red.", "ending3": "stops."}  # fmt: skip
SWAG_HEADER = (",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
               "ending0,ending1,ending2,ending3,label")  # fmt: skip
SWAG_LINE = ('0,v,1,He sits. Then he,He sits.,Then he,gen,flies.,'
             '"eats, ""slowly"".",is red.,stops.,1')  # fmt: skip


@pytest.mark.parametrize(("name", "count", "choices"), [
    ("SWAG/hf_fixture_sample.json", 10, 4),
    ("fewclue/chid/train_few_all.json", 202, 7),
    ("fewclue/chid/dev_few_all.json", 202, 7),
    ("fewclue/chid/test_public_part1.json", 1001, 7),
])  # fmt: skip
def test_no_real_question_is_lost(name, count, choices):
    examples = choice_data.read_choices(shared_data(name))
    assert len(examples) == count
    assert {len(e.endings) for e in examples} == {choices}
    assert len({e.guid for e in examples}) == count
    vocab = "chinese" if "chid" in name else "uncased"
    for example in examples[:30]:
        for ids, segments in choice_data.encode_choices(
            tokenizer(vocab), example, 64
        ):
            assert len(ids) == len(segments) <= 64


def choices(tmp_path, text, name="train.jsonl", **options):
    return choice_data.read_choices(write(tmp_path / name, text), **options)


def test_swag_csv_and_json_lines_agree(tmp_path):
    text = f"{SWAG_HEADER}\n{SWAG_LINE}\n"
    from_json = choices(tmp_path, json.dumps(SWAG_ROW))
    for variant in (
        text,
        text.replace("\n", "\r\n"),
        "\ufeff" + text,
        text.replace("\n", "\n\n"),
    ):
        (row,) = choices(tmp_path, variant, "train.csv")
        for key in ("context", "question", "endings", "label", "cut"):
            assert getattr(row, key) == getattr(from_json[0], key)
    assert row.endings[1] == 'eats, "slowly".'
    unlabelled = text.replace(",label", "").replace(",1\n", "\n")
    (row,) = choices(tmp_path, unlabelled, "test.csv", labelled=False)
    assert row.label is None and len(row.endings) == 4
    for spoilt, message in (
        (unlabelled, "csv:2: has no label, which training"),
        (text.replace(",is red.", ""), "csv:2: 11 columns, but 12"),
        (text.replace(",1\n", ",4\n"), "csv:2: label '4' is not a number from"),
        (text.replace("ending1", "x"), "csv:1: the header has no column end"),
        (text.replace('"eats', '"eats" '), "csv:2: text follows the closing"),
        (f"{SWAG_HEADER}\n", "csv: holds no questions"),
    ):
        with pytest.raises(ValueError, match=message):
            choices(tmp_path, spoilt, "train.csv")
    for char in ("\u2028", "\r"):
        spoilt = text.replace("flies", f"fl{char}ies")
        assert choices(tmp_path, spoilt, "train.csv")[0].endings[0] == (
            f"fl{char}ies."
        )


def test_other_choice_forms(tmp_path):
    hella = {
        "ctx_a": "A man sits.",
        "ctx_b": "he",
        "ctx": "A man sits. he",
        "endings": ["a", "b", "c", "d"],
        "label": "3",
        "ind": 4,
    }
    (row,) = choices(tmp_path, json.dumps(hella))
    assert (row.context, row.question, row.label) == ("A man sits.", "he", 3)
    (row,) = choices(
        tmp_path, json.dumps(hella | {"label": ""}), labelled=False
    )
    assert row.label is None
    race = {
        "article": "Long text.",
        "questions": ["Who ?", "He is ____ ."],
        "options": [["x", "y"], ["red", "blue"]],
        "answers": ["B", "A"],
        "id": "high1.txt",
    }
    write(tmp_path / "RACE" / "high" / "1.txt", json.dumps(race, indent=1))
    rows = choice_data.read_choices(tmp_path / "RACE")
    assert [(r.guid, r.question, r.label) for r in rows] == [
        ("high1.txt-0", "Who ?", 1),
        ("high1.txt-1", "", 0),
    ]
    assert rows[1].endings[1].split() == "He is blue .".split()
    one = {"article": "A", "question": "Q", "options": ["x", "y"]}
    assert choices(tmp_path, json.dumps(one | {"answer": "B"}))[0].label == 1
    cloze = {"content": "left #idiom# right", "candidates": ["x", "y", "z"]}
    (row,) = choices(tmp_path, json.dumps(cloze | {"answer": 2}))
    assert (row.label, len(row.endings)) == (2, 3)
    own = {"context": "c", "choices": ["x", "B", "3"]}
    for label, number in ((1, 1), ("2", 2), ("B", 1), ("3", 2), ("x", 0)):
        (row,) = choices(tmp_path, json.dumps(own | {"label": label}))
        assert row.label == number
    (row,) = choices(
        tmp_path, '{"question": "q", "choices": ["x", "y"]}', labelled=False
    )
    assert (row.context, row.question) == ("", "q")


def test_choice_errors(tmp_path):
    good = json.dumps({"context": "c", "choices": ["x", "y"], "label": 0})
    cases = {
        '{"context": "c"}': "has no field 'choices'",
        '{"context": "c", "choices": ["x"], "label": 0}': "'choices' is .* 2",
        '{"context": "c", "choices": "xy", "label": 0}': "a list of 2 or more",
        '{"context": "c", "choices": ["x", null]}': "field 'choices.1.' is nu",
        '{"context": "c", "choices": ["x", "y"], "label": 2}': "label 2 is "
        "not a number from 0 to 1,",
        '{"context": "c", "choices": ["x", "y"], "label": -1}': "label -1 "
        "says none, .* one from 0 to 1,",
        '{"context": "\\ud83d", "choices": ["x", "y"], "label": 0}': "holds "
        ".ud83d, half",
        '{"context": "c", "choices": ["x", "\\udc00y"], "label": 0}': ".udc00",
        '{"context": "c", "choices": ["x", "y"], "label": "no"}': "label 'no'",
        '{"context": "c", "choices": ["x", "y"]}': "has no label",
        '{"choices": ["x", "y"], "label": 0}': "no field 'context'",
        '{"content": "c", "candidates": ["x", "y"]}': "#idiom# 0 times",
        '{"article": "a", "questions": ["q"], "options": []}': "lists of one",
        '{"article": "a", "questions": null, "options": []}': "lists of one",
        '{"sent1": "a", "sent2": "b", "ending0": "x", "ending1": "y", '
        '"ending3": "z"}': "has ending0, ending1, ending3, but no ending2",
        '{"ctx_a": "a", "ctx_b": ["q"], "endings": ["x", "y"]}': "'ctx_b' is",
        '{"context": "#idiom# #idiom#", "choices": ["x", "y"]}': "#idiom# 2 t",
        '{"context": "#idiom#", "question": "q", "choices": ["x", "y"]}': "a "
        "question beside a context with",
        '{"context": "c"': "not valid JSON",
    }  # fmt: skip
    for row, message in cases.items():
        with pytest.raises(ValueError, match=f"train.jsonl:3: .*{message}"):
            choices(tmp_path, f"{good}\n\n{row}\n")
    write(tmp_path / "RACE" / "1.txt", "{")
    with pytest.raises(ValueError, match="1.txt:1: not valid JSON"):
        choice_data.read_choices(tmp_path / "RACE")


def test_choices_keep_their_ending():
    letters = LetterTokenizer()

    def tokens(length, **parts):
        parts = {
            "context": "a b c d e",
            "endings": ["x y", "z"],
            "question": "q r",
        } | parts
        example = choice_data.ChoiceExample("0", **parts)
        encoded = choice_data.encode_choices(letters, example, length)
        return [
            " ".join(letters.convert_ids_to_tokens(ids)) for ids, _ in encoded
        ]

    assert tokens(20) == [
        "[CLS] a b c d e [SEP] q r x y [SEP]",
        "[CLS] a b c d e [SEP] q r z [SEP]",
    ]
    assert tokens(9)[0] == "[CLS] a b [SEP] q r x y [SEP]"
    assert tokens(9, cut="head")[0] == "[CLS] d e [SEP] q r x y [SEP]"
    assert tokens(7)[0] == "[CLS] a [SEP] r x y [SEP]"
    assert tokens(5)[0] == "[CLS] a [SEP] x [SEP]"
    assert tokens(6, context="")[0] == "[CLS] q r x y [SEP]"
    idiom = {"context": "a b c #idiom# d e f g h", "question": ""}
    assert tokens(20, **idiom)[1] == "[CLS] a b c z d e f g h [SEP]"
    assert tokens(8, **idiom)[0] == "[CLS] b c x y d e [SEP]"
    assert tokens(5, **idiom)[1] == "[CLS] c z d [SEP]"
    end = {"context": "a b c d #idiom#", "question": ""}
    assert tokens(6, **end)[1] == "[CLS] b c d z [SEP]"
    with pytest.raises(ValueError, match="max_seq_length=4 is too small"):
        tokens(4)
