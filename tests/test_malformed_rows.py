"""Malformed copies of a file of every reader of classification data."""

import json

import pytest
from toy_readers import read, write

NLI = "sentence1\tsentence2\tgold_label"


def columns(task, *rows, name="train.tsv", header=True):
    """A reader case: its file and which row, label and cell to spoil."""
    return pytest.param(task, name, list(rows), header, id=task)


CASES = [
    columns("CoLA", "x\t1\t\tgood row", "x\t0\t*\tbad one", header=False),
    columns("SST-2", "good row\t1", "bad one\t0", header=False),
    columns("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "1\t7\t8\tgood row\tanother", "0\t7\t8\tbad one\tmore"),
    columns("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "3\t1\t2\tgood row\tanother\t1", "4\t1\t2\tbad one\tmore\t0"),
    columns("MNLI", f"index\t{NLI}", "0\tgood row\tanother\tneutral",
            "1\tbad one\tmore\tentailment"),
    columns("SNLI", NLI, "good row\tanother\tneutral",
            "bad one\tmore\tcontradiction"),
    columns("XNLI", "premise\thypo\tlabel", "good row\tanother\tneutral",
            "bad one\tmore\tcontradictory",
            name="multinli/multinli.train.zh.tsv"),
    columns("QNLI", "index\tquestion\tsentence\tlabel",
            "0\tgood row\tanother\tentailment",
            "1\tbad one\tmore\tnot_entailment"),
    columns("RTE", "index\tsentence1\tsentence2\tlabel",
            "0\tgood row\tanother\tentailment",
            "1\tbad one\tmore\tnot_entailment"),
    columns("WNLI", "index\tsentence1\tsentence2\tlabel",
            "0\tgood row\tanother\t1", "1\tbad one\tmore\t0"),
    columns("STS-B", "g\tf\t2012\t5\t3.5\tgood row\tanother",
            "g\tf\t2012\t6\t1.0\tbad one\tmore\tlicence\tlicence",
            name="sts-train.csv", header=False),
    columns("tsv", "label\ttext_a", "yes\tgood row", "no\tbad one"),
    columns("ChnSentiCorp", "label\ttext_a", "1\tgood row", "0\tbad one"),
    columns("LCQMC", "good row\tanother\t1", "bad one\tmore\t0",
            name="train.txt", header=False),
    columns("THUCNews", "good row\t3", "bad one\t0", name="train.txt",
            header=False),
    columns("GoEmotions", "good row\t4,5\tid1", "bad one\t0\tid2",
            header=False),
    columns("AG-news", '"3","good row","another"', '"1","bad one","more"',
            name="train.csv", header=False),
]  # fmt: skip
JSON_CASES = {
    "BUSTM": {"sentence1": "good row", "sentence2": "another", "label": "1"},
    "TNEWS": {"sentence": "good row", "label": 109},
    "IFLYTEK": {"sentence": "good row", "label": 118},
    "CSL": {"keyword": ["a", "b"], "abst": "good row", "label": "1"},
    "OCNLI": {"sentence1": "good row", "sentence2": "b", "label": "neutral"},
    "CLUEWSC": {
        "text": "good row",
        "target": {"span1_text": "good", "span1_index": 0,
                   "span2_text": "row", "span2_index": 5},
        "label": "true",
    },
}  # fmt: skip
CASES += [
    columns(task, json.dumps(row), json.dumps(row), name="train.json",
            header=False)
    for task, row in JSON_CASES.items()
]  # fmt: skip


def spoil(row, how):
    """One malformed copy of a row, and what it should be told."""
    is_json, is_csv = row.startswith("{"), row.startswith('"')
    if how == "missing column":
        if is_json:
            record = json.loads(row)
            key = [k for k in record if "good" in str(record[k])][0]
            return row.replace(f'"{key}"', '"other"', 1), key
        mark = "," if is_csv else "\t"
        cells = row.split(mark)
        kept = [c for c in cells if "good row" not in c]
        return mark.join(kept), "column"
    if how == "stray quote":
        message = "quote" if is_csv else "not valid JSON" if is_json else None
        return row.replace("good", 'go"od', 1), message
    if how == "unknown label":
        for label in ("not_entailment", "entailment", "neutral", "yes"):
            if label in row:
                return row.replace(label, "posiive"), "is not one of"
        if is_json:
            record = json.loads(row) | {"label": "posiive"}
            return json.dumps(record), "is not one of"
        cells = row.replace('"', "").split("," if is_csv else "\t")
        if len(cells) == 7:
            return row.replace("3.5", "high"), "is not a number"
        mark = '"3"' if is_csv else cells[1] if "," in cells[1] else None
        if mark is None:  # the label is the one cell of a single digit
            at = [i for i, c in enumerate(cells) if c in ("1", "3")]
            at = at[-1] if len(cells) == 6 else at[0]
            at = 3 if row.endswith("another\t1") and len(cells) == 4 else at
            cells[at] = "posiive"
            return "\t".join(cells), "is not one of"
        return row.replace(mark, "posiive"), "is not one of"
    raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["missing column", "stray quote", "unknown label"]
)
@pytest.mark.parametrize(("task", "name", "rows", "header"), CASES)
def test_spoilt_row_in_every_reader(task, name, rows, header, how, tmp_path):
    at = int(header)
    rows = list(rows)
    rows[at], message = spoil(rows[at], how)
    rows = rows[:at] + [rows[-1], rows[at]] + rows[at:][1:]
    path = write(tmp_path / name, "\n".join(rows) + "\n")
    options = {}
    if task == "tsv":
        options = {"labels": ["yes", "no"]}
    if message is None:  # without quoting, a quote is text
        examples = read(task, tmp_path, **options)
        assert len(examples) == len(rows) - at
        assert 'go"od row' in (examples[1].text_a, examples[1].text_b)
        return
    with pytest.raises(ValueError, match=message) as error:
        read(task, tmp_path, **options)
    assert str(error.value).startswith(f"{path}:{at + 2}: ")


def same(first, second):
    keys = ("guid", "text_a", "text_b", "label")
    assert [[getattr(e, k) for k in keys] for e in first] == [
        [getattr(e, k) for k in keys] for e in second
    ]


@pytest.mark.parametrize(("task", "name", "rows", "header"), CASES)
def test_line_ends_in_every_reader(task, name, rows, header, tmp_path):
    path = write(tmp_path / name, "\n".join(rows) + "\n")
    expected = read(task, tmp_path)
    for text in (
        "\r\n".join(rows) + "\r\n",
        "\ufeff" + "\n".join(rows) + "\n",
        "\n".join(rows),
        "\n\n".join(rows) + "\n\n\r\n",
    ):
        write(path, text)
        same(read(task, tmp_path), expected)
    for char in ("\u2028", "\r", "\x85", "\x0b", "\x0c", "\x1c"):
        write(path, "\n".join(rows).replace("good row", f"good{char} row"))
        if task == "CLUEWSC":
            with pytest.raises(ValueError, match="does not stand at"):
                read(task, tmp_path)
            continue
        found = read(task, tmp_path)
        assert len(found) == len(expected)
        assert f"good{char} row" in (found[0].text_a, found[0].text_b)
    write(path, "")
    with pytest.raises(ValueError, match="holds no (examples|rows of lang)"):
        read(task, tmp_path)
    path.write_bytes("\n".join(rows).encode().replace(b"good", b"g\xffd", 1))
    line = 1 + header
    with pytest.raises(ValueError, match=f"{name}:{line}: byte 0xff"):
        read(task, tmp_path)
    path.unlink()
    with pytest.raises(OSError, match=f"holds no train set of task {task}"):
        read(task, tmp_path)


def test_latin_1_and_one_column_readers(tmp_path):
    path = write(
        tmp_path / "train_5500.label",
        "NUM:date Wh\xe9n ?\r\n\r\nHUM:ind Who\x85 ?\n",
        "latin-1",
    )
    assert [e.text_a for e in read("TREC", tmp_path)] == [
        "Wh\xe9n ?",
        "Who\x85 ?",
    ]
    write(path, "NUM:date When ?\nWho ?\n")
    with pytest.raises(ValueError, match="label:2: 'Who' is no label such"):
        read("TREC", tmp_path)
    write(path, "NUM:date When ?\nCAT:x Who ?\n")
    with pytest.raises(ValueError, match="label:2: label 'CAT' is not one"):
        read("TREC", tmp_path)
    write(tmp_path / "TREC_10.label", "Who ?\nCAT:x Who ?\nNUM:n How ?\n")
    test = read("TREC", tmp_path, "test")
    assert [e.text_a for e in test] == ["Who ?", "Who ?", "How ?"]
    assert [e.label for e in test] == [None, None, "NUM"]
    for label in ("pos", "neg"):
        write(
            tmp_path / f"rt-polarity.{label}",
            f'\ufeff{label}\r\na "b\u2028\rc\n\n' * 10,
        )
    rows = read("rt-polarity", tmp_path) + read("rt-polarity", tmp_path, "dev")
    assert len(rows) == 40 and len(read("rt-polarity", tmp_path, "dev")) == 4
    assert rows[1].text_a == 'a "b\u2028\rc'
