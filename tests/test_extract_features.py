"""extract_features.py: the original's lines, sentence vectors, neighbours."""

import gzip
import json

import numpy as np
import pytest
from conftest import GOLDEN, minilm_directory, run_script
from script_runs import Script

TINY = GOLDEN / "tiny"
MODEL = (
    f"--init_checkpoint={TINY}/bert_model.ckpt",
    f"--bert_config_file={TINY}/bert_config.json",
    f"--vocab_file={TINY}/vocab.txt",
)
COMMANDS = {
    command["name"]: command
    for command in json.loads((GOLDEN / "e2e" / "commands.json").read_text())
    if command["script"] == "extract_features.py"
}
FILES = {
    "extract_features": "features.jsonl.gz",
    "extract_features_layer0": "features_layer0.jsonl.gz",
}


@pytest.fixture(scope="module")
def run():
    with Script("extract_features") as script:
        yield script


def lines_of(text):
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("name", FILES)
def test_old_command_gives_old_lines(run, tmp_path, name):
    flags = {
        key: value.replace("golden/", f"{GOLDEN}/").replace(
            "OUT", str(tmp_path)
        )
        for key, value in COMMANDS[name]["flags"].items()
    }
    log = run(*(f"--{key}={value}" for key, value in flags.items()))
    cut = flags["max_seq_length"] == "32"
    assert ("2 of 5 lines are longer than --max_seq_length" in log) == cut
    with open(flags["output_file"]) as file:
        found = lines_of(file.read())
    packed = (GOLDEN / "e2e" / FILES[name]).read_bytes()
    expected = lines_of(gzip.decompress(packed).decode())
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)
        assert ours["linex_index"] == theirs["linex_index"]
        for a, b in zip(ours["features"], theirs["features"], strict=True):
            assert a["token"] == b["token"]
            for x, y in zip(a["layers"], b["layers"], strict=True):
                assert x["index"] == y["index"]
                np.testing.assert_allclose(x["values"], y["values"], atol=1e-5)


@pytest.mark.parametrize("batch_size", [7, 3])
def test_sentence_vectors_of_minilm_as_published(run, tmp_path, batch_size):
    # Eight sentences: the last batch has one row, or two.
    run(
        f"--init_checkpoint={minilm_directory()}",
        f"--input_file={GOLDEN}/minilm/sentences.txt",
        f"--output_file={tmp_path}/v.npy", "--output_format=npy",
        "--pooling=mean", "--normalize", f"--batch_size={batch_size}",
    )  # fmt: skip
    found = np.load(tmp_path / "v.npy")
    expected = np.load(GOLDEN / "minilm" / "vectors.npy")
    assert found.shape == expected.shape == (8, 384)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_arrays_of_tokens_hold_what_the_lines_hold(run, tmp_path):
    flags = (
        *MODEL, f"--input_file={GOLDEN}/e2e/features_input.txt",
        "--max_seq_length=24", "--layers=0,-1", "--long_text=windows",
    )  # fmt: skip
    run(*flags, f"--output_file={tmp_path}/a.jsonl", "--batch_size=1")
    run(
        *flags, f"--output_file={tmp_path}/a.npz", "--output_format=npz",
        "--output_dtype=float16", "--batch_size=4",
    )  # fmt: skip
    lines = lines_of((tmp_path / "a.jsonl").read_text())
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["values"].dtype == np.float16
        assert arrays["values"].shape == (arrays["lengths"].sum(), 2, 32)
        assert arrays["layers"].tolist() == [0, -1]
        features = [f for line in lines for f in line["features"]]
        assert arrays["tokens"].tolist() == [f["token"] for f in features]
        counts = [len(line["features"]) for line in lines]
        assert arrays["lengths"].tolist() == counts
        values = [[y["values"] for y in f["layers"]] for f in features]
        np.testing.assert_allclose(arrays["values"], values, atol=4e-3)


def test_long_text_in_windows_loses_no_word(run, tmp_path):
    words = [f"{'abcdefgh'[n % 8]}" for n in range(300)]
    (tmp_path / "in.txt").write_text("hi\n" + " ".join(words) + "\nhi")
    for pooling in ("none", "mean"):
        log = run(
            *MODEL, f"--input_file={tmp_path}/in.txt", "--max_seq_length=32",
            f"--output_file={tmp_path}/{pooling}", "--long_text=windows",
            "--doc_stride=20", "--layers=-1", f"--pooling={pooling}",
        )  # fmt: skip
        assert "were cut" not in log
    lines = lines_of((tmp_path / "none").read_text())
    tokens = [feature["token"] for feature in lines[1]["features"]]
    assert tokens == ["[CLS]", *words, "[SEP]"]
    pooled = lines_of((tmp_path / "mean").read_text())
    for line, vector in zip(lines, pooled, strict=True):
        values = [f["layers"][0]["values"] for f in line["features"]]
        assert vector["layers"][0]["index"] == -1
        np.testing.assert_allclose(
            np.mean(values, axis=0), vector["layers"][0]["values"], atol=3e-6
        )
    # A text alone and one in a batch with a long text have one vector.
    alone, among = (
        line["layers"][0]["values"] for line in (pooled[0], pooled[2])
    )
    np.testing.assert_allclose(alone, among, atol=1e-5)


def test_neighbours_and_matrix(run, tmp_path):
    (tmp_path / "a").write_text("the and\nhe was\n中 国\n")
    (tmp_path / "b").write_text("was he\n中 国\nthe and of\nthe and\n\n")
    flags = (
        *MODEL, f"--input_file={tmp_path}/a", "--max_seq_length=16",
        "--pooling=mean",
    )  # fmt: skip
    other = f"--other_file={tmp_path}/b"
    out = f"--output_file={tmp_path}/out"
    run(*flags, other, out, "--similarity=nearest", "--top_k=2")
    lines = lines_of((tmp_path / "out").read_text())
    best = [line["nearest"][0] for line in lines]
    assert [neighbour["text"] for neighbour in best][::2] == [
        "the and",
        "中 国",
    ]
    assert [neighbour["linex_index"] for neighbour in best][::2] == [3, 1]
    assert best[0]["similarity"] == pytest.approx(1, abs=1e-5)
    run(*flags, other, out, "--similarity=matrix", "--output_format=npy")
    matrix = np.load(tmp_path / "out")
    assert matrix.shape == (3, 5)
    assert matrix[1, 0] != matrix[1, 1]
    for line in lines:
        for neighbour in line["nearest"]:
            assert matrix[
                line["linex_index"], neighbour["linex_index"]
            ] == pytest.approx(neighbour["similarity"], abs=2e-6)
    run(
        *flags, out, "--similarity=nearest", "--output_format=npz",
    )  # fmt: skip
    with np.load(tmp_path / "out") as arrays:
        assert arrays["indices"].shape == (3, 2)  # not its own neighbour
        assert all(i not in row for i, row in enumerate(arrays["indices"]))


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--layers=-1,x",), "--layers=-1,x is no list of numbers"),
        (("--max_seq_length=4",), "--max_seq_length=4 must be at least 5"),
        (("--max_seq_length=65",), "=65 exceeds max_position_embeddings=64"),
        (("--input_file=no.txt",), "no.txt: there is no such file"),
        (("--similarity=matrix",), "compares texts: add --pooling=mean"),
        (
            ("--similarity=matrix", "--pooling=max", "--layers=0,1"),
            "--layers=0,1 gives 2. Name one layer",
        ),
        (("--other_file=FILE",), "--other_file goes with --similarity"),
        (("--normalize",), "--normalize goes with --pooling"),
        (("--output_format=npy",), "take npz, or --pooling"),
        (("--output_dtype=float16",), "--output_dtype goes with"),
        (("--vocab_file=no.txt",), "--vocab_file=no.txt does not exist"),
        (
            ("--max_seq_length=64",),
            "--layers=-1,-2,-3,-4 names layer -3, but .*bert_config.json has "
            "num_hidden_layers=2. Take layers from -2 to 1",
        ),
        (
            ("--max_seq_length=64", "--layers=-1,2"),
            "--layers=-1,2 names layer 2, but",
        ),
    ],
)
def test_flags_that_cannot_work(run, tmp_path, flags, message):
    text = GOLDEN / "e2e" / "features_input.txt"
    flags = [flag.replace("FILE", str(text)) for flag in flags]
    with pytest.raises(ValueError, match=message):
        run(
            *MODEL,
            f"--input_file={text}",
            f"--output_file={tmp_path}/o",
            *flags,
        )
    assert not list(tmp_path.iterdir())


def test_one_sentence_on_stderr_and_files_beside_the_checkpoint(tmp_path):
    (tmp_path / "in.txt").write_text("a\n")
    ran = run_script(
        "extract_features.py", f"--init_checkpoint={TINY}/trained/model.ckpt-3",
        f"--input_file={tmp_path}/in.txt", f"--output_file={tmp_path}/out",
        check=False,
    )  # fmt: skip
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert "--bert_config_file is not given, and there is no" in ran.stderr
