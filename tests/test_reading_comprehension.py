"""reading_comprehension.py and squad_answers.py against the original."""

import functools
import gzip
import hashlib
import json
import random
import time
import tracemalloc

import numpy as np
import pytest
from conftest import GOLDEN, shared_data, vocab_path

import reading_comprehension as rc
import squad_answers
import squad_data
import tokenization

SQUAD = GOLDEN / "squad"
INDEX = json.loads((SQUAD / "index.json").read_text())
VOCAB_NAMES = {
    "bert-base-uncased": "uncased",
    "bert-base-cased": "cased",
    "bert-base-chinese": "chinese",
    "bert-base-multilingual-cased": "multi_cased",
}


@functools.cache
def tokenizer_of(vocab, do_lower_case=True):
    return tokenization.FullTokenizer(
        str(vocab_path(vocab)), do_lower_case=do_lower_case
    )


def read_gzip_json(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def read_gzip_lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().splitlines()]


def features_of(examples, settings, is_training, **options):
    features = []
    rc.convert_examples_to_features(
        examples,
        tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        settings["max_seq_length"],
        settings["doc_stride"],
        settings["max_query_length"],
        is_training,
        features.append,
        **options,
    )
    return features


def read_golden(source, is_training, version_2, **options):
    examples = squad_data.read_squad_examples(
        str(SQUAD / source), is_training, version_2, **options
    )
    if is_training:
        random.Random(12345).shuffle(examples)
    return examples


def as_golden(feature):
    row = dict(vars(feature))
    for name in ("token_to_orig_map", "token_is_max_context"):
        row[name] = [list(pair) for pair in sorted(row[name].items())]
    return row


# --- the original's features --------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["v11_train", "v11_predict", "v20_train", "v20_predict"]
    + ["dev_multi_predict"],
)
def test_examples_equal_the_original(name):
    source, mode = name.rsplit("_", 1)
    rows = read_gzip_lines(SQUAD / f"features/examples_{name}.jsonl.gz")
    examples = read_golden(
        f"{source}.json", mode == "train", source.startswith("v20")
    )
    ours = [{key: getattr(e, key) for key in rows[0]} for e in examples]
    assert ours == rows


@pytest.mark.parametrize("case", INDEX["features"], ids=lambda c: c["file"])
def test_features_equal_the_original(case):
    settings = INDEX["feature_sets"][case["feature_set"]]
    examples = read_golden(
        case["source"], case["is_training"], case["version_2_with_negative"]
    )
    features = features_of(examples, settings, case["is_training"])
    golden = read_gzip_lines(SQUAD / "features" / case["file"])
    assert len(features) == len(golden) == case["num_features"]
    for ours, theirs in zip(features, golden, strict=True):
        row = as_golden(ours)
        assert {key: row[key] for key in theirs} == theirs


def real_cases():
    return read_gzip_json(SQUAD / "real_data.json.gz")["cases"]


def short_hash(value):
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "case",
    real_cases(),
    ids=lambda c: f"{c['file']}-{c['vocab']}-{c['max_seq_length']}",
)
def test_real_features_equal_the_original(case):
    settings = dict(case, vocab=VOCAB_NAMES[case["vocab"]])
    path = str(shared_data(case["file"]))
    examples = squad_data.read_squad_examples(path, False)[:400]
    per_example = [[] for _ in examples]
    for feature in features_of(examples, settings, False):
        row = as_golden(feature)
        names = ["unique_id", "tokens", "token_to_orig_map"]
        names += ["token_is_max_context", "input_ids", "input_mask"]
        names += ["segment_ids"]
        row = [row[name] for name in names]
        per_example[feature.example_index].append(row)
    assert [short_hash(rows) for rows in per_example] == case["hashes"]
    if "train_positions_first_400_unshuffled" not in case:
        with pytest.raises(ValueError, match="exactly 1 answer"):
            squad_data.read_squad_examples(path, True, True)
        return
    golden = case["train_positions_first_400_unshuffled"]
    examples = squad_data.read_squad_examples(path, True)[:400]
    positions = [
        [feature.unique_id, feature.start_position, feature.end_position]
        for feature in features_of(examples, settings, True)
    ]
    assert positions[:20] == golden["first"]
    assert len(positions) == golden["windows"]
    assert short_hash(positions) == golden["hash"]


# --- the original's answers ---------------------------------------------------


def test_small_functions_equal_the_original():
    for case in json.loads((SQUAD / "small_functions.json").read_text()):
        if "logits" in case:
            best = squad_answers.get_best_indexes(case["logits"], case["n"])
            assert best == case["best"]
        else:
            ours = squad_answers.compute_softmax(case["scores"])
            assert ours == case["softmax"]


def test_get_final_text_equals_the_original():
    for case in json.loads((SQUAD / "get_final_text.json").read_text()):
        assert case["result"] == squad_answers.get_final_text(
            case["pred_text"], case["orig_text"], case["do_lower_case"]
        ), case


@functools.cache
def prediction_inputs(source, feature_set, original=True):
    settings = INDEX["feature_sets"][feature_set]
    examples = squad_data.read_examples(str(SQUAD / source)).examples
    maker = rc.WindowMaker(
        tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        settings["max_seq_length"],
        settings["doc_stride"],
        settings["max_query_length"],
        original_alignment=original,
    )
    windows = [w for i, e in enumerate(examples) for w in maker(e, i)]
    return examples, windows


def golden_answers(case, original, **options):
    examples, windows = prediction_inputs(
        case["source"], case["feature_set"], original
    )
    logits = np.load(SQUAD / "predictions" / case["logits"])
    ids = [window["unique_id"] for window in windows]
    assert logits["unique_ids"].tolist() == ids
    settings = INDEX["feature_sets"][case["feature_set"]]
    return squad_answers.answers_from_logits(
        examples,
        windows,
        logits["start_logits"],
        logits["end_logits"],
        original_alignment=original,
        tokenizer=tokenizer_of(settings["vocab"], settings["do_lower_case"]),
        do_lower_case=case["do_lower_case"],
        **case["flags"],
        **options,
    )


@pytest.mark.parametrize("case", INDEX["predictions"], ids=lambda c: c["case"])
def test_predictions_equal_the_original(case):
    answers = golden_answers(case, original=True)
    dead = case.get("dies_on", [])
    files = {
        "predictions": answers.predictions,
        "nbest_predictions": answers.nbest,
    }
    if case["flags"].get("version_2_with_negative"):
        files["null_odds"] = answers.null_odds
        assert all(np.isfinite(odds) for odds in answers.null_odds.values())
    for name, ours in files.items():
        path = SQUAD / "predictions" / f"{case['case']}.{name}.json.gz"
        theirs = read_gzip_json(path)
        alive = {key: value for key, value in ours.items() if key not in dead}
        assert alive == theirs
        assert list(alive) == list(theirs)
    for key in dead:
        assert isinstance(answers.predictions[key], str)
        assert answers.nbest[key]
