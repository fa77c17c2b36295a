"""Scaling and filling of columns, in place and a block of rows at a time.

    scale([x_train, x_test], "maxabs")     # fitted on both together, as the CANDLE specifications say
    table = fill_gaps(table)               # columns without any value go, other gaps become the column's mean

Statistics are those of scikit-learn's scalers, near-constant columns included. No copy of a matrix is made:
what is needed beside it is one block of rows and a few rows of statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.errors import DataError, SettingsError

__all__ = ["SCALINGS", "check_scaling", "fill_gaps", "row_blocks", "scale"]

Floats = NDArray[np.floating[Any]]
Fit = tuple[Floats | None, Floats]  # what to subtract, and then what to divide by

# Small enough to stay in the cache between the two operations on a block, large enough to hide their overhead.
BLOCK_BYTES = 2 << 20


def scale(arrays: Sequence[Floats], scaling: str, *, sources: Sequence[str] = ()) -> None:
    """Scale the columns of all `arrays` together, in place; `sources` name them in errors."""
    check_scaling(scaling)
    _check_arrays(arrays)
    if scaling == "none":
        _require_finite(arrays, sources)
        return
    with np.errstate(invalid="ignore", over="ignore"):  # said better by the check that follows
        shift, divisor = _FITS[scaling](arrays)
    if not np.isfinite(divisor).all():
        _require_finite(arrays, sources)
    for block in _blocks_of_all(arrays):
        if shift is not None:
            np.subtract(block, shift, out=block, casting="same_kind")
        np.divide(block, divisor, out=block, casting="same_kind")


def check_scaling(scaling: str) -> None:
    """Refuse a name that is none of `SCALINGS`."""
    if scaling not in SCALINGS:
        raise SettingsError(f"unknown scaling {scaling!r}; known: {', '.join(SCALINGS)}")


def fill_gaps(values: Floats) -> Floats:
    """Drop columns that are NaN throughout and set other NaNs to the column's mean; reuses `values`' memory."""
    counts = np.zeros(values.shape[1], np.int64)
    sums = np.zeros(values.shape[1], np.float64)
    for block in row_blocks(values):
        known = ~np.isnan(block)
        counts += np.count_nonzero(known, axis=0)
        sums += np.add.reduce(np.where(known, block, 0), axis=0, dtype=np.float64)
    if (counts == len(values)).all():
        return values
    means = (sums / np.maximum(counts, 1)).astype(values.dtype)
    for block in row_blocks(values):
        np.copyto(block, means, where=np.isnan(block))
    return _keep_columns(values, counts > 0)


def row_blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Views of consecutive rows of `array`, each of at most about `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    return (array[start : start + step] for start in range(0, len(array), step))


def _blocks_of_all(arrays: Sequence[Floats]) -> Iterator[Floats]:
    return (block for array in arrays for block in row_blocks(array))


def _max_abs(arrays: Sequence[Floats]) -> Fit:
    low, high = _extremes(arrays)
    return None, _one_where_tiny(np.maximum(-low, high))


def _min_max(arrays: Sequence[Floats]) -> Fit:
    # scikit-learn multiplies by 1 / range and adds -low / range, which can leave [0, 1] by a rounding error.
    low, high = _extremes(arrays)
    return low, _one_where_tiny(high - low)


def _standard(arrays: Sequence[Floats]) -> Fit:
    rows = sum(len(array) for array in arrays)
    columns = arrays[0].shape[1]
    mean, drift, squares = np.zeros((3, columns), np.float64)
    for block in _blocks_of_all(arrays):
        mean += np.add.reduce(block, axis=0, dtype=np.float64)
    mean /= rows
    for block in _blocks_of_all(arrays):
        centred = np.subtract(block, mean)
        drift += centred.sum(axis=0)
        squares += np.square(centred, out=centred).sum(axis=0)
    # The second pass corrects the first: `drift` is 0 but for the rounding of `mean`.
    variance = (squares - drift * drift / rows) / rows
    eps = np.finfo(np.float64).eps
    rounding = rows * eps * variance + (rows * mean * eps) ** 2
    return mean, np.sqrt(np.where(variance <= rounding, 1.0, variance))


def _extremes(arrays: Sequence[Floats]) -> tuple[Floats, Floats]:
    low = high = np.array(arrays[0][0])
    for block in _blocks_of_all(arrays):
        low = np.minimum(low, block.min(axis=0))
        high = np.maximum(high, block.max(axis=0))
    return low, high


def _one_where_tiny(divisor: Floats) -> Floats:
    """A column that hardly varies is left at its size instead of being blown up."""
    return np.where(divisor < 10 * np.finfo(divisor.dtype).eps, divisor.dtype.type(1), divisor)


_FITS: dict[str, Callable[[Sequence[Floats]], Fit]] = {
    "maxabs": _max_abs,
    "minmax": _min_max,
    "std": _standard,
}
SCALINGS = (*_FITS, "none")


def _check_arrays(arrays: Sequence[Floats]) -> None:
    shapes = [array.shape for array in arrays]
    if any(array.ndim != 2 or not len(array) or array.dtype.kind != "f" for array in arrays):
        found = ", ".join(f"{array.dtype}{array.shape}" for array in arrays)
        raise SettingsError(f"cannot scale {found}: expected float matrices with at least one row")
    if not arrays or len({columns for _, columns in shapes}) > 1:
        raise SettingsError(f"cannot scale {shapes} together: expected matrices of the same columns")


def _require_finite(arrays: Sequence[Floats], sources: Sequence[str]) -> None:
    for number, array in enumerate(arrays):
        first = 0
        for block in row_blocks(array):
            rows, columns = np.nonzero(~np.isfinite(block))
            if rows.size:
                where = sources[number] if sources else f"array {number}"
                value = block[rows[0], columns[0]]
                raise DataError(
                    f"{where}: data row {first + rows[0] + 1}, feature {columns[0] + 1} is {value}; "
                    "expected a finite number"
                )
            first += len(block)


def _keep_columns(values: Floats, keep: NDArray[np.bool_]) -> Floats:
    """Close the gaps that dropped columns leave, within the memory of `values`."""
    if keep.all():
        return values
    width = int(np.count_nonzero(keep))
    flat, written = values.reshape(-1), 0  # a view: what is written never overtakes what is read
    for block in row_blocks(values):
        kept = block[:, keep]
        flat[written : written + kept.size] = kept.reshape(-1)
        written += kept.size
    return flat[:written].reshape(len(values), width)
