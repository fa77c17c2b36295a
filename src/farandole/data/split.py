"""Labels, shuffles and splits: what lies between a matrix and the samples a model trains on.

Random orders are those that pandas' `sample(random_state=seed)` draws, which the CANDLE benchmarks use:
the same files and the same seed give the same rows in the same order as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.errors import SettingsError

__all__ = [
    "batches_of_rank",
    "check_validation",
    "drawn",
    "held_out",
    "one_hot",
    "shuffle",
    "some_columns",
]

# How much of a matrix a shuffle holds twice at any time.
SHUFFLE_BYTES = 16 << 20


def one_hot(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.float32]:
    """(rows, classes): 1 where the label is the class; `classes` are sorted and hold every label."""
    hot = np.zeros((len(labels), len(classes)), np.float32)
    hot[np.arange(len(labels)), np.searchsorted(classes, labels)] = 1
    return hot


def drawn(rows: int, seed: int, fraction: float = 1.0) -> NDArray[np.intp]:
    """Row numbers of a random sample without repetition, in the order in which they were drawn."""
    order: NDArray[np.intp] = np.random.RandomState(seed).permutation(rows)
    return order[: round(fraction * rows)]


def shuffle(arrays: Sequence[NDArray[Any]], seed: int) -> None:
    """Bring the rows of all `arrays` into the same random order, in place."""
    if len({len(array) for array in arrays}) > 1:
        raise SettingsError(f"cannot shuffle {[len(array) for array in arrays]} rows together")
    order = drawn(len(arrays[0]), seed)
    for array in arrays:
        columns = array[:, np.newaxis] if array.ndim == 1 else array
        step = max(1, SHUFFLE_BYTES // max(1, columns[:, :1].nbytes))
        for start in range(0, columns.shape[1], step):
            columns[:, start : start + step] = columns[order, start : start + step]


def some_columns(arrays: Sequence[NDArray[Any]], wanted: int, seed: int) -> list[NDArray[Any]]:
    """`wanted` columns of all arrays, the same of each, drawn at random and in their order; all of them for 0."""
    there = arrays[0].shape[1]
    if wanted > there:
        raise SettingsError(f"feature_subsample={wanted}: the files have {there} features. Use {there} or fewer.")
    if wanted in (0, there):
        return list(arrays)
    chosen = np.sort(np.random.default_rng(seed).choice(there, wanted, replace=False))
    return [np.take(array, chosen, axis=1) for array in arrays]


def check_validation(fraction: float) -> None:
    """Refuse a fraction of rows that is none."""
    if not 0 < fraction < 1:
        raise SettingsError(f"validation={fraction}: expected a fraction between 0 and 1, e.g. 0.1")


def held_out(rows: int, fraction: float) -> int:
    """How many of `rows` are kept from training; rounded down, and at least one row remains on each side."""
    check_validation(fraction)
    count = int(rows * fraction + 1e-9)  # 0.29 * 100 is just below 29
    if not 0 < count < rows:
        raise SettingsError(f"validation={fraction} of {rows} rows is {count}: no row is left for one side")
    return count


def batches_of_rank(rows: NDArray[np.intp], batch: int, *, rank: int, size: int) -> list[NDArray[np.intp]]:
    """This rank's share of `rows` in batches: over all ranks every row once, on all ranks as many batches.

    Batches are full but for the last, which takes a row from the one before where it would be empty.
    """
    if batch < 1 or not 0 <= rank < size:
        raise SettingsError(
            f"batch={batch}, rank={rank}, size={size}: expected batch >= 1 and 0 <= rank < size"
        )
    most = -(-len(rows) // size)
    steps = -(-most // batch)
    if len(rows) // size < steps:
        raise SettingsError(
            f"{len(rows)} rows do not give {size} ranks {steps} batches of {batch} each without an empty one. "
            f"Use {'a batch of 2 or more' if len(rows) >= size else f'at most {len(rows)} ranks'}."
        )
    share = rows[rank::size]
    step = np.arange(steps + 1)
    edges = np.minimum(step * batch, len(share) - (steps - step))
    return [share[start:stop] for start, stop in pairwise(edges)]
