"""Ranks that load for different times, then receive rank 0's weights: how long the broadcast takes. See broadcast-skew.toml.

    farandole launch -n 2 -- python studies/skewed_broadcast.py 1.5
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import farandole as fd

LOAD_S = 0.5
WEIGHTS = 1_000_000


def main() -> None:
    """Rank r of n loads skew x r / (n - 1) seconds longer than rank 0, which therefore waits for the last one."""
    fd.init()
    weights = np.random.default_rng(fd.rank()).standard_normal(WEIGHTS).astype(np.float32)
    fd.barrier()
    began = time.monotonic()
    time.sleep(LOAD_S + float(sys.argv[1]) * fd.rank() / max(fd.size() - 1, 1))
    loaded = time.monotonic()
    fd.broadcast(weights, root_rank=0, name="weights")
    done = time.monotonic()
    found = fd.allgather_object((loaded - began, done - loaded))
    if fd.rank() == 0:
        figures = {"load_s": max(load for load, _ in found), "broadcast_s": max(wait for _, wait in found)}
        print(figures)
        if "FARANDOLE_FIGURES" in os.environ:
            Path(os.environ["FARANDOLE_FIGURES"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
