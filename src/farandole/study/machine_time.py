"""Whose processor time it was: that of a measurement, or that of other programs meanwhile."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["MachineTime", "children_cpu_s", "own_cpu_s", "process_cpu_s"]


def children_cpu_s() -> float:
    """Of those that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own_cpu_s() -> float:
    """Of this program and such children."""
    return time.process_time() + children_cpu_s()


def process_cpu_s(pid: int) -> float:
    """Of another process and the children it has waited for; 0 where it has ended or the system does not tell."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")


class MachineTime:
    """The machine's processor time from here on, and how much of it was used by ourselves, as `own_s` counts it."""

    def __init__(self, own_s: Callable[[], float] = own_cpu_s) -> None:
        self._count = own_s
        self._began, self._busy_s, self._own_s = time.monotonic(), _busy_s(), own_s()

    def others_share(self) -> float | None:
        """What other programs have used of it; None where the system does not tell."""
        busy_s, all_s = _busy_s(), (time.monotonic() - self._began) * (os.cpu_count() or 1)
        if busy_s is None or self._busy_s is None or not all_s:
            return None
        others_s = busy_s - self._busy_s - (self._count() - self._own_s)
        return round(min(max(others_s / all_s, 0.0), 1.0), 4)


def _busy_s() -> float | None:
    from farandole.observe.power.model import busy_ticks

    try:
        return busy_ticks(Path("/proc/stat").read_text()) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
