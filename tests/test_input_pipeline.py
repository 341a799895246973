"""Rows in, batches out: no row lost, no order that depends on the devices."""

import types

import numpy as np
import pytest
import tensorflow as tf

import input_pipeline
import records

TOKENS = [
    records.Feature(name, "int64", 8, True)
    for name in ("input_ids", "input_mask", "segment_ids")
]


def table(lengths, kind="label_ids", group=1):
    """Rows whose first token is their number."""
    label = records.Feature(
        kind, "float32" if kind == "label_values" else "int64"
    )
    spec = records.FeatureSpec([*TOKENS, label])
    rows = []
    for number, length in enumerate(lengths):
        ids = [number, *range(1, length)]
        if group > 1:
            ids = [ids[: 1 + choice % length] for choice in range(group)]
        segments = [[0] * len(i) for i in ids] if group > 1 else [0] * length
        rows.append({"input_ids": ids, "segment_ids": segments, kind: number})
    return input_pipeline.FeatureTable(spec, rows, group)


def test_batches_are_as_wide_as_their_longest_row():
    batch = table([3, 1, 5, 2]).batch([1, 3])
    np.testing.assert_array_equal(batch["input_ids"], [[1, 0], [3, 1]])
    np.testing.assert_array_equal(batch["input_mask"], [[1, 0], [1, 1]])
    np.testing.assert_array_equal(batch["label_ids"], [1, 3])
    assert batch["input_ids"].dtype == np.int32
    assert table([3, 1]).batch([1], length=8)["input_ids"].shape == (1, 8)


def test_an_id_of_0_is_a_token_and_a_given_mask_is_kept():
    assert table([3]).batch([0])["input_mask"].tolist() == [[1, 1, 1]]
    spec = records.FeatureSpec(TOKENS)
    row = {"input_ids": [5, 6], "segment_ids": [0, 1], "input_mask": [1, 0]}
    batch = input_pipeline.FeatureTable(spec, [row]).batch([0])
    assert batch["input_mask"].tolist() == [[1, 0]]


def test_groups_have_an_axis_of_their_own():
    choices = table([3, 4, 2], group=3)
    batch = choices.batch([2, 0])
    assert batch["input_ids"].shape == (2, 3, 3)
    assert batch["input_mask"].sum(axis=-1).tolist() == [[1, 2, 1], [1, 2, 3]]
    assert choices.lengths.tolist() == [6, 6, 4]
    signature = choices.signature(2)
    for name, value in batch.items():
        assert signature[name].is_compatible_with(tf.constant(value)), name


@pytest.mark.parametrize("kind", ["label_ids", "label_values"])
def test_signature_fits_the_batches(kind):
    rows = table([3, 1, 5], kind)
    signature = rows.signature()
    batch = rows.batch([0, 2])
    assert set(signature) == set(batch)
    for name, value in batch.items():
        assert signature[name].is_compatible_with(tf.constant(value)), name


def test_written_rows_are_padded_and_read_back(tmp_path):
    rows = table([3, 8, 1])
    rows.write(tmp_path / "rows.tf_record")
    found = [
        rows.spec.decode(record)
        for record in records.read_records(tmp_path / "rows.tf_record")
    ]
    assert len(found) == 3
    for number, row in enumerate(found):
        expected = rows.batch([number], length=8)
        for name, value in row.items():
            np.testing.assert_array_equal(value, expected[name][0], name)


def test_epochs_hold_each_row_once_and_differ():
    order = input_pipeline.EpochOrder(10, seed=4)
    epochs = [order.take(10 * epoch, 10).tolist() for epoch in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = input_pipeline.EpochOrder(10, seed=5)
    assert other.take(0, 10).tolist() != epochs[0]


def test_order_is_a_function_of_the_place():
    whole = input_pipeline.EpochOrder(7, seed=1).take(0, 40).tolist()
    for start in (0, 3, 6, 7, 20):
        part = input_pipeline.EpochOrder(7, seed=1).take(start, 15)
        assert part.tolist() == whole[start : start + 15]


def context(worker, workers, replicas):
    return types.SimpleNamespace(
        num_input_pipelines=workers,
        input_pipeline_id=worker,
        num_replicas_in_sync=replicas,
    )


def numbers(dataset):
    """The row numbers of each batch."""
    return [batch["input_ids"][:, 0].numpy().tolist() for batch in dataset]


@pytest.mark.parametrize("workers, replicas", [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_devices_share_the_batches_of_one(workers, replicas):
    rows = table([1 + n % 5 for n in range(23)])
    dataset_fn = input_pipeline.training_batches(rows, 8, 6, seed=3)
    whole = numbers(dataset_fn(0))
    assert len(whole) == 6 and all(len(step) == 8 for step in whole)
    mine = replicas // workers
    shares = [
        numbers(dataset_fn(0, context(worker, workers, replicas)))
        for worker in range(workers)
    ]
    for step, expected in enumerate(whole):
        found = [
            number
            for share in shares
            for batch in share[step * mine : (step + 1) * mine]
            for number in batch
        ]
        assert found == expected


def test_a_later_start_goes_on_with_the_same_batches():
    rows = table([1 + n % 5 for n in range(23)])
    dataset_fn = input_pipeline.training_batches(rows, 8, 6, seed=3)
    assert numbers(dataset_fn(4)) == numbers(dataset_fn(0))[4:]
    assert numbers(dataset_fn(6)) == []


def test_fixed_length_for_devices_that_need_one():
    rows = table([2, 3, 1])
    dataset = input_pipeline.training_batches(rows, 2, 1, 0, length=8)(0)
    assert dataset.element_spec["input_ids"] == tf.TensorSpec([2, 8], tf.int32)


@pytest.mark.parametrize("size", [1, 4, 11, 64])
def test_evaluation_sees_each_row_once(size):
    rows = table([1 + (n * 5) % 7 for n in range(11)])
    seen, widths = [], []
    for chosen, batch in input_pipeline.sorted_batches(rows, size):
        assert batch["input_ids"][:, 0].tolist() == chosen.tolist()
        seen += chosen.tolist()
        widths.append(batch["input_ids"].shape[1])
    assert sorted(seen) == list(range(11))
    assert widths == sorted(widths, reverse=True)
