"""Order, batches and checks of pre-training records; masks drawn anew."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

import dynamic_masking
import modeling
import record_pipeline
import records

LENGTH, SLOTS, VOCAB = 48, 8, 97
CONFIG = modeling.BertConfig(VOCAB, type_vocab_size=2)
TOKENS = {f"t{index}": index for index in range(VOCAB)}
TOKENS["[MASK]"] = TOKENS.pop("t4")


def unmasked_row(draw, length=None):
    length = length or int(draw.integers(8, LENGTH))
    inner = length - 2
    return {
        "input_ids": [2, *draw.integers(5, VOCAB, inner).tolist(), 3],
        "input_mask": [1] * length,
        "segment_ids": [0] * length,
        "word_pieces": [0, 1, *draw.choice([1, 1, 2], inner - 1).tolist(), 0],
        "next_sentence_labels": [int(draw.integers(2))],
    }


def masked_row(draw):
    row = unmasked_row(draw)
    del row["word_pieces"]
    count = int(draw.integers(1, 6))
    return row | {
        "masked_lm_positions": list(range(1, 1 + count)),
        "masked_lm_ids": [7] * count,
        "masked_lm_weights": [1.0] * count,
    }


def write(path, rows, spec):
    with records.RecordWriter(path) as writer:
        for row in rows:
            writer.write(spec.encode(row))
    return path


@pytest.fixture
def spec():
    return records.pretraining_spec(LENGTH, SLOTS)


@pytest.fixture
def three_files(tmp_path, spec):
    draw = np.random.default_rng(1)
    for name, count in (("b.tfrecord", 40), ("a.gz", 25), ("c.tfrecord", 7)):
        rows = (masked_row(draw) for _ in range(count))
        write(tmp_path / name, rows, spec)
    return record_pipeline.RecordFiles(str(tmp_path / "*"))


def taken(files, seed, first, count):
    stream = files.shuffled(seed, first)
    return [item[:2] for item in itertools.islice(stream, count)]


@pytest.mark.parametrize("block", [10_000, 16])
def test_order_is_a_function_of_seed_epoch_and_place(
    three_files, monkeypatch, block
):
    monkeypatch.setattr(record_pipeline, "BLOCK_RECORDS", block)
    assert three_files.counts == [25, 40, 7]  # by name, not as written
    whole = taken(three_files, 5, 0, 3 * 72)
    for first in (1, 16, 71, 72, 100, 200):
        rest = taken(three_files, 5, first, 3 * 72 - first)
        assert rest == whole[first:]
    for epoch in range(3):
        part = whole[72 * epoch : 72 * (epoch + 1)]
        assert {e for e, _ in part} == {epoch}
        assert sorted(number for _, number in part) == list(range(72))
    orders = [[n for _, n in whole[i : i + 72]] for i in (0, 72, 144)]
    assert orders[0] != orders[1] != orders[2]
    assert taken(three_files, 6, 0, 72) != whole[:72]


def test_more_files_than_are_open_at_a_time(tmp_path, spec):
    draw = np.random.default_rng(1)
    for number in range(record_pipeline.OPEN_FILES + 5):
        rows = (masked_row(draw) for _ in range(number % 3))  # empty ones, too
        write(tmp_path / f"{number:02}", rows, spec)
    files = record_pipeline.RecordFiles(str(tmp_path / "*"))
    found = [number for _, number in taken(files, 1, 0, len(files))]
    assert sorted(found) == list(range(len(files)))


def test_workers_and_replicas_share_one_order(three_files, spec):
    parse = record_pipeline.Parser(spec)
    dataset_fn = record_pipeline.training_batches(three_files, parse, 8, 5, 3)
    whole = [batch["input_ids"].numpy() for batch in dataset_fn(0)]
    assert [len(ids) for ids in whole] == [8] * 5
    for worker in range(2):
        context = types.SimpleNamespace(
            num_input_pipelines=2,
            input_pipeline_id=worker,
            num_replicas_in_sync=4,
        )
        parts = [b["input_ids"].numpy() for b in dataset_fn(2, context)]
        assert len(parts) == 2 * 3
        for number, part in enumerate(parts):
            step, replica = divmod(number, 2)
            first = (2 * worker + replica) * 2
            rows = whole[2 + step][first : first + 2]
            width = part.shape[1]
            np.testing.assert_array_equal(part, rows[:, :width])
            assert not rows[:, width:].any()


def test_evaluation_reads_every_record_once_trimmed(three_files, spec):
    parse = record_pipeline.Parser(spec)
    first_ids = []
    for size in (1, 7, 100):
        rows, numbers = 0, []
        batches = record_pipeline.evaluation_batches(three_files, parse, size)
        for batch in batches:
            rows += len(batch["input_ids"])
            longest = int(tf.reduce_sum(batch["input_mask"], 1).numpy().max())
            assert batch["input_ids"].shape[1] == longest
            assert batch["masked_lm_ids"].shape[1] == SLOTS
            numbers.extend(batch["input_ids"].numpy()[:, 1].tolist())
        assert rows == 72
        first_ids.append(numbers)
    assert first_ids[0] == first_ids[1] == first_ids[2]
    two = record_pipeline.evaluation_batches(three_files, parse, 7, 2)
    assert sum(len(batch["input_ids"]) for batch in two) == 14
    padded = record_pipeline.Parser(spec, padded=True)
    batch = next(
        iter(record_pipeline.evaluation_batches(three_files, padded, 1))
    )
    assert batch["input_ids"].shape == (1, LENGTH)


def test_a_hole_in_the_mask_is_not_cut(tmp_path, spec):
    row = masked_row(np.random.default_rng(1))
    row["input_mask"] = [1, 0, 1, 1, 0, 1]
    row["masked_lm_positions"] = [8]
    row["masked_lm_ids"], row["masked_lm_weights"] = [7], [1.0]
    write(tmp_path / "a", [row], spec)
    files = record_pipeline.RecordFiles(str(tmp_path / "a"))
    parse = record_pipeline.Parser(spec)
    batch = next(iter(record_pipeline.evaluation_batches(files, parse, 4)))
    assert batch["input_mask"].shape == (1, 9)


# -------------------------------------------------------------------- damage


@pytest.mark.parametrize("cut", [1, 10, 1000])
def test_a_file_that_was_cut_off_is_named(tmp_path, spec, cut):
    draw = np.random.default_rng(1)
    path = write(tmp_path / "a", (masked_row(draw) for _ in range(9)), spec)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"a: record [789] is damaged"):
        record_pipeline.RecordFiles(str(path))


def test_a_text_file_is_no_file_of_records(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A line of plain text.\n" * 9)
    with pytest.raises(ValueError, match="text.txt: .* no TFRecord file"):
        record_pipeline.RecordFiles(str(path))


def test_a_flipped_byte_is_found_while_reading(tmp_path, spec):
    draw = np.random.default_rng(1)
    path = write(tmp_path / "a", (masked_row(draw) for _ in range(90)), spec)
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3 + 60] ^= 4
    path.write_bytes(content)
    files = record_pipeline.RecordFiles(str(path))
    batches = record_pipeline.evaluation_batches(
        files, record_pipeline.Parser(spec), 8
    )
    with pytest.raises(tf.errors.OpError):
        list(batches)
    assert "a: record 6" in str(files.error)
    with pytest.raises(ValueError, match="a: record 6. is damaged"):
        record_pipeline.find_bad_record(files, spec, CONFIG)


def test_no_record_and_no_file(tmp_path, spec):
    write(tmp_path / "empty", [], spec)
    with pytest.raises(ValueError, match="empty: there is no record"):
        record_pipeline.RecordFiles(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="nothing.*matches no file"):
        record_pipeline.RecordFiles(str(tmp_path / "nothing*"))


@pytest.mark.parametrize(
    "wanted, message",
    [
        ((LENGTH, 76), "holds 8 values of masked_lm_.*--max_predictions_per_s"
         "eq=76. Set --max_predictions_per_seq=8"),
        ((128, SLOTS), "holds 48 values of input_ids, but --max_seq_length=128"
         ". Set --max_seq_length=48"),
    ],
)  # fmt: skip
def test_lengths_that_disagree(three_files, wanted, message):
    other = records.pretraining_spec(*wanted)
    with pytest.raises(record_pipeline.DataMismatch, match=message):
        record_pipeline.check_agreement(three_files, other, CONFIG)


def test_vocabularies_that_disagree(three_files, spec):
    check = record_pipeline.check_agreement
    check(three_files, spec, CONFIG, first_id=2)
    assert 8 <= three_files.mean_tokens <= LENGTH
    small = modeling.BertConfig(60, type_vocab_size=2)
    with pytest.raises(ValueError, match=r"input_ids holds \d\d, .* is 60"):
        check(three_files, spec, small)
    with pytest.raises(ValueError, match="begins with the id 2, but .* id 101"):
        check(three_files, spec, CONFIG, first_id=101)


@pytest.mark.parametrize(
    "name, values, allowed",
    [
        ("masked_lm_positions", [77], LENGTH - 1),
        ("next_sentence_labels", [2], 1),
        ("segment_ids", [0, 2], 1),
    ],
)
def test_numbers_out_of_range_are_named(tmp_path, spec, name, values, allowed):
    draw = np.random.default_rng(1)
    rows = [masked_row(draw) for _ in range(60)]
    rows[55][name] = values
    write(tmp_path / "a", rows, spec)
    files = record_pipeline.RecordFiles(str(tmp_path / "a"))
    record_pipeline.check_agreement(files, spec, CONFIG)
    said = f"a: record 56: {name} holds {values[-1]}, but .* 0 to {allowed}[.]"
    with pytest.raises(record_pipeline.DataMismatch, match=said):
        record_pipeline.find_bad_record(files, spec, CONFIG)


def test_summaries_are_no_records(tmp_path, spec, three_files):
    (tmp_path / "b.tfrecord.summary.json").write_text("{}")
    again = record_pipeline.RecordFiles(str(tmp_path / "*"))
    assert again.paths == three_files.paths


def test_one_segment_gives_no_next_sentence(three_files, spec, caplog):
    record_pipeline.check_agreement(three_files, spec, CONFIG)
    assert not caplog.messages
    record_pipeline.check_agreement(three_files, spec, CONFIG, pairs=True)
    assert "If they were made with --nsp=none" in caplog.text


def test_masked_and_unmasked_records_are_told_apart(
    tmp_path, three_files, spec
):
    unmasked = records.unmasked_spec(LENGTH)
    with pytest.raises(ValueError, match="Leave out --dynamic_masking"):
        record_pipeline.check_agreement(three_files, unmasked, CONFIG)
    path = tmp_path / "x"
    write(path, [unmasked_row(np.random.default_rng(1))], unmasked)
    files = record_pipeline.RecordFiles(str(path))
    with pytest.raises(ValueError, match="Add --dynamic_masking"):
        record_pipeline.check_agreement(files, spec, CONFIG)


# ----------------------------------------------------------- dynamic masking


def batch_of(rows):
    spec = records.unmasked_spec(max(len(row["input_ids"]) for row in rows))
    parse = record_pipeline.Parser(spec)
    raw = tf.constant([spec.encode(row) for row in rows])
    return parse(raw, None, None)


def masks(rows, epoch=0, first=0, seed=3, **options):
    masking = dynamic_masking.DynamicMasking(TOKENS, seed, **options)
    numbers = tf.range(first, first + len(rows), dtype=tf.int64)
    found = masking(batch_of(rows), tf.fill([len(rows)], epoch), numbers)
    return {name: value.numpy() for name, value in found.items()}


def test_masks_are_a_function_of_seed_epoch_and_record():
    draw = np.random.default_rng(1)
    rows = [unmasked_row(draw) for _ in range(12)]
    whole = masks(rows)
    part = masks(rows[5:8], first=5)
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(whole[name][5:8], part[name])
    width = part["input_ids"].shape[1]
    np.testing.assert_array_equal(
        whole["input_ids"][5:8, :width], part["input_ids"]
    )
    for other in (masks(rows, epoch=1), masks(rows, seed=4), masks(rows, -1)):
        assert (other["input_ids"] != whole["input_ids"]).any()


def test_shares_of_masks_on_100_thousand_tokens():
    draw = np.random.default_rng(2)
    rows = [unmasked_row(draw, 100) for _ in range(1000)]
    before = np.array([row["input_ids"] for row in rows])
    after = masks(rows, max_predictions_per_seq=20)
    used = after["masked_lm_weights"] > 0
    assert abs(used.sum() / before.size - 0.15) < 0.01
    places = after["masked_lm_positions"][used]
    line = np.nonzero(used)[0]
    np.testing.assert_array_equal(
        after["masked_lm_ids"][used], before[line, places]
    )
    assert not np.isin(places, (0, 99)).any()
    assert (
        np.diff(after["masked_lm_positions"], axis=1)[used[:, 1:]] > 0
    ).all()
    now, was = after["input_ids"][line, places], before[line, places]
    is_mask, same = now == TOKENS["[MASK]"], now == was
    assert abs(is_mask.mean() - 0.8) < 0.01
    assert abs(same.mean() - 0.1 - 0.1 / VOCAB) < 0.01
    random_ids = now[~is_mask & ~same]
    assert len(np.unique(random_ids)) > 80
    untouched = after["input_ids"] == before
    untouched[line, places] = True
    assert untouched.all()
    # Every place of a sequence is as likely as every other.
    hits = np.bincount(places, minlength=100)[1:99]
    assert hits.min() > 90 and hits.max() < 220


def test_whole_words_are_masked_whole_and_fill_the_room():
    draw = np.random.default_rng(3)
    rows = [unmasked_row(draw, 40) for _ in range(300)]
    found = masks(rows, whole_word=True, max_predictions_per_seq=5)
    short = 0
    for row, places, weights in zip(
        rows,
        found["masked_lm_positions"],
        found["masked_lm_weights"],
        strict=True,
    ):
        pieces = np.array(row["word_pieces"])
        word = np.where(pieces > 0, np.cumsum(pieces == 1), 0)
        chosen = set(word[places[weights > 0]])
        members = np.nonzero(np.isin(word, list(chosen)))[0]
        np.testing.assert_array_equal(members, places[weights > 0])
        short += 5 - int(weights.sum())
        if weights.sum() < 5:  # nothing that is left would have fitted
            sizes = np.bincount(word)[1:]
            left = np.delete(sizes, [w - 1 for w in chosen])
            assert left.min() > 5 - weights.sum()
    assert short < 15


def test_one_draw_per_word():
    draw = np.random.default_rng(4)
    rows = [unmasked_row(draw, 40) for _ in range(300)]
    kinds = {True: 0, False: 0}
    for per_word in kinds:
        found = masks(rows, whole_word=True, draw_per_word=per_word)
        for row, ids in zip(rows, found["input_ids"], strict=True):
            pieces = np.array(row["word_pieces"])
            word = np.where(pieces > 0, np.cumsum(pieces == 1), 0)
            is_mask = ids == TOKENS["[MASK]"]
            for number in set(word[is_mask]):
                kinds[per_word] += not is_mask[word == number].all()
    assert kinds[True] == 0 and kinds[False] > 20


@pytest.mark.parametrize(
    "length, expected", [(3, 1), (10, 2), (30, 4), (40, 6)]
)
def test_number_of_masks_rounds_a_half_to_even(length, expected):
    row = unmasked_row(np.random.default_rng(1), length)
    found = masks([row], max_predictions_per_seq=50)
    assert found["masked_lm_weights"].sum() == min(expected, length - 2)


def test_vocabulary_without_mask():
    with pytest.raises(ValueError, match=r"lacks \[MASK\]"):
        dynamic_masking.DynamicMasking({"a": 0}, 1)
