"""The sentence a study ends with."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.study.cases import Case, trained_as
from farandole.study.points import varying
from farandole.study.scaling import verdict

__all__ = ["study_verdict"]

_LOST = 0.02
"""A metric this much below the base case's is worth a word."""


def study_verdict(kind: str, cases: Sequence[Case]) -> str:
    known = [case for case in cases if case.median("total_s") is not None]
    if not known:
        return "No total times to compare." if any(case.runs for case in cases) else "No point has a result."
    told = _scaling(known) if kind in ("strong", "weak") else _best(known, cases)
    notes = [_quality(known), _provenance(known), _marks(known)]
    return " ".join([told, *filter(None, notes)]).strip()


def _scaling(cases: Sequence[Case]) -> str:
    """Of the longest series; speed says nothing where all ranks are emulated."""
    series: dict[int, list[Case]] = {}
    for case in cases:
        if case.scaled is not None and case.base is not None:
            series.setdefault(id(case.base), []).append(case)
    if not series:
        return ""
    longest = max(series.values(), key=len)
    return verdict([case.scaled for case in longest if case.scaled is not None])


def _best(known: Sequence[Case], cases: Sequence[Case]) -> str:
    """`cases` have those that failed as well."""
    fastest = min(known, key=lambda case: case.median("total_s") or 0.0)
    told = f"Fastest: {_named(fastest, cases)} ({fastest.median('total_s'):.1f} s)."
    judged = [case for case in known if case.median("test_accuracy") is not None]
    if judged:
        best = max(judged, key=lambda case: case.median("test_accuracy") or 0.0)
        told += f" Best {best.metric}: {_named(best, cases)} ({best.median('test_accuracy'):.4f})."
    return told


def _named(case: Case, cases: Sequence[Case]) -> str:
    names = varying(one.settings for one in cases) or ["ranks"]
    return ", ".join(f"{name}={case.settings.get(name)}" for name in names)


def _quality(cases: Sequence[Case]) -> str:
    """Where more ranks lose accuracy, from where on."""
    lost = []
    for case in cases:
        base = None if case.base is None else case.base.median("test_accuracy")
        mine = case.median("test_accuracy")
        if base is not None and mine is not None and trained_as(case.settings) > 1 and mine < base - _LOST:
            lost.append((trained_as(case.settings), base, mine, case.metric))
    if not lost:
        return ""
    ranks, base, mine, metric = min(lost)
    return f"From {ranks} ranks on the {metric} suffers ({mine:.3f} instead of {base:.3f})."


def _provenance(cases: Sequence[Case]) -> str:
    if not any("energy_j" in case.figures for case in cases):
        return "Power is not known."
    if any(case.modelled for case in cases):
        return "Power is modelled, not measured: no evidence of a saving."
    return ""


def _marks(cases: Sequence[Case]) -> str:
    crowded = sorted({case.ranks for case in cases if "oversubscribed" in case.marks})
    return f"Oversubscribed: {', '.join(map(str, crowded))} ranks." if crowded else ""
