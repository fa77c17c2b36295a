"""What all ranks know of a step of gradients: the state of each rank, and which gradients there are.

A rank says both in a row of bytes, `[state of each rank | kind of each gradient]`, in which it fills in its own state. The
highest of all rows, byte by byte, is the status, which is the same on every rank.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from farandole.errors import MismatchError

__all__ = ["Kind", "State", "Status", "check_alike"]

_ADVICE = (
    "give every rank the same number of batches and epochs (for instance fit(steps_per_epoch=...)), and let "
    "callbacks that stop training look at averaged metrics"
)


class State(enum.IntEnum):
    """What a rank does in a step."""

    TRAINING = 0
    ENDED = 1
    """It trains no more, and takes part once so that nobody waits for it."""
    DROPPED = 2
    """It wants none of the gradients that were handed over."""
    JOINED = 3
    """It has no more data, and adds zeros to what the others have."""


class Kind(enum.IntEnum):
    """What a rank has of a gradient. Of those of several ranks the highest counts."""

    ABSENT = 0
    DENSE = 1
    SPARSE = 2
    """It is no part of the plan: its rows are to be gathered."""


class Status(NamedTuple):
    """One step, the same on every rank."""

    step: int
    states: list[int]
    """By rank."""
    kinds: list[int]
    """By gradient, over all ranks."""


def check_alike(status: Status, number: int, members: Sequence[int]) -> None:
    """Raise on every rank where some have ended their training or drop the step, and others have not.

    `number`: this rank's, within the set; `members`: world ranks of the set.
    """
    if not any(status.states):
        return
    mine = status.states[number]
    states = {member: state for member, state in zip(members, status.states) if state != State.JOINED}
    if mine == State.JOINED or len({*states.values()}) == 1:
        return
    ended, dropped = (_listed(states, state) for state in (State.ENDED, State.DROPPED))
    if mine == State.ENDED:
        others = _listed(states, State.TRAINING, State.DROPPED)
        raise MismatchError(f"this rank has ended its training after {status.step - 1} steps, rank {others} has not: {_ADVICE}")
    if ended:
        raise MismatchError(f"rank {ended} has ended its training, this rank is in step {status.step}: {_ADVICE}")
    raise MismatchError(
        f"rank {dropped} has called backward() without a step of the optimizer after it, other ranks have not. Do "
        "it on all ranks, or pass DistributedOptimizer(..., team=Team(threads=0))."
    )


def _listed(states: dict[int, int], *wanted: State) -> str:
    return ", ".join(str(member) for member, state in states.items() if state in wanted)
