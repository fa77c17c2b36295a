"""Rank 0's part of the watchdog: it sees the reports of all ranks, warns, and ends waits."""

from __future__ import annotations

import threading
import time

from farandole.comm.world.reports import (
    Farewell,
    Report,
    ReportedWait,
    deadlocked,
    departed_ranks,
    describe_death,
    describe_departure,
    describe_location,
    describe_waits,
    missing_ranks,
)
from farandole.comm.world.stall_settings import StallSettings
from farandole.comm.world.watchdog_messages import (
    DEADLOCK,
    FROM_RANK0,
    HEARD,
    LEFT,
    STALLED,
    TO_RANK0,
    UNANSWERED_S,
    Messages,
    print_line,
)

__all__ = ["Arbiter"]


class Arbiter:
    """Decides for all ranks."""

    def __init__(self, messages: Messages, size: int, settings: StallSettings, stopping: threading.Event) -> None:
        self._messages = messages
        self._size = size
        self._settings = settings
        self._stopping = stopping
        self._reports: dict[int, Report] = {}
        self._left: dict[int, Farewell] = {}
        self._warn_again_s: dict[str, float] = {}
        """How old the wait for a key must be for the next warning."""
        self._ended_at: dict[tuple[int, str], float] = {}
        """When a rank was first told to end its wait for a key."""

    def receive(self) -> None:
        """Hear the other ranks."""
        known = len(self._left)
        for rank, (kind, content) in self._messages.receive(TO_RANK0):
            if kind == LEFT:
                self._left[rank] = content
            else:
                self._reports[rank] = content
                if not self._stopping.is_set():  # a farewell is the last message
                    self._messages.send((HEARD, None, ""), rank, FROM_RANK0)
        if len(self._left) > known:
            # What was reported before a rank left may have ended with it.
            self._reports.clear()

    def decide(self, own: Report, dead: set[int]) -> None:
        """`dead`: ranks of other nodes that have died."""
        self._reports[0] = own
        current = {(rank, wait.key) for rank, report in self._reports.items() for wait in report.waits}
        self._ended_at = {which: at for which, at in self._ended_at.items() if which in current}
        for rank, report in list(self._reports.items()):
            for wait in report.waits:
                if rank not in dead:
                    self._check_death(rank, wait, dead)
                self._check_departure(rank, wait)
        self._check_deadlock()
        self._check_stalls()

    def say_farewell(self, farewell: Farewell) -> None:
        for rank in range(1, self._size):
            self._messages.send((LEFT, None, farewell), rank, FROM_RANK0)

    def everyone_left(self) -> bool:
        """After this rank's farewell."""
        self.receive()
        return len(self._left) == self._size - 1

    def _check_death(self, rank: int, wait: ReportedWait, dead: set[int]) -> None:
        if concerned := dead.intersection(wait.members):
            self._end(rank, LEFT, wait.key, describe_death(wait, concerned))

    def _check_departure(self, rank: int, wait: ReportedWait) -> None:
        if departed := departed_ranks(wait, self._reports, self._left):
            self._end(rank, LEFT, wait.key, describe_departure(wait, {r: self._left[r] for r in departed}))

    def _check_deadlock(self) -> None:
        stuck = deadlocked(self._reports)
        where = "; ".join(f"rank {rank} waits in {wait.key}" for rank, wait in sorted(stuck.items()))
        for rank, wait in stuck.items():
            text = f"the ranks are in different operations and wait for each other: {where}"
            self._end(rank, DEADLOCK, wait.key, text)

    def _check_stalls(self) -> None:
        oldest = self._oldest_waits()
        self._warn_again_s = {key: age_s for key, age_s in self._warn_again_s.items() if key in oldest}
        groups: dict[str, list[ReportedWait]] = {}
        for wait, ranks in oldest.values():
            where = self._describe_ranks(wait, ranks)
            groups.setdefault(where, []).append(wait)
            self._end_stalled(wait, ranks, where)
        for where, waits in groups.items():
            self._warn(where, waits)

    def _oldest_waits(self) -> dict[str, tuple[ReportedWait, set[int]]]:
        """For each key the longest wait, and all ranks that wait."""
        oldest: dict[str, tuple[ReportedWait, set[int]]] = {}
        for rank, report in self._reports.items():
            for wait in report.waits:
                known, ranks = oldest.get(wait.key, (wait, set()))
                oldest[wait.key] = (max(known, wait, key=lambda w: w.waited_s), ranks | {rank})
        return oldest

    def _end_stalled(self, wait: ReportedWait, ranks: set[int], where: str) -> None:
        limit_s = self._settings.abort_s
        if limit_s and wait.waited_s > limit_s:
            for rank in ranks:
                self._end(rank, STALLED, wait.key, f"{describe_waits([wait])}; {where}; the limit is {limit_s:g} s")

    def _warn(self, where: str, waits: list[ReportedWait]) -> None:
        """One warning for waits with the same ranks, once the first is old enough, and again after twice the time."""
        warn_s = self._settings.warn_s
        if warn_s and any(wait.waited_s >= self._warn_again_s.get(wait.key, warn_s) for wait in waits):
            print_line(f"stalled: {describe_waits(waits)}; {where}")
            again_s = 2 * max(wait.waited_s for wait in waits)
            self._warn_again_s |= {wait.key: again_s for wait in waits}

    def _describe_ranks(self, wait: ReportedWait, ranks: set[int]) -> str:
        """Who is here, and where the others are."""
        late = [f"rank {r} ({describe_location(self._reports.get(r))})" for r in missing_ranks(wait, self._reports)]
        missing = ", ".join(late) or "nobody (the operation itself is slow)"
        return f"here: rank {', '.join(map(str, sorted(ranks)))}; missing: {missing}"

    def _end(self, rank: int, verdict: str, key: str, text: str) -> None:
        """Tell a rank to end its wait for `key`."""
        first = self._ended_at.setdefault((rank, key), time.monotonic())
        if verdict == STALLED and time.monotonic() - first > UNANSWERED_S:
            self._messages.abort(f"rank {rank} cannot leave {key}")
        if rank == 0:
            self._messages.end_waits(verdict, key, text)
        else:
            self._messages.send((verdict, key, text), rank, FROM_RANK0)
