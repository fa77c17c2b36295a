"""From a study to what is fitted: seconds of every part at every rank count, and what a study lacks to be predicted from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farandole.errors import DataError
from farandole.predict.curves import Floats
from farandole.results.cases import EMULATED, Case, Series, axis_of, cases_of, series_of
from farandole.results.numbers import count
from farandole.results.reading import Study
from farandole.results.scaling import parts_s
from farandole.results.schema import BUSY

__all__ = ["FEWEST", "TRAINING", "WHOLES", "Measured", "Point", "Rule", "measured_of"]

FEWEST = 3
"""Rank counts below which nothing can be said of a shape."""
WHOLES = {"total_s": "in all", "train_s": "of training", "epoch_s": "an epoch", "step_s": "a step"}
"""What may be predicted, in the order in which it is chosen; tables of others may have an epoch alone."""
TRAINING = ("train", "compute", "rest", "stall", "allreduce", "straggler")
"""Parts that last as long as there is training to do; the others are there once a run."""
_TIMES = ("total_s", "train_s", "epoch_s", "samples_per_s")
_A_STEP = ("allreduce", "straggler")
_LEAST = 1e-3
"""A part that is nowhere more than this share of the whole is put to the others."""
_OF_MEDIANS = 1.25
"""A median varies so much more than a mean."""
PACED = "paced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How a number follows the ranks: a power of them, such as 1 / ranks."""

    ranks: float
    value: float
    exponent: float

    def at(self, ranks: float) -> float:
        return self.value * math.pow(ranks / self.ranks, self.exponent)

    @classmethod
    def of(cls, values: Mapping[float, float]) -> Rule:
        """The power that fits best, to a twelfth: 0, 1/3, 1/2 and 1 are rules of batches."""
        x, y = np.log([*values]), np.log([*values.values()])
        exponent = round(12 * float(np.polyfit(x, y, 1)[0])) / 12 if len(values) > 1 else 0.0
        return cls(ranks=1.0, value=float(np.exp(np.mean(y - exponent * x))), exponent=exponent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A rank count of a series."""

    ranks: int
    nodes: int | None
    case: Case
    parts: Mapping[str, float]
    """Seconds, as measured."""
    repeats: Sequence[Mapping[str, float]] = ()
    """The same of every run, where there are several."""

    @property
    def whole_s(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A series of a study: what is fitted."""

    study: Study
    series: Series
    work: str
    whole: str
    points: Sequence[Point]
    """By rising ranks."""
    a_rank: Rule
    """Of the training, how much a rank does."""
    steps: Rule
    epochs: Rule | None
    remarks: Sequence[str]
    """What was not used, and why; what was used with a caveat."""

    @property
    def settings(self) -> dict[str, Any]:
        return self.series.settings

    @property
    def base(self) -> Point:
        return self.points[0]

    @property
    def largest(self) -> Point:
        return self.points[-1]

    @property
    def nodes_known(self) -> bool:
        return all(point.nodes for point in self.points)

    def nodes_at(self, ranks: int) -> float:
        """With as many ranks a node as the largest run had."""
        full = max(point.ranks / (point.nodes or point.ranks) for point in self.points)
        return max(1.0, math.ceil(ranks / full))

    def amount(self, part: str, ranks: float) -> float:
        """By what the seconds of a part are divided before they are fitted."""
        if part not in TRAINING or self.whole in ("epoch_s", "step_s"):
            return 1.0
        return (self.steps if part in _A_STEP else self.a_rank).at(ranks)

    def seconds(self, part: str) -> tuple[Floats, Floats]:
        """Ranks, and the seconds of a part over its amount, where it is there."""
        known = [(point.ranks, seconds / self.amount(part, point.ranks)) for point in self.points if (seconds := point.parts.get(part, 0.0)) > 0]
        return np.array([float(ranks) for ranks, _ in known]), np.array([seconds for _, seconds in known])

    def error(self, part: str) -> float:
        """Of the seconds of a part, relative: by how much medians of as many repeats vary. 0 where nothing was repeated."""
        found = []
        for point in self.points:
            values = np.log([seconds for one in point.repeats if (seconds := one.get(part, 0.0)) > 0])
            if values.size > 1:
                found.append(_OF_MEDIANS**2 * float(values.var(ddof=1)) / values.size)
        return math.sqrt(float(np.mean(found))) if found else 0.0

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for point in self.points for name, seconds in point.parts.items() if seconds > 0))


def measured_of(study: Study, *, up_to: int | None = None, comm: bool = False, ranks: Sequence[int] = ()) -> list[Measured]:
    """The series of a study that can be predicted from, the most complete first; DataError where there is none.

    `comm`: what a network takes is known from elsewhere. `ranks`: those that are asked for, for advice.
    """
    _check(study)
    cases = cases_of(study)
    axis = axis_of(study.kind, cases)
    if axis.name != "ranks":
        raise DataError(f"{study.name} varies {axis.label}, not ranks. Predict from a study such as: farandole study weak nt3 --ranks 1,2,4")
    found, reasons = [], []
    for series in series_of(cases, axis):
        try:
            found.append(_measured(study, series, up_to, comm))
        except DataError as error:
            reasons.append(str(error))
    if not found:
        raise DataError(reasons[0] if reasons else f"{study.name}: no run has finished.")
    return found


def _check(study: Study) -> None:
    """What is wrong with a study as a whole."""
    if study.work not in ("strong", "weak"):
        raise DataError(f"{study.name} is a study of kind {study.kind}. Predict from one over ranks: farandole study strong or weak.")
    for line in study.raw:
        wrong = [name for name, value in (line.get("figures") or {}).items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            ranks = line["settings"].get("ranks", 1)
            raise DataError(f"{study.name}: {wrong[0]} on {count(ranks, 'rank')} is {line['figures'][wrong[0]]}. Run that point again: farandole study --resume")
    if any(result.settings.get(EMULATED) for result in study.finished):
        raise DataError(f"{study.name}: ranks are emulated, and their seconds are those of emulating.")
    machines = {str((made.get("environment") or {}).get("cpu")) for made in study.makings if made.get("environment")}
    benchmarks = {str(result.settings.get("benchmark")) for result in study.finished}
    for what, values in (("machines", machines), ("workloads", benchmarks)):
        if len(values) > 1:
            raise DataError(f"{study.name} mixes {what}: {', '.join(sorted(values))}. Predict from a study of one.")


def _measured(study: Study, series: Series, up_to: int | None, comm: bool) -> Measured:
    name = f"{study.name} ({series.label})" if series.label else study.name
    remarks = []
    cases = [case for case in series.cases if up_to is None or case.ranks <= up_to]
    shared = [case for case in cases if case.oversubscribed and not _is_paced(case)]
    if shared:
        remarks.append(f"oversubscribed, and not used: {_listed(shared)}")
        cases = [case for case in cases if case not in shared]
    if busy := [case for case in cases if BUSY in case.marks]:
        remarks.append(f"measured on a busy machine, and used: {_listed(busy)}")
    whole = next((one for one in _TIMES if sum(case.median(one) is not None for case in cases) >= FEWEST), "")
    if not whole and any(case.median("total_s") is None for case in cases):
        remarks.append("of the others no time is known")
    cases = [case for case in cases if case.median(whole or "total_s")]
    _check_cases(name, cases, remarks, comm)
    points = [_point(case, whole) for case in sorted(cases, key=lambda case: case.ranks)]
    a_rank, steps = _amounts(points, study.work)
    return Measured(
        study=study, series=series, work=study.work, whole="step_s" if whole == "samples_per_s" else whole, points=_without_crumbs(points),
        a_rank=a_rank, steps=steps, epochs=_epochs(points), remarks=remarks,
    )  # fmt: skip


def _check_cases(name: str, cases: Sequence[Case], remarks: Sequence[str], comm: bool) -> None:
    counts = sorted({case.ranks for case in cases})
    if len(counts) < FEWEST:
        most = counts[-1] if counts else 1
        add = [most * 2**power for power in range(1, FEWEST + 1 - len(counts))] if counts else [1, 2, 4]
        told = f" ({'; '.join(remarks)})" if remarks else ""
        raise DataError(
            f"{name} has {count(len(counts), 'rank count')} to predict from{told}; at least {FEWEST} are needed. Add --ranks {','.join(map(str, add))}, on as many cores."
        )
    for setting in ("threads", "batch_scaling"):
        values = {case.settings.get(setting) for case in cases}
        if len(values) > 1:
            raise DataError(f"{name} mixes {setting}: {', '.join(sorted(map(str, values)))}. Predict from runs that differ in ranks alone.")
    if all(_nodes(case) == 1 for case in cases) and not comm:
        raise DataError(
            f"{name} ran on one node, which says nothing of a network. Add a count on two or more, or measure the network and add it: "
            "farandole bench comm -H a:1,b:1 --json comm.json, then --comm comm.json"
        )


def _is_paced(case: Case) -> bool:
    """Whether computing took its time by a clock, whatever shared the cores, which the study has recorded."""
    return bool(case.settings.get(PACED))


def _nodes(case: Case) -> int | None:
    found = case.settings.get("nodes") or case.median("hosts")
    return int(found) if found else None


def _listed(cases: Sequence[Case]) -> str:
    return f"{', '.join(str(case.ranks) for case in cases)} ranks"


def _point(case: Case, whole: str) -> Point:
    runs = [replace(case, results=[result]) for result in case.results] if len(case.results) > 1 else []
    return Point(
        ranks=case.ranks, nodes=_nodes(case), case=case, parts=_parts(case, whole),
        repeats=[_parts(run, whole) for run in runs if run.median(whole)],
    )  # fmt: skip


def _parts(case: Case, whole: str) -> dict[str, float]:
    if whole in ("total_s", "train_s"):
        parts = parts_s(case, whole)
        if case.median("train_s") and case.median("exposed_s") is None:
            parts = {"train": parts.pop("compute", 0.0), **parts}  # with the communication in it
        startup = min(case.median("startup_s") or 0.0, 0.9 * parts.get("compute", 0.0))
        if startup > 0:
            parts |= {"compute": parts["compute"] - startup, "startup": startup}
    elif whole == "epoch_s":
        parts = {"rest": case.median(whole) or 0.0}
    else:
        parts = {"rest": case.ranks * float(case.settings.get("batch_size") or 1) / (case.median(whole) or 1.0)}
    return parts


def _without_crumbs(points: Sequence[Point]) -> list[Point]:
    """Parts that are nowhere a thousandth of the whole would cost a fit each and say nothing."""
    names = dict.fromkeys(name for point in points for name in point.parts)
    small = [name for name in names if all(point.parts.get(name, 0.0) < _LEAST * point.whole_s for point in points)]
    return [
        replace(point, parts={name: seconds for name, seconds in point.parts.items() if name not in small and seconds > 0})
        for point in points
    ]


def _amounts(points: Sequence[Point], work: str) -> tuple[Rule, Rule]:
    """Of the training, what a rank does, and in how many steps."""
    samples = {float(point.ranks): value / point.ranks for point in points if (value := point.case.median("samples"))}
    if len(samples) < len(points):
        divided = Rule(ranks=points[0].ranks, value=1.0, exponent=-1.0 if work == "strong" else 0.0)
        return divided, divided
    steps = {
        float(point.ranks): value * point.ranks / batch
        for point, value in zip(points, samples.values()) if (batch := point.case.median("global_batch"))
    }  # fmt: skip
    a_rank = Rule.of(samples)
    return a_rank, Rule.of(steps) if len(steps) == len(points) else a_rank


def _epochs(points: Sequence[Point]) -> Rule | None:
    known = {float(p.ranks): float(value) for p in points if (value := p.case.median("epochs") or p.case.settings.get("epochs"))}
    return Rule.of(known) if len(known) == len(points) else None
