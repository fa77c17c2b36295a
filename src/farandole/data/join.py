"""Tables by name: inner joins as row numbers, so that no joined table is ever built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.matrix import Matrix
from farandole.errors import DataError

__all__ = ["Table", "identifiers", "joined", "rows_of"]

Names = NDArray[Any]  # strings or whole numbers


@dataclass(frozen=True, slots=True)
class Table:
    """Features by name."""

    names: Names
    """One for each row, no two the same."""
    values: NDArray[np.float32]


def identifiers(path: Path, matrix: Matrix, column: str) -> Names:
    """The names in a column: strings, or whole numbers where all of them are."""
    names: Names = matrix.columns[column]
    if names.dtype.kind == "f":
        wrong = int(np.argmax(names != np.floor(names)))  # NaN differs from itself
        raise DataError(
            f"{path}: {column} in data row {wrong + 1} is {names[wrong]}; expected a name or a whole number"
        )
    return names


def rows_of(wanted: Names, known: Names) -> NDArray[np.intp]:
    """For each wanted name the row in which `known` has it, -1 where it has not."""
    known, rows = _comparable(known, wanted)
    if not len(known):
        return np.full(len(wanted), -1, np.intp)
    order = np.argsort(known)
    known, rows = known[order], rows[order]
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, rows[place], -1)


def joined(tables: Sequence[Table]) -> Table:
    """The rows whose name all tables have, in the order of the first, with all their features side by side."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].names
    rows = np.stack([rows_of(names, table.names) for table in tables])
    common = (rows >= 0).all(axis=0)
    parts = [table.values[found[common]] for table, found in zip(tables, rows)]
    return Table(names[common], np.hstack(parts))


def _comparable(known: Names, wanted: Names) -> tuple[Names, NDArray[np.intp]]:
    """`known` in the type of `wanted`, and the rows of those names that exist in it."""
    rows = np.arange(len(known))
    if wanted.dtype.kind == "i" and known.dtype.kind != "i":
        rows = rows[np.char.isdecimal(known.astype(str))]
        return known[rows].astype(np.int64), rows
    if wanted.dtype.kind != "i" and known.dtype.kind == "i":
        return known.astype(str), rows
    return known, rows
