"""Power on the timeline: while one is recorded, the first rank of each node samples, and leaves curves in the end.

`timeline.POWER_VARIABLE` asks for it; `farandole launch --timeline FILE --power` sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from farandole.observe.power.meters import PARTS, Part, Provenance
from farandole.observe.power.phases import PhaseEnergy, measure, power_over_time
from farandole.observe.power.recording import Recording

__all__ = ["POWER", "begin", "curves", "described", "end"]

POWER = "power"
_MOST_POINTS = 2_000  # of a curve: more than a screen has

Counter = Callable[[str, int, Mapping[str, float]], None]
Instant = Callable[[str, str, int, Mapping[str, object]], None]


def begin() -> None:
    """Sample from now on."""
    from farandole.observe.power.session import keep_sampling

    keep_sampling()


def end(start_ns: int, end_ns: int, counter: Counter, instant: Instant) -> None:
    """Sample no more, and draw what was sampled in between."""
    from farandole.observe.power.session import recording, stop_sampling

    stop_sampling()
    found = recording()
    if found is None:
        return
    instant(POWER, "POWER", start_ns, described(found, start_ns, end_ns))
    for name, at_ns, watts in curves(found, start_ns, end_ns):
        counter(name, at_ns, watts)


def curves(recording: Recording, start_ns: int, end_ns: int) -> Iterator[tuple[str, int, dict[str, float]]]:
    """(name, when, watts by part): the node by itself, and its parts, which are drawn on top of each other."""
    step_ns = max(int(recording.interval_s * 1e9), (end_ns - start_ns) // _MOST_POINTS, 1)
    parts = {part: dict(power_over_time(recording, part, start_ns, end_ns, step_ns)) for part in PARTS}
    for name, drawn in ((f"power {recording.host}", PARTS[:1]), (f"power of parts {recording.host}", PARTS[1:])):
        for at_ns in range(start_ns, end_ns - step_ns + 1, step_ns):
            watts = {str(part): parts[part].get(at_ns) for part in drawn}
            known = {part: round(value, 3) for part, value in watts.items() if value is not None}
            if known:
                yield name, at_ns + step_ns // 2, known


def described(recording: Recording, start_ns: int, end_ns: int) -> dict[str, object]:
    """How the curves are known, and the joules of all their time: those of the counters, not of the curves."""
    taken = measure(recording, "timeline", [(start_ns, end_ns)])
    return {
        "node": recording.host,
        "provenance": str(taken.total.provenance),
        "source": taken.total.source,
        "energy_j": taken.total.energy_j,
        "reason": taken.total.reason,
        "parts": _known(taken),
        "interval_s": recording.interval_s,
    }


def _known(taken: PhaseEnergy) -> dict[Part, str]:
    return {
        part: str(figure.provenance)
        for part, figure in taken.parts.items()
        if figure.provenance is not Provenance.NONE
    }
