"""A small layer for charts in SVG: scales, ticks, axes, marks, and labels that keep out of each other's way.

Colours, fonts and line widths are classes; page.css has them for light, dark and print. Lengths are CSS pixels.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farandole.report.markup import Markup, join, tag

__all__ = [
    "TEXT_PX",
    "Frame",
    "Scale",
    "apart",
    "even",
    "inside",
    "label_width",
    "linear_ticks",
    "log_ticks",
    "svg",
    "text_width",
    "thinned",
    "x_axis",
    "y_axis",
]

TEXT_PX = 12.0
_LINE_PX = 15.0
_ROW_PX, _KEY_PX = 20.0, 18.0
"""Of a legend: the height of a row, and the room for a colour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The size of a chart and the room its axes take of it."""

    width: float
    height: float
    left: float = 48.0
    right: float = 16.0
    top: float = 28.0
    bottom: float = 44.0

    @property
    def x1(self) -> float:
        return self.width - self.right

    @property
    def y1(self) -> float:
        return self.height - self.bottom


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(one) for one in (self.low, self.high, value)) if self.log else (
            self.low, self.high, value)  # fmt: skip
        return self.start + (self.end - self.start) * ((value - low) / (high - low) if high != low else 0.5)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from at most `low` to at least `high`."""
    step = _nice((high - low) / max(1, about) or abs(high) or 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [_clean(index * step) for index in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Of 1, 2, 5 times powers of ten, those from `low` to `high`; fewer or more of them where these are too many or too few."""
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = _multiples(factors, low, high)
        if len(ticks) <= about + 2:
            break
    if len(ticks) > 3:
        return ticks
    # Two or three would not show that the axis is logarithmic.
    more = [ticks, _multiples((1, 1.5, 2, 3, 4, 6, 8), low, high), *(inside(linear_ticks(low, high, few), low, high) for few in (4, 6))]
    return max((found for found in more if len(found) <= about + 2), key=len)


def _multiples(factors: Sequence[float], low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found = [_clean(factor * 10.0**power) for power in powers for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def even(ticks: Sequence[float]) -> Callable[[float], str]:
    """Ticks with as many decimals as the one that needs most."""
    most = max(len(f"{tick:.10g}".partition(".")[2]) for tick in ticks)
    return lambda tick: f"{tick:,.{most}f}"


def inside(ticks: Sequence[float], low: float, high: float) -> list[float]:
    return [tick for tick in ticks if low - 1e-9 <= tick <= high + 1e-9]


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _clean(value: float) -> float:
    return float(f"{value:.10g}")


_WIDTHS = {**dict.fromkeys("iljI.,:;'|![]() \u202f", 0.36), **dict.fromkeys("mwMW%@", 0.95), **dict.fromkeys("frt-–", 0.42)}


def text_width(text: str, size: float = TEXT_PX) -> float:
    """An upper estimate: of the fonts that page.css names, by the widest."""
    return size * sum(_WIDTHS.get(letter, 0.7 if letter.isupper() else 0.62) for letter in text)


def label_width(text: str) -> float:
    """Of labels, which are bold."""
    return text_width(text, 1.13 * TEXT_PX)


def thinned(ticks: Sequence[float], scale: Scale, text: Callable[[float], str]) -> list[float]:
    """Those ticks whose labels do not touch, the last one first: ends matter most."""
    kept: list[float] = []
    free = math.inf
    for tick in sorted(ticks, reverse=True):
        half = text_width(text(tick)) / 2
        if scale(tick) + half + 6 <= free:
            kept.append(tick)
            free = scale(tick) - half
    return kept[::-1]


def apart(wanted: Sequence[float], low: float, high: float, gap: float = _LINE_PX) -> list[float]:
    """Positions near the wanted ones, in their order, at least `gap` apart and within bounds where they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed: list[float] = []
    for index in order:
        placed.append(max(wanted[index], placed[-1] + gap if placed else low))
    limit = high
    for at in range(len(placed) - 1, -1, -1):
        placed[at] = min(placed[at], limit)
        limit = placed[at] - gap
    found = [0.0] * len(wanted)
    for position, index in zip(placed, order):
        found[index] = position
    return found


def y_axis(
    frame: Frame, scale: Scale, ticks: Sequence[float], text: Callable[[float], str], label: str
) -> Markup:
    """Grid lines with their values to the left, and what they are above."""
    parts: list[str] = [tag("text", _named(label, scale), x=0, y=12, class_="axis-name")]
    for tick in ticks:
        y = scale(tick)
        parts.append(tag("line", x1=frame.left, x2=frame.x1, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", text(tick), x=frame.left - 8, y=y + 4, class_="tick end"))
    return join(parts)


def x_axis(
    frame: Frame, scale: Scale, ticks: Sequence[float], text: Callable[[float], str], label: str
) -> Markup:
    """The base line with its values below, and what they are below these."""
    parts: list[str] = [tag("line", x1=frame.left, x2=frame.x1, y1=frame.y1, y2=frame.y1, class_="base")]
    shown = set(thinned(ticks, scale, text))
    for tick in ticks:
        x = scale(tick)
        parts.append(tag("line", x1=x, x2=x, y1=frame.y1, y2=frame.y1 + 5, class_="base"))
        if tick in shown:
            parts.append(tag("text", text(tick), x=x, y=frame.y1 + 19, class_="tick mid"))
    middle = (frame.left + frame.x1) / 2
    parts.append(tag("text", _named(label, scale), x=middle, y=frame.y1 + 37, class_="axis-name mid"))
    return join(parts)


def _named(label: str, scale: Scale) -> str:
    return f"{label}, log scale" if scale.log else label


def svg(frame: Frame, *parts: str | None, words: str, legend: Sequence[tuple[str, str]] = (), **attributes: str) -> Markup:
    """The chart, as wide as its place, at most a little more than drawn for. Above it colours (classes) with their words."""
    entries = _placed(legend, frame.width)
    above = 6 + _ROW_PX * max(entry.row + len(entry.lines) for entry in entries) if entries else 0
    return tag(
        "svg", *(_drawn(entry, entry.row * _ROW_PX - above) for entry in entries), *parts,
        viewBox=f"0 {-above:g} {frame.width:g} {frame.height + above:g}", width=frame.width, height=frame.height + above,
        role="img", aria_label=words, **attributes,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """Of a legend: words, in lines, after a line of that class or a square."""

    kind: str
    lines: Sequence[str]
    x: float
    row: int


def _placed(legend: Sequence[tuple[str, str]], width: float) -> list[_Entry]:
    """As many beside each other as there is room for."""
    entries: list[_Entry] = []
    x, row, free = 0.0, 0, 0
    for kind, text in legend:
        lines = textwrap.wrap(text, int((width - _KEY_PX) / (0.62 * TEXT_PX)), break_on_hyphens=False) or [text]
        needed = _KEY_PX + max(map(text_width, lines))
        if x + needed > width:
            x, row = 0.0, free
        entries.append(_Entry(kind=kind, lines=lines, x=x, row=row))
        x, free = x + needed + 14, max(free, row + len(lines))
    return entries


def _drawn(entry: _Entry, top: float) -> Markup:
    colour, _, style = entry.kind.partition(" ")
    middle = top + _ROW_PX / 2
    line = tag("path", d=f"M{entry.x:g} {middle:g}h12", class_=f"line {style}")
    key = line if style else tag("rect", x=entry.x, y=middle - 6, width=12, height=12, rx=2, class_="swatch")
    lines = (tag("text", text, x=entry.x + _KEY_PX, y=middle + 4 + at * _ROW_PX, class_="entry") for at, text in enumerate(entry.lines))
    return tag("g", key, *lines, class_=colour)
