"""P1B1's files to arrays.

Files `P1B1.dev.train.csv` (3,000 rows) and `P1B1.dev.test.csv` (1,000), with a header: `case_id`,
`cancer_type`, 60,483 genes. MinMax over train and test together; validation is the last 10% of the training
file. The target is x itself; the conditional autoencoder also gets the cancer type, one-hot, as an input.
"""

from __future__ import annotations

from pathlib import Path

from farandole.data.scale import scale
from farandole.data.split import check_validation, held_out
from farandole.workloads.cancer_types import read_cancer_types
from farandole.workloads.p1b1 import FILES, P1B1
from farandole.workloads.samples import ArraySamples, TrainingData

__all__ = ["load"]


def load(parameters: P1B1, folder: str | Path, *, cache: bool | Path = True) -> TrainingData:
    """x (rows, genes), or with model="cvae" also the types (rows, cancer types)."""
    check_validation(parameters.val_split)
    files = FILES.find(folder)
    data = read_cancer_types(
        files["train"], files["test"], feature_subsample=parameters.feature_subsample, feature_seed=parameters.rng_seed, cache=cache
    )
    scale([data.train.x, data.test.x], parameters.scaling, sources=[str(path) for path in files.values()])
    train, test = (
        ArraySamples((part.x, part.y) if parameters.model == "cvae" else part.x) for part in (data.train, data.test)
    )
    kept = len(train) - held_out(len(train), parameters.val_split)
    return TrainingData(train=train[:kept], validation=train[kept:], test=test, classes=data.classes)
