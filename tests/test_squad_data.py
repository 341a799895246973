"""squad_data.py: layouts, repairs, and messages of wrong files."""

import json

import pytest
from conftest import GOLDEN, shared_data

import squad_data

CONTEXT = "The River Lark rises in the hills. It flows for 86.5 km."


def question(qas_id="q1", text="Where?", answers=(("the hills", 24),), **more):
    return {
        "id": qas_id,
        "question": text,
        "answers": [{"text": t, "answer_start": s} for t, s in answers],
        **more,
    }


def squad(*questions, context=CONTEXT):
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": "1.1", "data": [{"paragraphs": [paragraph]}]}


@pytest.fixture
def read(tmp_path):
    """Writes content (bytes, text or a value for JSON) and reads it."""

    def run(content, is_training=True, version_2=False, **options):
        path = tmp_path / "file.json"
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content, ensure_ascii=False, indent=1)
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        return squad_data.read_examples(path, is_training, version_2, **options)

    return run


# --- layouts ------------------------------------------------------------------


def test_squad_layout(read):
    examples, report = read(
        squad(question(), question("q2", answers=[("It", 35)]))
    )
    assert [e.qas_id for e in examples] == ["q1", "q2"]
    assert examples[0].question_text == "Where?"
    assert examples[0].context_text == CONTEXT
    assert examples[0].answers == [("the hills", 24)]
    assert examples[0].orig_answer_text == "the hills"
    assert examples[0].doc_tokens is examples[1].doc_tokens
    assert report.layout == "SQuAD layout"
    assert report.counts == {"examples": 2}


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_and_one_line(read, prefix):
    examples, _ = read(prefix + json.dumps(squad(question())).encode())
    assert len(examples) == 1


def test_cmrc_nesting_equals_the_squad_nesting(read):
    context = "范廷颂1963年被任为主教，1990年任总主教。"
    cmrc = [
        {
            "context_id": "T_0",
            "context_text": context,
            "title": "范廷颂",
            "qas": [
                {
                    "query_id": "T_0_Q_0",
                    "query_text": "何时被任为主教？",
                    "answers": ["1963年", "1963年"],
                }
            ],
        }
    ]
    ours, report = read(cmrc)
    assert report.layout == "CMRC 2018 nesting"
    assert report.counts["questions with several answers"] == 1
    other, _ = read(
        squad(
            question(
                "T_0_Q_0", "何时被任为主教？", [("1963年", 3), ("1963年", 3)]
            ),
            context=context,
        )
    )
    for name in ("qas_id", "question_text", "context_text", "answers"):
        assert getattr(ours[0], name) == getattr(other[0], name)
    del cmrc[0]["qas"][0]["answers"]
    examples, _ = read(cmrc, is_training=False)
    assert examples[0].answer_texts is None


def test_drcd_is_of_the_squad_layout(read):
    """Written after the publisher's description."""
    drcd = {
        "version": "1.3",
        "data": [
            {
                "title": "梵語",
                "id": "1147",
                "paragraphs": [
                    {
                        "context": "在歐洲，梵語的研究由海因里希·羅特開創。",
                        "id": "1147-5",
                        "qas": [
                            {
                                "id": "1147-5-1",
                                "question": "誰開創了研究？",
                                "answers": [
                                    {
                                        "id": "1",
                                        "text": "海因里希·羅特",
                                        "answer_start": 10,
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
    }
    examples, _ = read(drcd)
    assert examples[0].answers == [("海因里希·羅特", 10)]


def test_dureader_robust_is_of_the_squad_layout(read):
    """Written after the publisher's description."""
    robust = {
        "data": [
            {
                "title": "",
                "paragraphs": [
                    {
                        "title": "",
                        "context": "选择燃气热水器时，15升左右足够。",
                        "qas": [
                            {
                                "question": "燃气热水器多少升",
                                "id": "a1",
                                "answers": [
                                    {"text": "15升", "answer_start": 9}
                                ],
                            },
                            {
                                "question": "没有答案",
                                "id": "a2",
                                "type": "in-domain",
                            },
                        ],
                    }
                ],
            }
        ]
    }
    examples, _ = read(robust, is_training=False)
    assert examples[0].answers == [("15升", 9)]
    assert examples[1].answer_texts is None


def dureader(**more):
    row = {
        "question_id": 186572,
        "question": "热水器多少升合适",
        "question_type": "DESCRIPTION",
        "fact_or_opinion": "FACT",
        "documents": [
            {
                "title": "一",
                "is_selected": False,
                "paragraphs": ["别的话。", "另一段。"],
            },
            {
                "title": "二",
                "is_selected": True,
                "paragraphs": ["家里三口人。", "买15升的就够了。太大浪费。"],
            },
        ],
        "answers": ["买15升的就够了。"],
    }
    row.update(more)
    return row


def test_dureader_lines(read):
    lines = json.dumps(dureader(), ensure_ascii=False) + "\n\n"
    lines += json.dumps(dureader(question_id=2, answers=["买15升"]))
    examples, report = read(lines)
    assert report.layout == "DuReader JSON lines"
    assert [e.qas_id for e in examples] == ["186572", "2"]
    assert (
        examples[0].context_text == "家里三口人。\n买15升的就够了。太大浪费。"
    )
    assert examples[0].answers == [("买15升的就够了。", 7)]
    examples, _ = read(lines, is_training=False)
    assert examples[0].context_text.startswith("别的话。\n另一段。\n家里")
    assert examples[0].answer_texts == ["买15升的就够了。"]


def test_dureader_answers_that_are_not_copied(read):
    row = dureader(
        answers=["三口人买15升的就够"], fake_answers=["15升的就够了"]
    )
    examples, report = read(json.dumps(row))
    assert examples[0].answers[0] == ("15升的就够了", 8)
    assert report.counts["answers by fake_answers"] == 1
    row = dureader(answers=["买个15升的就够了呀"])
    examples, report = read(json.dumps(row))
    assert examples[0].answers[0] == ("买15升的就够了。", 7)
    assert report.counts["answers by the closest sentences"] == 1
    row = dureader(answers=["完全不同"])
    examples, report = read(json.dumps(row))
    assert examples == []
    assert report.counts["questions left out: no usable answer"] == 1


def test_closest_sentences():
    context = "甲乙丙。丁戊己！庚辛壬？\n  丁戊。"
    assert squad_data.closest_sentences(context, "丁戊己庚辛")[1:] == (4, 12)
    assert squad_data.closest_sentences(context, "子丑寅") is None
    assert squad_data.closest_sentences("", "子") is None


def test_flat_layout(read):
    row = {
        "id": "f1",
        "question": "Where?",
        "context": CONTEXT,
        "answers": {"text": ["the hills"], "answer_start": [24]},
    }
    examples, report = read({"data": [row]})
    assert examples[0].answers == [("the hills", 24)]
    assert report.layout == "flat layout"
    row["answers"]["text"].append("x")
    with pytest.raises(ValueError, match="2 answer texts but 1 answer starts"):
        read({"data": [row]})


@pytest.mark.parametrize(
    "relative, questions, repaired, missed",
    [
        ("SQuAD1.1/dev-v1.1.json", 612, 0, 0),
        ("SQuAD1.1/hf_fixture_sample.json", 14, 0, 0),
        ("SQuAD2.0/dev-v2.0.json", 2618, 0, 0),
        ("cmrc2018/cmrc2018_trial.json", 1002, 5, 0),
        ("cmrc2018/cmrc2018_dev_first300.json", 1042, 7, 90),
        ("xquad/xquad.ar.json", 612, 0, 0),
    ],
)
def test_real_files(relative, questions, repaired, missed):
    path = shared_data(relative)
    examples, report = squad_data.read_examples(path)
    assert len(examples) == questions
    assert report.counts["answer offsets repaired"] == repaired
    assert report.counts["answers not at their offset"] == missed
    assert len(report.messages) == min(missed, 20)
    if missed:
        assert "(id DEV_" in report.messages[0]
        assert ": data[" in report.messages[0]


# --- answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    "context, text, start, found",
    [
        ("Pure Land, then", "Pure Land", 1, ("Pure Land", 0)),
        ("Pure Land, then", "Pure Land", 2, ("Pure Land", 0)),
        ("wrong offset here", "offset", 5, ("offset", 6)),
        ("wrong offset here", "offset", 8, ("offset", 6)),
        ("wrong offset here", "offset", 9, None),
        ("wrong offset here", "offset", 3, None),
        ("wrong offset here", "offset", -1, None),
        ("wrong offset here", " offset ", 5, (" offset ", 5)),
        ("wrong offset", " offset ", 5, ("offset", 6)),
        ("a b", " ", 1, None),
        ("a b", "", 1, None),
        ("aaa", "a", 1, ("a", 1)),
        ("ab", "b", 99, None),
    ],
)
def test_s05_offsets_are_repaired_within_two(context, text, start, found):
    assert squad_data.locate_answer(context, text, start) == found


def test_s05_counts_and_messages(read):
    context = "x" * 10 + "Pure Land, and ure Land,"
    content = squad(
        question("near", answers=[("Pure Land", 11)]),
        question("far", answers=[("Pure Land", 14)]),
        context=context,
    )
    examples, report = read(content)
    assert [(e.qas_id, e.answers) for e in examples] == [
        ("near", [("Pure Land", 10)])
    ]
    assert report.counts == {
        "answer offsets repaired": 1,
        "answers not at their offset": 1,
        "questions left out: no usable answer": 1,
        "examples": 1,
    }
    assert (
        "(id far): the answer 'Pure Land' is not at offset 14"
        in (report.messages[0])
    )
    line = content_line(content, '"far"')
    assert (
        f"file.json:{line}: data[0].paragraphs[0].qas[1]" in report.lines()[1]
    )


def content_line(content, needle):
    lines = json.dumps(content, ensure_ascii=False, indent=1).split("\n")
    return next(n for n, line in enumerate(lines, 1) if needle in line)


def test_first_usable_of_several_answers(read):
    answers = [("no such", 0), ("hills", 28), ("the hills", 24)]
    examples, report = read(squad(question(answers=answers)))
    assert examples[0].answers[0] == ("hills", 28)
    assert report.counts["questions with several answers"] == 1


def test_original_reader_wants_one_answer():
    path = str(GOLDEN / "squad" / "bad_two_answers.json")
    with pytest.raises(ValueError, match="each question should have exactly 1"):
        squad_data.read_squad_examples(path, True)
    assert len(squad_data.read_examples(path, True).examples) == 1
    assert len(squad_data.read_squad_examples(path, False)) == 1


def test_original_rule_for_words(read):
    content = squad(
        question("in", answers=[("offset", 5)]),
        question("out", answers=[("offset", 99)]),
        question("minus", answers=[("here", -1)]),
        question("off", answers=[("offset", 0)]),
        context="wrong offset here",
    )
    examples, report = read(content, original_alignment=True)
    assert [(e.qas_id, e.start_position, e.end_position) for e in examples] == [
        ("in", 0, 1)
    ]
    assert report.counts["answers not found in the passage"] == 3
    assert "not in the words at its offset 99" in report.messages[0]


def test_unanswerable_questions(read):
    content = squad(
        question("no", answers=[], is_impossible=True),
        question("implied", answers=[]),
        question("yes", is_impossible=False),
    )
    examples, _ = read(content, version_2=True)
    assert [e.is_impossible for e in examples] == [True, True, False]
    assert examples[0].orig_answer_text == ""
    assert examples[0].start_position == examples[0].end_position == -1
    with pytest.raises(ValueError, match="--version_2_with_negative"):
        read(content)
    examples, _ = read(content, is_training=False)
    assert [e.answer_texts for e in examples] == [[], [], ["the hills"]]


# --- wrong files --------------------------------------------------------------


def without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\xff{}", r"file.json:1: not valid UTF-8"),
        (b'{"data":\n[\n"\xe4\xb8"]}', r"file.json:3: not valid UTF-8"),
        ('{"data": [\n}', r"file.json:2: not valid JSON"),
        ("", r"file.json: is empty"),
        ("\ufeff \n", r"file.json: is empty"),
        ({"data": []}, "holds no question"),
        (
            {"data": {}},
            "json:1: the file: the field 'data' must be of type list, not dict",
        ),
        ({"date": []}, "the field 'data' is missing"),
        ('{"date": []}', "the field 'data' is missing"),
        ('{"documents": []}', "the field 'question_id' is missing"),
        ({"data": [{"title": "x"}]}, "the field 'paragraphs' is missing"),
        ({"data": ["x"]}, r"data\[0\]: must be a JSON object"),
        (
            {"data": [{"paragraphs": [{"qas": []}]}]},
            r"data\[0\].paragraphs\[0\]: the field 'context' is missing",
        ),
        (squad(without(question(), "id")), r"qas\[0\]: the field 'id' is mis"),
        (
            squad(without(question(), "question")),
            r"qas\[0\] \(id q1\): the field 'question' is missing",
        ),
        (
            squad(without(question(), "answers")),
            "the field 'answers' is missing; training",
        ),
        (squad(dict(question(), answers=3)), "'answers' must be a list"),
        (
            squad(dict(question(), answers=[{"text": "x"}])),
            r"\.answers\[0\] \(id q1\): the field 'answer_start' is missing",
        ),
        (
            squad(question(answers=[("x", "3")])),
            "'answer_start' must be of type int, not str",
        ),
        (squad(question(is_impossible=1)), "must be true or false"),
        (squad(question(answers=[])), "give --version_2_with_negative"),
        (
            squad(question(), question()),
            r"qas\[1\] \(id q1\): this question id stands at .*:10: data\[0\]"
            r".paragraphs\[0\].qas\[0\] already",
        ),
        (
            [
                {
                    "context_text": "x",
                    "qas": [{"query_id": "c", "query_text": "?"}],
                }
            ],
            r"\(id c\): the field 'answers' must be a list of strings",
        ),
        (
            json.dumps(dureader()) + "\n" + json.dumps(dureader()),
            r"file.json:2: row \(id 186572\): this question id stands at "
            r".*file.json:1: row",
        ),
        (json.dumps(dureader()) + "\n{", r"file.json:2: not valid JSON"),
        (
            json.dumps(dureader(documents=[{"paragraphs": [3]}])),
            r"documents\[0\] \(id 186572\): a paragraph is not a string",
        ),
        (
            json.dumps(dureader(answers="x")),
            "'answers' must be a list of strings",
        ),
    ],
)
def test_wrong_files_are_named(read, content, message):
    with pytest.raises(ValueError, match=message):
        read(content)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        squad_data.read_examples(tmp_path / "none.json")


def test_line_of_a_question_with_an_escaped_id(read):
    content = squad(question(), dict(question("né"), question=3))
    text = json.dumps(content, indent=1)
    line = next(
        n for n, row in enumerate(text.split("\n"), 1) if "n\\u00e9" in row
    )
    with pytest.raises(ValueError, match=rf"file.json:{line}: .*\(id né\)"):
        read(text)


def test_messages_name_the_line(read):
    several = squad(question(), {"question": "No id?", "answers": []})
    text = json.dumps(several, indent=1)
    number = text[: text.index('"question": "No id?"')].count("\n")
    with pytest.raises(ValueError, match=rf"json:{number}: .*\.qas\[1\]: the"):
        read(text)
    twice = json.dumps(squad(question("7"), question("7")), indent=1)
    number = twice[: twice.rindex('"id": "7"')].count("\n") + 1
    with pytest.raises(ValueError, match=rf"json:{number}: .*qas\[1\] .*stand"):
        read(twice)
    numbers = squad(question(24, text=5), context="24 " + CONTEXT)
    text = json.dumps(numbers, indent=1)
    number = text[: text.index('"id": 24')].count("\n") + 1
    with pytest.raises(ValueError, match=f"json:{number}: .*of type str, not"):
        read(text)


def test_truth_is_no_id(read):
    with pytest.raises(ValueError, match="'id' must be of type str, not bool"):
        read(squad(question(True)))


@pytest.mark.parametrize("fakes", [5, "in", [5]])
def test_fake_answers_must_be_texts(read, fakes):
    row = {
        "question_id": 1,
        "question": "q",
        "documents": [{"paragraphs": ["Paris is in France"]}],
        "answers": ["zzz"],
        "fake_answers": fakes,
    }
    with pytest.raises(ValueError, match="'fake_answers' must be a list of st"):
        read(json.dumps(row))


def test_numbers_of_thousands_of_digits(read):
    text = '{"data": [\n{"id": ' + "9" * 5000 + "}]}"
    with pytest.raises(ValueError, match="json:2: a number of thousands of"):
        read(text)


def test_line_of_an_answer_in_the_flat_layout(read):
    answers = {"text": ["seals"], "answer_start": [3]}
    rows = [
        {"id": str(n), "context": CONTEXT, "question": "?", "answers": answers}
        for n in range(2)
    ]
    text = json.dumps({"data": rows}, indent=1)
    number = text[: text.rindex('"id"')].count("\n") + 1
    _, report = read(text)
    assert f"file.json:{number}: data[1]" in report.messages[1]
