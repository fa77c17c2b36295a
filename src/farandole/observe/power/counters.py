"""Power on the timeline: while one is recorded, the first rank of each node samples, and leaves curves in the end.

`timeline.POWER_VARIABLE` asks for it; `farandole launch --timeline FILE --power` sets it. Where somebody else samples around the
ranks of a node, as a study does, `draw` adds the same curves to their merged timeline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from farandole.observe.chrome import EventText, arguments
from farandole.observe.power.energy import Window
from farandole.observe.power.meters import PARTS, Part, Provenance
from farandole.observe.power.nodes import energy_of_ranks
from farandole.observe.power.phases import PhaseEnergy, measure, power_over_time
from farandole.observe.power.recording import COMMAND, Phase, Recording

__all__ = ["POWER", "begin", "curves", "described", "draw", "end"]

POWER = "power"
_MOST_POINTS = 2_000  # of a curve: more than a screen has
_CLOSING = b"\n]\n"

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
    taken = measure(found, "timeline", [(start_ns, end_ns)])
    instant(POWER, "POWER", start_ns, described(found, taken, Window.INIT_TO_END))
    for name, at_ns, watts in curves(found, start_ns, end_ns):
        counter(name, at_ns, watts)


def draw(path: Path, recording: Recording, end_ns: int) -> bool:
    """Add what was sampled on this machine to a merged timeline of its ranks, until `end_ns`; False where that is not whole.

    The joules are those of the ranks' time, where their launcher has told it.
    """
    with path.open("rb+") as file:
        opening = _opening(file)
        if not opening.get("ranks"):
            return False
        file.seek(-len(_CLOSING), os.SEEK_END)
        if file.read() != _CLOSING:
            return False
        rank, start_ns = opening["ranks"][0], opening["start_monotonic_ns"]
        text = EventText(pid=rank, origin_ns=start_ns)
        command = next((phase for phase in recording.phases if phase.name == COMMAND), Phase("timeline", start_ns, end_ns))
        node = energy_of_ranks(recording, command)
        told = arguments(described(recording, node.whole, node.window))
        events = [f',\n{{"ts":0.000,"ph":"i","s":"p","pid":{rank},"tid":0,"name":"POWER","args":{told}}}']
        events += [text.counter(name, at_ns, watts) for name, at_ns, watts in curves(recording, start_ns, end_ns)]
        file.seek(-len(_CLOSING), os.SEEK_END)
        file.write("".join(events).encode("ascii") + _CLOSING)
    return True


def _opening(file: BinaryIO) -> dict[str, Any]:
    """What the second line of a merged timeline says of it."""
    try:
        file.readline()
        found: dict[str, Any] = json.loads(file.readline().rstrip(b",\n"))["args"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found


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


def described(recording: Recording, taken: PhaseEnergy, window: Window) -> dict[str, object]:
    """How the curves are known, and the joules of a time: those of the counters, not of the curves."""
    return {
        "node": recording.host,
        "provenance": str(taken.total.provenance),
        "source": taken.total.source,
        "energy_j": taken.total.energy_j,
        "window": str(window),
        "window_reason": window.reason,
        "reason": taken.total.reason,
        "remarks": list(taken.total.remarks),
        "parts": _known(taken),
        "interval_s": recording.interval_s,
    }


def _known(taken: PhaseEnergy) -> dict[Part, str]:
    return {
        part: str(figure.provenance)
        for part, figure in taken.parts.items()
        if figure.provenance is not Provenance.NONE
    }
