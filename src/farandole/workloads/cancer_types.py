"""What P1B1 and P1B2 have in common: `case_id`, `cancer_type` and the same features in both files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.matrix import Matrix
from farandole.data.split import one_hot, some_columns
from farandole.data.table_reader import read_table
from farandole.data.tables import TableFile
from farandole.errors import DataError
from farandole.workloads.samples import ArraySamples

__all__ = ["CancerTypes", "labelled_file", "read_cancer_types"]

ID, LABEL = "case_id", "cancer_type"


@dataclass(frozen=True, slots=True)
class CancerTypes:
    """Both files, not scaled yet, labels one-hot."""

    train: ArraySamples
    test: ArraySamples
    classes: tuple[str, ...]


def labelled_file(name: str, rows: int, features: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=features, columns=(ID, LABEL))


def read_cancer_types(
    train: Path, test: Path, *, feature_subsample: int, feature_seed: int, cache: bool | Path
) -> CancerTypes:
    """Read and check the two files of a benchmark that knows cancer types; above 0, so many of their features."""
    matrices = {
        path: read_table(path, header=True, columns=[ID, LABEL], cache=cache) for path in (train, test)
    }
    _check_features(matrices, train, test)
    labels = {path: _labels(path, matrix) for path, matrix in matrices.items()}
    classes = np.unique(labels[train])
    unknown = np.setdiff1d(labels[test], classes)
    if unknown.size:
        raise DataError(
            f"{test}: {LABEL} {_some(unknown)} does not occur in {train}, which has {_some(classes)}; "
            "expected the same types in both"
        )
    values = some_columns([matrix.values for matrix in matrices.values()], feature_subsample, feature_seed)
    hot = {path: ArraySamples(x, one_hot(labels[path], classes)) for path, x in zip(matrices, values)}
    return CancerTypes(hot[train], hot[test], tuple(classes.tolist()))


def _labels(path: Path, matrix: Matrix) -> NDArray[np.str_]:
    labels: NDArray[np.str_] = matrix.columns[LABEL].astype(str)
    missing = np.flatnonzero((labels == "") | (labels == "nan"))
    if missing.size:
        raise DataError(f"{path}: data row {missing[0] + 1} has no {LABEL}; expected the name of one")
    return labels


def _check_features(matrices: dict[Path, Matrix], train: Path, test: Path) -> None:
    expected, found = (matrices[path].names or () for path in (train, test))
    if expected == found:
        return
    if len(expected) != len(found):
        raise DataError(
            f"{test} has {len(found)} features, {train} has {len(expected)}; expected the same in both"
        )
    place = next(place for place, (one, other) in enumerate(zip(expected, found)) if one != other)
    how = "in another order" if sorted(expected) == sorted(found) else "under other names"
    raise DataError(
        f"{test}: feature {place + 1} is {found[place]!r}, but {expected[place]!r} in {train}: the files have "
        f"their features {how}; expected the same names in the same order"
    )


def _some(names: NDArray[Any]) -> str:
    shown = ", ".join(repr(str(name)) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
