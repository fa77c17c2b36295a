"""Scaling arithmetic: speedup, efficiency with its interval, and what the rest was lost to. Pure functions.

    strong    N ranks do together what the base case does: ideally in base_ranks / N of its time (where threads differ, cores count)
    weak      each rank does what each rank of the base case does: ideally in the same time
    same      no ranks are compared (batch sizes, rates, loaders): ideally in the same time

A run is a sum of parts (loading, computing, waiting, ...), each with an ideal: its time in the base case, divided where
ranks share the work. What a part takes beyond its ideal, over the whole time, is the share of efficiency lost to it;
efficiency and all losses add up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.results.cases import Axis, Case, Series, is_emulated, main_time
from farandole.results.statistics import Difference, compare

__all__ = ["CAUSES", "Cause", "Scaling", "against", "parts_s", "scaling_of", "scalings_of"]

_WHOLES = ("total_s", "train_s")
"""What is compared along ranks: others' tables may have the time of training and no total."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A part of a run that may take more than its ideal."""

    name: str
    """Also the class of its colour."""
    words: str


CAUSES = (
    Cause(name="compile", words="compiling"),
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
class Scaling:
    """One case against the base case."""

    case: Case
    base: Case
    work: str
    whole: str
    """The measure that is compared."""
    time_s: float
    ideal_s: float
    excess_s: Mapping[str, float]
    """Seconds beyond the ideal, by cause; negative where a part gained."""

    @property
    def ranks(self) -> int:
        return self.case.ranks

    @property
    def is_base(self) -> bool:
        return self.case is self.base

    @property
    def training_only(self) -> bool:
        return self.whole == "train_s"

    @property
    def efficiency(self) -> float:
        return self.ideal_s / self.time_s

    @property
    def speedup(self) -> float:
        """Over the base case. Strong: how many times as fast; weak: how many times the work in the same time."""
        return self.efficiency * (1.0 if self.work == "same" else _times_the_cores(self.case, self.base))

    @property
    def training_efficiency(self) -> float | None:
        """Of training alone: starting and loading, which take their time once, are not in it."""
        base_s, time_s = self.base.median("train_s"), self.case.median("train_s")
        return self._share * base_s / time_s if base_s and time_s else None

    def efficiency_difference(self, among: int = 1) -> Difference | None:
        """Efficiency as a ratio with its interval, as far as repeats tell it."""
        found = compare(self.case.repeats(self.whole), self.base.repeats(self.whole), among=among)
        return None if found is None else found.times(self._share)

    @property
    def _share(self) -> float:
        return _ideal_share(self.case, self.base, self.work)

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


def scalings_of(work: str, series: Sequence[Series], axis: Axis, base: Mapping[str, Any]) -> list[list[Scaling]]:
    """Of every series: along ranks against the fewest, along anything else against the value that `base` has, or the first one.

    Nothing of emulated ranks: one rank that stands for many says nothing of their speed.
    """
    if is_emulated([case for one in series for case in one.cases]):
        return []
    if axis.name == "ranks":
        return [scaling_of(one.cases, work=work) for one in series]
    return [_along(one.cases, axis, base.get(axis.name)) for one in series]


def _along(cases: Sequence[Case], axis: Axis, first: Any) -> list[Scaling]:
    measure = main_time(cases)
    known = [case for case in cases if measure and case.median(measure[0])]
    if not measure or not known:
        return []
    base = next((case for case in known if case.settings.get(axis.name) == first), known[0])
    return [one for case in known if (one := against(base, case, work="same", whole=measure[0])) is not None]


def scaling_of(cases: Sequence[Case], *, work: str) -> list[Scaling]:
    """Against the fewest ranks, which come first; cases without a total are left out, unless none has one."""
    whole = next((name for name in _WHOLES if any(case.median(name) for case in cases)), _WHOLES[0])
    known = sorted((case for case in cases if case.median(whole)), key=lambda case: case.ranks)
    found = (against(known[0], case, work=work, whole=whole) for case in known)
    return [one for one in found if one is not None]


def against(base: Case, case: Case, *, work: str, whole: str = _WHOLES[0]) -> Scaling | None:
    """None where a time is not known."""
    if not base.median(whole) or not case.median(whole):
        return None
    share = _ideal_share(case, base, work)
    parts = parts_s(case, whole)
    ideals = {name: seconds * share for name, seconds in parts_s(base, whole).items()}
    # Where one of them does not tell two parts apart, the other's are put together too.
    if parts.keys() != ideals.keys():
        rest = "rest" if "rest" in {*parts, *ideals} else "compute"
        parts, ideals = _common(parts, rest), _common(ideals, rest)
    return Scaling(
        case=case, base=base, work=work, whole=whole, time_s=sum(parts.values()), ideal_s=sum(ideals.values()),
        excess_s={name: parts[name] - ideals[name] for name in parts},
    )  # fmt: skip


def _times_the_cores(case: Case, base: Case) -> float:
    """Ranks of one against those of the other, and where their threads differ, ranks x threads: one with all cores against several."""
    own, of_base = (int(one.settings.get("threads") or 0) for one in (case, base))
    return case.ranks / base.ranks * (own / of_base if own and of_base else 1.0)


def _ideal_share(case: Case, base: Case, work: str) -> float:
    """Of the base's time: the work over the cores there are for it. Weak, the work follows the ranks."""
    more = {"strong": 1.0, "weak": case.ranks / base.ranks}.get(work)
    return 1.0 if more is None else more / _times_the_cores(case, base)


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


def parts_s(case: Case, whole: str = _WHOLES[0]) -> dict[str, float]:
    """Seconds by cause; they add up to the whole. What was not told apart is in `compute`, `other` or `rest`."""
    total, train = case.median("total_s"), case.median("train_s")
    if whole not in ("total_s", "train_s"):
        return {"rest": case.median(whole) or 0.0}
    if whole == "train_s" or total is None:
        return _within_training(case, train or 0.0)
    parts = {
        name: seconds
        for name in ("compile", "load", "preprocess", "broadcast", "evaluate")
        if (seconds := case.median(f"{name}_s")) is not None
    }
    if train is None:
        return parts | _within_training(case, total - sum(parts.values()), rest="rest")
    parts |= _within_training(case, train)
    return {**parts, "other": total - sum(parts.values())}


def _within_training(case: Case, train_s: float, rest: str = "compute") -> dict[str, float]:
    """Waiting for stragglers is part of what training waits for communication."""
    parts: dict[str, float] = {}
    exposed_s, wait_s, stall_s = (case.median(name) for name in ("exposed_s", "wait_s", "data_stall_s"))
    if exposed_s is not None:
        parts["allreduce"] = min(exposed_s, max(train_s, 0.0))
        if wait_s is not None:
            parts["straggler"] = min(wait_s, parts["allreduce"])
            parts["allreduce"] -= parts["straggler"]
    if stall_s is not None:
        parts["stall"] = min(stall_s, max(train_s - sum(parts.values()), 0.0))
    return {**parts, rest: train_s - sum(parts.values())}
