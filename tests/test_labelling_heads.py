"""labelling_heads.py: words only, and the CRF against all its paths."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import heads
import labelling_data
import labelling_heads
import modeling

IOB2 = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def chain(batch, words, classes, seed=0):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(batch, words, classes)).astype(np.float32)
    start = random.normal(size=(batch, classes)).astype(np.float32)
    steps = random.normal(size=(classes, classes)).astype(np.float32)
    return scores, start, steps


def all_paths(scores, start, steps):
    """{path: score} of one row [W, C] by enumeration."""
    words, classes = scores.shape
    paths = {}
    for path in itertools.product(range(classes), repeat=words):
        score = float(start[path[0]])
        score += sum(float(scores[i, tag]) for i, tag in enumerate(path))
        score += sum(float(steps[pair]) for pair in itertools.pairwise(path))
        paths[path] = score
    return paths


@pytest.mark.parametrize("counts", [[4, 4, 4], [4, 1, 2], [3, 4, 2], [1, 1, 1]])
def test_crf_equals_the_enumeration_of_all_paths(counts):
    counts = np.array(counts, np.int32)
    scores, start, steps = chain(3, 4, 3, seed=sum(counts))
    labels = np.random.default_rng(1).integers(0, 3, (3, 4))
    total = labelling_heads.log_partition(scores, start, steps, counts)
    own = labelling_heads.path_score(scores, start, steps, counts, labels)
    best = labelling_heads.viterbi(scores, start, steps, counts).numpy()
    for row, count in enumerate(counts):
        paths = all_paths(scores[row, :count], start[row], steps)
        values = np.array(list(paths.values()))
        assert float(total[row]) == pytest.approx(
            np.log(np.exp(values).sum()), abs=1e-4
        )
        assert float(own[row]) == pytest.approx(
            paths[tuple(labels[row, :count])], abs=1e-5
        )
        assert tuple(best[row, :count]) == max(paths, key=paths.get)


def features(mask, labels=None, **others):
    mask = np.array(mask, np.int32)
    found = {
        "input_ids": np.ones_like(mask),
        "input_mask": np.ones_like(mask),
        "segment_ids": np.zeros_like(mask),
        "label_mask": mask,
        **{key: np.array(value, np.int32) for key, value in others.items()},
    }
    if labels is not None:
        found["label_ids"] = np.array(labels, np.int32)
    return {key: tf.constant(value) for key, value in found.items()}


def encoded(batch, length, hidden=8, seed=3):
    values = np.random.default_rng(seed).normal(size=(batch, length, hidden))
    return {"sequence_output": tf.constant(values, tf.float32)}


def loss_of(head, outputs, rows):
    return float(head.losses(outputs, rows)["loss"])


def crf_head(labels=IOB2, padded=False, seed=5):
    can_start, can_follow = labelling_data.allowed_transitions(labels)
    head = labelling_heads.CrfHead(8, can_start, can_follow, padded=padded)
    random = np.random.default_rng(seed)
    shape = head.transitions.shape
    head.transitions.assign(random.normal(size=shape).astype(np.float32))
    shape = head.output_weights.shape
    head.output_weights.assign(random.normal(size=shape).astype(np.float32))
    return head, can_start, can_follow


@pytest.mark.parametrize("padded", [False, True])
def test_crf_loss_and_tags_run_over_words_of_allowed_paths_only(padded):
    head, can_start, can_follow = crf_head(padded=padded)
    mask = [[0, 1, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]]
    labels = [[4, 1, 4, 2, 0, 4], [4, 4, 3, 4, 4, 4], [0, 3, 4, 4, 0, 0]]
    rows = features(mask, labels)
    outputs = head(encoded(3, 6), features=rows)
    steps = head.transitions.numpy()
    total = 0.0
    for row, places in enumerate(map(np.flatnonzero, mask)):
        scores = outputs["logits"].numpy()[row, places]
        paths = all_paths(scores, np.zeros(5), steps)
        paths = {
            path: score
            for path, score in paths.items()
            if can_start[path[0]]
            and all(can_follow[pair] for pair in itertools.pairwise(path))
        }
        gold = paths[tuple(np.array(labels)[row, places])]
        norm = np.log(np.exp(list(paths.values())).sum())
        loss = outputs["row_losses"].numpy()[row]
        assert loss == pytest.approx(norm - gold, abs=1e-3)
        total += norm - gold
        tags = outputs["tag_ids"].numpy()[row]
        assert tuple(tags[places]) == max(paths, key=paths.get)
        assert (np.delete(tags, places) == -1).all()
    assert loss_of(head, outputs, rows) == pytest.approx(total, abs=1e-3)
    assert head.loss_weights(rows)["loss"] == 8


def iobes_transitions(labels):
    """The rules of IOBES written out, apart from the code under test."""
    parts = [
        label.split("-") if "-" in label else ("O", "") for label in labels
    ]
    start = [prefix in "OBS" for prefix, _ in parts]
    follow = [
        [
            (after in "IE" and kind == last)
            if before in "BI"
            else after in "OBS"
            for after, kind in parts
        ]
        for before, last in parts
    ]
    return np.array(start), np.array(follow)


def test_crf_decodes_no_forbidden_step_of_any_scheme():
    labels = ["O"] + [f"{p}-{k}" for k in ("A", "B") for p in "BIES"]
    can_start, can_follow = iobes_transitions(labels)
    head = labelling_heads.CrfHead(8, can_start, can_follow)
    random = np.random.default_rng(0)
    head.output_weights.assign(random.normal(size=(9, 8)) * 30)
    mask = np.ones((16, 20), np.int32)
    tags = head(encoded(16, 20), features=features(mask))["tag_ids"].numpy()
    plain = tf.argmax(
        head(encoded(16, 20), features=features(mask))["logits"], -1
    ).numpy()
    for rows, expected in ((tags, True), (plain, False)):
        valid = can_start[rows[:, 0]].all()
        valid &= can_follow[rows[:, :-1], rows[:, 1:]].all()
        assert valid == expected


def test_a_continued_row_may_start_inside_an_entity():
    head, _, _ = crf_head()
    head.output_bias.assign([0, 0, 50, 0, 0])  # I-LOC everywhere
    mask = [[0, 1, 1, 0]] * 2
    outputs = head(
        encoded(2, 4), features=features(mask, mask, continues=[0, 1])
    )
    tags = outputs["tag_ids"].numpy()
    assert list(tags[0, 1:3]) == [1, 2]
    assert list(tags[1, 1:3]) == [2, 2]
    assert np.isfinite(outputs["row_losses"]).all()


@pytest.mark.parametrize(("rows", "length"), [(0, 0), (0, 5), (2, 1)])
def test_crf_of_no_rows_and_no_words(rows, length):
    head, _, _ = crf_head()
    mask = np.zeros((rows, length), np.int32)
    outputs = head(encoded(rows, length), features=features(mask, mask))
    assert outputs["tag_ids"].shape == (rows, length)
    assert (outputs["row_losses"].numpy() == 0).all()


def test_crf_learns_its_transitions():
    head, _, _ = crf_head()
    rows = features([[0, 1, 1, 1, 0]], [[0, 3, 4, 0, 0]])
    with tf.GradientTape() as tape:
        outputs = head(encoded(1, 5), features=rows, training=True, seed=[1, 2])
        loss = head.losses(outputs, rows)["loss"]
    gradient = tape.gradient(loss, head.transitions.value)
    assert gradient[3, 4] < 0 and gradient[4, 0] < 0
    assert gradient[3, 2] == 0  # forbidden: no path has it
    numeric = []
    for delta in (1e-2, -1e-2):
        steps = head.transitions.numpy()
        steps[3, 4] += delta
        changed, _, _ = crf_head()
        changed.transitions.assign(steps)
        numeric.append(changed.example_losses(outputs, rows)[0])
    slope = (numeric[0] - numeric[1]) / 2e-2
    assert float(gradient[3, 4]) == pytest.approx(float(slope), abs=1e-2)


def test_token_loss_is_the_mean_over_first_pieces():
    """The other pieces, [CLS], [SEP] and padding are in neither loss nor
    answer; how far a batch is padded changes nothing."""
    head = labelling_heads.TokenHead(8, 3)
    head.output_weights.assign(np.random.default_rng(2).normal(size=(3, 8)))
    mask, labels = [[0, 1, 0, 1, 1, 0]], [[0, 2, 0, 1, 0, 0]]
    rows = features(mask, labels)
    outputs = head(encoded(1, 6), features=rows)
    logits = outputs["logits"].numpy()[0]
    expected = sum(
        np.log(np.exp(logits[place]).sum()) - logits[place][label]
        for place, label in ((1, 2), (3, 1), (4, 0))
    )
    assert loss_of(head, outputs, rows) == pytest.approx(expected, rel=1e-5)
    assert head.loss_weights(rows)["loss"] == 3
    assert list(outputs["tag_ids"].numpy()[0, [0, 2, 5]]) == [-1, -1, -1]
    x = encoded(1, 6)["sequence_output"]
    longer = {"sequence_output": tf.pad(x, [[0, 0], [0, 44], [0, 0]])}
    more = {
        key: tf.pad(value, [[0, 0], [0, 44]]) for key, value in rows.items()
    }
    again = head(longer, features=more)
    assert loss_of(head, again, more) == pytest.approx(expected, rel=1e-5)
    assert (again["tag_ids"].numpy()[0, 6:] == -1).all()


def test_rows_without_label_mask_tag_pieces_that_may_begin_a_word():
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "c": 5}
    starts = labelling_heads.word_starts(vocab)
    head = labelling_heads.TokenHead(8, 3, starts)
    rows = {
        "input_ids": tf.constant([[1, 3, 4, 5, 2, 0]]),
        "input_mask": tf.constant([[1, 1, 1, 1, 1, 0]]),
    }
    tags = head(encoded(1, 6), features=rows)["tag_ids"].numpy()[0]
    assert list(tags >= 0) == [False, True, False, True, False, False]
    with pytest.raises(ValueError, match="word_starts"):
        labelling_heads.TokenHead(8, 3)(encoded(1, 6), features=rows)


def test_heads_name_their_variables_as_the_original_would():
    head, _, _ = crf_head()
    assert head.original_names == {
        "output_weights": "output_weights",
        "output_bias": "output_bias",
        "transitions": "crf/transitions",
    }
    assert head.transitions.path.endswith("crf/transitions")


def choice_model():
    config = modeling.BertConfig(
        30,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        type_vocab_size=2,
    )
    return heads.TaskModel(
        modeling.BertModel(config, seed=1), heads.ChoiceHead(8)
    )


def test_choices_are_scored_as_rows_and_compared_as_questions():
    """[8, 4, 12] ids give [8, 4] scores, the same as each row for itself."""
    model = choice_model()
    random = np.random.default_rng(0)
    ids = tf.constant(random.integers(1, 30, (8, 4, 12)), tf.int32)
    mask = tf.ones_like(ids)
    rows = {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}
    outputs = model(rows)
    assert outputs["logits"].shape == (8, 4)
    np.testing.assert_allclose(
        tf.reduce_sum(outputs["probabilities"], 1), np.ones(8), rtol=1e-5
    )
    pooled = model.encoder({name: value[3] for name, value in rows.items()})[
        "pooled_output"
    ]
    np.testing.assert_allclose(
        outputs["logits"][3], model.head.logits(pooled)[:, 0], atol=1e-5
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_missing_choice_counts_nowhere(smoothing):
    model = choice_model()
    model.head._label_smoothing = smoothing
    random = np.random.default_rng(0)
    ids = random.integers(1, 30, (2, 2, 6)).astype(np.int32)
    short = {
        "input_ids": tf.constant(ids),
        "input_mask": tf.ones_like(ids),
        "segment_ids": tf.zeros_like(ids),
        "label_ids": tf.constant([1, 0]),
    }
    padded = {
        name: value
        if name == "label_ids"
        else tf.pad(value, [[0, 0], [0, 2], [0, 0]])
        for name, value in short.items()
    }
    ours, theirs = model(padded), model(short)
    np.testing.assert_allclose(
        ours["probabilities"][:, :2], theirs["probabilities"], atol=1e-6
    )
    assert (ours["probabilities"].numpy()[:, 2:] == 0).all()
    np.testing.assert_allclose(
        model.losses(ours, padded)["loss"],
        model.losses(theirs, short)["loss"],
        rtol=1e-5,
    )
