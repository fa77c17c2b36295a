"""What a rank's watchdog reports, and what follows from the reports of several ranks. Pure logic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "DEADLOCK_S",
    "Farewell",
    "Report",
    "ReportedWait",
    "deadlocked",
    "departed_ranks",
    "describe_death",
    "describe_departure",
    "describe_location",
    "describe_waits",
    "missing_ranks",
]

DEADLOCK_S = 3.0


class ReportedWait(NamedTuple):
    """One slow wait of a rank."""

    key: str
    waited_s: float
    members: tuple[int, ...]
    missing: tuple[int, ...] | None
    """Ranks known to be late: none where the data is on its way; None where it is not known."""
    blocking: bool
    """Whether a thread of the program stands in it; otherwise it is asynchronous, and its rank may be elsewhere."""


class Report(NamedTuple):
    """What one rank waits for and takes part in."""

    waits: tuple[ReportedWait, ...]
    keys: frozenset[str]
    """Every operation it takes part in at the moment."""
    done: frozenset[str] = frozenset()
    """Steps it has done its part of."""
    threads: int = 1
    """Threads of the program that use farandole, whether they wait or compute."""

    def only_wait(self) -> ReportedWait | None:
        """The operation all threads wait in; None if they are in several, or one computes: it may help the others."""
        blocking = [wait for wait in self.waits if wait.blocking]
        together = len(blocking) >= self.threads and len({wait.key for wait in blocking}) == 1
        return max(blocking, key=lambda wait: wait.waited_s) if together else None


class Farewell(NamedTuple):
    """Why a rank takes part in nothing more, and its last report."""

    reason: str
    last: Report


def missing_ranks(wait: ReportedWait, reports: dict[int, Report]) -> list[int]:
    """Members that do not take part in what the others wait for."""
    if wait.missing is not None:
        return list(wait.missing)
    return [r for r in wait.members if r not in reports or wait.key not in reports[r].keys | reports[r].done]


def departed_ranks(wait: ReportedWait, reports: dict[int, Report], left: dict[int, Farewell]) -> list[int]:
    """Members that have left without doing their part."""
    if wait.missing == ():
        return [r for r in wait.members if r in left and wait.key in left[r].last.keys]
    return [r for r in missing_ranks(wait, reports) if r in left and wait.key not in left[r].last.done]


def deadlocked(reports: dict[int, Report]) -> dict[int, ReportedWait]:
    """Ranks that wait for one another in different operations, so that none can go on."""
    waits = {rank: report.only_wait() for rank, report in reports.items()}
    stuck = {rank: wait for rank, wait in waits.items() if wait is not None}
    while True:
        keep = {}
        for rank, wait in stuck.items():
            late = missing_ranks(wait, reports)
            if any(other in stuck and stuck[other].key != wait.key for other in late):
                keep[rank] = wait
        if len(keep) == len(stuck):
            break
        stuck = keep
    # A rank that has only just begun to wait may still be answered, and then all go on.
    return stuck if all(wait.waited_s > DEADLOCK_S for wait in stuck.values()) else {}


def describe_departure(wait: ReportedWait, left: dict[int, Farewell]) -> str:
    who = ", ".join(f"rank {rank} {farewell.reason}" for rank, farewell in left.items())
    return f"{wait.key}: {who} and takes part in nothing more"


def describe_death(wait: ReportedWait, dead: Iterable[int]) -> str:
    return f"{wait.key}: rank {', '.join(map(str, sorted(dead)))}, on another node, has died"


def describe_waits(waits: list[ReportedWait]) -> str:
    longest = sorted(waits, key=lambda wait: -wait.waited_s)
    names = ", ".join(wait.key for wait in longest[:3]) + (f" and {len(waits) - 3} more" if len(waits) > 3 else "")
    return f"{names} {'has' if len(waits) == 1 else 'have'} waited {longest[0].waited_s:.0f} s"


def describe_location(report: Report | None) -> str:
    """Where a rank's program is."""
    blocking = [wait.key for wait in report.waits if wait.blocking] if report else []
    return f"in {' and '.join(sorted(set(blocking)))}" if blocking else "in no farandole call"
