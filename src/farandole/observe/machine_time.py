"""Whose processor time it was: that of a measurement, or that of others meanwhile; and from when on a machine is busy.

A machine is busy where others took more than 5% of its processor time, or where the middle half of equal steps spreads by more
than 20% of their median. Others are other programs and, on a virtual machine, its host, which runs other guests on the same
cores (`steal` in /proc/stat). Steps show what no counter does: a host that hides its steal time, a processor that is too hot, a
full network. The middle half, because a few slow steps are the program's own: garbage, checkpoints, a page fault.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["BUSY_SHARE", "BUSY_SPREAD", "LEAST_STEPS", "MachineTime", "children_cpu_s", "own_cpu_s", "process_cpu_s", "spread_of_steps", "why_busy"]

BUSY_SHARE = 0.05
"""Of the machine's processor time, taken by others: other programs and the host."""
BUSY_SPREAD = 0.2
"""Of equal steps: what lies between their quartiles, as a share of the median."""
LEAST_STEPS = 8
"""Fewer have no middle half worth the name."""
_MOVES_S = 0.1
"""Of our own processor time: /proc/stat must have seen it, or it counts nothing (some containers)."""
_SHOWN = 0.005


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
        self._began, self._counted, self._own_s = time.monotonic(), _counted(), own_s()

    def own_s(self) -> float:
        """Used by ourselves since."""
        return self._count() - self._own_s

    def others_share(self, own_s: float | None = None) -> float | None:
        """What other programs have used of it, where `own_s` was ours; None where the system does not tell."""
        own_s, now = self.own_s() if own_s is None else own_s, _counted()
        if now is None or self._counted is None:
            return None
        busy_s = now.busy_s - self._counted.busy_s
        return None if busy_s == 0 and own_s > _MOVES_S else self._share(busy_s - own_s)

    def steal_share(self) -> float | None:
        """What the host of a virtual machine has given to others of it; None where the system does not tell."""
        now = _counted()
        return None if now is None or self._counted is None else self._share(now.steal_s - self._counted.steal_s)

    def _share(self, seconds: float) -> float | None:
        all_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return round(min(max(seconds / all_s, 0.0), 1.0), 4) if all_s else None


class _Counted(NamedTuple):
    busy_s: float
    steal_s: float


def _counted() -> _Counted | None:
    """Of all cores, since the machine was started."""
    from farandole.observe.power.model import busy_ticks

    try:
        text, tick_s = Path("/proc/stat").read_text(), 1 / os.sysconf("SC_CLK_TCK")
        return _Counted(busy_ticks(text) * tick_s, int(text.split(maxsplit=9)[8]) * tick_s)
    except (OSError, ValueError, IndexError):
        return None


def spread_of_steps(steps: Mapping[str, float | None]) -> float | None:
    """How far the middle half of some steps (`p25`, `p50`, `p75`, `count`) spreads; None for too few of them."""
    low, middle, high, count = (steps.get(name) for name in ("p25", "p50", "p75", "count"))
    if low is None or high is None or not middle or (count or 0) < LEAST_STEPS:
        return None
    return round((high - low) / middle, 4)


def why_busy(others_share: float | None, steal_share: float | None = None, steps_spread: float | None = None) -> list[str]:
    """What speaks against figures that were measured meanwhile; empty on a quiet machine, and where nothing is known."""
    others, steal = others_share or 0.0, steal_share or 0.0
    reasons = []
    if others + steal > BUSY_SHARE:
        taken = [f"{what} {share:.0%}" for what, share in (("other programs took", others), ("its host took", steal)) if share >= _SHOWN]
        reasons.append(f"{' and '.join(taken)} of its processor time")
    if steps_spread is not None and steps_spread > BUSY_SPREAD:
        reasons.append(f"the middle half of the steps spreads by {steps_spread:.0%}")
    return reasons
