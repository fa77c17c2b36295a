"""P1B2's files to arrays.

Files `P1B2.train.csv` (3,000 rows) and `P1B2.test.csv` (1,000), with a header: `case_id`, `cancer_type`, the
features. Both files are shuffled (seed 2017); labels one-hot; MinMax over train and test together; validation
is the first 10% of the shuffled training file.
"""

from __future__ import annotations

from pathlib import Path

from farandole.data.scale import scale
from farandole.data.split import check_validation, held_out, shuffle
from farandole.workloads.cancer_types import read_cancer_types
from farandole.workloads.p1b2 import FILES, P1B2
from farandole.workloads.samples import TrainingData

__all__ = ["load"]

SEED = 2017


def load(parameters: P1B2, folder: str | Path, *, cache: bool | Path = True) -> TrainingData:
    """x (rows, features), y (rows, cancer types)."""
    check_validation(parameters.val_split)
    files = FILES.find(folder)
    data = read_cancer_types(
        files["train"], files["test"], feature_subsample=parameters.feature_subsample, feature_seed=parameters.rng_seed, cache=cache
    )
    scale([data.train.x, data.test.x], parameters.scaling, sources=[str(path) for path in files.values()])
    for samples in (data.train, data.test):
        shuffle([samples.x, samples.y], SEED)
    held = held_out(len(data.train), parameters.val_split)
    return TrainingData(train=data.train[held:], validation=data.train[:held], test=data.test, classes=data.classes)
