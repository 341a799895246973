"""run_squad.py, in this process and as users start it."""

import gzip
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
import script_runs
from absl import flags
from conftest import GOLDEN, ROOT, minilm_directory, run_script, shared_data
from squad_cases import INDEX, SQUAD, read_gzip_json, tokenizer_of

import reading_comprehension as rc
import records
import run_squad
import squad_data

E2E = GOLDEN / "e2e"
COMMANDS = {
    command["name"]: command["flags"]
    for command in json.loads((E2E / "commands.json").read_text())
    if command["script"] == "run_squad.py"
}
TINY = {
    "init_checkpoint": GOLDEN / "tiny" / "bert_model.ckpt",
    "bert_config_file": GOLDEN / "tiny" / "bert_config.json",
    "vocab_file": GOLDEN / "tiny" / "vocab.txt",
    "max_seq_length": 64,
    "max_query_length": 24,
    "doc_stride": 24,
    "train_batch_size": 4,
    "seed": 5,
    "tensorboard": False,
}


@pytest.fixture
def script():
    with script_runs.Script("run_squad") as script:
        yield script


@pytest.fixture
def squad(script, tmp_path):
    """Runs the script on the tiny model; gives its log lines."""

    def run(output_dir="out", **given):
        values = TINY | {"output_dir": tmp_path / output_dir} | given
        arguments = [
            f"--{name}={value}"
            for name, value in values.items()
            if value is not None
        ]
        return script(*arguments)

    return run


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())


def read_results(path):
    lines = pathlib.Path(path).read_text().splitlines()
    pairs = (line.split(" = ") for line in lines)
    return {key: float(value) for key, value in pairs}


def write_questions(path, *rows):
    """Writes SQuAD JSON of (context, question, answer or None) rows."""
    paragraphs = []
    for number, (context, question, answer) in enumerate(rows):
        qas = {"id": f"id{number}", "question": question, "answers": []}
        if answer is not None:
            start = context.find(answer)
            qas["answers"].append({"text": answer, "answer_start": start})
        qas["is_impossible"] = answer is None
        paragraphs.append({"context": context, "qas": [qas]})
    data = {"data": [{"title": "own", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def toy(tmp_path):
    """Eight questions on short passages, two without an answer."""
    people = "he she it we you they".split()
    rows = [
        (f"the {who} {thing} was in the it is he", f"who {thing}", who)
        for who, thing in zip(people, "abcdef", strict=True)
    ]
    rows += [("it was in the is", f"who {thing}", None) for thing in "gh"]
    return write_questions(tmp_path / "toy.json", *rows)


# ------------------------------------------------ the original's results


def golden_flags(name):
    flags = {
        key: str(value).replace("golden/", f"{GOLDEN}/")
        for key, value in COMMANDS[name].items()
    }
    del flags["output_dir"]
    return flags


def golden_files(name):
    return {
        kind: read_gzip_json(E2E / f"{name}.{kind}.json.gz")
        for kind in ("predictions", "nbest_predictions", "null_odds")
        if (E2E / f"{name}.{kind}.json.gz").exists()
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_old_command_gives_old_results(name, squad, tmp_path):
    squad(**golden_flags(name), original_alignment=True)
    golden = golden_files(name)
    ours = {
        kind: read_json(tmp_path / "out" / f"{kind}.json") for kind in golden
    }
    assert ours["predictions"] == golden["predictions"]
    assert list(ours["predictions"]) == list(golden["predictions"])
    for key, rows in golden["nbest_predictions"].items():
        found = ours["nbest_predictions"][key]
        assert [r["text"] for r in found] == [r["text"] for r in rows]
        for name in ("probability", "start_logit", "end_logit"):
            np.testing.assert_allclose(
                [r[name] for r in found], [r[name] for r in rows], atol=1e-5
            )
    for key, value in golden.get("null_odds", {}).items():
        assert ours["null_odds"][key] == pytest.approx(value, abs=1e-5)
    assert ("null_odds" in golden) == (
        tmp_path / "out" / "null_odds.json"
    ).exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_by_default_only_mended_answers_differ(name, squad, tmp_path):
    """Mended spans: with [UNK], or characters that tokenizing drops or adds.

    Of these the original gave all words they touch."""
    squad(**golden_flags(name))
    golden = golden_files(name)["predictions"]
    ours = read_json(tmp_path / "out" / "predictions.json")
    nbest = read_json(tmp_path / "out" / "nbest_predictions.json")
    source = golden_flags(name)["predict_file"]
    contexts = {
        example.qas_id: example.context_text
        for example in squad_data.read_examples(source).examples
    }
    assert list(ours) == list(golden)
    same = [key for key in ours if ours[key] == golden[key]]
    assert len(same) >= 10
    for key in set(ours) - set(same):
        row = next(r for r in nbest[key] if r["text"] == ours[key])
        text = contexts[key][row["answer_start"] : row["answer_end"]]
        tokens = tokenizer_of("tiny").tokenize(text)
        length = sum(len(token.removeprefix("##")) for token in tokens)
        lost = length != len("".join(text.split()))
        assert "[UNK]" in tokens or lost, key


RECORDS = [row for row in INDEX["features"] if "tf_record" in row]


@pytest.mark.parametrize("row", RECORDS, ids=lambda row: row["file"])
def test_records_are_the_originals(row, script, tmp_path):
    import input_pipeline

    settings = INDEX["feature_sets"][row["feature_set"]]
    split = "train" if row["is_training"] else "predict"
    with script_runs.flagsaver.flagsaver():
        script_runs.FLAGS(
            [
                "run_squad.py",
                f"--output_dir={tmp_path}",
                f"--{split}_file={SQUAD / row['source']}",
                "--original_alignment",
                f"--version_2_with_negative={row['version_2_with_negative']}",
                *(
                    f"--{name}={settings[name]}"
                    for name in (
                        "max_seq_length",
                        "doc_stride",
                        "max_query_length",
                    )
                ),
            ]
        )
        task = run_squad.SquadTask()
        task.tokenizer = tokenizer_of(
            settings["vocab"], settings["do_lower_case"]
        )
        examples = task.examples(split)[""]
        rows, owners = task.featurize_all(examples, split)
        spec = task.feature_spec()
    assert len(owners) == row["num_features"]
    path = tmp_path / "out.tf_record"
    input_pipeline.FeatureTable(spec, rows).write(str(path))
    golden = tmp_path / "golden.tf_record"
    golden.write_bytes(
        gzip.decompress((SQUAD / "features" / row["tf_record"]).read_bytes())
    )
    pairs = zip(
        records.read_records(path), records.read_records(golden), strict=True
    )
    for ours, theirs in pairs:
        ours, theirs = spec.decode(ours), spec.decode(theirs)
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value, name)


def test_written_records_have_the_original_names(squad, toy, tmp_path):
    squad(
        train_file=toy,
        predict_file=toy,
        do_train=True,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=True,
        num_train_epochs=1,
        write_records=True,
    )
    out = tmp_path / "out"
    assert sorted(p.name for p in out.glob("*.tf_record")) == [
        "eval.tf_record",
        "train.tf_record",
    ]
    rows = list(records.read_records(out / "eval.tf_record"))
    assert len(rows) == 8


# ------------------------------------------------------------- whole runs


def test_a_toy_is_learnt_and_answered(squad, toy, tmp_path):
    log = squad(
        train_file=toy,
        predict_file=toy,
        do_train=True,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=True,
        num_train_epochs=60,
        learning_rate=3e-3,
    )
    assert "examples 8, rows 8" in log
    results = read_results(tmp_path / "out" / "eval_results.txt")
    assert results["eval_exact_match"] >= 75
    assert results["eval_HasAns_total"] == 6
    assert results["eval_NoAns_total"] == 2
    assert results["eval_best_f1"] >= results["eval_f1"]
    assert results["global_step"] == 120
    predictions = read_json(tmp_path / "out" / "predictions.json")
    assert list(predictions) == [f"id{number}" for number in range(8)]
    odds = read_json(tmp_path / "out" / "null_odds.json")
    for key, text in predictions.items():
        assert (text == "") == (odds[key] > 0)
    run = read_json(tmp_path / "out" / "run.json")
    assert run["description"]["version_2_with_negative"] is True


def test_scores_and_predictions_cost_one_forward_pass(
    squad, toy, tmp_path, monkeypatch
):
    import distribution

    rows = []
    original = distribution.Predictor.batches

    def counting(self, batches):
        for outputs in original(self, batches):
            rows.append(len(outputs["start_logits"]))
            yield outputs

    monkeypatch.setattr(distribution.Predictor, "batches", counting)
    squad(predict_file=toy, do_predict=True, do_eval=True)
    assert sum(rows) == 8
    results = read_results(tmp_path / "out" / "eval_results.txt")
    assert results["eval_total"] == 6  # 1.1: those with an answer
    assert results["eval_questions_without_gold"] == 2


def test_steps_are_counted_in_windows(squad, tmp_path):
    context = "it was he in the a b is " * 20
    rows = [(context + "she", "who", "she"), ("he is it", "who", "he")]
    path = write_questions(tmp_path / "long.json", *rows)
    log = squad(
        train_file=path,
        do_train=True,
        num_train_epochs=3,
        train_batch_size=1,
        version_2_with_negative=True,
    )
    windows = int(log.split("examples 2, rows ")[1].split(",")[0])
    assert windows > 5
    assert f"steps {3 * windows}" in log
    log = squad("one", train_file=path, do_train=True, train_batch_size=1)
    assert "examples 2, rows 2" in log and "steps 6" in log  # 1.1
    assert f"{windows - 2} windows left out: without the answer" in log


def test_an_interrupted_run_goes_on_to_the_same_weights(
    squad, toy, tmp_path, monkeypatch
):
    import checkpoints
    import input_pipeline

    flags = {
        "train_file": toy,
        "do_train": True,
        "version_2_with_negative": True,
        "num_train_epochs": 6,
        "save_checkpoints_steps": 2,
    }
    squad("whole", **flags)
    original = input_pipeline.EpochOrder.take

    def failing(self, start, size):
        if start >= 9 * 4:
            raise RuntimeError("the power is cut")
        return original(self, start, size)

    with monkeypatch.context() as patch:
        patch.setattr(input_pipeline.EpochOrder, "take", failing)
        with pytest.raises(Exception, match="the power is cut"):
            squad("broken", **flags)
    assert not (tmp_path / "broken" / "model.ckpt-12.index").exists()
    log = squad("broken", **flags)
    assert "step 12 of 12" in log
    whole, broken = (
        checkpoints.CheckpointReader(str(tmp_path / name / "model.ckpt-12"))
        for name in ("whole", "broken")
    )
    assert whole.shapes == broken.shapes
    for name in whole.shapes:
        np.testing.assert_array_equal(whole.read(name), broken.read(name))


def test_a_trained_directory_answers_without_its_flags(squad, toy, tmp_path):
    squad(
        train_file=toy,
        do_train=True,
        version_2_with_negative=True,
        no_answer_head=True,
        passage_first=True,
        num_train_epochs=1,
    )
    for name in ("init_checkpoint", "bert_config_file", "vocab_file"):
        assert name in TINY
    given = dict.fromkeys(("init_checkpoint", "bert_config_file", "vocab_file"))
    squad(**given, predict_file=toy, do_predict=True)
    assert len(read_json(tmp_path / "out" / "null_odds.json")) == 8
    squad(
        **given,
        predict_file=toy,
        do_predict=True,
        version_2_with_negative=False,
    )
    with pytest.raises(ValueError, match="belongs to another run"):
        squad(**given, predict_file=toy, do_predict=True, passage_first=False)


def test_lengths_are_those_of_training(squad, tmp_path):
    rows = [("it was he in the a b is " * 9 + "she", "who", "she")] * 2
    path = write_questions(tmp_path / "long.json", *rows)
    lengths = {"max_seq_length": 40, "doc_stride": 12, "max_query_length": 9}
    squad(train_file=path, do_train=True, train_batch_size=1, **lengths)
    given = dict.fromkeys(("max_seq_length", "doc_stride", "max_query_length"))
    squad(**given, predict_file=path, do_predict=True)
    out = tmp_path / "out/nbest_predictions.json"
    recalled = out.read_text()
    squad(**lengths, predict_file=path, do_predict=True)
    assert out.read_text() == recalled
    squad(**given | {"doc_stride": 20}, predict_file=path, do_predict=True)
    assert out.read_text() != recalled


def test_a_refused_export_leaves_the_directory_free(squad, toy, tmp_path):
    with pytest.raises(ValueError, match="no trained model to export"):
        squad(do_export=True)
    assert not (tmp_path / "out").exists()
    squad(
        train_file=toy,
        version_2_with_negative=True,
        do_train=True,
        num_train_epochs=1,
    )


def test_no_answer_head_is_learnt(squad, toy, tmp_path):
    import checkpoints

    squad(
        train_file=toy,
        predict_file=toy,
        do_train=True,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=True,
        no_answer_head=True,
        num_train_epochs=60,
        learning_rate=3e-3,
    )
    out = tmp_path / "out"
    shapes = checkpoints.CheckpointReader(str(out / "model.ckpt-120")).shapes
    assert list(shapes["cls/no_answer/output_weights"]) == [1, 32]
    odds = read_json(out / "null_odds.json")
    assert min(odds["id6"], odds["id7"]) > 0 > np.median(list(odds.values()))
    predictions = read_json(out / "predictions.json")
    assert predictions["id6"] == predictions["id7"] == ""


def test_no_answer_losses_leave_the_span_of_nothing_out():
    import tensorflow as tf

    import heads

    head = heads.NoAnswerSpanHead(4)
    draw = np.random.default_rng(3)
    outputs = {
        f"{side}_logits": tf.constant(draw.normal(size=(3, 5)), tf.float32)
        for side in ("start", "end")
    }
    outputs["null_logits"] = tf.constant([0.5, -1.0, 2.0])
    features = {
        "input_ids": tf.ones([3, 5], tf.int32),
        "start_positions": tf.constant([0, 2, 3]),
        "end_positions": tf.constant([0, 2, 4]),
    }
    losses = head.example_losses(outputs, features).numpy()

    def entropy(side, row, place):
        logits = outputs[f"{side}_logits"].numpy()[row].astype(np.float64)
        return np.log(np.exp(logits).sum()) - logits[place]

    null = np.log1p(np.exp([-0.5, -1.0, 2.0]))
    np.testing.assert_allclose(losses[0], null[0], rtol=1e-5)
    span = (entropy("start", 2, 3) + entropy("end", 2, 4)) / 2
    np.testing.assert_allclose(losses[2], null[2] + span, rtol=1e-5)
    assert float(head.loss_weights(features)["loss"]) == 3


@pytest.mark.parametrize(
    "options",
    [{"long_text": "truncate"}, {"passage_first": True}],
    ids=lambda options: next(iter(options)),
)
def test_forms_of_the_input(options, squad, toy, tmp_path):
    path = write_questions(
        tmp_path / "long.json",
        ("he is it " * 60, "who", "he"),
        ("she was", "who is it", "she"),
    )
    log = squad(
        predict_file=path, do_predict=True, write_records=True, **options
    )
    rows = list(records.read_records(tmp_path / "out" / "eval.tf_record"))
    if "long_text" in options:
        assert "1 passages cut to one window" in log and len(rows) == 2
        return
    spec = records.FeatureSpec(
        [records.Feature(n, "int64", 64) for n in ("input_ids", "segment_ids")]
    )
    last = spec.decode(rows[-1])
    tokens = tokenizer_of("tiny").convert_ids_to_tokens(
        last["input_ids"][:10].tolist()
    )
    text = " ".join(tokens).split(" [SEP] ")
    assert text[0].startswith("[CLS] s") and text[1].startswith("w")
    size = len(text[0].split()) + 1
    assert last["segment_ids"][:size].sum() == 0
    assert last["segment_ids"][size] == 1


@pytest.mark.slow
def test_long_passages_are_read_in_one_piece(squad, tmp_path):
    """--attention_window: positions tiled, one window for each question."""
    import checkpoints

    context = "it was he in the a b is " * 12
    rows = [(context + "she", "who", "she"), ("he is it", "who", "he")]
    path = write_questions(tmp_path / "long.json", *rows)
    flags = {"max_seq_length": 200, "predict_file": path}
    log = squad(
        **flags,
        train_file=path,
        do_train=True,
        do_predict=True,
        attention_window=16,
        train_batch_size=1,
        num_train_epochs=40,
        learning_rate=1e-3,
    )
    assert "examples 2, rows 2" in log
    out = tmp_path / "out"
    predictions = read_json(out / "predictions.json")
    assert predictions == {"id0": "she", "id1": "he"}
    assert read_json(out / "bert_config.json")["max_position_embeddings"] == 200
    first = checkpoints.CheckpointReader(str(TINY["init_checkpoint"]))
    name = "bert/embeddings/position_embeddings"
    table = checkpoints.CheckpointReader(str(out / "model.ckpt-0")).read(name)
    for start in (0, 64, 128):
        np.testing.assert_array_equal(
            table[start : start + 64], first.read(name)
        )
    squad(**flags, do_predict=True)  # its directory says how it reads
    assert read_json(out / "predictions.json") == predictions
    with pytest.raises(ValueError, match="belongs to another run"):
        squad(**flags, do_predict=True, attention_window=8)
    with pytest.raises(ValueError, match="max_position_embeddings=200"):
        squad(predict_file=path, do_predict=True, max_seq_length=300)


def test_a_wide_attention_window_changes_nothing(squad, toy, tmp_path):
    found = []
    for window in (None, 64):
        squad(
            str(window),
            predict_file=toy,
            do_predict=True,
            attention_window=window,
        )
        nbest = read_json(tmp_path / str(window) / "nbest_predictions.json")
        found.append([r for rows in nbest.values() for r in rows])
    for one, other in zip(*found, strict=True):
        assert one["text"] == other["text"]
        assert one["start_logit"] == pytest.approx(
            other["start_logit"], abs=1e-5
        )


# ------------------------------------------------------- the users' cases


def test_question_as_long_as_the_input_is_refused():  # S01
    result = run_script(
        "run_squad.py",
        "--output_dir=nowhere",
        f"--predict_file={SQUAD / 'v11.json'}",
        "--do_predict",
        "--max_seq_length=64",
        "--max_query_length=64",
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "--max_query_length (64) + 3" in result.stderr


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("n_best_size", [1, 20])
def test_nothing_valid_is_no_answer(  # S02, S03, S10
    version_2, n_best_size, squad, tmp_path
):
    path = write_questions(
        tmp_path / "odd.json",
        ("", "who was it", "x"),
        ("a b c d", "what", "a"),
        (" \t\n", "who", "x"),
        ("a", "", "a"),
        ("\u200b\u00ad", "who", "x"),
    )
    squad(
        predict_file=path,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=version_2,
        n_best_size=n_best_size,
    )
    predictions = read_json(tmp_path / "out" / "predictions.json")
    assert "empty" not in predictions.values()
    for key in ("id0", "id2", "id4"):
        assert predictions[key] == ""
    if version_2:
        odds = read_json(tmp_path / "out" / "null_odds.json")
        assert np.isfinite(list(odds.values())).all()
        assert odds["id0"] == 10000.0
    nbest = read_json(tmp_path / "out" / "nbest_predictions.json")
    assert all(rows for rows in nbest.values())


def test_a_file_of_empty_passages_is_answered(squad, tmp_path):
    path = write_questions(tmp_path / "e.json", ("", "who", None))
    squad(
        predict_file=path,
        do_predict=True,
        do_eval=True,
        version_2_with_negative=True,
        do_export=False,
    )
    assert read_json(tmp_path / "out" / "predictions.json") == {"id0": ""}
    results = read_results(tmp_path / "out" / "eval_results.txt")
    assert results["eval_exact_match"] == 100


def test_answers_beside_their_place_are_repaired_or_counted(  # S05
    squad, tmp_path
):
    rows = [("he was it in the", "who", "was"), ("it is she", "who", "she")]
    path = write_questions(tmp_path / "off.json", *rows)
    data = read_json(path)
    paragraphs = data["data"][0]["paragraphs"]
    paragraphs[0]["qas"][0]["answers"][0]["answer_start"] += 1
    paragraphs[1]["qas"][0]["answers"][0]["answer_start"] = 0
    path.write_text(json.dumps(data))
    log = squad(
        train_file=path, do_train=True, train_batch_size=1, num_train_epochs=1
    )
    assert "1 answer offsets repaired" in log
    assert "off.json:1: data[0].paragraphs[1].qas[0]" in log
    assert "1 questions left out: no usable answer" in log
    assert "examples 1, rows 1" in log


def test_predictions_are_slices_of_the_passage(squad, tmp_path):
    """S06, S08, S11 to S13, whatever the model says."""
    contexts = [
        "a\u00a0b  c \u3000 it was\u2009he",
        "\u8303\u5ef7\u98821963\u5e74\u88ab\u4efb\u4e3a\u4e3b\u6559 he",
        "\u0130stanbul it na\u00efve e\u0301te\u0301, $5.00!",
        "x\u200by \U0001f600 the \ufffd is\r\n\r\nit",
    ]
    rows = [(context, "who was it", context[0]) for context in contexts]
    path = write_questions(tmp_path / "odd.json", *rows)
    for size in (1, 4):
        squad(predict_file=path, do_predict=True, max_answer_length=size)
        nbest = read_json(tmp_path / "out" / "nbest_predictions.json")
        for context, found in zip(contexts, nbest.values(), strict=True):
            for row in found:
                text = context[row["answer_start"] : row["answer_end"]]
                assert row["text"].split() == text.split(" ") or (
                    "".join(row["text"].split()) == "".join(text.split())
                )
                tokens = tokenizer_of("tiny").tokenize(row["text"])
                assert len(tokens) <= size
                assert row["text"].strip() and "##" not in row["text"]


def test_scores_follow_language_and_layout(squad, tmp_path):
    chinese = "\u8303\u5ef7\u9882\u88ab\u4efb\u4e3a\u4e3b\u6559" * 3
    path = write_questions(
        tmp_path / "zh.json", (chinese, "\u8c01", "\u8303\u5ef7\u9882")
    )
    squad("zh", predict_file=path, do_eval=True)
    results = read_results(tmp_path / "zh" / "eval_results.txt")
    assert {"eval_exact_match", "eval_f1", "eval_total"} <= set(results)
    row = {
        "question_id": 7,
        "question": "who",
        "documents": [{"is_selected": True, "paragraphs": ["it is he"]}],
        "answers": ["he"],
    }
    path = tmp_path / "du.json"
    path.write_text(json.dumps(row) + "\n")
    squad("du", predict_file=path, do_eval=True, do_predict=True)
    results = read_results(tmp_path / "du" / "eval_results.txt")
    assert {"eval_rouge_l", "eval_bleu_4"} <= set(results)
    squad("forced", predict_file=path, do_eval=True, metric="squad")
    results = read_results(tmp_path / "forced" / "eval_results.txt")
    assert "eval_exact_match" in results


# --------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"do_predict": True}, "--do_predict needs --predict_file"),
        ({"do_eval": True}, "--do_eval needs --predict_file"),
        ({"do_train": True}, "--do_train needs --train_file"),
        (
            {"do_train": True, "train_file": "absent.json"},
            "--train_file=absent.json does not exist",
        ),
        (
            {"do_predict": True, "predict_file": "TOY", "doc_stride": 0},
            "doc_stride",
        ),
        (
            {
                "do_predict": True,
                "predict_file": "TOY",
                "label_smoothing": 0.1,
            },
            "--label_smoothing does not go with spans",
        ),
        (
            {"do_train": True, "train_file": "TOY", "no_answer_head": True},
            "Add --version_2_with_negative",
        ),
        (
            {
                "do_predict": True,
                "predict_file": "TOY",
                "original_alignment": True,
                "do_export": True,
            },
            "--original_alignment goes neither with --do_export",
        ),
        (
            {
                "do_predict": True,
                "predict_file": "TOY",
                "attention_window": 4,
                "original_alignment": True,
            },
            "--attention_window goes neither with TPUs",
        ),
        (
            {"do_predict": True, "predict_file": "TOY", "max_seq_length": 65},
            "exceeds max_position_embeddings=64",
        ),
        ({}, "Nothing to do"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flags_that_cannot_work_are_refused(
    flags, message, squad, toy, tmp_path
):
    flags = {k: toy if v == "TOY" else v for k, v in flags.items()}
    with pytest.raises(ValueError, match=message):
        squad(**flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"bad.json: is empty"),
        (b'{"data": []}', r"bad.json: holds no question"),
        (b'{"data": [\n{"paragraphs": [{"qas": []}]}]}', "'context'"),
        (b'{"data": "\xff"}', r"bad.json:1: not valid UTF-8"),
        (
            b'{"data": [{"paragraphs": [{"context": "a", "qas": [\n'
            b'{"id": "x", "question": "q"},\n'
            b'{"id": "x", "question": "q"}]}]}]}',
            r"bad.json:3.*this question id",
        ),
    ],
    ids=["empty", "no question", "no context", "bytes", "twice"],
)
def test_bad_files_are_refused_before_anything_is_written(
    content, message, squad, tmp_path
):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        squad(predict_file=path, do_predict=True)
    assert not (tmp_path / "out").exists()


def test_unanswerable_training_questions_need_the_flag(squad, toy):
    with pytest.raises(ValueError, match="version_2_with_negative"):
        squad(train_file=toy, do_train=True)


def test_a_file_without_answers_is_predicted_but_not_scored(squad, tmp_path):
    data = {
        "data": [
            {
                "paragraphs": [
                    {"context": "he is", "qas": [{"id": "a", "question": "q"}]}
                ]
            }
        ]
    }
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(data))
    squad(predict_file=path, do_predict=True)
    assert list(read_json(tmp_path / "out" / "predictions.json")) == ["a"]
    with pytest.raises(ValueError, match="can be predicted but not scored"):
        squad(predict_file=path, do_eval=True)


def test_verbose_logging_shows_every_message(squad, tmp_path):
    rows = [(f"it is he {n}", "who", "zzz") for n in range(30)]
    rows.append(("it is he", "who", "he"))
    path = write_questions(tmp_path / "many.json", *rows)
    flags = {
        "train_file": path,
        "do_train": True,
        "train_batch_size": 1,
        "num_train_epochs": 1,
    }
    log = squad("short", **flags)
    assert log.count("is not in the passage") == 20
    assert "10 more; --verbose_logging shows all" in log
    log = squad("long", **flags, verbose_logging=True)
    assert log.count("is not in the passage") == 30


# ------------------------------------------------------------------- sizes


def test_very_long_and_very_short_input(squad, tmp_path):
    draw = random.Random(4)
    words = "he she it was is in the a b of".split()
    long = ""
    while len(long) < 100_000:
        long += draw.choice(words) + " "
    path = write_questions(
        tmp_path / "sizes.json",
        (long, "who was it", "he"),
        ("a", "who", "a"),
        ("he is it", " ".join(draw.choices(words, k=300)), "he"),
    )
    log = squad(
        predict_file=path,
        do_predict=True,
        do_eval=True,
        predict_batch_size=64,
    )
    assert "1 questions cut to max_query_length" in log
    predictions = read_json(tmp_path / "out" / "predictions.json")
    assert predictions["id1"] == "a" and predictions["id0"]


def test_a_paragraph_of_a_thousand_questions(squad, tmp_path, monkeypatch):
    context = "he she it was is in the a b of " * 12
    qas = [{"id": f"q{n}", "question": f"who {n}"} for n in range(1000)]
    data = {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
    path = tmp_path / "thousand.json"
    path.write_text(json.dumps(data))
    read = []
    original = rc.Passage.__init__

    def counting(self, *arguments):
        read.append(1)
        original(self, *arguments)

    monkeypatch.setattr(rc.Passage, "__init__", counting)
    squad(predict_file=path, do_predict=True, predict_batch_size=256)
    assert len(read) == 1  # tokenized once for all
    assert len(read_json(tmp_path / "out" / "predictions.json")) == 1000


# ------------------------------------------------------------------ export

SERVE = """
import json, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
rows = json.loads(open(sys.argv[2]).read())
answer = model.signatures["serving_default"]
found = answer(
    question=tf.constant([row[1] for row in rows]),
    context=tf.constant([row[2] for row in rows]),
)
found = {name: value.numpy().tolist() for name, value in found.items()}
found["answer"] = [text.decode() for text in found["answer"]]
ids = tf.constant([[1, 2, 3, 4], [1, 2, 3, 0]])
found["ids"] = sorted(model.signatures["ids"](
    input_ids=ids, input_mask=tf.sign(ids), segment_ids=0 * ids))
example = tf.train.Example()
for name in ("input_ids", "input_mask", "segment_ids"):
    example.features.feature[name].int64_list.value.extend([1, 1, 1])
found["examples"] = model.signatures["examples"](
    examples=tf.constant([example.SerializeToString()])
)["start_logits"].shape.as_list()
print(json.dumps(found))
"""


def served(directory, examples, tmp_path):
    """The answers of the exported model, in a process without our code."""
    rows = [[e.qas_id, e.question_text, e.context_text] for e in examples]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    result = subprocess.run(
        [sys.executable, "-c", SERVE, str(directory / "saved_model/1"), path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def check_served(directory, examples, tmp_path):
    found = served(directory, examples, tmp_path)
    predictions = read_json(directory / "predictions.json")
    odds = read_json(directory / "null_odds.json")
    nbest = read_json(directory / "nbest_predictions.json")
    for number, example in enumerate(examples):
        key = example.qas_id
        assert found["answer"][number] == predictions[key], key
        assert found["null_odds"][number] == pytest.approx(odds[key], abs=1e-3)
        start, end = found["start"][number], found["end"][number]
        if predictions[key]:
            row = next(r for r in nbest[key] if r["text"] == predictions[key])
            assert (start, end) == (row["answer_start"], row["answer_end"])
            score = row["start_logit"] + row["end_logit"]
            assert found["score"][number] == pytest.approx(score, abs=1e-3)
        else:
            assert (start, end) == (-1, -1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("no_answer_head", [False, True])
def test_an_export_answers_as_predictions(no_answer_head, squad, tmp_path):
    path = SQUAD / "v20.json"
    squad(
        train_file=path,
        predict_file=path,
        do_train=True,
        do_predict=True,
        do_export=True,
        version_2_with_negative=True,
        no_answer_head=no_answer_head,
        num_train_epochs=2,
        learning_rate=1e-3,
        null_score_diff_threshold=-0.1,
    )
    examples = squad_data.read_examples(str(path)).examples
    found = check_served(tmp_path / "out", examples, tmp_path)
    names = ["end_logits", "start_logits"]
    assert found["ids"] == sorted(
        names + (["null_logits"] if no_answer_head else [])
    )
    assert found["examples"] == [1, 3]


@pytest.mark.slow
def test_an_export_answers_real_questions(script, tmp_path):
    """A small real BERT, a few steps, 20 questions on real articles."""
    data = read_json(shared_data("SQuAD2.0/dev-v2.0.json"))["data"]
    paragraphs = [article["paragraphs"][0] for article in data[:4]]
    for paragraph in paragraphs:
        paragraph["qas"] = paragraph["qas"][:5]
    path = tmp_path / "real.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    out = tmp_path / "out"
    script(
        f"--init_checkpoint={minilm_directory()}",
        f"--output_dir={out}",
        f"--train_file={ROOT / 'samples' / 'squad.json'}",
        f"--predict_file={path}",
        "--version_2_with_negative",
        "--do_train",
        "--do_predict",
        "--do_export",
        "--max_seq_length=192",
        "--doc_stride=64",
        "--train_batch_size=8",
        "--num_train_epochs=3",
        "--null_score_diff_threshold=100",  # so few steps tell nothing
        "--tensorboard=false",
    )
    examples = squad_data.read_examples(str(path)).examples
    assert len(examples) == 20
    found = check_served(out, examples, tmp_path)
    assert len(set(found["answer"])) > 3


def test_report_shows_the_worst_questions(squad, toy, tmp_path):
    squad(
        train_file=toy,
        predict_file=toy,
        version_2_with_negative=True,
        do_train=True,
        do_eval=True,
        report=True,
        num_train_epochs=1,
    )
    page = (tmp_path / "out/report.html").read_text()
    for title in (
        "Answered or not",
        "Scores by first word",
        "Scores by length",
        "Worst examples",
        "Training loss",
    ):
        assert f"<h2>{title}</h2>" in page, title
    assert page.count("<svg") == 4
    assert "(no answer)" in page


def test_answers_to_score_are_asked_for_before_the_model(squad, tmp_path):
    path = tmp_path / "questions.json"
    qas = [{"id": "a", "question": "who is it"}]
    paragraphs = [{"context": "it is he", "qas": qas}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    with pytest.raises(ValueError, match="questions.json: no question has an"):
        squad(predict_file=path, do_predict=True, do_eval=True)
    assert not (tmp_path / "out").exists()


def test_training_needs_an_answer_at_its_place(squad, tmp_path):
    path = write_questions(tmp_path / "t.json", ("it is he", "who", "you"))
    with pytest.raises(ValueError, match="t.json: no question has an answer"):
        squad(train_file=path, do_train=True)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_thresholds_are_numbers(squad, toy, value):
    with pytest.raises(flags.IllegalFlagValueError, match="finite number"):
        squad(
            predict_file=toy,
            do_predict=True,
            null_score_diff_threshold=value,
        )


def test_null_odds_of_other_predictions_do_not_stay(squad, toy, tmp_path):
    squad(predict_file=toy, do_predict=True, version_2_with_negative=True)
    assert (tmp_path / "out/null_odds.json").exists()
    squad(predict_file=toy, do_predict=True, version_2_with_negative=False)
    assert not (tmp_path / "out/null_odds.json").exists()
