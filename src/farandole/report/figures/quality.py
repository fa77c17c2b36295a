"""What speed costs: accuracy against ranks, and joules against seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from farandole.report.chart import (
    Frame,
    Scale,
    label_width,
    log_ticks,
    svg,
    text_width,
    x_axis,
    y_axis,
)
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Level, level_bars
from farandole.report.figures.lines import WIDEST_LABEL, Axes, Line, Mark, line_chart, marker, stroke
from farandole.report.figures.scaling import (
    MOST_SERIES,
    joined,
    mark_of,
    repeats_caption,
    unknown_caption,
    words_of,
)
from farandole.report.markup import Markup, tag
from farandole.results.cases import Axis, Case, Series, judged_on, metric_of, quality_of, run_once
from farandole.results.numbers import number, plain, prefix_for, quantity, seconds
from farandole.results.reading import Study

__all__ = ["accuracy_figure", "energy_figure"]

_LEAST_R2 = -1.0
"""R2 has no least value: one model that is far worse than a mean would leave no height for all others."""


Place = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

_NO_MATTER_OF_TIME = frozenset({"rate", "learning_rate"})
"""Settings by which time and energy differ as they do from run to run: a line in their order would show noise."""


def accuracy_figure(study: Study, series: Sequence[Series], axis: Axis) -> Figure:
    cases = [case for one in series for case in one.cases]
    found = quality_of(cases)
    title = f"Accuracy against {axis.label}"
    if found is None:
        reason = study.reason("test_accuracy") or study.reason("accuracy")
        return missing("accuracy", title, f"No run has an accuracy or a loss{f': {reason}' if reason else ''}.")
    figure, words = found
    if not axis.numeric:
        return _bars(series, axis, figure, words)
    drawn = [one for one in series[:MOST_SERIES] if one.cases]
    if max(len({_x(case, axis) for case in one.cases}) for one in drawn) < 2:
        return missing("accuracy", title, f"A line needs runs with two values of {axis.label}; there is one.")
    least = _LEAST_R2 if figure.endswith("accuracy") and metric_of(cases) == "r2" else -math.inf
    lines = [_line(part, axis, figure, f"s{number}", least) for number, one in enumerate(drawn, 1) for part in joined(one, axis)]
    axes = Axes(
        x_label=axis.label, y_label=words, y_log=False, words=f"{words} against {axis.label}",
        x_ticks=sorted({mark.x for line in lines for mark in line.marks}), x_log=True,
    )  # fmt: skip
    caption = f"{words.capitalize()} at the end{_judged_on(cases)}. {repeats_caption(cases, figure)}" + (
        " Hollow: trained as that many ranks on fewer (emulated)." if any(map(_is_fewer, cases)) else ""
    )
    if any(value < least for case in cases for value in case.values(figure)):
        caption += f" What is below {plain(least)} is drawn there; a constant has 0."
    return Figure(
        name="accuracy", title=f"{words.capitalize()} against {axis.label}", caption=caption,
        draw=lambda width: line_chart([line for line in lines if line.marks], axes, width),
    )  # fmt: skip


def _bars(series: Sequence[Series], axis: Axis, figure: str, words: str) -> Figure:
    """Along an axis of names."""
    levels = [
        Level(
            label=str(case.settings[axis.name]), group=one.label, value=value, spread=case.spread(figure),
            words=words_of(case, axis),
        )
        for one in series
        for case in one.cases
        if (value := case.median(figure)) is not None
    ]  # fmt: skip
    cases = [case for one in series for case in one.cases]
    title = f"{words.capitalize()} by {axis.label}"
    return Figure(
        name="accuracy", title=title,
        caption=f"{words.capitalize()} at the end{_judged_on(cases)}. "
        + (run_once(cases) or "Medians; lines span all repeats.")
        + unknown_caption(cases, figure)
        + (" Trained as more ranks than there were (emulated)." if any(map(_is_fewer, cases)) else ""),
        draw=lambda width: level_bars(levels, width, words, title),
    )  # fmt: skip


def _judged_on(cases: Sequence[Case]) -> str:
    return "".join(f"; {words}" for words in judged_on(cases, ""))


def _is_fewer(case: Case) -> bool:
    """Ranks that stand for more."""
    return case.trained_as != case.ranks


def _x(case: Case, axis: Axis) -> float:
    return float(case.trained_as if axis.name == "ranks" else case.settings[axis.name])


def _line(series: Series, axis: Axis, figure: str, kind: str, least: float) -> Line:
    marks = []
    for case in sorted(series.cases, key=lambda case: _x(case, axis)):
        mark = mark_of(_x(case, axis), case, figure, axis)
        if mark is not None:
            marks.append(replace(_not_below(least, mark), hollow=_is_fewer(case)))
    return Line(label=series.label, kind=kind, marks=marks)


def _not_below(least: float, mark: Mark) -> Mark:
    return replace(
        mark,
        y=max(mark.y, least),
        spread=mark.spread and (max(mark.spread[0], least), max(mark.spread[1], least)),
        repeats=[max(value, least) for value in mark.repeats],
    )


def energy_figure(study: Study, series: Sequence[Series], axis: Axis, *, weak: bool) -> Figure:
    title = "Energy against time"
    figure = "energy_per_sample_j" if weak else "energy_j"
    shown = series[:MOST_SERIES]
    known = [replace(one, cases=[case for case in one.cases if case.median(figure) and case.median("total_s")]) for one in shown]
    drawn = [one for one in known if one.cases]
    if not drawn:
        return missing("energy", title, f"No run knows its energy: {study.reason('energy_j') or 'power was not sampled'}.")
    kinds = {case.provenance for one in drawn for case in one.cases}
    modelled = "modelled" in kinds
    caption = f"Better is down and to the left; labels are {axis.label if axis.name == 'ranks' else f'the {axis.label}'}. " + (
        "Modelled watts (TDP × utilisation) restate CPU time in other units: no measurement, and no evidence of a saving."
        if modelled
        else "Measured for whole nodes." if kinds == {"measured-node"} else "Measured for the parts of nodes that have meters."
    ) + unknown_caption([case for one in shown for case in one.cases], figure)  # fmt: skip
    what = ("a sample" if weak else "") + (" (modelled)" if modelled else "")
    return Figure(
        name="energy", title=title + (" (modelled)" if modelled else ""), caption=caption,
        draw=lambda width: _energy(drawn, figure, axis, what.strip(), width),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plane:
    """Joules against seconds, and where configurations are on it."""

    figure: str
    axis: Axis
    frame: Frame
    x: Scale
    y: Scale

    def place(self, case: Case) -> Place:
        return self.x(case.median("total_s") or 1.0), self.y(case.median(self.figure) or 1.0)

    def lines(self, series: Series) -> list[list[Place]]:
        """Through cases that have an order."""
        ordered = self.axis.numeric and self.axis.name not in _NO_MATTER_OF_TIME
        return [[self.place(case) for case in part.cases] for part in joined(series, self.axis)] if ordered else []


def _energy(drawn: Sequence[Series], figure: str, axis: Axis, what: str, width: float) -> Markup:
    cases = [case for one in drawn for case in one.cases]
    times, joules = ([case.median(name) or 1.0 for case in cases] for name in ("total_s", figure))
    low, high = min(joules) / 1.3, max(joules) * 1.3
    ticks = log_ticks(low, high)
    factor, prefix = prefix_for(high)
    frame = Frame(width=width, height=320.0, left=12 + max(text_width(plain(tick / factor)) for tick in ticks))
    y = Scale(low=low, high=high, start=frame.y1, end=frame.top, log=True)
    x = Scale(low=min(times) / 1.15, high=max(times) * 1.2, start=frame.left, end=frame.x1, log=True)
    plane = _Plane(figure=figure, axis=axis, frame=frame, x=x, y=y)
    short = all(label_width(series.label) <= WIDEST_LABEL * width for series in drawn)
    direct = _labels(plane, drawn, named=True) if short else None
    return svg(
        frame,
        y_axis(frame, y, ticks, lambda value: plain(value / factor), f"{prefix}J {what}".strip()),
        x_axis(frame, x, log_ticks(x.low, x.high, 5), plain, "seconds"),
        *(_path(plane, series, f"s{number}") for number, series in enumerate(drawn, 1)),
        direct or _labels(plane, drawn, named=False),
        words="Energy against time",
        legend=() if direct else [(f"s{at} thin", series.label) for at, series in enumerate(drawn, 1)],
    )


def _path(plane: _Plane, series: Series, kind: str) -> Markup:
    dots = [
        marker(*plane.place(case), _words(case, plane.figure, plane.axis), hollow=case.provenance == "modelled")
        for case in series.cases
    ]
    return tag("g", *(stroke(places, "thin") for places in plane.lines(series)), *dots, class_=kind)


def _words(case: Case, figure: str, axis: Axis) -> str:
    watts, runs = case.median("power_w"), case.partly(figure)
    joules = f"{quantity(case.median(figure), 'J')}{' a sample' if 'sample' in figure else ''}{f' ({runs} runs)' if runs else ''}"
    return "\n".join(
        [
            f"{axis.label} {case.settings.get(axis.name)}",
            f"{joules} in {seconds(case.median('total_s'))}",
            *([] if watts is None else [f"{number(watts)} W on average"]),
            f"power {case.provenance.replace('-', ' ')}",
        ]
    )


def _labels(plane: _Plane, drawn: Sequence[Series], *, named: bool) -> Markup | None:
    """Beside the cases and off the lines if there is room; left out where they would lie on another label or case.

    The first of a series has its name where these are to be `named`; None where there is no room for one.
    """
    boxes = [(x - 5, y - 5, x + 5, y + 5) for series in drawn for x, y in map(plane.place, series.cases)]
    lines = [box for series in drawn for places in plane.lines(series) for ends in pairwise(places) for box in _along(*ends)]
    parts: list[str] = []
    for order, series in enumerate(drawn, 1):
        for at, case in enumerate(series.cases):
            name = f" · {series.label}" if series.label and named and at == 0 else ""
            text = f"{case.settings.get(plane.axis.name)}{name}"
            box = _free(plane, case, text, [*boxes, *lines]) or _free(plane, case, text, boxes)
            if box is None and name:
                return None
            if box is not None:
                boxes.append(box)
                parts.append(tag("text", text, x=box[0], y=box[3] - 3, class_=f"label s{order}"))
    return tag("g", *parts)


def _along(first: Place, second: Place) -> list[Box]:
    """Small boxes that a line runs through."""
    steps = max(1, round(math.dist(first, second) / 4))
    places = [tuple(a + (b - a) * step / steps for a, b in zip(first, second)) for step in range(steps + 1)]
    return [(at - 1, height - 1, at + 1, height + 1) for at, height in places]


def _free(plane: _Plane, case: Case, text: str, boxes: Sequence[Box]) -> Box | None:
    """Room for a label beside, below or above a case."""
    width, frame, (x, y) = label_width(text), plane.frame, plane.place(case)
    right, left, middle = x + 8, x - 8 - width, x - width / 2
    for start, top in ((right, y - 16), (right, y + 2), (left, y - 16), (left, y + 2), (middle, y + 7), (middle, y - 22), (right, y - 7), (left, y - 7)):
        box = (start, top, start + width, top + 15)
        inside = frame.left <= start and box[2] <= frame.width and frame.top - 8 <= top and box[3] <= frame.y1
        if inside and not any(_touch(box, other) for other in boxes):
            return box
    return None


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
