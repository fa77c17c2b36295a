"""What is on the page of traces: steps, power over time and components, of one run or of two that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farandole.report.figures import Figure
from farandole.report.figures.heat import heat_figure
from farandole.report.figures.timeline import timeline_figure
from farandole.report.groups import axis_of, label_of, points_of, series_of
from farandole.report.markup import Markup
from farandole.report.reading import Study
from farandole.report.table import components_table
from farandole.report.traces import Trace

__all__ = ["components_of", "traced_figures"]


def traced_figures(traces: Sequence[Trace], studies: Sequence[Study]) -> list[Figure]:
    """`studies` has for each trace the one that its run is of. Like figures of two runs follow each other."""
    heats, timelines = [], []
    for trace, other, study in zip(traces, reversed(traces), studies):
        trace.variant = _variant(trace, study)
        beside = None if other is trace else other
        heats.append(_of_side(heat_figure(trace), trace))
        timelines.append(_of_side(timeline_figure(trace, _no_power(study), beside), trace))
    return [*heats, *timelines]


def components_of(traces: Sequence[Trace]) -> list[tuple[str, Markup]]:
    """A title and the table of all traces that have components; none where none has."""
    known = {trace.side.partition(",")[0]: trace for trace in traces if trace.components}
    if not known:
        return []
    of = " and ".join(f"{trace.of} {side}".strip() for side, trace in known.items())
    listed = {side: (trace.components, trace.attempt.figure("total_s") if trace.attempt else None) for side, trace in known.items()}
    return [(f"Components of the run{'s' if len(known) > 1 else ''} on {of}, as a profiler lists them", components_table(listed))]


def _of_side(figure: Figure, trace: Trace) -> Figure:
    return replace(figure, name=f"{figure.name}{trace.suffix}", title=f"{figure.title}: {trace.side}") if trace.side else figure


def _variant(trace: Trace, study: Study) -> str:
    """What tells the run that was traced from others on as many ranks."""
    points = points_of(study)
    axis = axis_of(study.kind, points)
    for one in series_of(points, axis):
        for point in one.points:
            if any(attempt is trace.attempt for attempt in point.attempts):
                along = {} if axis.name == "ranks" or len(one.points) < 2 else {axis.name: point.settings.get(axis.name)}
                return label_of({name: value for name, value in (along | one.settings).items() if name != "ranks"})
    return ""


def _no_power(study: Study) -> str:
    if any(attempt.figure("energy_j") is not None for attempt in study.finished):
        return "the timeline has no curve of it"
    return study.reason("energy_j") or "it was not sampled"
