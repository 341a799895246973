"""Files of tagged words, tag schemes, word windows."""

import json

import pytest
from conftest import shared_data
from toy_readers import LetterTokenizer, tokenizer, write

import labelling_data

REAL_LABELLED = [
    ("CoNLL-2003/eng.train", 6000, 73934 - 363, 4, "IOB1"),
    ("CoNLL-2003/eng.testa", 3466, 51578 - 216, 4, "IOB1"),
    ("CoNLL-2000/train.txt", 4000, 94664, 3, "IOB2"),
    ("WNUT-17/wnut17train.conll", 3394, 62730, 2, "IOB2"),
    ("WNUT-17/emerging.dev.conll", 1009, 15733, 2, "IOB2"),
    ("peopledaily/train.txt", 5000, 196939, 2, "IOB2"),
    ("peopledaily/dev.txt", 1200, 50465, 2, "IOB2"),
    ("MSRA-NER/msra_test_bio.txt", 2200, 119613, 2, "IOB2"),
]


@pytest.mark.parametrize(
    ("name", "sentences", "words", "width", "scheme"), REAL_LABELLED
)
def test_real_labelled_files_round_trip(
    name, sentences, words, width, scheme, tmp_path
):
    path = shared_data(name)
    file = labelling_data.read_labelled_file(path)
    documents = path.read_bytes().count(b"-DOCSTART-")
    assert abs(len(file.sentences) - sentences) <= documents
    assert sum(len(s.words) for s in file.sentences) == words
    assert file.columns == width
    before = [s.tags for s in file.sentences]
    assert labelling_data.convert_to_iob2(file) == scheme
    back = [labelling_data.from_iob2(s.tags, scheme) for s in file.sentences]
    if scheme == "IOB1":
        assert back == before
    output = tmp_path / "predictions.txt"
    labelling_data.write_predictions(file, before, output)
    rows, written = (
        p.read_bytes().decode().split("\n") for p in (path, output)
    )
    assert len(rows) == len(written)
    for row, new in zip(rows, written, strict=True):
        if not row.strip() or row.startswith("-DOCSTART-"):
            assert new == row
        else:
            tag = row.split(file.separator)[-1]
            assert new == f"{row}{file.separator}{tag}"
    again = labelling_data.read_labelled_file(output)
    assert [s.tags for s in again.sentences] == before


LABELLED = "Jim\tNNP\tB-PER\nsat\tVBD\tO\n\nParis\tNNP\tB-LOC\n"


def labelled(tmp_path, text, name="train.txt", **options):
    path = write(tmp_path / name, text)
    return labelling_data.read_labelled_file(path, **options)


@pytest.mark.parametrize("text", [
    LABELLED,
    LABELLED.replace("\t", " "),
    LABELLED.replace("\n", "\r\n"),
    "\ufeff" + LABELLED,
    LABELLED.replace("\n\n", "\n \t\n\n"),
    LABELLED.rstrip("\n"),
    f"-DOCSTART- -X- O\n\n{LABELLED}",
    f"-DOCSTART- O\n\n{LABELLED}-DOCSTART-\n",
    f"-DOCSTART-\t-X-\t-X-\tO\n{LABELLED}",
])  # fmt: skip
def test_labelled_variants_mean_the_same(tmp_path, text):
    file = labelled(tmp_path, text)
    assert [s.words for s in file.sentences] == [["Jim", "sat"], ["Paris"]]
    assert [s.tags for s in file.sentences] == [["B-PER", "O"], ["B-LOC"]]
    tags = [["X", "Y"], ["Z"]]
    output = tmp_path / "out.txt"
    labelling_data.write_predictions(file, tags, output)
    new = labelling_data.read_labelled_file(output)
    assert [s.tags for s in new.sentences] == tags
    old = (tmp_path / "train.txt").read_bytes()
    assert output.read_bytes().count(b"\n") == old.count(b"\n")
    assert output.read_bytes().count(b"\r") == old.count(b"\r")


def test_labelled_characters_are_words(tmp_path):
    for char in ("\u2028", "\r", "\x85", '"', "\u3000", "#"):
        file = labelled(tmp_path, f"a{char}\tO\n{char}\tO\n\nb\tO\n")
        assert [s.words for s in file.sentences] == [
            [f"a{char}", char],
            ["b"],
        ]


def test_labelled_errors(tmp_path):
    cases = {
        "a\tO\nb\n": "2: 1 columns, but 2 as in the first row are expected",
        "a O\nb x O\n": "2: 3 columns, but 2 .* divided by blanks",
        "a\nb\n": "1: 1 column, but a token and its tag are expected",
        "\n \n-DOCSTART- O\n": " holds no sentences",
        "": " holds no sentences",
    }
    for text, message in cases.items():
        with pytest.raises(ValueError, match=f"train.txt:{message}"):
            labelled(tmp_path, text)
    with pytest.raises(ValueError, match="tag_column=5 is not one of the 3"):
        labelled(tmp_path, LABELLED, tag_column=5)
    with pytest.raises(ValueError, match="txt:1: .*are the same of 3 columns"):
        labelled(tmp_path, LABELLED, token_column=-1)
    (tmp_path / "bad.txt").write_bytes(b"a\tO\nb\xff\tO\n")
    with pytest.raises(ValueError, match="bad.txt:2: byte 0xff in column 2"):
        labelling_data.read_labelled_file(tmp_path / "bad.txt")
    file = labelled(tmp_path, LABELLED)
    with pytest.raises(ValueError, match="txt:1: 2 words but 1 predicted"):
        labelling_data.write_predictions(file, [["O"], ["O"]], tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_labelled_columns_and_test_sets(tmp_path, caplog):
    file = labelled(tmp_path, LABELLED, tag_column=1)
    assert file.sentences[0].tags == ["NNP", "VBD"]
    assert labelling_data.convert_to_iob2(file) == "plain"
    assert labelling_data.labels_of(file.sentences, "plain") == ["NNP", "VBD"]
    options = {"labelled": False, "columns": 3}
    test = labelled(tmp_path, "Jim\n\nsat\n", **options)
    assert [s.tags for s in test.sentences] == [None, None]
    test = labelled(tmp_path, "Jim NNP\n\nsat VBD\n", **options)
    assert [s.tags for s in test.sentences] == [None, None]
    test = labelled(tmp_path, "Jim X\n", tag_column=3, labelled=False)
    assert [s.tags for s in test.sentences] == [None]
    test = labelled(tmp_path, "Jim NNP B-BOX\n\nsat VBD O\n", **options)
    labels = ["O", "B-PER", "I-PER"]
    with pytest.raises(ValueError, match="txt:1: tag 'B-BOX' is not one of: O"):
        labelling_data.check_known_tags(test, labels)
    labelling_data.check_known_tags(test, labels, labelled=False)
    assert [s.tags for s in test.sentences] == [None, None]
    assert "tag 'B-BOX' is not known from training" in caplog.text
    labelling_data.write_predictions(test, [["O"], ["O"]], tmp_path / "out")
    assert (tmp_path / "out").read_text() == (
        "Jim NNP B-BOX O\n\nsat VBD O O\n"
    )


def test_labelled_json_lines(tmp_path):
    text = (
        '{"id": 7, "tokens": ["Jim", "sat"], "tags": ["B-PER", "O"]}\r\n'
        '\n{"tokens": ["\\u2028"], "tags": ["O"]}\n'
    )
    file = labelled(tmp_path, text, "train.jsonl")
    assert [s.words for s in file.sentences] == [["Jim", "sat"], ["\u2028"]]
    output = tmp_path / "out.jsonl"
    labelling_data.write_predictions(file, [["O", "B-PER"], ["O"]], output)
    rows = output.read_bytes().decode().split("\n")
    assert json.loads(rows[0])["predicted_tags"] == ["O", "B-PER"]
    assert json.loads(rows[0])["id"] == 7 and rows[0].endswith("\r")
    assert len(rows) == 4 and rows[1] == ""
    labelling_data.write_predictions(
        labelled(tmp_path, output.read_text(), "again.jsonl"),
        [["O", "O"], ["O"]],
        output,
    )
    assert output.read_text().count("predicted_tags") == 2
    row = json.loads(output.read_text().split("\n")[0])
    assert row["predicted_tags"] == ["O", "O"] and row["id"] == 7
    chars = labelled(
        tmp_path, '{"text": "北京", "labels": ["B-LOC", "I-LOC"]}', "train.json"
    )
    assert chars.sentences[0].words == ["北", "京"]
    chosen = labelled(
        tmp_path,
        '{"w": ["a"], "t": [3]}',
        "train.json",
        token_column="w",
        tag_column="t",
    )
    assert chosen.sentences[0].tags == ["3"]
    test = labelled(tmp_path, '{"tokens": ["a"]}', "test.json", labelled=False)
    assert test.sentences[0].tags is None
    for row, message in (
        ('{"tokens": ["a"]}', "has no field for tags"),
        ('{"words_": ["a"]}', "has no field for words"),
        ('{"tokens": ["a"], "tags": []}', "1 words but 0 tags"),
        ('{"tokens": "a b", "tags": "O O"}', "'tags' is no list"),
        (
            '{"tokens": ["a", null], "tags": ["O", "O"]}',
            "field 'tokens.1.' is null, not a text",
        ),
        ('{"tokens": ["a"], "tags": [[]]}', "field 'tags.0.' is .., not a"),
        ('{"tokens": [{}], "tags": ["O"]}', "field 'tokens.0.' is {}, not a"),
        ('{"tokens": ["a"], "tags": null}', "'tags' is null"),
    ):
        with pytest.raises(ValueError, match=f"train.json:1: {message}"):
            labelled(tmp_path, row, "train.json")


def scheme_of(*sentences):
    made = [
        labelling_data.Sentence(
            ["w"] * len(tags.split()),
            tags.split(),
            f"f.txt:{10 * i}",
            list(range(10 * i, 10 * i + len(tags.split()))),
        )
        for i, tags in enumerate(sentences, start=1)
    ]
    return labelling_data.detect_scheme(made)


def test_tag_schemes(caplog):
    assert scheme_of("I-PER I-PER B-PER O") == "IOB1"
    assert scheme_of("B-PER I-PER B-PER O", "O") == "IOB2"
    assert scheme_of("B-PER E-PER S-LOC O") == "IOBES"
    assert scheme_of("B-PER L-PER U-LOC O I-X") == "BILOU"
    assert scheme_of("B-PER M-PER E-PER S-LOC") == "BMES"
    assert scheme_of("O O") == "IOB2"
    assert scheme_of("NN VB . O") == "plain"
    assert scheme_of("NN B_x") == "plain"
    assert "entities" not in caplog.text
    assert scheme_of("B-PER O I-LOC O") == "IOB2"  # N05: single I- starts
    assert "1 entities begin with I- and 1 with B-" in caplog.text
    for tags, wrong in (
        ("O O B_GOODS I_GOODS", "B_GOODS"),
        ("B-GOODS O I_GOODS", "I_GOODS"),
        ("B-PER PER O", "PER"),
        ("B-PER o", "o"),
        ("B- O", "B-"),
        ("O b-per", "b-per"),
        ("B-X L-X U-X M-X", "M-X"),
    ):
        place = 20 + tags.split().index(wrong)
        with pytest.raises(
            ValueError, match=f"f.txt:{place}: tag '{wrong}' is not of the form"
        ):
            scheme_of("O O", tags)


@pytest.mark.parametrize("tag", ["B_PER", "NN", "S-PER", "b-PER"])
def test_a_given_scheme_takes_no_other_tag(tmp_path, tag):
    """Case: such tags became O without a word."""
    file = labelled(tmp_path, f"a B-PER\nb {tag}\n")
    with pytest.raises(ValueError, match=f"txt:2: tag '{tag}' is not of .*B2"):
        labelling_data.convert_to_iob2(file, "IOB2")


def test_tag_conversion():
    pairs = {
        "IOB1": ("I-A I-A B-A O I-B I-A", "B-A I-A B-A O B-B B-A"),
        "IOBES": (
            "B-A E-A S-A O S-B B-B I-B E-B",
            "B-A I-A B-A O B-B B-B I-B I-B",
        ),
        "BILOU": ("B-A L-A U-A O", "B-A I-A B-A O"),
        "BMES": ("B-A M-A E-A S-A O", "B-A I-A I-A B-A O"),
        "IOB2": ("B-A I-A B-A O", "B-A I-A B-A O"),
    }
    for scheme, (tags, iob2) in pairs.items():
        assert labelling_data.to_iob2(tags.split()) == iob2.split()
        assert labelling_data.from_iob2(iob2.split(), scheme) == tags.split()
    loose = "O I-A I-B E-B E-B I-B S-A I-A".split()
    assert labelling_data.to_iob2(loose) == (
        "O B-A B-B I-B B-B B-B B-A B-A".split()
    )


def test_labels_and_transitions():
    sentence = labelling_data.Sentence(
        ["w"] * 3, ["I-PER", "O", "B-LOC"], "f:1", [1, 2, 3]
    )
    labels = labelling_data.labels_of([sentence])
    assert labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    starts, follows = labelling_data.allowed_transitions(labels)
    assert starts.tolist() == [True, True, False, True, False]
    inside = labels.index("I-PER")
    assert follows[:, inside].tolist() == [False, False, False, True, True]
    assert follows[:, 0].all() and follows[:, 3].all()


def test_first_piece_of_each_word_answers():
    pieces = LetterTokenizer(3)  # N01, N02: by word, not by ##
    words = ["Jim", "Henson", "was", "a", "puppeteer", "\u200b \u200b".strip()]
    words[-1] = " "  # a word that normalisation empties
    (window,) = labelling_data.encode_words(pieces, words, 50)
    tokens = pieces.convert_ids_to_tokens(window.ids)
    assert tokens == ("[CLS] Jim Hen ##son was a pup ##pet ##eer [SEP]".split())
    assert window.positions == [1, 2, 4, 5, 6]
    assert window.words == [0, 1, 2, 3, 4]
    tags = labelling_data.merge_windows(6, [window], [list("BIOOO")], "-")
    assert tags == list("BIOOO-")
    short = labelling_data.encode_words(pieces, ["a", "b", "c"], 8)
    long = labelling_data.encode_words(pieces, ["a", "b", "c"], 50)
    assert short == long  # N04: nothing depends on the padded length


@pytest.mark.parametrize("length", [3, 4, 5, 7, 16, 33, 128])
def test_windows_answer_every_word_once(length):
    pieces = LetterTokenizer(2)
    words = [f"w{i}" * (1 + i % 5 * (i % 7)) for i in range(400)]  # N03
    words[50:53] = [" ", "", " "]
    windows = labelling_data.encode_words(pieces, words, length)
    found = [word for window in windows for word in window.words]
    assert found == [i for i in range(400) if words[i].strip()]
    for window in windows:
        assert len(window.ids) <= length
        tokens = pieces.convert_ids_to_tokens(window.ids)
        for word, position in zip(window.words, window.positions, strict=True):
            assert tokens[position] == words[word][:2]
    with pytest.raises(ValueError, match="max_seq_length=2 is too small"):
        labelling_data.encode_words(pieces, words, 2)


def test_windows_see_what_stands_around():
    words = [f"w{i}" for i in range(400)]
    windows = labelling_data.encode_words(LetterTokenizer(), words, 128)
    assert [len(w.ids) for w in windows] == [128, 128, 128, 117]
    for window in windows[1:]:
        assert window.positions[0] == 16
    for window in windows[:-1]:
        assert window.positions[-1] == 128 - 18


def test_words_of_a_real_tokenizer():
    words = ["2013-10-23", "Elasticsearch", "\x00", "犬", "é"]
    (window,) = labelling_data.encode_words(tokenizer("uncased"), words, 64)
    tokens = tokenizer("uncased").convert_ids_to_tokens(window.ids)
    assert window.words == [0, 1, 3, 4]
    assert [tokens[p] for p in window.positions] == [
        "2013",
        "elastic",
        tokens[window.positions[2]],
        "e",
    ]
