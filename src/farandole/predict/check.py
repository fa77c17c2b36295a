"""`farandole predict --check`: predictions of figures that are known, with the model as it is: tables of the papers, made-up machines.

One TAU for all rows. A row that misses its bar says so with its figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from farandole.predict.curves import Floats, whole_curves
from farandole.predict.model import fit_models
from farandole.predict.parts import measured_of
from farandole.predict.posterior import TAU, Fit, Samples, fit
from farandole.predict.power import fit_power
from farandole.predict.prediction import interval
from farandole.predict.synthetic import Machine, made_up
from farandole.results.cases import axis_of, cases_of, series_of
from farandole.results.reading import Study
from farandole.results.schema import SCHEMA, Result

__all__ = ["MACHINES", "Row", "check"]

MACHINES = 200
_MADE_UP_NODES = 512
_FARTHEST = 8
"""Rolling origins go so many times beyond the largest count that was fitted."""
_FEWEST = 3
_SERIES = (
    ("summit-2019-table2", "epoch_s"), ("summit-2019-table6", "epoch_s"), ("theta-2018-table2", "total_s"), ("theta-2018-table2", "framework_s"),
    ("theta-2018-table2", "train_s"), ("tensorflow-2017-ec2", "step_s"),
)  # fmt: skip
Papers = Mapping[str, Study]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A bar, what was found, and whether it is met."""

    what: str
    bar: str
    found: str
    met: bool
    details: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Try:
    """A known figure and what was predicted of it."""

    what: str
    truth: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, what: str, truth: float, draws: Floats) -> _Try:
        return cls(what=what, truth=truth, **interval(draws))

    @property
    def inside(self) -> bool:
        return self.low <= self.truth <= self.high

    @property
    def width(self) -> float:
        return self.high / self.low

    @property
    def error(self) -> float:
        return self.median / self.truth - 1

    def __str__(self) -> str:
        told = "inside" if self.inside else "OUTSIDE"
        return f"{self.what}: {self.truth:.4g} was {self.median:.4g} [{self.low:.4g}, {self.high:.4g}], {self.error:+.1%}, {self.width:.2f}x wide, {told}"


def check(papers: Papers, *, tau: float = TAU, machines: int = MACHINES) -> Iterator[Row]:
    """The rows one after the other, as they are done."""
    yield _summit(papers["summit-2019-table6"], tau)
    yield _theta(papers["theta-2018-table2"], tau)
    yield _rolling(papers, tau)
    for told, bar in ((True, 0.04), (False, 0.08)):
        yield _made_up(machines, bar, tau, told=told)
    yield from _energy(papers, tau)


def _summit(study: Study, tau: float) -> Row:
    """In their order: the original loader, then the optimised one."""
    models = fit_models(measured_of(study, up_to=384), collective="ring", tau=tau)
    tries = [
        _Try.of(f"{case.ranks:,} GPUs, {model.measured.series.label}", case.median("epoch_s") or 0.0, model.whole(case.ranks))
        for model in models for case in model.measured.series.cases if case.ranks > 384
    ]  # fmt: skip
    asked = next(one for one in tries if one.truth == 33.09)
    return Row(
        what="2019 Table 6, fitted at <= 384 GPUs, ring declared: 3,072 GPUs", bar="holds 33.1 s, < 2x wide",
        found=f"{asked.median:.1f} s [{asked.low:.1f}, {asked.high:.1f}], {asked.width:.2f}x wide", met=asked.inside and asked.width < 2,
        details=[str(one) for one in tries],
    )  # fmt: skip


def _theta(study: Study, tau: float) -> Row:
    tries = [
        one for measure in ("total_s", "framework_s", "train_s")
        for one in _tries(_values(study, measure), 64, "tree", tau, farthest=_FARTHEST, what=measure)
    ]  # fmt: skip
    near, inside, worst = sum(abs(one.error) <= 0.03 for one in tries), sum(one.inside for one in tries), max(abs(one.error) for one in tries)
    return Row(
        what="2018 Tables 2 and 3, fitted at <= 64 nodes, tree declared: 128 to 512", bar="18 of 18 within 3% and inside",
        found=f"{near} of {len(tries)} within 3% (worst {worst:.1%}), {inside} inside", met=near == inside == len(tries) == 18,
        details=[str(one) for one in tries],
    )  # fmt: skip


def _rolling(papers: Papers, tau: float) -> Row:
    """Every series, fitted at its first counts, against those up to _FARTHEST times beyond: the collective is not known."""
    tries: dict[str, list[_Try]] = {}
    for name, measure in _SERIES:
        for group in _groups(_values(papers[name], measure)):
            for origin in range(_FEWEST, len(group[0].x)):
                found = _tries(group, float(group[0].x[origin - 1]), "", tau, farthest=_FARTHEST, what=measure)
                tries.setdefault(name, []).extend(found)
    every = [one for found in tries.values() for one in found]
    coverage, width = _coverage(every), float(np.median([one.width for one in every]))
    return Row(
        what=f"{len(every)} rolling origins, collective not known", bar="coverage 88-95%, median width <= 1.45x",
        found=f"coverage {coverage:.1%}, median width {width:.2f}x", met=len(every) == 147 and 0.88 <= coverage <= 0.95 and width <= 1.45,
        details=[f"{name}: {_coverage(found):.0%} of {len(found)}" for name, found in tries.items()],
    )  # fmt: skip


def _coverage(tries: Sequence[_Try]) -> float:
    return sum(one.inside for one in tries) / len(tries)


def _values(study: Study, measure: str) -> list[Samples]:
    """The series of a table, in its own words."""
    cases = cases_of(study)
    found = []
    for series in series_of(cases, axis_of(study.kind, cases)):
        if measure == "step_s":
            known = [(case.ranks, case.ranks * case.settings["batch_size"] / value) for case in series.cases if (value := case.median("samples_per_s"))]
        else:
            known = [(case.ranks, value) for case in series.cases if (value := case.median(measure))]
        found.append(Samples(x=np.array([float(ranks) for ranks, _ in known]), seconds=np.array([seconds for _, seconds in known])))
    return found


def _groups(series: Sequence[Samples]) -> list[list[Samples]]:
    """Series of one model have a shape in common; those of several models, which a batch of their own tells, do not."""
    return [[one] for one in series] if len(series) > 2 else [[*series]]


def _tries(series: Sequence[Samples], up_to: float, collective: str, tau: float, *, farthest: float, what: str) -> list[_Try]:
    kept = [Samples(x=one.x[one.x <= up_to], seconds=one.seconds[one.x <= up_to]) for one in series]
    fits = fit("rest", kept, whole_curves(collective, float(kept[0].x[-1] / kept[0].x[0])))
    return [found for one, fitted in zip(series, fits) for found in _beyond(one, fitted, up_to, tau, farthest, what)]


def _beyond(one: Samples, fitted: Fit, up_to: float, tau: float, farthest: float, what: str) -> list[_Try]:
    return [
        _Try.of(f"{what} on {x:g}", float(seconds), fitted.at(float(x), tau=tau))
        for x, seconds in zip(one.x, one.seconds) if up_to < x <= farthest * up_to
    ]  # fmt: skip


def _made_up(machines: int, bar: float, tau: float, *, told: bool) -> Row:
    tries = []
    for seed in range(machines):
        random = Random(seed)
        machine = Machine.drawn(random)
        model = fit_models(measured_of(made_up(machine, random, told=told)), tau=tau)[0]
        tries.append(_Try.of(str(seed), machine.total_s(_MADE_UP_NODES), model.whole(_MADE_UP_NODES * machine.ranks_a_node)))
    coverage, error, width = _coverage(tries), float(np.median([abs(one.error) for one in tries])), float(np.median([one.width for one in tries]))
    return Row(
        what=f"{machines} made-up machines, 1-8 nodes to {_MADE_UP_NODES}, collective {'recorded' if told else 'not known'}",
        bar=f"coverage >= 88%, median error <= {bar:.0%}",
        found=f"coverage {coverage:.1%}, median error {error:.1%}, median width {width:.2f}x", met=coverage >= 0.88 and error <= bar,
    )  # fmt: skip


def _energy(papers: Papers, tau: float) -> Iterator[Row]:
    """2019 Table 5 has no times: energy over power is the total, and Table 2 has what an epoch takes."""
    models = fit_models(measured_of(_with_times(papers), up_to=48), collective="ring", tau=tau)
    known, predicted = list[_Try](), list[_Try]()
    for model, power in zip(models, fit_power([model.measured for model in models])):
        assert power is not None
        for case in (case for case in model.measured.series.cases if case.ranks > 48):
            total_s, train_s, joules = (case.median(name) or 0.0 for name in ("total_s", "train_s", "energy_j"))
            what = f"{case.ranks} GPUs, {model.measured.series.label}"
            measured = {"train": np.array([train_s]), "other": np.array([total_s - train_s])}
            known.append(_Try.of(what, joules, power.energy_j(case.ranks, measured)))
            predicted.append(_Try.of(what, joules, power.energy_j(case.ranks, model.parts(case.ranks))))
    for tries, bar, how in ((known, 0.05, "the time known"), (predicted, 0.15, "the time predicted")):
        worst = max((one.error for one in tries), key=abs)
        yield Row(
            what=f"2019 Table 5, energy on 96 to 384 GPUs fitted at <= 48, {how}", bar=f"<= {bar:.0%}",
            found=f"worst {worst:+.1%}, median {np.median([abs(one.error) for one in tries]):.1%}", met=abs(worst) <= bar,
            details=[str(one) for one in tries],
        )  # fmt: skip


def _with_times(papers: Papers) -> Study:
    epochs = {result.settings["ranks"]: result.measure("epoch_s") or 0.0 for result in papers["summit-2019-table2"].results if result.settings["batch_size"] == 20}
    lines = [_line(line, epochs[line["settings"]["ranks"]]) for line in papers["summit-2019-table5"].raw]
    return Study(
        folder=Path(), kind="strong", title="Table 5", command=None, about={}, raw=lines, tries=len(lines),
        results=[Result.of(Path(), line) for line in lines],
    )  # fmt: skip


def _line(line: Mapping[str, Any], epoch_s: float) -> dict[str, Any]:
    figures, ranks = line["figures"], line["settings"]["ranks"]
    times = {"total_s": figures["energy_j"] / figures["power_w"], "train_s": 384 / ranks * epoch_s}
    return {**line, "schema": SCHEMA, "figures": {**figures, **times, "epochs": 384 / ranks}}
