"""What the launcher knows of each rank, and which rank's failure began it all."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from farandole.launch.link import Link
from farandole.launch.messages import Ended, Place, Started

__all__ = ["Rank", "first_cause", "is_consequence", "may_be_consequence"]

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


@dataclass(slots=True)
class Rank:
    """A rank whose worker has called."""

    link: Link
    place: Place
    worker_pid: int
    started: Started | None = None
    ended: Ended | None = None
    joined_at: float | None = None
    """When, on the launcher's clock, it began to start MPI; None if it has not."""

    @property
    def number(self) -> int:
        return self.place.rank

    @property
    def pid(self) -> int:
        """The command's process, or its worker's where there is none."""
        return self.started.pid if self.started else self.worker_pid

    @property
    def failed(self) -> bool:
        """By itself, not because the launcher ended it."""
        if self.ended is None or not self.ended.failed:
            return False
        return not self.ended.stopped or self.ended.exception is not None

    def joined_before(self, moment: float) -> bool:
        return self.joined_at is not None and self.joined_at < moment

    def how(self) -> str:
        """How it ended, in words."""
        ended = self.ended
        if ended is None:
            return "did not end"
        if ended.stopped and not self.failed:
            return "ended by the launcher"
        if ended.problem or ended.unfinished:
            return ended.problem or f"{ended.unfinished}, exit code {ended.code}"
        if ended.signal:
            return f"killed by {signal_name(ended.signal)} (signal {ended.signal})"
        return f"exit code {ended.code}"

    @property
    def exit_code(self) -> int:
        """What a shell would report of a rank that failed; 1 for an end that only looks like a success."""
        if self.ended is None or not self.failed:
            return 1
        return 128 + self.ended.signal if self.ended.signal else self.ended.code or 1


def first_cause(ranks: Iterable[Rank]) -> Rank | None:
    """The rank that failed first; those that failed because of another count only where no other did.

    Where all failed because of another, that one had left in order while they still needed it.
    """
    everyone = [(rank, rank.ended) for rank in ranks if rank.ended]
    failed = [(rank, ended) for rank, ended in everyone if rank.failed]
    if not failed:
        return None
    # An MPI library may crash when a peer on another host is gone; nobody is gone without a word because one crashed.
    some_gone = any(_gone(ended) for _, ended in failed)
    ordered = [
        (is_consequence(rank), some_gone and ended.signal in CRASHES, ended.failed_at, rank)
        for rank, ended in failed
    ]
    consequence, *_, first = min(ordered, key=lambda found: found[:3])
    left = [(ended.left_at, rank) for rank, ended in everyone if ended.left_at and not rank.failed]
    return min(left, key=lambda found: found[0])[1] if consequence and left else first


def _gone(ended: Ended) -> bool:
    """Killed from outside, or ended without a word."""
    return bool(ended.unfinished) or (ended.exception is None and bool(ended.signal) and ended.signal not in CRASHES)


def may_be_consequence(rank: Rank) -> bool:
    """Whether another rank's failure may be about to be told."""
    crashed = rank.ended is not None and rank.ended.signal in CRASHES
    return crashed or is_consequence(rank)


def is_consequence(rank: Rank) -> bool:
    raised = rank.ended.exception if rank.ended else None
    return raised is not None and raised.consequence


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
