"""NT3's files to arrays.

Files `nt_train2.csv` (1,120 rows) and `nt_test2.csv` (280), no header: the label, 0 normal or 1 tumor, then
the genes. Labels one-hot; MaxAbs over train and test together; a trailing axis for the convolution. As published the
test set is the validation set, too; with `val_split` that is the last part of the training file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.matrix import Matrix
from farandole.data.scale import scale
from farandole.data.split import held_out, one_hot, some_columns
from farandole.data.table_reader import read_table
from farandole.errors import DataError
from farandole.workloads.nt3 import FILES, NT3
from farandole.workloads.samples import ArraySamples, TrainingData

__all__ = ["load"]

CLASSES = np.array([0, 1])


def load(parameters: NT3, folder: str | Path, *, cache: bool | Path = True) -> TrainingData:
    """x (rows, genes, 1), y (rows, 2)."""
    paths = FILES.find(folder)
    files = [paths["train"], paths["test"]]
    matrices = [read_table(path, header=False, columns=[0], cache=cache) for path in files]
    labels = [_labels(path, matrix) for path, matrix in zip(files, matrices)]
    _check_genes(files, matrices)
    values = some_columns([matrix.values for matrix in matrices], parameters.feature_subsample, parameters.rng_seed)
    scale(values, parameters.scaling, sources=[str(path) for path in files])
    train, test = (
        ArraySamples(genes[:, :, np.newaxis], one_hot(label, CLASSES)) for genes, label in zip(values, labels)
    )
    kept = len(train) - held_out(len(train), parameters.val_split) if parameters.val_split else len(train)
    watched = train[kept:] if parameters.val_split else test
    return TrainingData(train=train[:kept], validation=watched, test=test, classes=("normal", "tumor"))


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
