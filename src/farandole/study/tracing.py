"""What a point's timeline adds to its figures: communication, waits for slower ranks and stalls for data, rank by rank.

A program of the user's is watched from outside, so that PyTorch and Keras scripts leave a timeline without any edit.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from farandole.errors import FarandoleError
from farandole.observe import timeline
from farandole.observe.analysis import analyse, gaps_of
from farandole.observe.observing import observing_environment

__all__ = ["merge_watched", "recording_environment", "trace_figures"]

_NAMES = ("comm_s", "exposed_s", "wait_s", "gradient_wait_s", "data_stall_s", "training_s")
_FILE = "timeline.json"


def recording_environment(run: Path, *, watched: bool, power: bool) -> dict[str, str]:
    """For a point's processes: power on the timeline, and for a program that knows nothing of us the timeline itself."""
    if watched:
        return observing_environment(run, os.environ, power=power)
    return {**os.environ, **({timeline.POWER_VARIABLE: "1"} if power else {})}


def merge_watched(run: Path) -> None:
    """One file of the parts that a watched program's processes have left."""
    timeline.merge_parts((run / _FILE).absolute())


def trace_figures(run: Path) -> tuple[Mapping[str, float | None], str]:
    """Means over the ranks, and why some are not known where that is so."""
    file = next((run / name for name in (_FILE, f"{_FILE}.gz") if (run / name).exists()), None)
    if file is None:
        return {}, "the run has left no timeline"
    try:
        found = analyse(file)
    except (FarandoleError, ValueError, KeyError, OSError) as error:
        return {}, f"the timeline cannot be read: {error}"
    ranks = found["ranks"]
    if not ranks:
        return {}, "the timeline shows no rank"
    if found["dropped_by_rank"]:
        return {}, f"the timeline is not whole: {'; '.join(gaps_of(found))}"
    reasons = [reason for rank in ranks for reason in rank["reasons"].values()]
    return {name: _mean([rank[name] for rank in ranks]) for name in _NAMES}, next(iter(reasons), "")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
