"""Phases of a run: how long each took, without the phases inside it, and a span of the timeline for each.

    with recorded() as times:
        with phase("preprocess"):
            with phase("load"):
                ...
    times.seconds                    # {"preprocess": ..., "load": ...}

A phase costs nothing where nobody records. Phases are those of one thread, the one that trains.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from farandole.observe import timeline

__all__ = ["PhaseTimes", "phase", "recorded"]

_TRACK = "phases"
_times: PhaseTimes | None = None


class PhaseTimes:
    """Seconds by phase. A phase stands still while another one inside it runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()
            ended_ns = time.monotonic_ns()
            timeline.span(_TRACK, name, began_ns, ended_ns)
            _tell_power(name, began_ns, ended_ns)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.add(self._open[-1], now - self._since)
        self._since = now


def _tell_power(name: str, began_ns: int, ended_ns: int) -> None:
    """Only where power is sampled: who does not needs no sensors."""
    if "FARANDOLE_POWER_PHASES" in os.environ or "farandole.observe.power.session" in sys.modules:
        from farandole.observe.power.session import note_phase

        note_phase(name, began_ns, ended_ns)


@contextlib.contextmanager
def recorded() -> Iterator[PhaseTimes]:
    """Inside, phases are timed; not to be nested."""
    global _times
    _times = PhaseTimes()
    try:
        yield _times
    finally:
        _times = None


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """What is done inside belongs to phase `name`."""
    times = _times
    if times is None:
        yield
        return
    with times.phase(name):
        yield
