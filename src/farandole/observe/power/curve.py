"""From raw readings to joules over any stretch of time.

1. Stretches. Between two readings of a counter lies their difference: across a failed reading in between, and across
   a wrap. Between two readings of a gauge lies the mean of both, times the time. What cannot be known (a reset, a
   counter that stands still, a watt that cannot be) is a gap with its reason, never a 0.
2. Curve. The stretches summed up, so that the joules between any two moments are a difference, interpolated at its edges.
   The energy comes from counters, never from a series of watts that was derived from them.
3. Bridges. A gap's estimate, at the mean power of its neighbours, is kept apart from what was seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from farandole.observe.power.meters import Meter
from farandole.observe.power.recording import MISSING, MeterSeries

__all__ = ["Curve", "Seen"]

_STANDS_STILL_NS = 1_000_000_000
# A counter that shows the same in all of its readings needs less time to be known as dead.
_NEVER_MOVES_NS, _NEVER_MOVES_READINGS = 300_000_000, 3
# A gauge tells nothing of the time between readings further apart.
_GAUGE_GAP_INTERVALS, _GAUGE_GAP_S = 3.5, 1.0
_AT_CEILING = 0.98
_FULL = 0.999  # of a counter's range


@dataclass(frozen=True, slots=True)
class _Stretch:
    start_ns: int
    end_ns: int
    joules: float | None
    reason: str = ""

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def watts(self) -> float | None:
        return None if self.joules is None else self.joules / self.ns * 1e9


@dataclass(kw_only=True, slots=True)
class Seen:
    """What a meter shows of a stretch of time."""

    joules: float = 0.0
    ns: float = 0.0
    bridged_joules: float = 0.0
    bridged_ns: float = 0.0
    ceiling_ns: float = 0.0
    """How long it was at its ceiling."""
    reasons: list[str] = field(default_factory=list)
    """Why anything had to be bridged."""

    def __iadd__(self, other: Seen) -> Seen:
        self.joules += other.joules
        self.ns += other.ns
        self.bridged_joules += other.bridged_joules
        self.bridged_ns += other.bridged_ns
        self.ceiling_ns += other.ceiling_ns
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]
        return self


class Curve:
    """The energy that a meter has shown, as a function of time."""

    def __init__(self, meter: Meter, series: MeterSeries, interval_s: float) -> None:
        points = [(at, raw) for at, raw in zip(series.monotonic_ns, series.raw) if raw != MISSING]
        if meter.kind == "power":
            self._stretches = list(_gauge(meter, points, interval_s))
        else:
            self._stretches = list(_counter(meter, points, series.moves))
        self._failed = next(iter(series.failures), "")
        self._ceiling_w = meter.ceiling_w if meter.measured else None
        self._most_w = None if meter.measured else meter.ceiling_w
        self._bridges_w = _bridges_w(self._stretches)
        self._starts = [stretch.start_ns for stretch in self._stretches]

    def over(self, start_ns: int, end_ns: int) -> Seen:
        """Between two moments; `bridged_ns` is what was not seen of it, `bridged_joules` an estimate for that."""
        seen = Seen()
        at = max(bisect_left(self._starts, start_ns) - 1, 0)
        while at < len(self._stretches) and self._starts[at] < end_ns:
            self._add(seen, at, start_ns, end_ns)
            at += 1
        self._bridge_edges(seen, start_ns, end_ns)
        if self._most_w is not None:
            _cap(seen, self._most_w)
        return seen

    def _add(self, seen: Seen, at: int, start_ns: int, end_ns: int) -> None:
        stretch = self._stretches[at]
        ns = min(stretch.end_ns, end_ns) - max(stretch.start_ns, start_ns)
        if ns <= 0:
            return
        if stretch.joules is None:
            _bridge(seen, ns, self._bridges_w[at], stretch.reason)
            return
        seen.joules += stretch.joules * (ns / stretch.ns)
        seen.ns += ns
        if self._ceiling_w is not None and (stretch.watts or 0.0) >= _AT_CEILING * self._ceiling_w:
            seen.ceiling_ns += ns

    def _bridge_edges(self, seen: Seen, start_ns: int, end_ns: int) -> None:
        """Time before the first reading and after the last."""
        reason = self._failed or "no reading"
        if not self._stretches:
            _bridge(seen, end_ns - start_ns, None, reason)
            return
        first, last = self._stretches[0], self._stretches[-1]
        before_ns = min(first.start_ns, end_ns) - start_ns
        after_ns = end_ns - max(last.end_ns, start_ns)
        if before_ns > 0:
            _bridge(seen, before_ns, self._bridges_w[0], reason)
        if after_ns > 0:
            _bridge(seen, after_ns, self._bridges_w[-1], reason)


def _bridge(seen: Seen, ns: float, watts: float | None, reason: str) -> None:
    seen.bridged_ns += ns
    seen.bridged_joules += (watts or 0.0) * ns / 1e9
    if reason not in seen.reasons:
        seen.reasons.append(reason)


def _cap(seen: Seen, most_w: float) -> None:
    """Busy time is counted in ticks: of a few milliseconds it may be more than there were."""
    seen.joules = min(seen.joules, most_w * seen.ns / 1e9)
    seen.bridged_joules = min(seen.bridged_joules, most_w * seen.bridged_ns / 1e9)


def _bridges_w(stretches: Sequence[_Stretch]) -> list[float | None]:
    """For each stretch its power; for a gap the mean of the nearest ones that are known."""
    before: list[float | None] = []
    for stretch in stretches:
        before.append(stretch.watts if stretch.watts is not None else (before[-1] if before else None))
    after: list[float | None] = []
    for stretch in reversed(stretches):
        after.append(stretch.watts if stretch.watts is not None else (after[-1] if after else None))
    return [_mean([w for w in pair if w is not None]) for pair in zip(before, reversed(after))]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gauge(meter: Meter, points: Sequence[tuple[int, int]], interval_s: float) -> Iterator[_Stretch]:
    longest_ns = max(_GAUGE_GAP_INTERVALS * interval_s, _GAUGE_GAP_S) * 1e9
    for (start_ns, first), (end_ns, second) in pairwise(points):
        watts = (first + second) / 2 * meter.unit
        if end_ns - start_ns > longest_ns:
            yield _Stretch(start_ns, end_ns, None, "no reading")
        elif watts > meter.plausible_w:
            yield _Stretch(start_ns, end_ns, None, f"{watts:,.0f} W cannot be")
        else:
            yield _Stretch(start_ns, end_ns, watts * (end_ns - start_ns) / 1e9)


def _counter(meter: Meter, points: Sequence[tuple[int, int]], moves: bool | None) -> Iterator[_Stretch]:
    """A model's counter may stand still, where nothing runs; a meter's may not."""
    moving = _without_standstill(points) if meter.measured else list(points)
    still_ns = _NEVER_MOVES_NS if len(points) >= _NEVER_MOVES_READINGS and not moves else _STANDS_STILL_NS
    for (start_ns, first), (end_ns, second) in pairwise(moving):
        joules, reason = _difference(meter, second - first, (end_ns - start_ns) / 1e9)
        if first == second and meter.measured and end_ns - start_ns >= still_ns:
            joules, reason = None, _why_it_stands_still(meter, first)
        yield _Stretch(start_ns, end_ns, joules, reason)


def _without_standstill(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of readings that stay the same for long only the first, if the counter goes on from there; else first and last.

    A board that was not asked for a while shows all of the energy afterwards: the difference stays right.
    """
    kept: list[tuple[int, int]] = []
    for first, last, following in _runs(points):
        kept.append(first)
        goes_on = following is not None and following > first[1]
        if last is not first and not (goes_on and last[0] - first[0] >= _STANDS_STILL_NS):
            kept.append(last)
    return kept


def _runs(points: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int], int | None]]:
    """The first and the last of readings that are the same, and the value that follows."""
    begin = 0
    for at, point in enumerate(points):
        following = points[at + 1][1] if at + 1 < len(points) else None
        if following != point[1]:
            yield points[begin], point, following
            begin = at + 1


def _difference(meter: Meter, counts: int, seconds: float) -> tuple[float | None, str]:
    most_j = meter.plausible_w * seconds
    if counts < 0 and meter.wraps_at is None:
        return None, "the counter was reset"
    if meter.wraps_at is not None and most_j >= meter.wraps_at * meter.unit:
        return None, "no reading for longer than a counter's round may take"
    wrapped = counts < 0
    joules = (counts + (meter.wraps_at or 0) * wrapped) * meter.unit
    if 0 <= joules <= most_j:
        return joules, ""
    return None, "the counter was reset" if wrapped else f"{joules / seconds:,.0f} W cannot be"


def _why_it_stands_still(meter: Meter, raw: int) -> str:
    if meter.wraps_at is not None and raw >= _FULL * meter.wraps_at:
        return "the counter stands at its ceiling"
    return "the counter does not move"
