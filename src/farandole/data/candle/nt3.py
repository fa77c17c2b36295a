"""NT3: normal or tumor, from the expression of 60,483 genes.

Files `nt_train2.csv` (1,120 rows) and `nt_test2.csv` (280), no header: the label, 0 normal or 1 tumor, then
the genes. Labels one-hot; MaxAbs over train and test together; a trailing axis for the convolution. As published the
test set is the validation set, too; with `validation` that is the last part of the training file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.candle.files import find
from farandole.data.candle.tables import read_table
from farandole.data.matrix import Matrix
from farandole.data.scale import check_scaling, scale
from farandole.data.split import DataSet, Samples, held_out, one_hot, some_columns
from farandole.errors import DataError

__all__ = ["load"]

CLASSES = np.array([0, 1])


def load(
    folder: str | Path,
    *,
    scaling: str = "maxabs",
    validation: float = 0.0,
    feature_subsample: int = 0,
    feature_seed: int = 2017,
    cache: bool | Path = True,
) -> DataSet:
    """NT3 from the files in `folder`: x (rows, genes, 1), y (rows, 2); with `feature_subsample`, of so many genes."""
    check_scaling(scaling)
    paths = find("nt3", folder)
    files = [paths["train"], paths["test"]]
    matrices = [read_table(path, header=False, columns=[0], cache=cache) for path in files]
    labels = [_labels(path, matrix) for path, matrix in zip(files, matrices)]
    _check_genes(files, matrices)
    values = some_columns([matrix.values for matrix in matrices], feature_subsample, feature_seed)
    scale(values, scaling, sources=[str(path) for path in files])
    train, test = (
        Samples(genes[:, :, np.newaxis], one_hot(label, CLASSES)) for genes, label in zip(values, labels)
    )
    kept = len(train) - held_out(len(train), validation) if validation else len(train)
    watched = train[kept:] if validation else test
    return DataSet(train=train[:kept], validation=watched, test=test, classes=("normal", "tumor"))


def _labels(path: Path, matrix: Matrix) -> NDArray[np.int64]:
    labels: NDArray[Any] = matrix.columns[0]
    wrong = np.flatnonzero(~np.isin(labels, CLASSES))
    if wrong.size:
        raise DataError(
            f"{path}: data row {wrong[0] + 1} begins with {labels[wrong[0]]}; expected a label in column 1: "
            "0 (normal) or 1 (tumor)"
        )
    return labels.astype(np.int64)


def _check_genes(files: list[Path], matrices: list[Matrix]) -> None:
    expected, found = (matrix.values.shape[1] for matrix in matrices)
    if expected != found:
        raise DataError(
            f"{files[1]} has {found} genes after the label, {files[0]} has {expected}; expected the same in both"
        )
