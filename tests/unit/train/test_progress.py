"""What a run says."""

import io

import numpy as np

from farandole.train.plan import make_plan
from farandole.train.rank.progress import RunLog
from farandole.train.settings import RunSettings
from farandole.workloads import ArraySamples, TrainingData


def test_the_data_that_a_rank_has_scaled_is_its_own() -> None:
    """The ranks of a node read one copy of a file, and scaling gives each of them its own."""
    said, settings = io.StringIO(), RunSettings.from_flat({"benchmark": "nt3"})
    part = ArraySamples(np.zeros((40, 3), np.float32))
    data = TrainingData(train=part, validation=part, test=part, features=3, nbytes=5 << 20)
    RunLog(said).plan(settings, make_plan(settings, 40, 1), data, parameters=7, memory=1 << 20)
    assert said.getvalue().splitlines()[1].endswith("3 features; 5 MiB a rank")
