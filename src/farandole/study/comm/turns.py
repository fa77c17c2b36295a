"""Ways take turns on the same ranks, so that whatever else happens happens to all of them.

Ranks may lie on hosts with different clocks, so that each times its own turn: from when all have met until it is
done, as often in a row as makes the turn long against the moment by which ranks leave the meeting apart. The
slowest rank's time counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farandole.errors import FarandoleError
from farandole.study.comm.ways import Group, Way

__all__ = ["Timing", "take_turns"]

_TURN_S = 2e-3
_MOST_CALLS = 500
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 200


@dataclass(kw_only=True, slots=True)
class Timing:
    """Seconds of a call: those of each turn divided by its calls."""

    calls: int
    """In a row, in each turn."""
    seconds: list[float]


def take_turns(ways: Sequence[Way], group: Group, seconds: float) -> dict[str, Timing]:
    """As many rounds as fit into `seconds`. Collective: every rank of the group calls it."""
    once_s = [_warm(way, group) for way in ways]
    calls = [min(_MOST_CALLS, math.ceil(_TURN_S / once)) for once in once_s]
    rounds: list[list[float]] = []
    end_s = time.monotonic() + seconds
    while group.comm.bcast(_goes_on(len(rounds), end_s)):
        rounds.append(_round(ways, calls, group, backwards=len(rounds) % 2 == 1))
    slowest = np.max(group.comm.allgather(np.array(rounds)), axis=0) / calls  # (rounds, ways)
    return {
        way.name: Timing(calls=count, seconds=slowest[:, index].tolist())
        for index, (way, count) in enumerate(zip(ways, calls))
    }


def _warm(way: Way, group: Group) -> float:
    """Seconds of a call, the same on every rank; the first ones, which make communicators and windows, are dropped."""
    right = way.right()
    if not all(group.comm.allgather(right)):
        raise FarandoleError(
            f"{way.name}: the result is not what {group.size} ranks add up to. Please report this."
        )
    return float(max(group.comm.allgather(min(_turn(way, 1, group) for _ in range(2)))))


def _goes_on(rounds: int, end_s: float) -> bool:
    return rounds < _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.monotonic() < end_s)


def _round(ways: Sequence[Way], calls: Sequence[int], group: Group, *, backwards: bool) -> list[float]:
    """One turn for each way."""
    seconds = [0.0] * len(ways)
    for index in reversed(range(len(ways))) if backwards else range(len(ways)):
        seconds[index] = _turn(ways[index], calls[index], group)
    return seconds


def _turn(way: Way, calls: int, group: Group) -> float:
    call = way.call
    _meet(group)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began


def _meet(group: Group) -> None:
    """A barrier that leaves the core to whoever is late."""
    request = group.comm.Ibarrier()
    while not request.Test():
        os.sched_yield()
