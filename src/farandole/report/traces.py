"""What a trace says of one run: steps of every rank, power and phases over time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.observe.analysis import analyse, gaps_of
from farandole.results.comparing import Comparison, Pair
from farandole.results.reading import Study
from farandole.results.schema import Result

__all__ = ["Trace", "traces_of"]

_FILES = ("timeline.json", "timeline.json.gz")


@dataclass(kw_only=True, slots=True)
class Trace:
    """The analysis of one run's trace; empty, with a reason, where there is none."""

    reason: str = ""
    result: Result | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    residual_s: float | None = None
    power: list[dict[str, Any]] = field(default_factory=list)
    bands: list[dict[str, Any]] = field(default_factory=list)
    """Phases of every rank."""
    communication: list[dict[str, Any]] = field(default_factory=list)
    """When training waited for it."""
    communication_ranks: list[int] = field(default_factory=list)
    """Of which ranks that is: of many, some."""
    components: list[dict[str, Any]] = field(default_factory=list)
    """Calls and seconds of an average rank, as a profiler lists them."""
    gaps: list[str] = field(default_factory=list)
    """What is not in it, in words."""
    condensed: str = ""
    """What was summed up to keep the file small; empty where nothing was."""
    variant: str = ""
    """What tells the run from others on as many ranks."""
    side: str = ""
    """Where two are compared, whose it is: `before` or `after`, and its name."""

    @property
    def suffix(self) -> str:
        """Of names that must not be those of the other side."""
        return "-after" if self.side.startswith("after") else ""

    @property
    def of(self) -> str:
        """Which run it is of, for captions."""
        ranks = self.result.settings.get("ranks") if self.result else None
        told = "" if ranks is None else f"{ranks} rank{'' if ranks == 1 else 's'}"
        return f"{told} ({self.variant})" if self.variant and not self.side.endswith(f", {self.variant}") else told


def traces_of(study: Study, other: Study | None, comparison: Comparison | None) -> list[Trace]:
    """Of a study; where two are compared, of both, as far as there are traces. What both lack is said once."""
    pair = _traced_pair(comparison.pairs if comparison else ())
    results = [pair.before.results, pair.after.results] if pair else [one.finished for one in (study, other) if one]
    found = [_trace_of(among) for among in results]
    if len(found) == 1 or found[0].reason == found[1].reason != "":
        return found[:1]
    names = (comparison.before, comparison.after) if comparison else [one.name for one in (study, other) if one]
    for trace, side, name in zip(found, ("before", "after"), names):
        trace.side = f"{side}, {name}"
    return found


def _traced_pair(pairs: Sequence[Pair]) -> Pair | None:
    """The same configuration on both sides: most ranks, and rather those that had a core each."""
    both = [pair for pair in pairs if all(any(map(_file, case.results)) for case in (pair.before, pair.after))]
    return max(both, key=lambda pair: (not pair.oversubscribed, pair.before.ranks), default=None)


def _trace_of(results: Sequence[Result]) -> Trace:
    """Of the run on most ranks whose time is nearest to the median of its repeats."""
    traced = [(result, path) for result in results if (path := _file(result)) is not None]
    if not traced:
        return Trace(reason="No run has left a timeline.json in its run directory.")
    result, path = _representative(traced)
    try:
        told = analyse(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return Trace(reason=f"{path.name} of {result.key} cannot be read: {error}")
    names = ("ranks", "residual_s", "power", "bands", "communication", "communication_ranks", "components")
    condensed = (told["condensed"] or {}).get("what", "")
    found = {name: told[name] for name in names if told.get(name) is not None}
    return Trace(result=result, gaps=list(gaps_of(told)), condensed=condensed, **found)


def _file(result: Result) -> Path | None:
    places = [result.run / name for name in _FILES] if result.run is not None else []
    return next((path for path in places if path.is_file()), None)


def _representative(traced: Sequence[tuple[Result, Path]]) -> tuple[Result, Path]:
    most = max(int(result.settings.get("ranks") or 1) for result, _ in traced)
    among = [one for one in traced if int(one[0].settings.get("ranks") or 1) == most]
    middle = statistics.median(result.measure("total_s") or 0.0 for result, _ in among)
    return min(among, key=lambda one: abs((one[0].measure("total_s") or 0.0) - middle))
