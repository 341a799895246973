"""A user's own classification files."""

import json

import pytest
from toy_readers import LetterTokenizer, read, write

import processors
from processors import get_processor


def test_own_data_by_names_and_positions(tmp_path):
    write(tmp_path / "train.tsv", "text_b\tLABEL\ttext_a\nb\t10\ta\nd\t9\tc\n")
    processor = get_processor("tsv")
    train = processor.get_train_examples(tmp_path)
    assert [(e.text_a, e.text_b, e.label) for e in train] == [
        ("a", "b", "10"),
        ("c", "d", "9"),
    ]
    assert processor.is_pair and processor.get_labels() == ["9", "10"]
    write(tmp_path / "train.tsv", "x\tmood\tbody\n1\tsad\thello\n2\tgay\tho\n")
    options = {"label_column": "mood", "text_a_column": "BODY"}
    train = read("tsv", tmp_path, **options)
    assert [(e.text_a, e.label) for e in train] == [
        ("hello", "sad"),
        ("ho", "gay"),
    ]
    options = {"label_column": 1, "text_a_column": "2"}
    assert len(read("tsv", tmp_path, **options)) == 3
    assert len(read("tsv", tmp_path, has_header=True, **options)) == 2
    with pytest.raises(
        ValueError, match="tsv:1: has no column 'text_a'; it has: x, mood, body"
    ):
        read("tsv", tmp_path, has_header=True)
    with pytest.raises(ValueError, match="tsv:1: this first row .* Add a head"):
        read("tsv", tmp_path)
    with pytest.raises(ValueError, match="3 columns, so there is none at pos"):
        read("tsv", tmp_path, label_column=1, text_a_column=7)
    with pytest.raises(ValueError, match="label_column=mood is a name, but"):
        read(
            "tsv",
            tmp_path,
            label_column="mood",
            text_a_column=1,
            has_header=False,
        )


def test_a_label_that_looks_like_a_position_is_no_header(tmp_path):
    """Case: the row was taken for a header and lost without a word."""
    write(tmp_path / "train.tsv", "1\tgood\n0\tbad\n1\tnice\n")
    write(tmp_path / "test.tsv", "1\tgood\n0\tbad\n")
    places = {"label_column": 0, "text_a_column": 1}
    assert [e.text_a for e in read("tsv", tmp_path, **places)] == [
        "good",
        "bad",
        "nice",
    ]
    assert len(read("tsv", tmp_path, "test", **places)) == 2
    write(tmp_path / "train.tsv", "x\t1\t0\ny\t0\t1\n")
    many = {"label_columns": "1,2", "text_a_column": 0}
    assert len(read("tsv", tmp_path, **many)) == 2
    write(tmp_path / "train.tsv", "text\ta\tb\nx\t1\t0\n")
    many["label_columns"] = "a,b"
    assert len(read("tsv", tmp_path, **many)) == 1


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["a", None], "field 'label.1.' is null, not a text"),
        ([["a", "b"]], "field 'label.0.' is .* not a text"),
        ([{"k": 1}], "field 'label.0.' is .* not a text"),
        (["a,b"], "label 'a,b' holds the ',' that divides"),
    ],
)
def test_labels_of_json_are_texts(tmp_path, labels, told):
    rows = [{"text_a": "x", "label": ["a", "b"]}]
    rows.append({"text_a": "y", "label": labels})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write(tmp_path / "train.jsonl", text)
    with pytest.raises(ValueError, match=f"train.jsonl:2: {told}"):
        read("tsv", tmp_path, multi_label=True)


def test_own_test_files_keep_every_row(tmp_path, caplog):
    write(tmp_path / "train.tsv", "label\ttext_a\ny\tone\nn\ttwo\n")
    cases = {  # C01: three rows in, three rows out
        "text_a\none\ntwo\nthree\n": {},
        "label\ttext_a\n0\tone\n?\ttwo\ny\tthree\n": {},
        "one\ntwo\nthree\n": {},
        "y\tone\nn\ttwo\ny\tthree\n": {},
        "7\tone\n7\ttwo\n7\tthree\n": {"label_column": 0, "text_a_column": 1},
        "one \ntwo\nthree": {"label_column": 0, "text_a_column": 1},
    }
    for text, options in cases.items():
        write(tmp_path / "test.tsv", text)
        test = read("tsv", tmp_path, "test", **options)
        assert [e.text_a.strip() for e in test] == ["one", "two", "three"]
    assert "no header is found; the 2 columns are read in the order" in (
        caplog.text
    )
    processor = get_processor("tsv")
    assert processor.get_labels(tmp_path) == ["n", "y"]
    write(tmp_path / "test.tsv", "label\ttext_a\n0\tone\ny\ttwo\n")
    labels = [e.label for e in processor.get_test_examples(tmp_path)]
    assert labels == [None, "y"]
    write(tmp_path / "test.tsv", "a\tb\tc\td\n")
    with pytest.raises(ValueError, match="test.tsv:1: this first row"):
        read("tsv", tmp_path, "test")


def test_own_labels(tmp_path):
    write(tmp_path / "train.tsv", "label\ttext_a\nb\tone\na\ttwo\n")
    write(tmp_path / "dev.tsv", "label\ttext_a\na\tone\nk_1980\ttwo\n")
    names = write(tmp_path / "labels.txt", "b\r\nk_1980\n\na\n")
    assert get_processor("tsv").get_labels(tmp_path) == ["a", "b"]
    with pytest.raises(
        ValueError,
        match="dev.tsv:3: label 'k_1980' is not one of: a, b. .*--labels_file",
    ):
        read("tsv", tmp_path, "dev")
    options = {"labels_file": str(names)}
    assert len(read("tsv", tmp_path, "dev", **options)) == 2
    assert get_processor("tsv", **options).get_labels() == ["b", "k_1980", "a"]
    assert get_processor("tsv", labels=["x", "y"]).get_labels() == ["x", "y"]
    restored = get_processor("tsv")
    restored.options["labels"] = ["k_1980", "a"]
    assert restored.get_labels() == ["k_1980", "a"]
    with pytest.raises(ValueError, match="the labels are not known. Set --la"):
        get_processor("tsv").get_labels()
    write(names, "b\na\nb\n")
    with pytest.raises(ValueError, match="txt:3: label 'b' stands in line 1"):
        get_processor("tsv", **options)
    write(names, "\n")
    with pytest.raises(ValueError, match="labels.txt: holds no labels"):
        get_processor("tsv", **options)
    write(tmp_path / "train.tsv", "label\ttext_a\na\tone\na\ttwo\n")
    with pytest.raises(ValueError, match="every row has the label 'a'; a cla"):
        read("tsv", tmp_path)
    write(tmp_path / "train.tsv", "text_a\tlabel\none\n")
    with pytest.raises(ValueError, match="train.tsv:2: 1 columns, but 2"):
        read("tsv", tmp_path)
    write(tmp_path / "train.tsv", "text_a\none\n")
    with pytest.raises(ValueError, match="tsv:1: has no column 'label'"):
        read("tsv", tmp_path)


def test_own_csv_and_json(tmp_path):
    write(
        tmp_path / "train.csv",
        'text_a,label\n"a, ""b""\nc\rd",x\n\n5" disk,y\n"",y\n',
    )
    train = read("tsv", tmp_path)
    assert [(e.text_a, e.label) for e in train] == [
        ('a, "b"\nc\rd', "x"),
        ('5" disk', "y"),
        ("", "y"),
    ]
    assert [e.source.rpartition(":")[2] for e in train] == ["2", "5", "6"]
    write(tmp_path / "train.csv", 'text_a,label\nc,y\n"open,x\nb,y\n')
    with pytest.raises(ValueError, match="csv:3: a quoted cell is never clos"):
        read("tsv", tmp_path)
    write(tmp_path / "train.csv", 'text_a,label\n"a "b" c",x\n')
    with pytest.raises(ValueError, match="csv:2: text follows the closing q"):
        read("tsv", tmp_path)
    (tmp_path / "train.csv").unlink()
    rows = [{"text_a": "a", "label": True}, {"text_a": 3, "label": False}]
    write(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows)))
    processor = get_processor("tsv")
    assert [e.text_a for e in processor.get_train_examples(tmp_path)] == [
        "a",
        "3",
    ]
    assert processor.get_labels() == ["false", "true"]
    assert not processor.is_pair
    for row, message in (
        ('{"label": 1}', "no field 'text_a'; the fields are: label"),
        ('{"text_a": null, "label": 1}', "field 'text_a' is null, not a text"),
        ('{"text_a": "a", "label": null}', "has no label, which a train set"),
        ('["a"]', "a JSON list stands where an object"),
        ('{"text_a": "a"', "not valid JSON"),
    ):
        write(tmp_path / "train.jsonl", '{"text_a":"a","label":"x"}\n' + row)
        with pytest.raises(ValueError, match=f"train.jsonl:2: {message}"):
            read("tsv", tmp_path)
    with pytest.raises(ValueError, match="text_a_column is a position, but"):
        read("tsv", tmp_path, text_a_column=0)


def test_own_regression(tmp_path):
    write(tmp_path / "train.tsv", "text_a\tlabel\na\t-3.5\nb\t1e2\n")
    processor = get_processor("tsv", regression=True)
    train = processor.get_train_examples(tmp_path)
    assert [e.label for e in train] == [-3.5, 100.0]
    assert processor.get_labels(tmp_path) == []
    assert processors.label_value(train[0], [], "regression") == -3.5
    for word in ("nan", "inf", "low"):
        write(tmp_path / "train.tsv", f"text_a\tlabel\na\t1\nb\t{word}\n")
        with pytest.raises(ValueError, match=f"tsv:3: label '{word}' is not a"):
            read("tsv", tmp_path, regression=True)
    with pytest.raises(ValueError, match="contradict each other"):
        get_processor("tsv", regression=True, multi_label=True)


def test_own_multi_label(tmp_path):
    write(tmp_path / "train.tsv", "text_a\tlabel\na\tx|y\nb\t\nc\ty\n")
    options = {"multi_label": True, "label_separator": "|"}
    processor = get_processor("tsv", **options)
    train = processor.get_train_examples(tmp_path)
    assert [e.label for e in train] == [("x", "y"), (), ("y",)]
    assert processor.get_labels() == ["x", "y"]
    values = [
        processors.label_value(e, ["x", "y"], "multi_label") for e in train
    ]
    assert values == [[1, 1], [0, 0], [0, 1]]
    features = processors.convert_single_example(
        9, train[2], ["x", "y"], 5, LetterTokenizer()
    )
    assert features.label_id == [0, 1]
    write(tmp_path / "train.tsv", "text_a\tsad\tglad\na\t1\t0\nb\t0\t0\n")
    options = {"label_columns": "sad,glad"}
    processor = get_processor("tsv", **options)
    train = processor.get_train_examples(tmp_path)
    assert [e.label for e in train] == [("sad",), ()]
    assert processor.output_mode == "multi_label"
    assert processor.get_labels() == ["sad", "glad"]
    write(tmp_path / "test.tsv", "text_a\na\nb\n")
    assert [e.label for e in processor.get_test_examples(tmp_path)] == [
        None,
        None,
    ]
    by_place = {"label_columns": "1,2", "text_a_column": 0, "has_header": True}
    train = read("tsv", tmp_path, labels=["s", "g"], **by_place)
    assert train[0].label == ("s",)
    with pytest.raises(ValueError, match="names 2 columns, but there are 1"):
        get_processor("tsv", labels=["s"], **by_place)
    write(tmp_path / "train.tsv", "text_a\tsad\tglad\na\tmaybe\t0\n")
    with pytest.raises(
        ValueError,
        match="tsv:2: 'maybe' in the column of label 'sad' is neither 0 nor 1",
    ):
        read("tsv", tmp_path, **options)
    write(tmp_path / "train.tsv", "text_a\tsad\na\t1\n")
    with pytest.raises(ValueError, match="tsv:1: has no column 'glad'"):
        read("tsv", tmp_path, **options)
    (tmp_path / "train.tsv").unlink()
    write(
        tmp_path / "train.jsonl",
        '{"text_a": "a", "label": ["y", "x"]}\n{"text_a": "b", "label": []}\n',
    )
    train = read("tsv", tmp_path, multi_label=True)
    assert [e.label for e in train] == [("x", "y"), ()]
    write(tmp_path / "train.jsonl", '{"text_a": "a", "sad": true, "glad": 0}')
    assert read("tsv", tmp_path, **options)[0].label == ("sad",)


def test_go_emotions_rows_without_a_label_are_legal(tmp_path):
    write(tmp_path / "labels.txt", "joy\nanger\nfear")
    write(tmp_path / "dev.tsv", "a\t2,0\tx\nb\t\ty\nc\tanger\tz\n")
    dev = read("GoEmotions", tmp_path, "dev")
    assert [e.label for e in dev] == [("joy", "fear"), (), ("anger",)]
    write(tmp_path / "dev.tsv", "a\t3\tx\n")
    with pytest.raises(ValueError, match="dev.tsv:1: label '3' is not one of"):
        read("GoEmotions", tmp_path, "dev")


def test_a_label_in_the_column_of_a_text(tmp_path):
    write(tmp_path / "train.tsv", "mood\tbody\nsad\thello\ngay\tho\n")
    message = "tsv:1: --{}_column and --label_column both mean column '{}'"
    both = {"label_column": "body", "text_a_column": 1}
    with pytest.raises(ValueError, match=message.format("text_a", "body")):
        read("tsv", tmp_path, **both)
    both = {"label_column": 0, "text_a_column": 1, "text_b_column": 0}
    with pytest.raises(ValueError, match=message.format("text_b", 0)):
        read("tsv", tmp_path, has_header=False, **both)
    both = {"label_columns": "mood,body", "text_a_column": "body"}
    with pytest.raises(ValueError, match="--label_columns both .* 'body'"):
        read("tsv", tmp_path, **both)
    (tmp_path / "train.tsv").unlink()
    write(tmp_path / "train.jsonl", '{"mood": "sad", "body": "hello"}\n')
    both = {"label_column": "body", "text_a_column": "body"}
    with pytest.raises(ValueError, match="jsonl:1: --text_a_.* both .*'body'"):
        read("tsv", tmp_path, **both)


@pytest.mark.parametrize(
    "text, options, message",
    [
        (
            "label\ttext_a\n\tone\nb\ttwo\nc\tx\n",
            {},
            "2: has no label, which",
        ),
        (
            "label\ttext_a\n \tone\nb\ttwo\nc\tx\n",
            {},
            "2: has no label, which",
        ),
        ("label\ttext_a\ttext_a\na\tb\tc\n", {}, "1: the columns at 1 and 2 "),
        ("label\ttext_a\tlabel\na\tb\tc\n", {}, "0 and 2 .* named 'label'"),
        (
            "x\ty\tx\ttext_a\n0\t1\t0\ta\n",
            {"label_columns": "x,y"},
            "1: the columns at 0 and 2 .* named 'x'. Rename one",
        ),
        ("x\ttext_a\n0\ta\n", {"label_columns": "x,x"}, "a column twice"),
        ("label\ttext_a\n", {"multi_label": True}, "holds no examples"),
        (
            "label\ttext_a\n\tone\n\ttwo\n",
            {"multi_label": True},
            "no row has a label. Is --label_column right",
        ),
        ("label\ttext_a\n", {"label_separator": ""}, "--label_separator is em"),
        ("label\ttext_a\n1_000\ta\n", {"regression": True}, "'1_000' is not a"),
        ("label\ttext_a\n1e300\ta\n", {"regression": True}, "below 1e.18"),
        ("label\ttext_a\na\tb\n", {"labels_file": "nowhere"}, "is no file"),
    ],
)
def test_what_is_wrong_with_labels_is_said(tmp_path, text, options, message):
    write(tmp_path / "train.tsv", text)
    with pytest.raises(ValueError, match=message):
        read("tsv", tmp_path, **options)


def test_blanks_around_a_label_make_no_other_label(tmp_path):
    write(tmp_path / "train.tsv", "label\ttext_a\n a b \t1\na b\t2\nc\t3\n")
    processor = get_processor("tsv")
    train = processor.get_train_examples(tmp_path)
    assert [e.label for e in train] == ["a b", "a b", "c"]
    assert processor.get_labels() == ["a b", "c"]


@pytest.mark.parametrize("label", ['"a\nb"', '"a\tb"'])
def test_a_label_must_fit_on_a_line(tmp_path, label):
    text = f"label,text_a\nx,one\n{label},two\n"
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(ValueError, match="csv:3: label .* holds a tab, a line"):
        read("tsv", tmp_path)
    record = json.dumps({"label": "\ud800", "text_a": "x"})
    (tmp_path / "train.jsonl").write_text(record + "\n")
    (tmp_path / "train.csv").unlink()
    with pytest.raises(ValueError, match="jsonl:1: .* half of a character"):
        read("tsv", tmp_path)


def test_a_labels_file_of_one_label_and_a_second_training_file(
    tmp_path, caplog
):
    write(tmp_path / "train.tsv", "label\ttext_a\na\tb\na\tc\n")
    write(tmp_path / "labels.txt", "a\n")
    file = str(tmp_path / "labels.txt")
    with pytest.raises(ValueError, match="holds one label; a classifier needs"):
        read("tsv", tmp_path, labels_file=file)
    write(tmp_path / "labels.txt", "a\nb\n")
    write(tmp_path / "train.csv", "label,text_a\na,b\n")
    assert len(read("tsv", tmp_path, labels_file=file)) == 2
    assert "of train.tsv, train.csv the first is read" in caplog.text
