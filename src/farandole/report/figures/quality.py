"""What speed costs: accuracy against ranks, and joules against seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from farandole.report.chart import (
    Frame,
    Scale,
    label_width,
    legend,
    log_ticks,
    svg,
    text_width,
    x_axis,
    y_axis,
)
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Level, level_bars
from farandole.report.figures.lines import WIDEST_LABEL, Axes, Line, Mark, line_chart, marker
from farandole.report.figures.scaling import MOST_SERIES, mark_of, repeats_caption, unknown_caption, words_of
from farandole.report.groups import Axis, Point, Series, metric_of, run_once
from farandole.report.markup import Markup, join, tag
from farandole.report.numbers import number, plain, prefix_for, quantity, seconds
from farandole.report.reading import Study

__all__ = ["accuracy_figure", "energy_figure", "quality_of"]

_MEASURES = (
    ("test_accuracy", "test {metric}"),
    ("accuracy", "training {metric}"),
    ("test_loss", "test loss"),
    ("loss", "training loss"),
)

_LEAST_R2 = -1.0
"""R2 has no least value: one model that is far worse than a mean would leave no height for all others."""


def quality_of(points: Sequence[Point]) -> tuple[str, str] | None:
    """The figure that says best how good the models are, and its name."""
    for figure, words in _MEASURES:
        if any(point.values(figure) for point in points):
            return figure, words.format(metric=metric_of(points))
    return None


def accuracy_figure(study: Study, series: Sequence[Series], axis: Axis) -> Figure:
    points = [point for one in series for point in one.points]
    found = quality_of(points)
    title = f"Accuracy against {axis.label}"
    if found is None:
        reason = study.reason("test_accuracy") or study.reason("accuracy")
        return missing("accuracy", title, f"No run has an accuracy or a loss{f': {reason}' if reason else ''}.")
    figure, words = found
    if not axis.numeric:
        return _bars(series, axis, figure, words)
    drawn = [one for one in series[:MOST_SERIES] if one.points]
    if max(len({_x(point, axis) for point in one.points}) for one in drawn) < 2:
        return missing("accuracy", title, f"A line needs runs with two values of {axis.label}; there is one.")
    least = _LEAST_R2 if figure.endswith("accuracy") and metric_of(points) == "r2" else -math.inf
    lines = [_line(one, axis, figure, f"s{number}", least) for number, one in enumerate(drawn, 1)]
    axes = Axes(
        x_label=axis.label, y_label=words, y_log=False, words=f"{words} against {axis.label}",
        x_ticks=sorted({mark.x for line in lines for mark in line.marks}), x_log=True,
    )  # fmt: skip
    caption = f"{words.capitalize()} at the end. {repeats_caption(points, figure)}" + (
        " Hollow: trained as that many ranks on fewer (emulated)." if any(map(_is_fewer, points)) else ""
    )
    if any(value < least for point in points for value in point.values(figure)):
        caption += f" What is below {plain(least)} is drawn there; a constant has 0."
    return Figure(
        name="accuracy", title=f"{words.capitalize()} against {axis.label}", caption=caption,
        draw=lambda width: line_chart([line for line in lines if line.marks], axes, width),
    )  # fmt: skip


def _bars(series: Sequence[Series], axis: Axis, figure: str, words: str) -> Figure:
    """Along an axis of names."""
    levels = [
        Level(
            label=str(point.settings[axis.name]), group=one.label, value=value, spread=point.spread(figure),
            words=words_of(point, axis),
        )
        for one in series
        for point in one.points
        if (value := point.median(figure)) is not None
    ]  # fmt: skip
    points = [point for one in series for point in one.points]
    title = f"{words.capitalize()} by {axis.label}"
    return Figure(
        name="accuracy", title=title,
        caption=f"{words.capitalize()} at the end. "
        + (run_once(points) or "Medians; lines span all repeats.")
        + unknown_caption(points, figure)
        + (" Trained as more ranks than there were (emulated)." if any(map(_is_fewer, points)) else ""),
        draw=lambda width: level_bars(levels, width, words, title),
    )  # fmt: skip


def _is_fewer(point: Point) -> bool:
    """Ranks that stand for more."""
    return point.trained_as != point.ranks


def _x(point: Point, axis: Axis) -> float:
    return float(point.trained_as if axis.name == "ranks" else point.settings[axis.name])


def _line(series: Series, axis: Axis, figure: str, kind: str, least: float) -> Line:
    marks = []
    for point in sorted(series.points, key=lambda point: _x(point, axis)):
        mark = mark_of(_x(point, axis), point, figure, axis)
        if mark is not None:
            marks.append(replace(_not_below(least, mark), hollow=_is_fewer(point)))
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
    drawn = [
        (one, kept)
        for one in series[:MOST_SERIES]
        if (kept := [point for point in one.points if point.median(figure) and point.median("total_s")])
    ]
    if not drawn:
        return missing("energy", title, f"No run knows its energy: {study.reason('energy_j') or 'power was not sampled'}.")
    kinds = {point.provenance for _, kept in drawn for point in kept}
    modelled = "modelled" in kinds
    caption = f"Better is down and to the left; labels are {axis.label if axis.name == 'ranks' else f'the {axis.label}'}. " + (
        "Modelled watts (TDP × utilisation) restate CPU time in other units: no measurement, and no evidence of a saving."
        if modelled
        else "Measured for whole nodes." if kinds == {"measured-node"} else "Measured for the parts of nodes that have meters."
    ) + unknown_caption([point for one, _ in drawn for point in one.points], figure)  # fmt: skip
    what = ("a sample" if weak else "") + (" (modelled)" if modelled else "")
    return Figure(
        name="energy", title=title + (" (modelled)" if modelled else ""), caption=caption,
        draw=lambda width: _energy(drawn, figure, axis, what.strip(), width),
    )  # fmt: skip


def _energy(
    drawn: Sequence[tuple[Series, Sequence[Point]]], figure: str, axis: Axis, what: str, width: float
) -> Markup:
    places = [(p.median("total_s") or 1.0, p.median(figure) or 1.0) for _, kept in drawn for p in kept]
    times, joules = [time for time, _ in places], [joule for _, joule in places]
    low, high = min(joules) / 1.3, max(joules) * 1.3
    ticks = log_ticks(low, high)
    factor, prefix = prefix_for(high)
    left = 12 + max(text_width(plain(tick / factor)) for tick in ticks)
    frame = Frame(width=width, height=320.0, left=left)
    y = Scale(low=low, high=high, start=frame.y1, end=frame.top, log=True)
    x = Scale(low=min(times) / 1.15, high=max(times) * 1.2, start=frame.left, end=frame.x1, log=True)
    short = all(label_width(series.label) <= WIDEST_LABEL * width for series, _ in drawn)
    direct = _labels(drawn, figure, axis, x, y, frame, named=True) if short else None
    drawing = svg(
        frame,
        y_axis(frame, y, ticks, lambda value: plain(value / factor), f"{prefix}J {what}".strip()),
        x_axis(frame, x, log_ticks(x.low, x.high, 5), plain, "seconds"),
        *(_path(kept, figure, axis, x, y, f"s{number}") for number, (_, kept) in enumerate(drawn, 1)),
        direct or _labels(drawn, figure, axis, x, y, frame, named=False),
        words="Energy against time",
    )
    return drawing if direct else join([legend([(f"s{at} thin", series.label) for at, (series, _) in enumerate(drawn, 1)]), drawing])


def _path(kept: Sequence[Point], figure: str, axis: Axis, x: Scale, y: Scale, kind: str) -> Markup:
    places = [(x(point.median("total_s") or 1.0), y(point.median(figure) or 1.0)) for point in kept]
    path = "M" + "L".join(f"{at:.1f} {height:.1f}" for at, height in places)
    dots = [
        marker(at, height, _words(point, figure, axis), hollow=point.provenance == "modelled")
        for point, (at, height) in zip(kept, places)
    ]
    line = tag("path", d=path, class_="line thin") if axis.numeric else None
    return tag("g", line, *dots, class_=kind)


def _words(point: Point, figure: str, axis: Axis) -> str:
    watts, runs = point.median("power_w"), point.partly(figure)
    joules = f"{quantity(point.median(figure), 'J')}{' a sample' if 'sample' in figure else ''}{f' ({runs} runs)' if runs else ''}"
    return "\n".join(
        [
            f"{axis.label} {point.settings.get(axis.name)}",
            f"{joules} in {seconds(point.median('total_s'))}",
            *([] if watts is None else [f"{number(watts)} W on average"]),
            f"power {point.provenance.replace('-', ' ')}",
        ]
    )


def _labels(
    drawn: Sequence[tuple[Series, Sequence[Point]]], figure: str, axis: Axis, x: Scale, y: Scale, frame: Frame, *, named: bool
) -> Markup | None:
    """Beside the points and off the lines if there is room; left out where they would lie on another label or point.

    The first of a series has its name where these are to be `named`; None where there is no room for one.
    """
    paths = [[(x(p.median("total_s") or 1.0), y(p.median(figure) or 1.0)) for p in kept] for _, kept in drawn]
    boxes = [(at - 5, height - 5, at + 5, height + 5) for path in paths for at, height in path]
    lines = [box for path in paths for first, second in pairwise(path) for box in _along(first, second)]
    parts: list[str] = []
    for place_in_order, (series, kept) in enumerate(drawn, 1):
        for at, point in enumerate(kept):
            name = f" · {series.label}" if series.label and named and at == 0 else ""
            text = f"{point.settings.get(axis.name)}{name}"
            place = x(point.median("total_s") or 1.0), y(point.median(figure) or 1.0)
            box = _free(place, text, [*boxes, *lines], frame) or _free(place, text, boxes, frame)
            if box is None and name:
                return None
            if box is not None:
                boxes.append(box)
                parts.append(tag("text", text, x=box[0], y=box[3] - 3, class_=f"label s{place_in_order}"))
    return tag("g", *parts)


def _along(first: tuple[float, float], second: tuple[float, float]) -> list[tuple[float, float, float, float]]:
    """Small boxes that a line runs through."""
    steps = max(1, round(math.dist(first, second) / 4))
    places = [tuple(a + (b - a) * step / steps for a, b in zip(first, second)) for step in range(steps + 1)]
    return [(at - 1, height - 1, at + 1, height + 1) for at, height in places]


def _free(
    place: tuple[float, float], text: str, boxes: Sequence[tuple[float, float, float, float]], frame: Frame
) -> tuple[float, float, float, float] | None:
    width, (x, y) = label_width(text), place
    for left, top in ((x + 8, y - 16), (x + 8, y + 2), (x - 8 - width, y - 16), (x - 8 - width, y + 2)):
        box = (left, top, left + width, top + 15)
        inside = frame.left <= left and box[2] <= frame.width and frame.top - 8 <= top and box[3] <= frame.y1
        if inside and not any(_touch(box, other) for other in boxes):
            return box
    return None


def _touch(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
