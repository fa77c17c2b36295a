"""Adasum: gradients combined so that what they agree on is not counted twice.

Two arrays a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum where they are orthogonal, their
mean where they are equal. Pairs of ranks combine, then pairs of pairs, and so on: log2(ranks) exchanges, after
each of which both partners hold the same array (Maleki et al., "Scaling distributed training with adaptive
summation", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.lane import Lane
from farandole.comm.named.negotiate import OperationRequest, Verdict
from farandole.comm.node.arithmetic import bfloat16
from farandole.errors import SettingsError

__all__ = ["AdasumReduce", "combine"]

_CHUNK = 1 << 18


class AdasumReduce:
    """Arrays, each combined on its own over the ranks; results go to `outs`."""

    def __init__(
        self,
        lane: Lane,
        name: str,
        arrays: Sequence[AnyArray],
        outs: Sequence[AnyArray],
        prescale: float,
        postscale: float,
    ) -> None:
        size = lane.transport.size
        key = f"allreduce.{name}"
        if size & (size - 1):
            raise SettingsError(f"{key}: Adasum needs 2, 4, 8, ... ranks, the set has {size}. Use op=Average.")
        for array in arrays:
            if array.dtype.kind != "f" and array.dtype != bfloat16:
                raise SettingsError(f"{key}: Adasum is for floating-point arrays, this one is {array.dtype}")
        self.lane = lane
        self.arrays = arrays
        self.outs = outs
        self.prescale, self.postscale = prescale, postscale
        arguments = (("op", "ADASUM"), ("prescale_factor", prescale), ("postscale_factor", postscale))
        described = tuple((array.dtype.name, array.shape) for array in arrays)
        self.request = OperationRequest(key, "allreduce", described, arguments)

    def run(self, verdict: Verdict) -> None:
        for array, out in zip(self.arrays, self.outs):
            wide: Any = np.float64 if array.dtype == np.float64 else np.float32
            mine = array.astype(wide).reshape(-1) * wide(self.prescale)
            total = self._over_ranks(mine) * wide(self.postscale)
            np.copyto(out, total.reshape(out.shape), casting="same_kind" if out.dtype != bfloat16 else "unsafe")

    def _over_ranks(self, mine: AnyArray) -> AnyArray:
        transport, key = self.lane.transport, self.request.key
        distance = 1
        while distance < transport.size:
            partner = transport.rank ^ distance
            theirs = np.empty_like(mine)
            requests = [transport.receive(theirs, partner, distance), transport.send(mine, partner, distance)]
            for request in requests:
                self.lane.complete(request, key, "MPI_SENDRECV")
            mine = combine(mine, theirs) if transport.rank < partner else combine(theirs, mine)
            distance *= 2
        return mine


def combine(a: AnyArray, b: AnyArray) -> AnyArray:
    """Adasum of two flat arrays of the same type; the same bits for whoever computes it."""
    both, of_a, of_b = (_dot(x, y) for x, y in ((a, b), (a, a), (b, b)))
    kind: Any = a.dtype.type
    result: AnyArray = a * kind(1 - both / (2 * of_a) if of_a else 1.0)
    result += b * kind(1 - both / (2 * of_b) if of_b else 1.0)
    return result


def _dot(a: AnyArray, b: AnyArray) -> float:
    """In float64, in a fixed order."""
    pieces = [
        np.dot(a[at : at + _CHUNK].astype(np.float64), b[at : at + _CHUNK].astype(np.float64))
        for at in range(0, a.size, _CHUNK)
    ]
    return float(sum(pieces))
