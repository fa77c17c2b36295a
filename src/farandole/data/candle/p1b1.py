"""P1B1: gene expression, to be squeezed through an autoencoder.

Files `P1B1.dev.train.csv` (3,000 rows) and `P1B1.dev.test.csv` (1,000), with a header: `case_id`,
`cancer_type`, 60,483 genes. MinMax over train and test together; validation is the last 10% of the training
file. The target is x itself; y, the cancer type one-hot, is what the conditional autoencoder is told.
"""

from __future__ import annotations

from pathlib import Path

from farandole.data.candle.cancer_types import read_cancer_types
from farandole.data.candle.files import find
from farandole.data.scale import check_scaling, scale
from farandole.data.split import DataSet, check_validation, held_out

__all__ = ["load"]


def load(
    folder: str | Path,
    *,
    scaling: str = "minmax",
    validation: float = 0.1,
    feature_subsample: int = 0,
    feature_seed: int = 2017,
    cache: bool | Path = True,
) -> DataSet:
    """P1B1 from the files in `folder`: x (rows, genes), y (rows, cancer types); with `feature_subsample`, of so many genes."""
    check_scaling(scaling)
    check_validation(validation)
    paths = find("p1b1", folder)
    files = paths["train"], paths["test"]
    data = read_cancer_types(*files, feature_subsample=feature_subsample, feature_seed=feature_seed, cache=cache)
    scale([data.train.x, data.test.x], scaling, sources=[str(path) for path in files])
    kept = len(data.train) - held_out(len(data.train), validation)
    return DataSet(
        train=data.train[:kept], validation=data.train[kept:], test=data.test, classes=data.classes
    )
