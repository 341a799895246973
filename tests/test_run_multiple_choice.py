"""run_multiple_choice.py: questions in, probabilities out, its export."""

import json
import random
import re

import numpy as np
import pytest
from classifier_runs import read_results, run_python
from conftest import run_script, shared_data
from labelling_rows import TINY
from script_runs import Script, task_maker
from toy_readers import LetterTokenizer, write

import choice_data
import run_multiple_choice

WORDS = "the of to in that it was is un he a b c".split()
RIGHT = ("\u4e2d \u56fd", "want able", "\u4eba \u56fd")


@pytest.fixture(scope="module")
def script():
    with Script("run_multiple_choice") as found:
        yield found


@pytest.fixture
def task_of(script):
    """Makes the task of some flags, with a tokenizer and no model."""
    with task_maker(run_multiple_choice.ChoiceTask) as make:
        yield make


def rows(count, seed=0, choices=4, labelled=True, **others):
    """Questions whose right choice is told by its words; some too long."""
    generator = random.Random(seed)
    found = []
    for number in range(count):
        size = 40 if number % 5 == 4 else 4
        wrong = [
            " ".join(generator.choices(WORDS, k=3)) for _ in range(choices - 1)
        ]
        label = generator.randrange(choices)
        wrong.insert(label, generator.choice(RIGHT))
        row = {
            "context": " ".join(generator.choices(WORDS, k=size)),
            "choices": wrong,
        } | others
        found.append(row | ({"label": label} if labelled else {}))
    return found


def lines(found):
    return "".join(json.dumps(row) + "\n" for row in found)


def table(path):
    return [
        [float(cell) for cell in line.split("\t")]
        for line in path.read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def trained(script, tmp_path_factory):
    """A model of questions with 4 choices; tested also with 2, 3 and 5."""
    top = tmp_path_factory.mktemp("choice")
    write(top / "data/train.jsonl", lines(rows(160)))
    write(top / "data/dev.jsonl", lines(rows(40, 1)))
    test = [
        *rows(9, 2, labelled=False),
        *rows(2, 3, 2, labelled=False),
        *rows(2, 4, 3, labelled=False),
        *rows(2, 5, 5, labelled=False),
    ]
    write(top / "data/test.jsonl", lines(test))
    log = script(
        *TINY,
        f"--data_dir={top}/data",
        f"--output_dir={top}/out",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--do_export",
        "--report",
        "--write_records",
        "--max_seq_length=24",
        "--num_train_epochs=8",
        "--learning_rate=2e-3",
    )
    return top, test, log


def test_the_right_choice_is_learnt(trained):
    results = read_results(trained[0] / "out/eval_results.txt")
    assert results["eval_accuracy"] > 0.8
    assert {"eval_loss", "loss", "global_step"} < set(results)


def test_every_choice_has_a_probability(trained):
    top, test, _ = trained
    found = table(top / "out/test_results.tsv")
    assert list(map(len, found)) == [len(row["choices"]) for row in test]
    for row in found:
        assert sum(row) == pytest.approx(1, abs=1e-5)
    right = [
        row["choices"][int(np.argmax(scores))] in RIGHT
        for row, scores in zip(test, found, strict=True)
    ]
    assert np.mean(right) > 0.7


def test_directory_describes_the_questions(trained):
    run = json.loads((trained[0] / "out/run.json").read_text())
    assert run["description"] == {
        "choices": 4,
        "form": "pair",
        "cut": "tail",
        "has_question": False,
    }


def test_records_hold_choices_of_full_length(trained):
    import records

    spec = records.FeatureSpec(
        [
            records.Feature(name, "int64", 24 * 4, True)
            for name in ("input_ids", "input_mask", "segment_ids")
        ]
        + [records.Feature("label_ids", "int64")]
    )
    found = list(records.read_records(trained[0] / "out/train.tf_record"))
    assert len(found) == 160
    row = spec.decode(found[0])
    ids = np.reshape(row["input_ids"], (4, 24))
    assert (ids[:, 0] == 2).all()  # [CLS] of the tiny vocabulary


def test_report_shows_the_worst_questions(trained):
    page = (trained[0] / "out/report.html").read_text()
    for part in ("Choices by their number", "accuracy", "Training loss"):
        assert part in page


FRESH = """
import json, sys
from script_runs import Script, task_maker
import numpy as np
asked = json.load(open(sys.argv[1]))
with Script("run_multiple_choice") as script:
    script(*asked["flags"])
import tensorflow as tf
import tensorflow_text
calls = tf.saved_model.load(asked["model"]).signatures
def plain(outputs):
    return {name: value.numpy().tolist() for name, value in outputs.items()}
told = plain(calls["serving_default"](
    context=tf.constant(asked["contexts"]),
    choices=tf.constant(asked["choices"])))
none = calls["serving_default"](
    context=tf.constant([], tf.string), choices=tf.zeros([0, 4], tf.string))
rows = tf.data.TFRecordDataset(asked["records"]).batch(8)
examples = plain(calls["examples"](examples=next(iter(rows))))
json.dump({
    "texts": told,
    "none": {name: value.shape.as_list() for name, value in none.items()},
    "examples": examples,
}, open(sys.argv[2], "w"))
"""


def test_a_fresh_process_answers_the_same(trained, tmp_path):
    """From the directory, from raw strings and from tf.Examples."""
    top, test, _ = trained
    former = (top / "out/test_results.tsv").read_bytes()
    longest = max(len(row["choices"]) for row in test)
    asked = {
        "flags": [
            f"--output_dir={top}/out",
            f"--test_file={top}/data/test.jsonl",
            "--do_predict",
        ],
        "model": f"{top}/out/saved_model/1",
        "records": f"{top}/out/predict.tf_record",
        "contexts": [row["context"] for row in test],
        "choices": [
            row["choices"] + [""] * (longest - len(row["choices"]))
            for row in test
        ],
    }
    write(tmp_path / "asked.json", json.dumps(asked))
    run_python(FRESH, tmp_path / "asked.json", tmp_path / "told.json")
    told = json.loads((tmp_path / "told.json").read_text())
    assert (top / "out/test_results.tsv").read_bytes() == former
    found = told["texts"]
    for row, scores, choice in zip(
        table(top / "out/test_results.tsv"),
        found["probabilities"],
        found["choice"],
        strict=True,
    ):
        np.testing.assert_allclose(scores[: len(row)], row, atol=1e-5)
        assert scores[len(row) :] == [0] * (longest - len(row))
        assert choice == int(np.argmax(row))
    assert told["none"] == {"probabilities": [0, 4], "choice": [0]}
    examples = told["examples"]["probabilities"]
    np.testing.assert_allclose(examples, found["probabilities"][:8], atol=1e-5)


@pytest.mark.parametrize("head", ["pooled", "masked_lm"])
def test_cloze_is_served_with_the_ending_in_its_place(head, script, tmp_path):
    """Idioms: the mark stays in the context; 7 candidates."""
    import tensorflow as tf

    made = []
    for row in rows(24, 6, 7):
        words = row["context"].split()
        content = " ".join([*words[:3], "#idiom#", *words[3:]])
        made.append(
            {
                "content": content,
                "candidates": row["choices"],
                "answer": row["label"],
            }
        )
    path = write(tmp_path / "train.json", lines(made))
    script(
        *TINY,
        f"--train_file={path}",
        f"--test_file={path}",
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--do_predict",
        "--do_export",
        "--max_seq_length=16",
        "--num_train_epochs=1",
        "--label_smoothing=0.1",
        f"--choice_head={head}",
    )
    results = table(tmp_path / "out/test_results.tsv")
    # In another run the head is that of the run.
    script(
        f"--output_dir={tmp_path}/out",
        f"--test_file={path}",
        "--do_predict",
    )
    assert table(tmp_path / "out/test_results.tsv") == results
    # So are they in another directory, and the length with it.
    script(
        f"--init_checkpoint={tmp_path}/out",
        f"--output_dir={tmp_path}/other",
        f"--test_file={path}",
        "--do_predict",
    )
    assert table(tmp_path / "other/test_results.tsv") == results
    other = "pooled" if head == "masked_lm" else "masked_lm"
    with pytest.raises(ValueError, match=f"choice_head={other} contradicts"):
        script(
            f"--output_dir={tmp_path}/out",
            f"--test_file={path}",
            "--do_predict",
            f"--choice_head={other}",
        )
    call = tf.saved_model.load(f"{tmp_path}/out/saved_model/1").signatures
    found = call["serving_default"](
        context=tf.constant([row["content"] for row in made]),
        choices=tf.constant([row["candidates"] for row in made]),
    )
    np.testing.assert_allclose(
        found["probabilities"],
        results,
        atol=1e-5,
    )


# -------------------------------------------------------- rows of real files


def test_swag_rows_keep_the_ending_and_need_no_label(task_of, tmp_path):
    """Published test sets have no label; the context loses its head."""
    path = shared_data("SWAG/hf_fixture_sample.json")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        row.pop("label")
    path = write(tmp_path / "test.json", lines(found))
    task = task_of(f"--test_file={path}", "--max_seq_length=20", pieces=5)
    examples = task.examples("predict")[""]
    assert len(examples) == 10
    assert all(example.label is None for example in examples)
    assert task.describe() == {
        "choices": 4,
        "form": "pair",
        "cut": "head",
        "has_question": True,
    }
    for example in examples:
        (row,) = task.featurize(example)
        for ids, ending in zip(row["input_ids"], example.endings, strict=True):
            assert len(ids) <= 20
            pieces = task.tokenizer.tokenize(ending)
            kept = pieces[:16]
            tokens = task.tokenizer.convert_ids_to_tokens(ids)
            assert tokens[-1 - len(kept) : -1] == kept
    with pytest.raises(ValueError, match="test.json:1: has no label"):
        task_of(f"--train_file={path}").examples("train")


def test_batches_of_choices_have_three_axes(task_of, tmp_path):
    """8 questions of 4 choices: ids [8, 4, L]; a row of 2 is filled up."""
    import input_pipeline

    path = write(tmp_path / "train.jsonl", lines(rows(7) + rows(1, 1, 2)))
    task = task_of(f"--train_file={path}", "--max_seq_length=128")
    examples = task.examples("train")[""]
    found, owners = task.featurize_all(examples, "train")
    table = input_pipeline.FeatureTable(task.feature_spec(), found, task.group)
    batch = table.batch(range(8), 128)
    assert owners == list(range(8))
    assert batch["input_ids"].shape == (8, 4, 128)
    assert batch["label_ids"].shape == (8,)
    real = batch["input_mask"].any(axis=2)
    assert real.all(axis=1).tolist() == [True] * 7 + [False]
    assert real[7].tolist() == [True, True, False, False]


def test_choices_that_fill_up_cost_one_token(task_of, tmp_path):
    """Without a token they would be computed at full length."""
    import heads

    mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], np.int32)
    inputs = {"input_ids": mask * 7, "input_mask": mask}
    seen = heads.ChoiceHead(4).encoder_inputs(inputs)
    assert seen["input_mask"].numpy().tolist() == [
        [1, 1, 0],
        [1, 0, 0],
        [1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("name", "count", "choices"),
    [
        ("SWAG/hf_fixture_sample.json", 10, 4),
        ("fewclue/chid/dev_few_all.json", 202, 7),
        ("fewclue/chid/test_public_part1.json", 1001, 7),
    ],
)
def test_real_files_give_a_row_for_each_question(
    name, count, choices, task_of, tmp_path
):
    task = task_of(f"--test_file={shared_data(name)}", "--max_seq_length=64")
    examples = task.examples("predict")[""]
    assert len(examples) == count and task.group == choices
    probabilities = np.full((count, choices), 1 / choices, np.float32)
    task.write(examples, {"probabilities": probabilities}, tmp_path, "")
    assert len(table(tmp_path / "test_results.tsv")) == count


def test_usual_names_of_files_are_found(task_of, tmp_path):
    header = ",".join(["sent1", "sent2", "ending0", "ending1", "label"])
    write(tmp_path / "swag/val.csv", f"{header}\na,b,c,d,1\n")
    ours = {"article": "a", "questions": ["q"], "options": [["x", "y"]]}
    race = json.dumps(ours | {"answers": ["B"]})
    write(tmp_path / "race/dev/high/1.txt", race)
    swag = {"ctx": "a", "endings": ["x", "y"], "label": 1}
    write(tmp_path / "hs/hellaswag_val.jsonl", json.dumps(swag))
    for name in ("swag", "race", "hs"):
        task = task_of(f"--data_dir={tmp_path}/{name}")
        (example,) = task.examples("eval")[""]
        assert example.label == 1


# ------------------------------------------------------------- wrong input


def test_masked_lm_head_needs_blanks_and_its_weights(task_of, tmp_path):
    path = write(tmp_path / "train.jsonl", lines(rows(2)))
    task = task_of(f"--train_file={path}", "--choice_head=masked_lm")
    with pytest.raises(ValueError, match="train.jsonl:1: has no #idiom#"):
        task.examples("train")
    task.check_loaded([])
    with pytest.raises(ValueError, match="lacks cls/predictions/output_bias"):
        task.check_loaded(["cls/predictions/output_bias"])


def test_missing_files_are_named(task_of, tmp_path):
    with pytest.raises(ValueError, match="--train_file"):
        task_of().examples("train")
    with pytest.raises(ValueError, match="is no directory"):
        task_of("--data_dir=nowhere").examples("train")
    with pytest.raises(ValueError, match="has no dev.jsonl"):
        task_of(f"--data_dir={tmp_path}").examples("eval")


def test_script_ends_with_one_sentence(tmp_path):
    result = run_script(
        "run_multiple_choice.py",
        *TINY,
        "--data_dir=nowhere",
        f"--output_dir={tmp_path}/out",
        "--do_train",
        "--max_seq_length=4",
        check=False,
    )
    assert result.returncode == 1
    assert re.search(r"max_seq_length=4 is too small.*\n$", result.stderr)
    assert not (tmp_path / "out").exists()


def test_a_row_whose_choices_are_no_list_is_named(task_of, tmp_path):
    bad = {"context": "a", "choices": "b", "label": 0}
    path = write(tmp_path / "train.jsonl", lines([*rows(2), bad]))
    with pytest.raises(ValueError, match="train.jsonl:3: 'choices'"):
        task_of(f"--train_file={path}").examples("train")


def test_an_ending_longer_than_the_limit_is_cut_last():
    """Case: context and question go first, then the ending's own end."""
    tokenizer = LetterTokenizer()
    example = choice_data.ChoiceExample(
        "x", "a b c d e", ["p q r", "p q r s t u v w"], 0, "k l m"
    )
    (first, _), (second, _) = choice_data.encode_choices(tokenizer, example, 9)
    show = tokenizer.convert_ids_to_tokens
    assert show(first) == "[CLS] a [SEP] l m p q r [SEP]".split()
    assert show(second) == "[CLS] a [SEP] p q r s t [SEP]".split()
