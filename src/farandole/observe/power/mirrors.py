"""Dies that show one counter: some processors have a package's counter once for each of its dies (AMD Zen 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.observe.power.meters import Meter
from farandole.observe.power.recording import MISSING, Series

__all__ = ["mirrors"]

_SAME_J = 1.0  # counters are renewed once a millisecond: what a package takes in a few of them


def mirrors(meters: Sequence[Meter], series: Sequence[Series]) -> dict[int, str]:
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


def _alike(meter: Meter, one: Series, other: Series) -> bool:
    """Two counters that were never reset together are joules apart: that all readings agree is no chance."""
    pairs = [
        (first, second, abs(first_ns - second_ns) / 1e9)
        for first, second, first_ns, second_ns in zip(one.raw, other.raw, one.monotonic_ns, other.monotonic_ns)
        if MISSING not in (first, second)
    ]
    return bool(pairs) and all(
        _apart_j(meter, first, second) <= _SAME_J + meter.plausible_w * seconds for first, second, seconds in pairs
    )


def _apart_j(meter: Meter, one: int, other: int) -> float:
    counts = abs(one - other)
    return (counts if meter.wraps_at is None else min(counts, abs(meter.wraps_at - counts))) * meter.unit
