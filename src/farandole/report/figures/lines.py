"""Lines over a numeric axis: medians with their spread, every repeat as a dot, names at the lines' ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.report.chart import (
    Frame,
    Scale,
    apart,
    even,
    inside,
    label_width,
    linear_ticks,
    log_ticks,
    svg,
    text_width,
    x_axis,
    y_axis,
)
from farandole.report.markup import Markup, join, tag
from farandole.results.numbers import plain

__all__ = ["WIDEST_LABEL", "Axes", "Line", "Mark", "line_chart", "marker", "stroke"]

WIDEST_LABEL = 0.3
"""Of a chart's width; beyond it names go into a legend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One case of a line."""

    x: float
    y: float
    spread: tuple[float, float] | None = None
    repeats: Sequence[float] = ()
    words: str = ""
    hollow: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line and how it looks: `kind` is a class with a colour, `style` solid, thin, dotted, unjoined (marks alone), or dashed, which has no marks."""

    label: str
    kind: str
    marks: Sequence[Mark]
    style: str = "solid"
    band: Sequence[tuple[float, float]] = ()
    """From where to where it may lie, for every mark."""


@dataclass(kw_only=True, slots=True)
class Axes:
    """What a chart of lines measures."""

    x_label: str
    y_label: str
    x_log: bool = True
    y_log: bool = True
    x_ticks: Sequence[float] = ()
    height: float = 320.0
    words: str = ""


def line_chart(lines: Sequence[Line], axes: Axes, width: float) -> Markup:
    labels = [line.label for line in lines if line.label]
    widest = max((label_width(label) for label in labels), default=0.0)
    direct = len(labels) > 1 and widest <= WIDEST_LABEL * width
    low, high = _range([value for line in lines for value in _values(line)], log=axes.y_log)
    y_ticks = log_ticks(low, high) if axes.y_log else inside(linear_ticks(low, high), low, high)
    y_text = plain if axes.y_log else even(y_ticks)
    left = 12 + max(text_width(y_text(tick)) for tick in y_ticks)
    frame = Frame(width=width, height=axes.height, left=left, right=12 + (widest + 8 if direct else 8))
    y = Scale(low=low, high=high, start=frame.y1, end=frame.top, log=axes.y_log)
    x, x_ticks = _x_scale(lines, axes, frame)
    entries = [(f"{line.kind} {line.style}", line.label) for line in lines if line.label]
    return svg(
        frame,
        y_axis(frame, y, y_ticks, y_text, axes.y_label),
        x_axis(frame, x, x_ticks, plain, axes.x_label),
        *(_line(line, x, y) for line in reversed(lines)),
        *([_end_labels(lines, x, y, frame)] if direct else ()),
        words=axes.words,
        legend=() if direct or len(entries) < 2 else entries,
    )


def _x_scale(lines: Sequence[Line], axes: Axes, frame: Frame) -> tuple[Scale, Sequence[float]]:
    values = [mark.x for line in lines for mark in line.marks]
    low, high = min(values), max(values)
    log = axes.x_log and low > 0
    ticks = axes.x_ticks or (log_ticks(low, high) if log and high > low else linear_ticks(low, high))
    pad = 14.0
    scale = Scale(low=low, high=high, start=frame.left + pad, end=frame.x1 - pad, log=log)
    return scale, [tick for tick in ticks if low <= tick <= high]


def _range(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return (low / 1.25, high * 1.15) if high > low * 1.05 else (low / 2, high * 2)
    pad = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    # No room for losses below 0 or accuracies above 1, which cannot be.
    return (max(0.0, low - pad) if low >= 0 else low - pad), (min(1.0, high + pad) if high <= 1 else high + pad)


def _values(line: Line) -> list[float]:
    return [
        value
        for mark in line.marks
        for value in (mark.y, *(mark.spread or ()), *mark.repeats)
    ] + [end for ends in line.band for end in ends]  # fmt: skip


def _line(line: Line, x: Scale, y: Scale) -> Markup:
    places = [(x(mark.x), y(mark.y)) for mark in line.marks]
    parts: list[str | None] = [_band(line, x, y) if line.band else None, stroke(places, line.style) if line.style != "unjoined" else None]
    if line.style == "dashed":
        return tag("g", *parts, class_=line.kind)
    for mark, (at, height) in zip(line.marks, places):
        if mark.spread is not None:
            parts.append(tag("line", x1=at, x2=at, y1=y(mark.spread[0]), y2=y(mark.spread[1]), class_="spread"))
        parts += [tag("circle", cx=at, cy=y(value), r=1.8, class_="repeat") for value in mark.repeats]
        parts.append(marker(at, height, mark.words, hollow=mark.hollow, small=line.style in ("thin", "unjoined")))
    return tag("g", *parts, class_=line.kind)


def _band(line: Line, x: Scale, y: Scale) -> Markup:
    low, high = ([(x(mark.x), y(ends[side])) for mark, ends in zip(line.marks, line.band)] for side in (0, 1))
    return tag("path", d="M" + "L".join(f"{at:.1f} {height:.1f}" for at, height in (*low, *reversed(high))) + "Z", class_="wash")


def stroke(places: Sequence[tuple[float, float]], style: str) -> Markup | None:
    """A line through them; None through a single one."""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return tag("path", d=path, class_=f"line {style}") if len(places) > 1 else None


def marker(x: float, y: float, words: str, *, hollow: bool = False, small: bool = False) -> Markup:
    """A dot that tells its figures when pointed at; hollow ones have a caveat."""
    return tag(
        "circle", tag("title", words) if words else None,
        cx=x, cy=y, r=2.8 if small else 4.5, class_="dot hollow" if hollow else "dot",
    )  # fmt: skip


def _end_labels(lines: Sequence[Line], x: Scale, y: Scale, frame: Frame) -> Markup:
    named = [line for line in lines if line.label and line.marks]
    heights = apart([y(line.marks[-1].y) for line in named], frame.top, frame.y1)
    return join(
        tag("text", line.label, x=frame.x1 + 4, y=height + 4, class_=f"label {line.kind}")
        for line, height in zip(named, heights)
    )
