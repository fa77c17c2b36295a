"""Dies that show one counter: some processors have a package's counter once for each of its dies (AMD Zen 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farandole.observe.power.meters import Meter
from farandole.observe.power.recording import MISSING, MeterSeries

__all__ = ["mirrors"]

_AT_ONCE_NS = 5_000_000
_SAME_J = 1.0  # counters are renewed once a millisecond: what a package takes in a few of them


def mirrors(meters: Sequence[Meter], series: Sequence[MeterSeries]) -> dict[int, str]:
    """The meters that only repeat an earlier one of their package, and what to say of each."""
    found: dict[int, str] = {}
    for at, meter in enumerate(meters):
        earlier = [other for other in range(at) if other not in found and _may_mirror(meters[other], meter)]
        for other in earlier:
            if _alike(meter, series[other], series[at]):
                found[at] = f"{meter.name} shows the counter of {meters[other].name}: counted once"
                break
    return found


def _may_mirror(one: Meter, other: Meter) -> bool:
    return bool(one.package) and (one.sensor, one.package) == (other.sensor, other.package)


def _alike(meter: Meter, one: MeterSeries, other: MeterSeries) -> bool:
    """Two counters that were never reset together are joules apart: that all readings agree is no chance."""
    pairs = list(_at_once(one, other))
    return bool(pairs) and all(
        _apart_j(meter, first, second) <= _SAME_J + meter.plausible_w * apart_ns / 1e9
        for first, second, apart_ns in pairs
    )


def _at_once(one: MeterSeries, other: MeterSeries) -> Iterator[tuple[int, int, int]]:
    """What both showed within a few milliseconds, and how far apart."""
    at = 0
    for second_ns, second in zip(other.monotonic_ns, other.raw):
        while at < len(one) and one.monotonic_ns[at] < second_ns - _AT_ONCE_NS:
            at += 1
        if at < len(one) and abs(second_ns - one.monotonic_ns[at]) <= _AT_ONCE_NS and MISSING not in (one.raw[at], second):
            yield one.raw[at], second, abs(second_ns - one.monotonic_ns[at])


def _apart_j(meter: Meter, one: int, other: int) -> float:
    counts = abs(one - other)
    return (counts if meter.wraps_at is None else min(counts, abs(meter.wraps_at - counts))) * meter.unit
