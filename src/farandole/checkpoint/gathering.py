"""Objects of all ranks on one of them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from farandole.comm.named.collectives import allgather, gather
from farandole.comm.named.process_sets import ProcessSet

__all__ = ["gather_objects"]


def gather_objects(value: Any, process_set: ProcessSet) -> list[Any] | None:
    """Every rank's object on the set's first rank, in rank order; None elsewhere. Collective."""
    root = process_set.runtime().members[0]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = allgather(np.array([data.size]), "checkpoint.own.size", process_set)
    joined = gather(data, root, "checkpoint.own", process_set)
    if joined is None:
        return None
    ends = np.cumsum(sizes).tolist()
    return [pickle.loads(joined[end - size : end].tobytes()) for end, size in zip(ends, sizes.tolist())]
