"""A training whose loss is no number ends on all ranks of one program, which goes on with another one."""

from pathlib import Path

from ranktest import run_ranks

SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import numpy as np
from farandole.workloads import ArraySamples, TrainingData
from farandole.candle import nt3
from farandole.errors import TrainingError

rng = np.random.default_rng(0)
SMALL = {
    "conv": [2, 5, 1], "pool": [4], "dense": [4], "batch_size": 5, "epochs": 2, "shuffle": False, "parallel": "steps",
    "optimizer": "sgd", "lr_scaling": "none", "dropout": 0.0,
}

def samples(rows, odd=None):
    x = rng.random((rows, 40, 1), dtype=np.float32)
    if odd is not None:
        x[odd] = np.nan
    return ArraySamples(x, np.eye(2, dtype=np.float32)[np.arange(rows) % 2])

def said(odd, **given):
    data = TrainingData(
        train=samples(40, odd), validation=samples(8), test=samples(8), features=40, classes=("a", "b"), nbytes=0
    )
    try:
        nt3.run({**SMALL, **given}, data=data)
    except TrainingError as error:
        return str(error)
    return "trained"

import sys
often = {"checkpoint_every": "1steps", "checkpoint_dir": sys.argv[1]}
result([said(0), said(39), said(39, **often), said(None, learning_rate=1e38, train_steps=1, epochs=1), said(None)])
"""


def test_all_ranks_raise_where_one_alone_sees_it(tmp_path: Path) -> None:
    run = run_ranks(2, SCRIPT, args=[str(tmp_path)], timeout=120, env={"OMP_NUM_THREADS": "1", "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "20"})
    first, last, kept, diverged, fine = zip(*run.results)
    assert sum("the loss is nan in step 1 of epoch 1" in told for told in first) == 1, first
    assert sum("another rank has left the training" in told for told in first) == 1, first
    assert all("the loss is nan in the last step of epoch 1, on rank 1, at" in told for told in last), last
    assert all("the loss is nan in the last step of epoch 1, on rank 1, at" in told for told in kept), kept
    assert all(f"The last good checkpoint, of step 3, is in {tmp_path}." in told for told in kept), kept
    assert all("the loss on validation data is nan after epoch 1" in told for told in diverged), diverged
    assert fine == ("trained", "trained")
