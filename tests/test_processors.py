"""Readers of published classification sets, and their features."""

import gzip
import json
import logging

import numpy as np
import pytest
from conftest import GOLDEN, shared_data
from toy_readers import LetterTokenizer, read, tokenizer, write

import processors
import text_files
from processors import InputExample, get_processor

CLASSIFIER = GOLDEN / "classifier"
INDEX = json.loads((CLASSIFIER / "index.json").read_text())
NLI = "sentence1\tsentence2\tgold_label"
DIRECTORIES = {"mrpc": "MRPC", "cola": "CoLA", "mnli": "MNLI", "xnli": "XNLI"}


@pytest.mark.parametrize("task", DIRECTORIES)
def test_features_equal_the_originals(task):
    cases = [
        c for c in INDEX["cases"] if c["task"] == task and "fails" not in c
    ]
    assert len(cases) >= 12
    processor = get_processor(task)
    assert processor.get_labels() == INDEX["labels"][task]
    for case in cases:
        directory = CLASSIFIER / "data" / DIRECTORIES[task]
        examples = read(task, directory, case["split"])
        with gzip.open(CLASSIFIER / "features" / case["file"], "rt") as file:
            rows = [json.loads(line) for line in file]
        assert len(rows) == case["rows"] == len(examples)
        for index, (example, row) in enumerate(
            zip(examples, rows, strict=True)
        ):
            features = processors.convert_single_example(
                index,
                example,
                processor.get_labels(),
                case["max_seq_length"],
                tokenizer(case["vocab"], case["do_lower_case"]),
            )
            for key in ("guid", "text_a", "text_b", "label"):
                assert getattr(example, key) == row.pop(key)
            assert {key: getattr(features, key) for key in row} == row


def test_padding_example_is_all_zeros():
    golden = INDEX["PaddingInputExample(max_seq_length=8)"]
    features = processors.convert_single_example(
        0, processors.PaddingInputExample(), ["a"], 8, None
    )
    assert {key: getattr(features, key) for key in golden} == golden


@pytest.mark.parametrize("name", INDEX["_read_tsv odd files"])
def test_read_tsv_as_the_original(name):
    path = CLASSIFIER / "data" / "odd" / f"{name}.tsv"
    expected = INDEX["_read_tsv odd files"][name]
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=r"bad.tsv:1: byte 0xff .* UTF-8"):
            processors.DataProcessor._read_tsv(path)
    else:
        assert processors.DataProcessor._read_tsv(path) == expected


REAL_SETS = [
    ("CoLA", "CoLA", 8551, 527, None),
    ("SST-2", "SST2", 6920, 872, None),
    ("mrpc", "MRPC", 3668, 408, None),
    ("RTE", "RTE", 1244, 139, None),
    ("wnli", "WNLI", 565, 70, None),
    ("sts_b", "STS-B", 5749, 1500, None),
    ("ChnSentiCorp", "ChnSentiCorp", 4801, 1161, None),
    ("thucnews", "THUCNews", 8000, 2000, None),
    ("ag-news", "ag_news_csv", 4000, 1000, 1000),
    ("TREC", "TREC", 5452, None, None),
    ("GoEmotions", "go_emotions", 12000, 5426, None),
    ("bustm", "fewclue/bustm", 160, 160, None),
    ("TNEWS", "fewclue/tnews", 1185, 1098, None),
    ("iflytek", "fewclue/iflytek", 1300, 1373, None),
    ("CSL", "fewclue/csl", 160, 160, 1000),
    ("OCNLI", "fewclue/ocnli", 160, 160, 1512),
    ("cluewsc", "fewclue/cluewsc", 160, 159, None),
    ("rt-polarity", "rt-polarity", 7200, 800, 800),
    ("movie reviews", "movie_reviews", 216, 24, 24),
]


@pytest.mark.parametrize(
    ("task", "directory", "train", "dev", "test"), REAL_SETS
)
def test_no_row_of_a_real_file_is_lost(task, directory, train, dev, test):
    directory = shared_data(directory)
    labels = get_processor(task).get_labels(str(directory))
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        if count is None:
            continue
        examples = read(task, directory, split)
        assert len(examples) == count
        assert len({e.guid for e in examples}) == count
        assert len({e.source for e in examples}) == count
        for example in examples:
            assert isinstance(example.text_a, str)
            mode = get_processor(task).output_mode
            if mode == "classification":
                assert example.label in labels
            elif mode == "regression":
                assert 0 <= example.label <= 5
            else:
                assert example.label and set(example.label) <= set(labels)


def test_real_files_are_read_in_order_with_their_lines():
    path = shared_data("STS-B/sts-train.csv")
    examples = read("STS-B", path.parent)
    rows = path.read_bytes().decode().split("\n")
    for number in (0, 17, 5748):
        cells = rows[number].split("\t")
        example = examples[number]
        assert (example.text_a, example.text_b) == (cells[5], cells[6])
        assert example.label == float(cells[4])
        assert example.source == f"{path}:{number + 1}"


def test_real_sets_keep_their_warts():
    mrpc = read("MRPC", shared_data("MRPC"))
    assert mrpc[0].text_a.endswith(
        'called "the witness", of deliberately distorting his evidence.'
    )
    iflytek = read("iflytek", shared_data("fewclue/iflytek"))
    iflytek += read("iflytek", shared_data("fewclue/iflytek"), "dev")
    assert any(set(e.text_a) & {"\u2028", "\x85"} for e in iflytek)
    trec = read("TREC", shared_data("TREC"), trec_fine=True)
    assert {e.label for e in trec} == set(
        get_processor("TREC", trec_fine=True).get_labels()
    )
    assert any("sister\xf0city" in e.text_a for e in trec)
    news = read("ag_news", shared_data("ag_news_csv"))
    assert news[1].text_b.startswith(
        "SPACE.com - TORONTO, Canada -- A second team of rocketeers"
    )
    wsc = read("CLUEWSC", shared_data("fewclue/cluewsc"), "dev")
    assert "那_舌头_象" in wsc[0].text_a and "[它]是想" in wsc[0].text_a


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"span1_index": -5}, "'b' does not stand at position -5"),
        ({"span1_text": "bcd"}, "the two spans of the target overlap"),
        ({"span2_text": None}, "field 'span2_text' is null"),
        (None, "'target' is no object with span1_index"),
    ],
)
def test_spans_of_cluewsc_are_checked(tmp_path, changes, told):
    target = {"span1_index": 1, "span1_text": "b"}
    target |= {"span2_index": 2, "span2_text": "c"}
    target = [1] if changes is None else target | changes
    row = {"text": "abcdef", "label": "true", "target": target}
    write(tmp_path / "train.json", json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=f"train.json:1: {told}"):
        read("CLUEWSC", tmp_path)


def test_keywords_of_csl_are_texts(tmp_path):
    row = {"abst": "x", "keyword": ["a", None], "label": "1"}
    write(tmp_path / "train.json", json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="json:1: field 'keyword.1.' is null"):
        read("CSL", tmp_path)


def test_task_names_and_options():
    for name in ("sst-2", "SST2", "Sst_2"):
        assert get_processor(name).name == "SST-2"
    assert get_processor("ag news").name == "AG-news"
    assert type(get_processor("CoLA")) is processors.ColaProcessor
    with pytest.raises(ValueError, match="task_name=imdb is not one of: CoLA"):
        get_processor("imdb")
    with pytest.raises(ValueError, match="label_column is not used by task"):
        get_processor("MRPC", label_column="x")
    assert get_processor("MRPC", label_column=None).name == "MRPC"
    assert len(processors.TASKS) == len(processors.task_names()) == 27
    with pytest.raises(ValueError, match="DataProcessor has no get_labels"):
        processors.DataProcessor().get_labels()


def test_mnli_has_two_dev_and_two_test_sets(tmp_path):
    for name in ("dev_matched", "dev_mismatched"):
        write(
            tmp_path / f"{name}.tsv", f"index\t{NLI}\n7\t{name}\tb\tneutral\n"
        )
    for name in ("test_matched", "test_mismatched"):
        write(
            tmp_path / f"{name}.tsv",
            f"index\tsentence1\tsentence2\n7\t{name}\tb\n",
        )
    processor = get_processor("MNLI")
    dev = processor.get_dev_sets(str(tmp_path))
    assert list(dev) == ["", "_mm"]
    assert dev["_mm"][0].text_a == "dev_mismatched"
    assert dev["_mm"][0].guid == "dev_mismatched-7"
    assert [
        s[0].text_a for s in processor.get_test_sets(tmp_path).values()
    ] == ["test_matched", "test_mismatched"]
    (tmp_path / "dev_mismatched.tsv").unlink()
    assert list(processor.get_dev_sets(tmp_path)) == [""]


def test_ax_is_a_test_set_for_mnli(tmp_path):
    write(
        tmp_path / "diagnostic.tsv",
        "index\tsentence1\tsentence2\n0\tThe cat sat.\tIt sat.\n",
    )
    example = read("AX", tmp_path, "test")[0]
    assert (example.guid, example.label) == ("test-0", None)
    assert list(get_processor("ax").get_test_sets(tmp_path)) == [""]


def test_xnli_languages(tmp_path):
    header = "language\tgold_label\tsentence1\tsentence2\n"
    write(
        tmp_path / "xnli.dev.tsv",
        f"{header}zh\tneutral\t1\t2\nde\tneutral\t3\t4\nfr\tneutral\t5\t6\n",
    )
    write(tmp_path / "xnli.test.tsv", f"{header}de\tneutral\t3\t4\n")
    for language in ("de", "fr"):
        write(
            tmp_path / f"multinli/multinli.train.{language}.tsv",
            f"premise\thypo\tlabel\n{language}\tx\tcontradictory\n",
        )
    assert [e.guid for e in read("XNLI", tmp_path, "dev")] == ["dev-1"]
    both = {"xnli_language": "fr,de"}
    assert [e.text_a for e in read("XNLI", tmp_path, "dev", **both)] == [
        "3",
        "5",
    ]
    train = read("XNLI", tmp_path, **both)
    assert [e.guid for e in train] == ["train-fr-1", "train-de-1"]
    assert train[0].label == "contradiction"
    assert len(read("XNLI", tmp_path, "test", xnli_language="de")) == 1
    with pytest.raises(ValueError, match="holds no rows of language zh"):
        read("XNLI", tmp_path, "test")


def test_rows_without_gold_label_are_left_out_with_a_warning(tmp_path, caplog):
    write(tmp_path / "dev.tsv", f"{NLI}\na\tb\t-\nc\td\tneutral\n")
    write(tmp_path / "test.tsv", f"{NLI}\na\tb\t-\nc\td\tneutral\n")
    assert len(read("SNLI", tmp_path, "dev")) == 1
    assert "left out 1 rows without a gold label" in caplog.text
    assert len(read("SNLI", tmp_path, "test")) == 2


def test_glue_test_files_need_no_label(tmp_path):
    write(tmp_path / "test.tsv", "index\tsentence\n0\tone\n1\ttwo\n2\tthree\n")
    for task in ("CoLA", "SST-2"):
        test = read(task, tmp_path, "test")
        assert [e.text_a for e in test] == ["one", "two", "three"]
    # C04: the dev file itself as the test file, header or not
    write(tmp_path / "test.tsv", "x\t1\t\tone\nx\t0\t*\ttwo\n")
    assert [e.text_a for e in read("CoLA", tmp_path, "test")] == ["one", "two"]
    write(tmp_path / "test.tsv", "one\t1\ntwo\t0\nthree\t1\n")
    assert len(read("SST-2", tmp_path, "test")) == 3
    write(tmp_path / "test.tsv", "one\ntwo\nthree\n")
    assert len(read("SST-2", tmp_path, "test")) == 3
    write(tmp_path / "train.tsv", "one\ntwo\n")
    with pytest.raises(ValueError, match="tsv:1: this first row of 1 columns"):
        read("SST-2", tmp_path)


def test_bad_rows_can_be_left_out_of_training_only(tmp_path, caplog):
    text = (
        "id\tquestion1\tquestion2\tis_duplicate\n1\ta\tb\t1\n"
        "2\tbroken\n3\tc\td\t0\n"
    )
    for split in ("train", "test"):
        write(tmp_path / f"{split}.tsv", text)
    with pytest.raises(ValueError, match="tsv:3: 2 columns, but 4 as in the"):
        read("QQP", tmp_path)
    assert len(read("QQP", tmp_path, skip_bad_rows=True)) == 2
    assert "left out 1 rows with a wrong number of columns" in caplog.text
    with pytest.raises(ValueError, match="tsv:3: 2 columns, but 4"):
        read("QQP", tmp_path, "test", skip_bad_rows=True)


def test_header_without_a_needed_column(tmp_path):
    write(tmp_path / "train.tsv", "index\tsentence1\tlabel\n0\ta\t1\n")
    with pytest.raises(
        ValueError, match="tsv:1: the header has no column 'sentence2'"
    ):
        read("WNLI", tmp_path)


def test_truncation_equals_popping_the_longer():
    for length_a in range(9):
        for length_b in range(9):
            for room in range(12):
                a, b = list(range(length_a)), list(range(length_b))
                while len(a) + len(b) > room:  # the original's loop
                    (a if len(a) > len(b) else b).pop()
                assert (len(a), len(b)) == processors.truncated_lengths(
                    length_a, length_b, room
                )
    a, b = list("aaaa"), list("bbbb")
    processors._truncate_seq_pair(a, b, 5)
    assert (a, b) == (list("aaa"), list("bb"))


def test_pairs_and_singles():
    letters = LetterTokenizer()

    def tokens(*arguments):
        ids, segments = processors.encode_pair(letters, *arguments)
        return " ".join(letters.convert_ids_to_tokens(ids)), segments

    assert tokens("a a a", "b b b", 7) == (
        "[CLS] a a [SEP] b b [SEP]",
        [0, 0, 0, 0, 1, 1, 1],
    )
    for empty in ("", "  ", None):  # T13
        assert tokens("x y z", empty, 9) == ("[CLS] x y z [SEP]", [0] * 5)
    assert tokens("", None, 4) == ("[CLS] [SEP]", [0, 0])
    assert tokens("x y z", None, 4) == ("[CLS] x y [SEP]", [0] * 4)
    for text_b, length, least in (
        ("c", 2, 5),
        ("c", 4, 5),
        (None, 2, 3),
        ("", 1, 3),
        ("c", 0, 5),
    ):
        message = f"max_seq_length={length} is too small: .* at least {least}"
        with pytest.raises(ValueError, match=message):
            tokens("a b", text_b, length)


def test_long_texts_are_cut_or_read_in_windows():
    ids = list(range(20))
    parts = processors.long_text_parts
    assert parts(ids, 8, "truncate_tail") == [ids[:8]]
    assert parts(ids, 8, "truncate_head") == [ids[-8:]]
    assert parts(ids, 8, "head_tail") == [[0, 1, *ids[14:]]]
    assert parts(ids, 8, "windows") == [
        ids[start : start + 8] for start in (0, 4, 8, 12)
    ]
    for long_text in processors.LONG_TEXTS:
        assert parts(ids[:8], 8, long_text) == [ids[:8]]
        assert parts([], 8, long_text) == [[]]
    for count in range(9, 40):
        for stride in range(1, 9):
            windows = parts(list(range(count)), 8, "windows", stride)
            assert {i for part in windows for i in part} == set(range(count))
            assert windows[-2][-1] < count - 1
    with pytest.raises(ValueError, match="doc_stride=9 is not between 1 and"):
        parts(ids, 8, "windows", 9)
    with pytest.raises(ValueError, match="long_text=middle is not one of"):
        parts(ids, 8, "middle")


def test_label_value_errors_name_the_place():
    example = InputExample("dev-3", "a", label="z", source="dev.tsv:4")
    with pytest.raises(
        ValueError, match="dev.tsv:4: label 'z' is not one of: x, y"
    ):
        processors.label_value(example, ["x", "y"])
    blank = InputExample("test-1", "a")
    assert processors.label_value(blank, ["x", "y"]) == 0
    assert processors.label_value(blank, [], "regression") == 0.0
    assert processors.label_value(blank, ["x", "y"], "multi_label") == [0, 0]


def test_results_are_written_as_the_originals(tmp_path):
    path = tmp_path / "test_results.tsv"
    rows = np.array([[0.22504985, 0.7749502], [1e-5, 1]], np.float32)
    processors.write_test_results(path, rows)
    assert path.read_bytes() == b"0.22504985\t0.7749502\n1e-05\t1.0\n"
    processors.write_test_results(path, [3.25, 0.5])
    assert path.read_bytes() == b"3.25\n0.5\n"
    with pytest.raises(TypeError), text_files.whole_file(path) as file:
        file.write("half")
        file.write(1)
    assert path.read_bytes() == b"3.25\n0.5\n"
    assert [p.name for p in tmp_path.iterdir()] == ["test_results.tsv"]


def test_readers_say_nothing_about_good_files(caplog):
    caplog.set_level(logging.WARNING)
    read("CoLA", CLASSIFIER / "data" / "CoLA")
    assert not caplog.records
