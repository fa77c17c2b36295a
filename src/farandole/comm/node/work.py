"""One array on its way through the phases of a reduction, and how it is cut into slices."""

from __future__ import annotations

from typing import NamedTuple

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.node.arithmetic import Reduction

__all__ = ["Work", "cut", "share"]

# Slices begin at multiples of this many elements, so that vector loads stay aligned.
ALIGN = 64


class Work(NamedTuple):
    """One array, and what is to become of it."""

    slot: int
    sequence: int
    source: AnyArray
    result: AnyArray
    """Where it goes; may be `source`."""
    how: Reduction
    key: str
    """What waits for it are for; alike on all ranks."""


def share(count: int, parts: int) -> int:
    """The elements of each of `parts`, aligned; the last may have fewer."""
    return -(-count // (parts * ALIGN)) * ALIGN


def cut(count: int, parts: int, number: int) -> tuple[int, int]:
    """Where the part of that number starts and stops, of `count` elements; there is nothing in those after the last."""
    step = share(count, parts)
    return min(number * step, count), min((number + 1) * step, count)
