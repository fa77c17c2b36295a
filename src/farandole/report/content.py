"""What is on the page, in order: from folders to a verdict, figures and tables. No markup of the page itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Bar, Level, level_bars, phases_of, stacked_bars
from farandole.report.figures.compare import compare_energy_figure, compare_figure, compare_times_figure
from farandole.report.figures.predicted import Prediction, prediction_of
from farandole.report.figures.quality import accuracy_figure, energy_figure
from farandole.report.figures.scaling import efficiency_figure, time_figure, unknown_caption, words_of
from farandole.report.figures.single import history_figures, phases_figure
from farandole.report.markup import Markup
from farandole.report.table import compare_table, table_html
from farandole.report.traced import components_of, traced_figures
from farandole.report.traces import Trace, traces_of
from farandole.report.trust import Item, made_apart, trust_of
from farandole.results.analysis import Analysis, analyse_study, compare_analyses
from farandole.results.cases import Axis, Series, main_time, run_once
from farandole.results.comparing import Comparison
from farandole.results.reading import Study
from farandole.results.runs import sampling_of
from farandole.results.schema import PHASES
from farandole.results.verdict import Verdict, comparison_verdict

__all__ = ["Content", "content_of"]

_AMOUNT = re.compile(r"(?<![\w-])\d[\d.,]*(e[+-]?\d+)?(?= ?(%|[JWs]\b))|(?<=\()\d+(?=\))")
"""In a remark: what differs from run to run, unlike the number of a meter."""


@dataclass(kw_only=True, slots=True)
class Content:
    """Everything a reader sees."""

    study: Study
    other: Study | None
    verdicts: list[Verdict]
    """The first one's headline stands on top."""
    trust: list[Item]
    trust_after: list[Item] = field(default_factory=list)
    """Of the other study."""
    figures: list[Figure]
    tables: list[tuple[str, Markup]]
    traces: list[Trace] = field(default_factory=list)
    """Of one run, or of two that are compared."""
    notes: list[str] = field(default_factory=list)
    prediction: Prediction | None = None
    """Of the first study, where one was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Own:
    """What the page has of one study alone."""

    analysis: Analysis
    figures: list[Figure]
    title: str
    results: Markup
    prediction: Prediction | None = None

    @property
    def study(self) -> Study:
        return self.analysis.study


def content_of(study: Study, other: Study | None) -> Content:
    own = _own(study)
    after = _own(other, "-after") if other is not None else None
    comparison = own.analysis.variants() if after is None else compare_analyses(own.analysis, after.analysis)
    traces = [] if study.kind == "loaders" else traces_of(study, other, comparison)
    tables = [(own.title, own.results)] if after is None else [(f"{one.title} {side}, {one.study.name}", one.results) for side, one in (("before", own), ("after", after))]
    if comparison is not None and comparison.pairs:
        compared = compare_table(comparison)
        tables.insert(0, (compared.title, table_html(compared, "comparison")))
    return Content(
        study=study, other=other, verdicts=_verdicts(comparison, own, after),
        trust=trust_of(study, own.analysis.cases, traces if other is None else traces[:1]),
        trust_after=trust_of(after.study, after.analysis.cases, traces[1:]) if after is not None else [],
        figures=_in_order(comparison, own, after, traced_figures(traces, [study, other or study])), tables=[*tables, *components_of(traces)],
        traces=traces, notes=[*_notes(own.analysis, other), *(own.prediction.warnings if own.prediction is not None else ())], prediction=own.prediction,
    )  # fmt: skip


def _own(study: Study, suffix: str = "") -> _Own:
    """`suffix` is of names that must not be those of the other side."""
    analysis = analyse_study(study)
    prediction = None if study.is_run else prediction_of(study.folder)
    figures = _run_figures(study) if study.is_run else _study_figures(analysis, prediction)
    return _Own(
        analysis=analysis, figures=[replace(figure, name=f"{figure.name}{suffix}") for figure in figures],
        prediction=prediction, title="Figures" if study.is_run else "All configurations", results=table_html(analysis.table(), f"results{suffix}"),
    )  # fmt: skip


def _verdicts(comparison: Comparison | None, own: _Own, after: _Own | None) -> list[Verdict]:
    """What is of both comes first."""
    if after is None:
        return own.analysis.verdicts()
    both = [comparison_verdict(comparison)] if comparison is not None else []
    return [*both, *(one.analysis.verdict().of(head) for head, one in _sides(comparison, own, after, ", "))]


def _in_order(comparison: Comparison | None, own: _Own, after: _Own | None, traced: list[Figure]) -> list[Figure]:
    """Of two studies, what is of both comes first. Within one, the lines of its series show what lines of both would."""
    if after is None:
        return [*([compare_figure(comparison)] if comparison is not None else []), *own.figures, *traced]
    whole = comparison is not None and comparison.measure[0] == "total_s"  # figures of phases, which only whole runs have
    both = [draw(comparison) for draw in (compare_figure, compare_times_figure, compare_energy_figure)] if comparison is not None and whole else []
    sides = [[Figure(name="", title=head, full=True), *one.figures] for head, one in _sides(comparison, own, after, ": ")]
    return [*both, *traced, *(figure for side in sides for figure in side)]


def _sides(comparison: Comparison | None, own: _Own, after: _Own, joint: str) -> list[tuple[str, _Own]]:
    """Both, each with what it is called."""
    names = (comparison.before, comparison.after) if comparison is not None else (own.study.name, after.study.name)
    return [(f"{side}{joint}{name}", one) for side, name, one in zip(("Before", "After"), names, (own, after))]


def _study_figures(analysis: Analysis, prediction: Prediction | None) -> list[Figure]:
    study, series, axis, scalings, weak = analysis.study, analysis.series, analysis.axis, analysis.first_scalings, analysis.study.kind == "weak"
    if analysis.is_emulated:
        reason = "Ranks are emulated, on fewer: seconds and joules are those of emulating them. The table has them."
        return [replace(accuracy_figure(study, series, axis), full=True), missing("time", "Time, efficiency and energy", reason, full=True)]
    if study.kind == "loaders":
        return [_bars(series, axis)]
    if not axis.numeric:
        return [_bars(series, axis), energy_figure(study, series, axis, weak=weak), accuracy_figure(study, series, axis)]
    return [
        time_figure(series, axis, scalings, weak=weak, prediction=prediction),
        efficiency_figure(scalings, series[0].label if series else "", weak=weak)
        if axis.name == "ranks"
        else missing("efficiency", "Efficiency", f"This study varies {axis.label}, not ranks: there is no ideal to compare with."),
        energy_figure(study, series, axis, weak=weak),
        accuracy_figure(study, series, axis),
        *(prediction.figures() if prediction is not None else ()),
    ]


def _bars(series: Sequence[Series], axis: Axis) -> Figure:
    """Along an axis of names, such as loaders, bars instead of lines: of phases, or where none are known of the time."""
    cases = [(one, case) for one in series for case in one.cases]
    measure, words = main_time([case for _, case in cases]) or ("", "Time")
    title, caption = f"{words} by {axis.label}", f"{run_once([case for _, case in cases]) or 'Medians.'}{unknown_caption([case for _, case in cases], measure)}"
    if not measure:
        return missing("time", title, "No run has finished, so that there is no time to show.")
    if measure == "total_s":
        bars = [
            Bar(label=str(case.settings[axis.name]), group=one.label, parts=parts)
            for one, case in cases
            if (parts := phases_of({f"{name}_s": case.median(f"{name}_s") for name in (*PHASES, "total")}))
        ]
        return Figure(name="time", title=title, caption=caption, draw=lambda width: stacked_bars(bars, width, title), full=True)
    levels = [
        Level(label=str(case.settings[axis.name]), group=one.label, value=value, spread=case.spread(measure), words=words_of(case, axis))
        for one, case in cases
        if (value := case.median(measure)) is not None
    ]
    return Figure(name="time", title=title, caption=caption, draw=lambda width: level_bars(levels, width, "seconds", title), full=True)


def _run_figures(study: Study) -> list[Figure]:
    return [phases_figure(study.about), *history_figures(study.about)]


def _notes(analysis: Analysis, other: Study | None) -> list[str]:
    study = analysis.study
    if other is None:
        return _notes_of(study)
    apart = made_apart(study, other)
    notes = [f"Before and after were not made alike, which may be why they differ: {', '.join(apart)}."] if apart else []
    if analysis.is_emulated:
        notes.append(f"Ranks are emulated: their seconds are not compared with those of {other.name}.")
    return [*notes, *_notes_of(study), *(f"{other.name}: {note}" for note in _notes_of(other))]


def _notes_of(study: Study) -> list[str]:
    failed = [
        f"Failed: {result.reason or 'no reason is given'}" + (f" ({_log(result.run).relative_to(study.folder)})" if result.run else "")
        for result in study.failed
    ]
    return [*study.warnings, *failed, *_remarks(study), *(str(note) for note in study.about.get("notes") or [])]


def _remarks(study: Study) -> list[str]:
    """What meters remark, of those alike but for their numbers the first, and in how many runs."""
    sampled = [found for result in study.finished if result.run and (found := sampling_of(result.run))]
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
    """All that a case of a study has said, or else the log of a run."""
    return next((run / name for name in ("console.txt", "log.txt") if (run / name).exists()), run)
