"""Scaling arithmetic, of tables and pages alike: speedup, efficiency, and what the rest was lost to. Pure functions.

    strong    N ranks do together what the base case does: ideally in base_ranks / N of its time
    weak      each rank does what each rank of the base case does: ideally in the same time
    same      no ranks are compared (batch sizes, rates): ideally in the same time

A run is a sum of parts (loading, computing, waiting, ...), each with an ideal: its time in the base case, divided where
ranks share the work. What a part takes beyond its ideal, over the whole time, is the share of efficiency lost to it;
efficiency and all losses add up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["CAUSES", "Cause", "Measured", "Scaling", "against", "parts_s", "scaling_of"]

WHOLES = ("total_s", "train_s")
"""What is compared: others' tables may have the time of training and no total."""


class Measured(Protocol):
    """A configuration whose runs are done."""

    @property
    def ranks(self) -> int: ...

    def median(self, name: str, /) -> float | None:
        """Of a figure of results, e.g. load_s; None where it is not known."""
        ...


P = TypeVar("P", bound=Measured)


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
    Cause(name="rest", words="what runs do not tell apart"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling(Generic[P]):
    """One configuration against the base case."""

    point: P
    base_ranks: int
    training_only: bool
    time_s: float
    ideal_s: float
    excess_s: Mapping[str, float]
    """Seconds beyond the ideal, by cause; negative where a part gained."""

    @property
    def ranks(self) -> int:
        return self.point.ranks

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.time_s

    @property
    def speedup(self) -> float:
        """Over the base case. Strong: how many times as fast; weak: how many times the work in the same time."""
        return self.efficiency * self.ranks / self.base_ranks

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


def scaling_of(points: Sequence[P], *, work: str) -> list[Scaling[P]]:
    """Against the fewest ranks, which come first; points without a total are left out, unless none has one."""
    whole = next((name for name in WHOLES if any(point.median(name) for point in points)), WHOLES[0])
    known = sorted((point for point in points if point.median(whole)), key=lambda point: point.ranks)
    found = (against(known[0], point, work=work, whole=whole) for point in known)
    return [one for one in found if one is not None]


def against(base: Measured, point: P, *, work: str, whole: str = WHOLES[0]) -> Scaling[P] | None:
    """None where a time is not known."""
    if not base.median(whole) or not point.median(whole):
        return None
    share = base.ranks / point.ranks if work == "strong" else 1.0
    parts = parts_s(point, whole)
    ideals = {name: seconds * share for name, seconds in parts_s(base, whole).items()}
    # Where one of them does not tell two parts apart, the other's are put together too.
    if parts.keys() != ideals.keys():
        rest = "rest" if "rest" in {*parts, *ideals} else "compute"
        parts, ideals = _common(parts, rest), _common(ideals, rest)
    return Scaling(
        point=point,
        base_ranks=base.ranks,
        training_only=whole == "train_s",
        time_s=sum(parts.values()),
        ideal_s=sum(ideals.values()),
        excess_s={name: parts[name] - ideals[name] for name in parts},
    )


_TOGETHER = {
    "compute": ("allreduce", "straggler", "stall", "compute", "rest"),
    "rest": ("allreduce", "straggler", "stall", "compute", "other", "rest"),
}
"""By what they are put into: parts that runs may not tell apart."""


def _common(parts: Mapping[str, float], rest: str) -> dict[str, float]:
    together = {rest: 0.0} | dict.fromkeys((cause.name for cause in CAUSES if cause.name not in _TOGETHER[rest]), 0.0)
    for name, seconds in parts.items():
        together[rest if name in _TOGETHER[rest] else name] += seconds
    return together


def parts_s(point: Measured, whole: str = WHOLES[0]) -> dict[str, float]:
    """Seconds by cause; they add up to the whole. What was not told apart is in `compute`, `other` or `rest`."""
    total, train = point.median("total_s"), point.median("train_s")
    if whole == "train_s" or total is None:
        return _within_training(point, train or 0.0)
    parts = {
        name: seconds
        for name in ("load", "preprocess", "broadcast", "evaluate")
        if (seconds := point.median(f"{name}_s")) is not None
    }
    if train is None:
        return parts | _within_training(point, total - sum(parts.values()), rest="rest")
    parts |= _within_training(point, train)
    return {**parts, "other": total - sum(parts.values())}


def _within_training(point: Measured, train_s: float, rest: str = "compute") -> dict[str, float]:
    """Waiting for stragglers is part of what training waits for communication."""
    parts: dict[str, float] = {}
    exposed_s, wait_s, stall_s = (point.median(name) for name in ("exposed_s", "wait_s", "data_stall_s"))
    if exposed_s is not None:
        parts["allreduce"] = min(exposed_s, max(train_s, 0.0))
        if wait_s is not None:
            parts["straggler"] = min(wait_s, parts["allreduce"])
            parts["allreduce"] -= parts["straggler"]
    if stall_s is not None:
        parts["stall"] = min(stall_s, max(train_s - sum(parts.values()), 0.0))
    return {**parts, rest: train_s - sum(parts.values())}
