"""What every other rank does about rank 0: reports to it, ends what it decides, and notices when it is silent."""

from __future__ import annotations

import time

from farandole.comm.world.reports import Farewell, Report, departed_ranks, describe_departure, describe_waits
from farandole.comm.world.stall_settings import StallSettings
from farandole.comm.world.watchdog_messages import (
    FROM_RANK0,
    LEFT,
    REPORT,
    STALLED,
    TO_RANK0,
    UNANSWERED_S,
    Messages,
    print_line,
)

__all__ = ["Rank0Link"]


class Rank0Link:
    """One rank's exchange with rank 0."""

    def __init__(self, messages: Messages, settings: StallSettings) -> None:
        self._messages = messages
        self._settings = settings
        self._reported = False
        """Whether the last report had waits."""
        self._answered_at = time.monotonic()
        self._warned = False
        self._rank0_left: Farewell | None = None

    def exchange(self, report: Report) -> None:
        """Report slow waits, or that there are none any more; end what rank 0 has decided to."""
        if report.waits or self._reported:
            if not self._reported:
                self._answered_at = time.monotonic()
            self._messages.send((REPORT, report), 0, TO_RANK0)
            self._reported = bool(report.waits)
        self._end_waits_for_rank0(report)
        self._receive()

    def check_rank0_silent(self, report: Report) -> None:
        """Rank 0 decides nothing while it is silent: warn about it, and end what has waited too long."""
        if not report.waits or time.monotonic() - self._answered_at <= UNANSWERED_S:
            return
        limit_s = self._settings.abort_s
        for wait in report.waits:
            if limit_s and wait.waited_s > limit_s:
                text = f"{describe_waits([wait])}; rank 0 does not answer; the limit is {limit_s:g} s"
                self._messages.end_waits(STALLED, wait.key, text)
        oldest = max(report.waits, key=lambda wait: wait.waited_s)
        if self._settings.warn_s and not self._warned and oldest.waited_s >= self._settings.warn_s:
            self._warned = True
            print_line(
                f"{self._messages.prefix}{oldest.key} has waited {oldest.waited_s:.0f} s, and rank 0 does not answer: "
                "it is stopped or its interpreter is held"
            )

    def say_farewell(self, farewell: Farewell) -> None:
        self._messages.send((LEFT, farewell), 0, TO_RANK0)

    def everyone_left(self) -> bool:
        """After this rank's farewell: rank 0 is the only one it hears."""
        self._receive()
        return self._rank0_left is not None

    def _receive(self) -> None:
        for _, (verdict, key, content) in self._messages.receive(FROM_RANK0):
            self._answered_at = time.monotonic()
            if isinstance(content, Farewell):
                self._rank0_left = content
            elif key is not None:
                self._messages.end_waits(verdict, key, content)

    def _end_waits_for_rank0(self, report: Report) -> None:
        """End what rank 0 has left; `report` is younger than its farewell."""
        left = {} if self._rank0_left is None else {0: self._rank0_left}
        for wait in report.waits:
            if departed_ranks(wait, {}, left):
                self._messages.end_waits(LEFT, wait.key, describe_departure(wait, left))
