"""What is on the page of traces: steps, power over time and components, of one run or of two that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farandole.report.figures import Figure
from farandole.report.figures.heat import heat_figure
from farandole.report.figures.timeline import timeline_figure
from farandole.report.markup import Markup
from farandole.report.table import components_table, table_html
from farandole.report.traces import Trace
from farandole.results.cases import axis_of, cases_of, label_of, series_of
from farandole.results.reading import Study

__all__ = ["components_of", "traced_figures"]


def traced_figures(traces: Sequence[Trace], studies: Sequence[Study]) -> list[Figure]:
    """`studies` has for each trace the one that its run is of. Like figures of two runs follow each other."""
    heats, timelines = [], []
    for trace, other, study in zip(traces, reversed(traces), studies):
        trace.variant = _variant(trace, study)
        beside = None if other is trace else other
        heats.append(_of_side(heat_figure(trace, beside), trace))
        timelines.append(_of_side(timeline_figure(trace, _no_power(study), beside), trace))
    return [*heats, *timelines]


def components_of(traces: Sequence[Trace]) -> list[tuple[str, Markup]]:
    """A title and the table of all traces that have components; none where none has."""
    known = {trace.side.partition(",")[0]: trace for trace in traces if trace.components}
    if not known:
        return []
    of = " and ".join(f"{trace.of} {side}".strip() for side, trace in known.items())
    listed = {side: (trace.components, trace.result.measure("total_s") if trace.result else None) for side, trace in known.items()}
    return [(f"Components of the run{'s' if len(known) > 1 else ''} on {of}, as a profiler lists them", table_html(components_table(listed), "components"))]


def _of_side(figure: Figure, trace: Trace) -> Figure:
    return replace(figure, name=f"{figure.name}{trace.suffix}", title=f"{figure.title}: {trace.side}") if trace.side else figure


def _variant(trace: Trace, study: Study) -> str:
    """What tells the run that was traced from others on as many ranks."""
    cases = cases_of(study)
    axis = axis_of(study.kind, cases)
    for one in series_of(cases, axis):
        for case in one.cases:
            if any(result is trace.result for result in case.results):
                along = {} if axis.name == "ranks" or len(one.cases) < 2 else {axis.name: case.settings.get(axis.name)}
                return label_of({name: value for name, value in (along | one.settings).items() if name != "ranks"})
    return ""


def _no_power(study: Study) -> str:
    if any(result.measure("energy_j") is not None for result in study.finished):
        return "the timeline has no curve of it"
    return study.reason("energy_j") or "it was not sampled"
