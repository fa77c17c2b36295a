"""A first dance of the ranks, for `farandole doctor`: `farandole launch -n 2 -- python -m farandole.launch.ring FILE`.

Every rank hears from every other, all add up, and rank 0 writes what it saw to FILE.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import numpy as np

import farandole

_ELEMENTS = 1000
_REPEATS = 20


def main(result: Path) -> None:
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    seen = farandole.allgather(np.array([rank]), name="ring.ranks")
    total = farandole.allreduce(np.full(_ELEMENTS, rank + 1.0), op=farandole.Sum, name="ring.sum")
    expected = size * (size + 1) / 2
    if list(seen) != list(range(size)) or not np.all(total == expected):
        raise RuntimeError(
            f"ranks {list(seen)} added up to {total[0]}; expected {expected} from {size} ranks"
        )
    hosts = farandole.allgather_object(socket.gethostname(), name="ring.hosts")
    latency_us = round(_latency_us(), 1)
    if rank == 0:
        allocator = farandole.describe()["allocator"]
        facts = {"ranks": size, "hosts": hosts, "allreduce_us": latency_us, "allocator": allocator}
        result.write_text(json.dumps(facts))
    farandole.shutdown()


def _latency_us() -> float:
    """The median time of a small allreduce."""
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        farandole.allreduce(np.zeros(_ELEMENTS), name="ring.latency")
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e6


if __name__ == "__main__":
    main(Path(sys.argv[1]))
