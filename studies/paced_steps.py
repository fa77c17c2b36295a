"""Steps whose computing takes its time by the clock, and a gradient reduced after each: hosts that share cores do not slow each other.

    farandole launch -n 2 -- python studies/paced_steps.py 0.2

See paced-hosts.toml: `farandole predict` is checked with it against a host more than it was fitted on.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import farandole as fd
from farandole.comm.node.algorithms import AlgorithmTable

STEPS, WARM_UP, BATCH = 40, 5, 20
GRADIENT = 4_000_000
"""Floats."""


def main() -> None:
    """Tells the time of training, and how much of it was spent on communication."""
    fd.init()
    pace_s, gradient = float(sys.argv[1]), np.full(GRADIENT, fd.rank(), np.float32)
    waited, began = 0.0, 0.0
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            fd.barrier()
            waited, began = 0.0, time.monotonic()
        time.sleep(pace_s)
        computed = time.monotonic()
        if fd.size() > 1:
            fd.allreduce(gradient, name="gradient")
        waited += time.monotonic() - computed
    found = fd.allgather_object((time.monotonic() - began, waited))
    if fd.rank() == 0:
        tell(max(train for train, _ in found), float(np.mean([wait for _, wait in found])), gradient.nbytes)


def tell(train_s: float, exposed_s: float, nbytes: int) -> None:
    """What it takes to start is no part of the total: interpreters that start at once share this machine's cores."""
    figures = {
        "total_s": train_s, "train_s": train_s, "epoch_s": train_s, "epochs": 1, "exposed_s": exposed_s if fd.size() > 1 else 0.0,
        "samples": STEPS * BATCH * fd.size(), "global_batch": BATCH * fd.size(), "local_batch": BATCH, "bytes_per_step": nbytes,
        "messages_per_step": 1, "collective": AlgorithmTable.from_environment().for_cross(nbytes, fd.cross_size()),
    }  # fmt: skip
    print(figures)
    if "FARANDOLE_FIGURES" in os.environ:
        Path(os.environ["FARANDOLE_FIGURES"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
