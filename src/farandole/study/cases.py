"""The cases of a study: results of the same settings, repeated or with other seeds, as one, with median and spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.report.groups import BUSY, BUSY_SHARE
from farandole.report.scaling import Scaling, against
from farandole.report.trust import PERHAPS_PARTS

__all__ = ["BUSY", "OF_POWER", "PERHAPS_PARTS", "Case", "Spread", "cases_of", "is_busy", "power_notes", "ranks_of", "trained_as", "work_of"]

_NOT_COMPARED = ("ranks", "nodes", "emulate_ranks", "seed")
"""Cases that differ only in these belong to one series."""

OF_POWER = ("power_w", "energy_j", "energy_per_sample_j", "edp_js", "idle_w", "above_idle_j")
"""Figures that are as well known as the watts are."""
_PROVENANCES = ("modelled", "measured-component", "measured-node")
"""From the least to the best."""
_MEASURED = {
    "measured-component": "power of the parts of nodes that have meters, measured",
    "measured-node": "power of whole nodes, measured",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The middle of several measurements, and how far they lie apart."""

    median: float
    low: float | None
    """None, as the highest, where medians come from elsewhere and nothing else is told."""
    high: float | None
    count: int
    """Of the runs that have it."""


@dataclass(kw_only=True, slots=True)
class Case:
    """One row of a table."""

    settings: Mapping[str, Any]
    """Without the seed where there are several."""
    figures: dict[str, Spread] = field(default_factory=dict)
    """Those that are known."""
    marks: list[str] = field(default_factory=list)
    runs: int = 0
    """That have ended well."""
    summed_up: bool = False
    """Medians of several runs were made where they come from."""
    failed: int = 0
    reason: str = ""
    """Of the last run that failed."""
    metric: str = "accuracy"
    provenance: str = "none"
    """How its watts and joules are known; of several ways, the least."""
    base: Case | None = None
    """What it is compared to; None where that is not known."""
    scaled: Scaling[Case] | None = None

    @property
    def ranks(self) -> int:
        return int(self.settings.get("ranks", 1))

    @property
    def modelled(self) -> bool:
        """Whether its watts and joules are a model's."""
        return "modelled power" in self.marks

    def median(self, name: str) -> float | None:
        return self.figures[name].median if name in self.figures else None

    def fewer(self, name: str) -> str:
        """`1 of 3`, where fewer runs have the figure than have ended well."""
        known = self.figures[name].count if name in self.figures else 0
        return f"{known} of {self.runs}" if 0 < known < self.runs else ""


def is_busy(others_share: float | None) -> bool:
    """Whether other programs took so much of the machine's processor time that it has to be told, by the page's limit."""
    return others_share is not None and others_share > BUSY_SHARE


def trained_as(settings: Mapping[str, Any]) -> int:
    """As how many ranks: those emulated, or those there are."""
    return int(settings.get("emulate_ranks") or settings.get("ranks", 1))


def ranks_of(cases: Sequence[Case]) -> str:
    """For people: `1, 2 ranks`."""
    ranks = ", ".join(dict.fromkeys(str(case.ranks) for case in cases))
    return f"{ranks} rank{'s' * (ranks != '1')}"


def power_notes(cases: Sequence[Case]) -> list[str]:
    """How watts and joules are known; where that differs, of how many ranks."""
    told = ["~ modelled power (TDP x utilisation), not measured: no evidence of a saving"] if any(case.modelled for case in cases) else []
    sure = [case for case in cases if PERHAPS_PARTS not in case.marks]  # of the others their mark tells
    found = {kind: [case for case in sure if case.provenance == kind] for kind in _MEASURED}
    alike = len({case.provenance for case in cases} - {"none"}) == 1
    return told + [_MEASURED[kind] + ("" if alike else f": {ranks_of(of)}") for kind, of in found.items() if of]


def work_of(kind: str) -> str:
    """How the time is expected to follow the ranks."""
    return kind if kind in ("strong", "weak") else "same"


def cases_of(kind: str, results: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Results are one of every point; cases come in the order of the first of them."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(_same(result["settings"], ("seed",)), []).append(result)
    cases = [_case(found) for found in groups.values()]
    for case in cases:
        case.base = _base(kind, case, cases)
        case.scaled = _scaled(kind, case)
    return cases


def _case(results: Sequence[Mapping[str, Any]]) -> Case:
    good = [result for result in results if result["status"] == "ok"]
    bad = [result for result in results if result["status"] != "ok"]
    settings = dict(results[0]["settings"])
    if len({result["settings"].get("seed") for result in results}) > 1:
        settings.pop("seed")
    case = Case(settings=settings, failed=len(bad), reason=str(bad[-1]["reason"]) if bad else "")
    case.runs = sum(result.get("runs", 1) for result in good)
    case.summed_up = any("runs" in result for result in good)
    case.marks = list(dict.fromkeys(mark for result in results for mark in result.get("marks", ())))
    for name in dict.fromkeys(name for result in good for name in result["figures"]):
        if known := [spread for result in good if (spread := _measured(name, result))]:
            case.figures[name] = _together(known)
    provenances = {result["figures"].get("power_provenance") for result in good}
    case.provenance = next((one for one in _PROVENANCES if one in provenances), "none")
    case.metric = next((str(r["figures"]["metric"]) for r in good if r["figures"].get("metric")), "accuracy")
    return case


def _measured(name: str, result: Mapping[str, Any]) -> Spread | None:
    """One run's figure, or the median of several from elsewhere."""
    value, runs = result["figures"].get(name), result.get("runs", 1)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    unknown = (None, None, runs) if runs > 1 else (value, value, 1)
    low, high, count = result.get("spreads", {}).get(name, unknown)
    return Spread(median=float(value), low=_float(low), high=_float(high), count=count)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _together(spreads: Sequence[Spread]) -> Spread:
    lows, highs = [one.low for one in spreads if one.low is not None], [one.high for one in spreads if one.high is not None]
    return Spread(
        median=statistics.median(one.median for one in spreads),
        low=min(lows) if len(lows) == len(spreads) else None,
        high=max(highs) if len(highs) == len(spreads) else None,
        count=sum(one.count for one in spreads),
    )


def _base(kind: str, case: Case, cases: Sequence[Case]) -> Case | None:
    """Fewest ranks of the same series; batches and rates: the first case with the same ranks."""
    known = [one for one in cases if one.median("total_s") is not None]
    if work_of(kind) == "same":
        same = [one for one in known if (one.ranks, trained_as(one.settings)) == (case.ranks, trained_as(case.settings))]
        return same[0] if same else None
    series = [one for one in known if _same(one.settings, _NOT_COMPARED) == _same(case.settings, _NOT_COMPARED)]
    return min(series, key=lambda one: (trained_as(one.settings), one.ranks), default=None)


def _scaled(kind: str, case: Case) -> Scaling[Case] | None:
    """None for emulated ranks too: one rank that stands for many says nothing of their speed."""
    if case.base is None or case.settings.get("emulate_ranks") or case.base.settings.get("emulate_ranks"):
        return None
    return against(case.base, case, work=work_of(kind))


def _same(settings: Mapping[str, Any], without: Sequence[str]) -> str:
    return json.dumps({name: value for name, value in settings.items() if name not in without}, sort_keys=True)
