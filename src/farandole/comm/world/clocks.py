"""By how much the hosts' clocks differ, so that what ranks of several hosts have recorded can be laid side by side.

The first rank of each node asks rank 0 for its time, many times over. Rank 0 read its clock at some moment between
question and answer; taken for the middle, that is wrong by at most half of the time between them, so that the
shortest round trip counts. The ranks of a node read the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.bytes.waiting import Subject, wait_until
from farandole.comm.node.layout import Layout
from farandole.observe.part import ClockOffset

__all__ = ["ROUNDS", "compare_clocks", "shortest"]

ROUNDS = 40
_TAG = 0
_HOW = f"the shortest of {ROUNDS} round trips to rank 0's host"


def compare_clocks(transport: Transport, layout: Layout) -> ClockOffset:
    """How this rank's clock leads to rank 0's. Collective: every rank calls it."""
    asking = [ranks[0] for ranks in layout.nodes[1:]]
    if not asking:
        return ClockOffset()
    mine = ClockOffset()
    if transport.rank == 0:
        for rank in asking:
            _answer(transport, rank)
    elif transport.rank in asking:
        mine = _ask(transport)
    clocks: list[ClockOffset] = transport.allgather_object(mine)
    node, _ = layout.place(transport.rank)
    return clocks[layout.nodes[node][0]]


def _answer(transport: Transport, rank: int) -> None:
    question, now_ns = np.empty(1, np.int64), np.empty(1, np.int64)
    for _ in range(ROUNDS):
        _wait(transport.receive(question, rank, _TAG), rank)
        now_ns[0] = time.monotonic_ns()
        _wait(transport.send(now_ns, rank, _TAG), rank)


def _ask(transport: Transport) -> ClockOffset:
    question, theirs_ns = np.zeros(1, np.int64), np.empty(1, np.int64)
    trips: list[tuple[int, int]] = []  # (round trip, offset)
    for _ in range(ROUNDS):
        answer = transport.receive(theirs_ns, 0, _TAG)
        began_ns = time.monotonic_ns()
        _wait(transport.send(question, 0, _TAG), transport.rank)
        _wait(answer, transport.rank)
        ended_ns = time.monotonic_ns()
        trips.append((ended_ns - began_ns, int(theirs_ns[0]) - (began_ns + ended_ns) // 2))
    return shortest(trips)


def shortest(trips: Sequence[tuple[int, int]]) -> ClockOffset:
    """The clock by the best of (round trip, offset)."""
    round_trip_ns, offset_ns = min(trips)
    return ClockOffset(offset_ns=offset_ns, residual_ns=round_trip_ns // 2, how=_HOW)


def _wait(request: Request, asking: int) -> None:
    wait_until(request.test, Subject("setting up (comparing clocks)", (0, asking)))
