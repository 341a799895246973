"""What lies in recipes/ besides flag files."""

import sys

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

import checkpoints
import modeling

TINY = GOLDEN / "tiny"


@pytest.fixture(autouse=True)
def recipes(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "recipes"), *sys.path])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("1\ta long cell.\n0\tanother one.\n", ["a long cell."]),
        ("-DOCSTART- -X- O\n\nU.N. NNP I-ORG\nis VBZ O\n", ["U.N. is"]),
        ("\u4e2d\tB-LOC\n\u56fd\tI-LOC\n", ["\u4e2d\u56fd"]),
        ("\u4e2d B-LOC\n\u56fd I-LOC\n\n\u4eba O\n", ["\u4e2d\u56fd"]),
        (
            '{"label_des": "not a text", "id": 7, "content": "so #idiom#.",'
            ' "candidates": ["x", "it is"], "answer": 1}\n',
            ["so it is."],
        ),
        ("Plain text.\n{no row}\n", ["Plain text. {no row}"]),
    ],
)
def test_texts_are_taken_from_rows(tmp_path, text, sentences):
    import prepare_text

    path = tmp_path / "rows"
    path.write_text(text, encoding="utf-8")
    found = [s for part in prepare_text.documents(str(path)) for s in part]
    assert found[: len(sentences)] == sentences


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": "long enough"}\n{"a"\n', "rows:2: is no JSON row"),
        (
            '{"content": "so #idiom# .", "candidates": ["x", "y"]}\n',
            "rows:1: has candidates but no answer",
        ),
        ('{"data": []}\n', "no sentence was found"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, monkeypatch, capsys, text, told):
    import prepare_text

    path = tmp_path / "rows"
    path.write_text(text, encoding="utf-8")
    output = tmp_path / "out.txt"
    monkeypatch.setattr(sys, "argv", ["x", f"--output={output}", str(path)])
    with pytest.raises(SystemExit) as end:
        prepare_text.main()
    assert end.value.code == 1 and told in capsys.readouterr().err
    assert not output.exists()


def test_scaled_embeddings_change_no_output(tmp_path):
    import scale_embeddings

    factor = scale_embeddings.scale(TINY, tmp_path / "scaled", 0.005, 0.2)
    assert factor < 0.5
    config = modeling.BertConfig.from_json_file(
        tmp_path / "scaled" / "bert_config.json"
    )
    ids = np.random.default_rng(1).integers(5, 97, (3, 12)).astype(np.int32)
    assert config.hidden_dropout_prob == 0.2
    found = []
    for directory in (TINY, tmp_path / "scaled"):
        model = modeling.BertModel(config)
        model({"input_ids": ids})
        report = checkpoints.load_checkpoint(str(directory), model)
        assert not report.fresh
        outputs = model({"input_ids": ids})
        found.append([outputs["sequence_output"], outputs["pooled_output"]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert np.asarray(one).std() > 0.01
    prefix = str(tmp_path / "scaled" / "bert_model.ckpt")
    table = checkpoints.CheckpointReader(prefix).read(
        "bert/embeddings/word_embeddings"
    )
    np.testing.assert_allclose(table.std(), 0.005, rtol=1e-3)
