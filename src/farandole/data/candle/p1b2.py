"""P1B2: the cancer type, from 28,204 SNP features.

Files `P1B2.train.csv` (3,000 rows) and `P1B2.test.csv` (1,000), with a header: `case_id`, `cancer_type`, the
features. Both files are shuffled (seed 2017); labels one-hot; MinMax over train and test together; validation
is the first 10% of the shuffled training file.
"""

from __future__ import annotations

from pathlib import Path

from farandole.data.candle.cancer_types import read_cancer_types
from farandole.data.candle.files import find
from farandole.data.scale import check_scaling, scale
from farandole.data.split import DataSet, check_validation, held_out, shuffle

__all__ = ["load"]


def load(
    folder: str | Path,
    *,
    scaling: str = "minmax",
    validation: float = 0.1,
    seed: int = 2017,
    feature_subsample: int = 0,
    feature_seed: int = 2017,
    cache: bool | Path = True,
) -> DataSet:
    """P1B2 from the files in `folder`: x (rows, features), y (rows, cancer types); with `feature_subsample`, of so many."""
    check_scaling(scaling)
    check_validation(validation)
    paths = find("p1b2", folder)
    files = paths["train"], paths["test"]
    data = read_cancer_types(*files, feature_subsample=feature_subsample, feature_seed=feature_seed, cache=cache)
    scale([data.train.x, data.test.x], scaling, sources=[str(path) for path in files])
    for samples in (data.train, data.test):
        shuffle([samples.x, samples.y], seed)
    held = held_out(len(data.train), validation)
    return DataSet(
        train=data.train[held:], validation=data.train[:held], test=data.test, classes=data.classes
    )
