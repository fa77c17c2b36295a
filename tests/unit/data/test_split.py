"""Shuffles, splits and shares: every row ends up in one place, with its label."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

from farandole.data import split as module
from farandole.data.split import batches_of_rank, drawn, held_out, one_hot, shuffle
from farandole.errors import SettingsError


def test_one_hot():
    labels = np.array(["lung", "breast", "lung", "skin"])
    hot = one_hot(labels, np.unique(labels))
    assert hot.dtype == np.float32
    assert hot.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("block_bytes", [1, 100, 16 << 20])
def test_features_and_labels_move_together(monkeypatch, block_bytes):
    monkeypatch.setattr(module, "SHUFFLE_BYTES", block_bytes)
    x = np.arange(31 * 7, dtype=np.float32).reshape(31, 7)
    y = np.arange(31)
    before = x.copy()
    shuffle([x, y], seed=2017)
    assert sorted(y) == list(range(31))
    assert y.tolist() != list(range(31))
    assert np.array_equal(x, before[y])


def test_the_order_is_that_of_pandas():
    rows = np.arange(1000)
    shuffle([rows], seed=2017)
    frame = pd.DataFrame({"row": np.arange(1000)})
    assert rows.tolist() == frame.sample(frac=1, random_state=2017)["row"].tolist()
    assert drawn(1000, 7, 0.18).tolist() == frame.sample(frac=0.18, random_state=7)["row"].tolist()


def test_a_shuffle_does_not_hold_the_matrix_twice():
    x = np.random.default_rng(0).random((2000, 20_000), dtype=np.float32)  # 160 MB
    tracemalloc.start()
    try:
        shuffle([x], seed=1)
        assert tracemalloc.get_traced_memory()[1] < 0.2 * x.nbytes
    finally:
        tracemalloc.stop()


def test_arrays_of_different_lengths_are_not_shuffled():
    with pytest.raises(SettingsError, match=r"cannot shuffle \[3, 4\] rows together"):
        shuffle([np.zeros(3), np.zeros(4)], seed=1)


def test_held_out_rows_are_rounded_down():
    assert held_out(3000, 0.1) == 300
    assert held_out(1_000_151, 0.1) == 100_015  # P1B3: leaves 900,136
    assert held_out(100, 0.29) == 29  # 0.29 * 100 == 28.999999999999996


@pytest.mark.parametrize(("rows", "fraction"), [(100, 0), (100, 1), (100, -0.1), (5, 0.1)])
def test_a_split_that_leaves_a_side_empty_is_refused(rows, fraction):
    with pytest.raises(SettingsError, match=rf"validation={fraction}"):
        held_out(rows, fraction)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [7, 12, 60, 61, 62, 100])
@pytest.mark.parametrize("batch", [2, 3, 10, 1000])
def test_every_row_once_and_as_many_batches_on_every_rank(count, batch, size):
    rows = np.random.default_rng(count).permutation(count)
    ranks = [batches_of_rank(rows, batch, rank=rank, size=size) for rank in range(size)]
    assert len({len(batches) for batches in ranks}) == 1
    sizes = [[len(one) for one in batches] for batches in ranks]
    assert all(1 <= one <= batch for batches in sizes for one in batches)
    assert all(one == batch for batches in sizes for one in batches[:-2])
    assert sorted(np.concatenate([one for batches in ranks for one in batches])) == list(range(count))


def test_one_rank_takes_the_rows_in_order():
    assert [one.tolist() for one in batches_of_rank(np.arange(5), 2, rank=0, size=1)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("count", "batch", "rank", "size", "message"),
    [
        (2, 4, 0, 3, "Use at most 2 ranks"),
        (3, 1, 0, 2, "Use a batch of 2 or more"),
        (9, 0, 0, 1, "expected batch >= 1"),
        (9, 1, 2, 2, "0 <= rank < size"),
    ],
)
def test_shares_that_cannot_be_equal_are_refused(count, batch, rank, size, message):
    with pytest.raises(SettingsError, match=message):
        batches_of_rank(np.arange(count), batch, rank=rank, size=size)
