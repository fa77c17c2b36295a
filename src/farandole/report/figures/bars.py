"""Bars: where the time went, of a configuration or rank, phase by phase; and values along an axis of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.report.chart import (
    Frame,
    Scale,
    inside,
    label_width,
    linear_ticks,
    svg,
    text_width,
    x_axis,
)
from farandole.report.markup import Markup, tag
from farandole.results.numbers import number, percent, plain, seconds
from farandole.results.schema import PHASES

__all__ = ["Bar", "Level", "level_bars", "phases_of", "stacked_bars"]

_THICK, _GAP, _HEAD = 20.0, 6.0, 24.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Seconds by phase; bars with the same `group` stand together below its name."""

    label: str
    parts: dict[str, float]
    group: str = ""
    note: str = ""
    """Said at its end, after the total."""

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())


def phases_of(figures: dict[str, float | None]) -> dict[str, float]:
    """Phases with their seconds, from figures such as `load_s`; what no phase has is `other`."""
    known = {name: seconds for name in PHASES if (seconds := figures.get(f"{name}_s")) is not None and seconds > 0}
    rest = (figures.get("total_s") or 0.0) - sum(known.values())
    return known | ({"other": rest} if rest > 0 else {})


def stacked_bars(bars: Sequence[Bar], width: float, words: str) -> Markup:
    left = 10 + max(text_width(bar.label) for bar in bars)
    ends = [f"{seconds(bar.total_s)}{f'  {bar.note}' if bar.note else ''}" for bar in bars]
    right = 10 + max(map(label_width, ends))
    groups = [bar.group for bar in bars]
    tops = _tops(groups)
    frame = Frame(width=width, height=tops[-1] + _THICK + _GAP + 44, left=left, right=right, top=0.0)
    longest = max(bar.total_s for bar in bars)
    x = Scale(low=0.0, high=longest, start=frame.left, end=frame.x1)
    ticks = [tick for tick in linear_ticks(0.0, longest, 5 if width > 500 else 3) if tick <= longest]
    shown = [name for name in PHASES if any(bar.parts.get(name, 0.0) > 0.002 * longest for bar in bars)]
    return svg(
        frame,
        *(tag("line", x1=x(tick), x2=x(tick), y1=tops[0], y2=frame.y1, class_="grid") for tick in ticks),
        *_heads(groups, tops),
        *(_bar(bar, top, x, end) for bar, top, end in zip(bars, tops, ends)),
        x_axis(frame, x, ticks, plain, "seconds"),
        words=words,
        legend=[(f"p-{name}", PHASES[name]) for name in shown],
    )


def _tops(groups: Sequence[str]) -> list[float]:
    tops, y, before = [], 4.0, ""
    for group in groups:
        if group != before:
            y, before = y + _HEAD, group
        tops.append(y)
        y += _THICK + _GAP
    return tops


def _heads(groups: Sequence[str], tops: Sequence[float]) -> list[str]:
    found: list[str] = []
    before = ""
    for group, top in zip(groups, tops):
        if group != before:
            before = group
            found.append(tag("text", group, x=0, y=top - 7, class_="head"))
    return found


def _bar(bar: Bar, top: float, x: Scale, end: str) -> Markup:
    drawn: list[str] = [tag("text", bar.label, x=x.start - 8, y=top + _THICK / 2 + 4, class_="tick end")]
    at = 0.0
    for name in PHASES:
        part_s = bar.parts.get(name, 0.0)
        if part_s <= 0:
            continue
        low, high = x(at), x(at + part_s)
        told = f"{bar.group + ', ' if bar.group else ''}{bar.label}\n{PHASES[name]}: {seconds(part_s)}, {percent(part_s / bar.total_s)}"
        gap = 1.0 if high - low > 2 else 0.0
        drawn.append(
            tag("rect", tag("title", told), x=low, y=top, width=max(0.4, high - low - gap), height=_THICK, class_=f"fill p-{name}")
        )
        text = seconds(part_s)
        if high - low > text_width(text) + 8:
            drawn.append(tag("text", text, x=(low + high) / 2, y=top + _THICK / 2 + 4, class_=f"in-bar mid p-{name}"))
        at += part_s
    drawn.append(tag("text", end, x=x(at) + 6, y=top + _THICK / 2 + 4, class_="label"))
    return tag("g", *drawn)


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A value that is no time, with the spread of its repeats; those with the same `group` stand together below its name."""

    label: str
    value: float
    spread: tuple[float, float] | None
    words: str
    group: str = ""
    kind: str = "s1"
    """Its colour."""

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the most that is drawn."""
        low, high = self.spread or (self.value, self.value)
        return min(0.0, low), max(0.0, high)


def level_bars(levels: Sequence[Level], width: float, label: str, words: str) -> Markup:
    left = 10 + max(text_width(level.label) for level in levels)
    right = 10 + max(label_width(number(level.value)) for level in levels)
    groups = [level.group for level in levels]
    tops = _tops(groups)
    frame = Frame(width=width, height=tops[-1] + _THICK + _GAP + 44, left=left, right=right, top=0.0)
    low, high = min(level.reach[0] for level in levels), max(level.reach[1] for level in levels)
    x = Scale(low=low, high=high if high > low else low + 1.0, start=frame.left, end=frame.x1)
    ticks = inside(linear_ticks(x.low, x.high, 5 if width > 500 else 3), x.low, x.high)
    return svg(
        frame,
        *(tag("line", x1=x(tick), x2=x(tick), y1=tops[0], y2=frame.y1, class_="grid") for tick in ticks),
        *_heads(groups, tops),
        *(_level(level, top, x) for level, top in zip(levels, tops)),
        x_axis(frame, x, ticks, plain, label),
        words=words,
    )


def _level(level: Level, top: float, x: Scale) -> Markup:
    start, end = sorted((x(0.0), x(level.value)))
    middle = top + _THICK / 2
    spread = level.spread
    return tag(
        "g",
        tag("text", level.label, x=x.start - 8, y=middle + 4, class_="tick end"),
        tag("rect", tag("title", level.words), x=start, y=top, width=max(0.4, end - start), height=_THICK, class_=f"fill {level.kind}"),
        tag("line", x1=x(spread[0]), x2=x(spread[1]), y1=middle, y2=middle, class_="spread ink") if spread else None,
        tag("text", number(level.value), x=x(level.reach[1]) + 6, y=middle + 4, class_="label"),
    )
