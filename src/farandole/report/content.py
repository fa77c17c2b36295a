"""What is on the page, in order: from folders to a verdict, figures and tables. No markup of the page itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farandole.report.comparing import Comparison, compare_series, compare_studies
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import PHASES, Bar, phases_of, stacked_bars
from farandole.report.figures.compare import compare_energy_figure, compare_figure, compare_times_figure
from farandole.report.figures.quality import accuracy_figure, energy_figure
from farandole.report.figures.scaling import efficiency_figure, time_figure, unknown_caption
from farandole.report.figures.single import history_figures, phases_figure
from farandole.report.groups import Axis, Point, Series, axis_of, is_emulated, points_of, series_of
from farandole.report.markup import Markup
from farandole.report.reading import Study
from farandole.report.runs import sampling_of
from farandole.report.scaling import Scaling, scaling_of
from farandole.report.table import compare_table, results_table
from farandole.report.traced import components_of, traced_figures
from farandole.report.traces import Trace, traces_of
from farandole.report.trust import Item, made_apart, trust_of
from farandole.report.verdict import comparison_verdict, run_verdict, study_verdict

__all__ = ["Content", "content_of"]

_AMOUNT = re.compile(r"(?<![\w-])\d[\d.,]*(e[+-]?\d+)?(?= ?(%|[JWs]\b))|(?<=\()\d+(?=\))")
"""In a remark: what differs from run to run, unlike the number of a meter."""


@dataclass(kw_only=True, slots=True)
class Content:
    """Everything a reader sees."""

    study: Study
    other: Study | None
    verdicts: list[str]
    trust: list[Item]
    trust_after: list[Item] = field(default_factory=list)
    """Of the other study."""
    figures: list[Figure]
    tables: list[tuple[str, Markup]]
    traces: list[Trace] = field(default_factory=list)
    """Of one run, or of two that are compared."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Own:
    """What the page has of one study alone."""

    study: Study
    points: list[Point]
    axis: Axis
    series: list[Series]
    verdict: str
    figures: list[Figure]
    title: str
    results: Markup


def content_of(study: Study, other: Study | None) -> Content:
    own = _own(study)
    after = _own(other, "-after") if other is not None else None
    comparison = _comparison(own, after)
    traces = traces_of(study, other, comparison)
    tables = [(own.title, own.results)] if after is None else [(f"{one.title} {side}, {one.study.name}", one.results) for side, one in (("before", own), ("after", after))]
    if comparison is not None and comparison.pairs:
        tables.insert(0, (f"{comparison.before} against {comparison.after}", compare_table(comparison)))
    return Content(
        study=study, other=other, verdicts=_verdicts(comparison, own, after), trust=trust_of(study, own.points, traces if other is None else traces[:1]),
        trust_after=trust_of(after.study, after.points, traces[1:]) if after is not None else [],
        figures=_in_order(comparison, own, after, traced_figures(traces, [study, other or study])), tables=[*tables, *components_of(traces)],
        traces=traces, notes=_notes(study, other, own.points),
    )  # fmt: skip


def _own(study: Study, suffix: str = "") -> _Own:
    """`suffix` is of names that must not be those of the other side."""
    points = points_of(study)
    axis = axis_of(study.kind, points)
    series = series_of(points, axis)
    scalings = _scalings(study, series, axis)
    figures = _run_figures(study) if study.is_run else _study_figures(study, series, axis, scalings[0] if scalings else [])
    return _Own(
        study=study, points=points, axis=axis, series=series,
        verdict=run_verdict(study) if study.is_run else _study_verdict(study, series, axis, scalings),
        figures=[replace(figure, name=f"{figure.name}{suffix}") for figure in figures],
        title="Figures" if study.is_run else "All configurations",
        results=_results(points, series, axis, scalings, f"results{suffix}"),
    )  # fmt: skip


def _verdicts(comparison: Comparison | None, own: _Own, after: _Own | None) -> list[str]:
    """What is of both comes first."""
    both = [comparison_verdict(comparison)] if comparison is not None else []
    if after is None:
        return [*both, own.verdict]
    return [*both, *(f"{head}: {_lowered(one.verdict)}" for head, one in _sides(comparison, own, after, ", "))]


def _in_order(comparison: Comparison | None, own: _Own, after: _Own | None, traced: list[Figure]) -> list[Figure]:
    """Of two studies, what is of both comes first. Within one, the lines of its series show what lines of both would."""
    if after is None:
        return [*([compare_figure(comparison)] if comparison is not None else []), *own.figures, *traced]
    both = [compare_figure(comparison), compare_times_figure(comparison), compare_energy_figure(comparison)] if comparison is not None else []
    sides = [[Figure(name="", title=head, full=True), *one.figures] for head, one in _sides(comparison, own, after, ": ")]
    return [*both, *traced, *(figure for side in sides for figure in side)]


def _sides(comparison: Comparison | None, own: _Own, after: _Own, joint: str) -> list[tuple[str, _Own]]:
    """Both, each with what it is called."""
    names = (comparison.before, comparison.after) if comparison is not None else (own.study.name, after.study.name)
    return [(f"{side}{joint}{name}", one) for side, name, one in zip(("Before", "After"), names, (own, after))]


def _study_verdict(study: Study, series: Sequence[Series], axis: Axis, scalings: Sequence[Sequence[Scaling[Point]]]) -> str:
    """Of the first series, which is named where there are several."""
    told = study_verdict(study, series, axis, scalings[0] if scalings else [])
    return f"With {series[0].label}: {_lowered(told)}" if scalings and len(series) > 1 else told


def _lowered(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _scalings(study: Study, series: Sequence[Series], axis: Axis) -> list[list[Scaling[Point]]]:
    """Of every series along the ranks; other axes have no efficiency."""
    if axis.name != "ranks" or study.is_run or is_emulated([point for one in series for point in one.points]):
        return []
    return [scaling_of(one.points, work="weak" if study.kind == "weak" else "strong") for one in series]


def _comparison(own: _Own, after: _Own | None) -> Comparison | None:
    if is_emulated(own.points):
        return None
    if after is not None:
        return compare_studies((own.study, own.points), (after.study, after.points), own.axis)
    base: Any = own.study.about.get("base") or {}
    return None if own.study.is_run else compare_series(own.series, own.axis, base)


def _study_figures(study: Study, series: Sequence[Series], axis: Axis, scalings: Sequence[Scaling[Point]]) -> list[Figure]:
    weak = study.kind == "weak"
    if is_emulated([point for one in series for point in one.points]):
        reason = "Ranks are emulated, on fewer: seconds and joules are those of emulating them. The table has them."
        return [replace(accuracy_figure(study, series, axis), full=True), missing("time", "Time, efficiency and energy", reason, full=True)]
    if not axis.numeric:
        return [_bars(series, axis), energy_figure(study, series, axis, weak=weak), accuracy_figure(study, series, axis)]
    return [
        time_figure(series, axis, scalings, weak=weak),
        efficiency_figure(scalings, series[0].label if series else "", weak=weak)
        if axis.name == "ranks"
        else missing("efficiency", "Efficiency", f"This study varies {axis.label}, not ranks: there is no ideal to compare with."),
        energy_figure(study, series, axis, weak=weak),
        accuracy_figure(study, series, axis),
    ]


def _bars(series: Sequence[Series], axis: Axis) -> Figure:
    """Along an axis of names, such as loaders, bars instead of lines."""
    title = f"Time by {axis.label}"
    bars = [
        Bar(label=str(point.settings[axis.name]), group=one.label, parts=parts)
        for one in series
        for point in one.points
        if (parts := phases_of({f"{name}_s": point.median(f"{name}_s") for name in (*PHASES, "total")}))
    ]
    if not bars:
        return missing("time", title, "No run has finished, so that there is no time to show.")
    caption = f"Medians.{unknown_caption([point for one in series for point in one.points], 'total_s')}"
    return Figure(name="time", title=title, caption=caption, draw=lambda width: stacked_bars(bars, width, title), full=True)


def _run_figures(study: Study) -> list[Figure]:
    return [phases_figure(study.about), *history_figures(study.about)]


def _results(points: Sequence[Point], series: Sequence[Series], axis: Axis, scalings: Sequence[Sequence[Scaling[Point]]], name: str) -> Markup:
    varied = list(dict.fromkeys(name for one in series for name in one.settings))
    groups = list(dict.fromkeys(repr([point.settings.get(name) for name in varied]) for point in points))

    def place(point: Point) -> tuple[int, float]:
        value = point.settings.get(axis.name)
        return groups.index(repr([point.settings.get(name) for name in varied])), value if axis.numeric and value else 0.0

    return results_table(sorted(points, key=place), axis, [one for found in scalings for one in found], varied, name)


def _notes(study: Study, other: Study | None, points: Sequence[Point]) -> list[str]:
    if other is None:
        return _notes_of(study)
    apart = made_apart(study, other)
    notes = [f"Before and after were not made alike, which may be why they differ: {', '.join(apart)}."] if apart else []
    if is_emulated(points):
        notes.append(f"Ranks are emulated: their seconds are not compared with those of {other.name}.")
    return [*notes, *_notes_of(study), *(f"{other.name}: {note}" for note in _notes_of(other))]


def _notes_of(study: Study) -> list[str]:
    failed = [
        f"Failed: {attempt.reason or 'no reason is given'}" + (f" ({_log(attempt.run).relative_to(study.folder)})" if attempt.run else "")
        for attempt in study.failed
    ]
    return [*study.warnings, *failed, *_remarks(study), *(str(note) for note in study.about.get("notes") or [])]


def _remarks(study: Study) -> list[str]:
    """What meters remark, of those alike but for their numbers the first, and in how many runs."""
    sampled = [found for attempt in study.finished if attempt.run and (found := sampling_of(attempt.run))]
    alike: dict[str, list[str]] = {}
    for sampling in sampled:
        kinds: dict[str, str] = {}
        for remark in sampling.remarks:
            kinds.setdefault(_AMOUNT.sub("", remark), remark)
        for kind, remark in kinds.items():
            alike.setdefault(kind, []).append(remark)
    return [f"Power: {remarks[0]}{_often(remarks, len(sampled))}." for remarks in alike.values()]


def _often(remarks: Sequence[str], runs: int) -> str:
    differ = ", with other numbers" if len({*remarks}) > 1 else ""
    return f" ({len(remarks)} of {runs} runs{differ})" if runs > 1 else ""


def _log(run: Path) -> Path:
    """All that a point of a study has said, or else the log of a run."""
    return next((run / name for name in ("console.txt", "log.txt") if (run / name).exists()), run)
