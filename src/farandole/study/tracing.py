"""What a point's timeline adds to its measures: communication, waits for slower ranks and stalls for data, rank by rank.

A program of the user's is watched from outside, so that PyTorch and Keras scripts leave a timeline without any edit.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from farandole.errors import FarandoleError
from farandole.observe import timeline
from farandole.observe.analysis import analyse, gaps_of
from farandole.observe.observing import observing_environment

__all__ = ["TRACED", "draw_power", "merge_watched", "recording_environment", "trace_measures"]

TRACED = ("comm_s", "exposed_s", "wait_s", "data_stall_s", "forward_s", "backward_s", "optimizer_s")
"""Measures that a timeline has of every rank; null where a framework does not show them."""
_OF_RANKS = (*TRACED, "gradient_wait_s", "training_s")
_FILE = "timeline.json"


def recording_environment(run: Path, *, watched: bool, power: bool) -> dict[str, str]:
    """For a point's processes: power on the timeline, and for a program that knows nothing of us the timeline itself."""
    if watched:
        return observing_environment(run, os.environ, power=power)
    return {**os.environ, **({timeline.POWER_VARIABLE: "1"} if power else {})}


def merge_watched(run: Path) -> None:
    """One file of the parts that a watched program's processes have left."""
    timeline.merge_parts((run / _FILE).absolute())


def draw_power(run: Path, trace: Path) -> None:
    """What was sampled around a point's command, on its timeline, which was made before that was known."""
    from farandole.observe.power.counters import draw
    from farandole.observe.power.trace import read_trace

    if not (run / _FILE).exists() or not trace.exists():
        return
    recording = read_trace(trace)
    draw(run / _FILE, recording, recording.phases[0].end_ns)


def trace_measures(run: Path) -> tuple[dict[str, float | None], dict[str, str]]:
    """Means over the ranks, those of the phases that were marked included; null ones, and by name why they are."""
    file = next((run / name for name in (_FILE, f"{_FILE}.gz") if (run / name).exists()), None)
    if file is None:
        return _nothing("the run has left no timeline")
    try:
        found = analyse(file)
    except (FarandoleError, ValueError, KeyError, OSError) as error:
        return _nothing(f"the timeline cannot be read: {error}")
    ranks = found["ranks"]
    if not ranks:
        return _nothing("the timeline shows no rank")
    if found["dropped_by_rank"]:
        return _nothing(f"the timeline is not whole: {'; '.join(gaps_of(found))}")
    phases = dict.fromkeys(name for rank in ranks for name in rank["phases"])
    marked = {f"{phase}_s": _mean([rank["phases"].get(phase) for rank in ranks]) for phase in phases}
    reasons = {name: why for rank in ranks for name, why in rank["reasons"].items()}
    return marked | {name: _mean([rank[name] for rank in ranks]) for name in _OF_RANKS}, reasons


def _nothing(reason: str) -> tuple[dict[str, float | None], dict[str, str]]:
    return dict.fromkeys(_OF_RANKS), dict.fromkeys(_OF_RANKS, reason)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the ranks that show it: a framework may hide a part of its steps."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
