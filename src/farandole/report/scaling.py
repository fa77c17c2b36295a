"""Scaling arithmetic: speed-up, efficiency, and which part of a run the rest was lost to. Pure functions.

A run is a sum of parts (loading, computing, waiting, ...). Each part has an ideal: its time in the base case, divided by
the ranks where they share the work (strong), as it was where each has its own (weak). What a part takes beyond its
ideal, over the whole time, is the share of efficiency lost to it; efficiency and all losses add up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farandole.report.groups import Point

__all__ = ["CAUSES", "Cause", "Scaling", "parts_s", "scaling_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A part of a run that may take more than its ideal."""

    name: str
    """Also the class of its colour."""
    words: str


CAUSES = (
    Cause(name="load", words="loading data"),
    Cause(name="preprocess", words="preprocessing"),
    Cause(name="broadcast", words="the broadcast"),
    Cause(name="allreduce", words="waiting for allreduce"),
    Cause(name="straggler", words="waiting for stragglers"),
    Cause(name="stall", words="waiting for data"),
    Cause(name="compute", words="computing"),
    Cause(name="evaluate", words="evaluation"),
    Cause(name="other", words="overhead (start, build, save)"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """One point against the base case."""

    point: Point
    ranks: int
    training_only: bool
    """Others' tables may have the time of training and no total."""
    time_s: float
    ideal_s: float
    excess_s: Mapping[str, float]
    """Seconds beyond the ideal, by cause; negative where a part gained."""

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.time_s

    @property
    def speedup(self) -> float:
        """Of the work done in a time: of all ranks together."""
        return self.efficiency * self.ranks

    @property
    def losses(self) -> dict[str, float]:
        """Shares of the time by cause, largest first; they add up to 1 - efficiency.

        Where one part gained, as computing does when data begins to fit into caches, the losses are net of it, each in
        proportion.
        """
        lost = {name: seconds for name, seconds in self.excess_s.items() if seconds > 0}
        missing = max(0.0, 1 - self.efficiency)
        total_s = sum(lost.values())
        shares = {name: missing * seconds / total_s for name, seconds in lost.items()} if total_s else {}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def gained_s(self) -> float:
        return -sum(seconds for seconds in self.excess_s.values() if seconds < 0)


def scaling_of(points: list[Point], *, weak: bool) -> list[Scaling]:
    """Against the fewest ranks, which come first; points without a total are left out, unless none has one."""
    figure = next((name for name in ("total_s", "train_s") if any(point.median(name) for point in points)), None)
    if figure is None:
        return []
    known = sorted((point for point in points if point.median(figure)), key=lambda point: point.ranks)
    base, base_parts = known[0], parts_s(known[0])
    return [_against(base, base_parts, point, weak=weak) for point in known]


def _against(base: Point, base_parts: Mapping[str, float], point: Point, *, weak: bool) -> Scaling:
    share = 1.0 if weak else base.ranks / point.ranks
    # Where this point does not tell two parts apart, the base's are put together too.
    parts = parts_s(point)
    ideals = {name: seconds * share for name, seconds in base_parts.items()}
    if parts.keys() != ideals.keys():
        parts, ideals = _common(parts), _common(ideals)
    return Scaling(
        point=point,
        ranks=point.ranks,
        training_only=point.median("total_s") is None,
        time_s=sum(parts.values()),
        ideal_s=sum(ideals.values()),
        excess_s={name: parts[name] - ideals[name] for name in parts},
    )


_WITHIN_TRAINING = ("allreduce", "straggler", "stall")


def _common(parts: Mapping[str, float]) -> dict[str, float]:
    together = dict.fromkeys((cause.name for cause in CAUSES if cause.name not in _WITHIN_TRAINING), 0.0)
    for name, seconds in parts.items():
        together["compute" if name in _WITHIN_TRAINING else name] += seconds
    return together


def parts_s(point: Point) -> dict[str, float]:
    """Seconds by cause; they add up to the total. What was not told apart is in `compute` or `other`."""
    total, train = point.median("total_s"), point.median("train_s")
    if total is None:
        return _within_training(point, train or 0.0)
    parts = {
        name: seconds
        for name in ("load", "preprocess", "broadcast", "evaluate")
        if (seconds := point.median(f"{name}_s")) is not None
    }
    if train is not None:
        parts |= _within_training(point, train)
    parts["other"] = total - sum(parts.values())
    return parts


def _within_training(point: Point, train_s: float) -> dict[str, float]:
    """Waiting for stragglers is part of what training waits for communication."""
    parts: dict[str, float] = {}
    exposed_s, wait_s, stall_s = (point.median(name) for name in ("exposed_s", "wait_s", "data_stall_s"))
    if exposed_s is not None:
        parts["allreduce"] = min(exposed_s, train_s)
        if wait_s is not None:
            parts["straggler"] = min(wait_s, parts["allreduce"])
            parts["allreduce"] -= parts["straggler"]
    if stall_s is not None:
        parts["stall"] = min(stall_s, train_s - sum(parts.values()))
    return {**parts, "compute": train_s - sum(parts.values())}
