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

from farandole.observe import process, timeline

__all__ = ["START", "PhaseTimes", "phase", "recorded", "tell_start"]

START = "start"
"""The phase from the start of a rank's process to the end of init(): Python, imports, MPI, and what the script does before."""
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

    def so_far(self) -> dict[str, float]:
        """Including what has passed of the phase that is open."""
        self._charge()
        return dict(self.seconds)

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.add(self._open[-1], now - self._since)
        self._since = now


def tell_start(began_ns: int) -> None:
    """A phase for what this process did until now. Who samples in this process could not see it; who samples around it has."""
    ended_ns = time.monotonic_ns()
    if timeline.active():
        timeline.span(_TRACK, START, began_ns, ended_ns)
    if "FARANDOLE_POWER_PHASES" in os.environ and process.speaks_for_node():
        from farandole.observe.power.recording import tell_phase

        tell_phase(START, began_ns, ended_ns)


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
