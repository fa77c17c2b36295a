"""Every step of every rank: who is late, and when.

Ranks that exchange gradients end their steps together, so that the wait for stragglers is taken off: what is left is a
rank's own. Colours begin at the median of the run, on a scale that a few slow cells do not stretch. Two runs that are
compared share one scale.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.report.chart import Frame, Scale, svg, text_width, thinned
from farandole.report.figures import Figure, missing
from farandole.report.markup import Markup, tag
from farandole.report.raster import cells, levels_of
from farandole.report.traces import Trace
from farandole.results.numbers import count, plain, quantity

__all__ = ["heat_figure"]

LEVELS = 9
_MOST_ROWS = 64
_LEAST_SHOWN, _DEVIATIONS = 0.25, 6.0
_MOST_APART = 2.0
"""Compared runs of which one has steps more than so many times as long are drawn each against its own median."""
_TITLE = "Steps of every rank"

Entries = Sequence[tuple[float | None, int]]
"""Seconds of a step, or the mean of several, and of how many."""
Steps = Sequence[tuple[int, Entries]]
"""By rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shades:
    """The seconds of a step from which on cells are darker, and from which on they are darkest."""

    low_s: float
    high_s: float
    words: tuple[str, str]


def heat_figure(trace: Trace, beside: Trace | None = None) -> Figure:
    """`beside` is of the run that this one is compared with."""
    steps, other = _steps(trace), _steps(beside or Trace())
    if not steps:
        reason = trace.reason or f"The trace of the run on {trace.of} has no steps."
        return missing("heat", _TITLE, reason, full=True)
    together = math.ceil(len(steps) / _MOST_ROWS)
    apart = any(any(rank.get("step_wait_s") or ()) for rank in trace.ranks)
    what = "the rank's own time in a step, without its wait for slower ranks," if apart else "the time of a step"
    caption = (
        f"The run on {trace.of}, {count(_longest(steps), 'step')}"
        + (" (condensed: some as means of several)" if trace.condensed else "")
        + ". A row is a rank"
        + (f" (the slowest of {together} neighbours)" if together > 1 else "")
        + f"; its colour is {what} against the median of all, {quantity(_middle(steps), 's')}."
        + _scale_caption(steps, other)
        + " A row that stands out is a rank that is late throughout; such a column is a step that is slow on all ranks."
    )
    return Figure(name="heat", title=_TITLE, caption=caption, draw=lambda width: _heat(steps, other, width), full=True)


def _steps(trace: Trace) -> Steps:
    """Of every rank that has any."""
    return [(int(rank["rank"]), _own(rank)) for rank in trace.ranks if rank.get("steps")]


def _alike(steps: Steps, other: Steps) -> bool:
    """Whether one scale of seconds can show both."""
    low, high = sorted([_middle(steps), _middle(other)])
    return 0 < high <= _MOST_APART * low


def _scale_caption(steps: Steps, other: Steps) -> str:
    if not other:
        return ""
    if _alike(steps, other):
        return " On one scale of seconds with the other run: colours compare."
    return f" On one scale of ratios with the other run, whose median is {quantity(_middle(other), 's')}."


def _own(rank: Mapping[str, Any]) -> Entries:
    """The rank's steps without what it waited for others."""
    steps = [_known(step) for step in rank["steps"]]
    waits = [_known(wait) or 0.0 for wait in rank.get("step_wait_s") or ()]
    waits += [0.0] * (len(steps) - len(waits))
    own = [None if step is None else max(step - wait, 0.0) for step, wait in zip(steps, waits)]
    return list(zip(own, rank.get("step_counts") or [1] * len(own)))


def _longest(steps: Steps) -> int:
    return max(sum(each for _, each in found) for _, found in steps)


def _middle(steps: Steps) -> float:
    return statistics.median([value for _, found in steps for value, _ in found if value is not None] or [0.0])


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _rows(steps: Steps, columns: int) -> tuple[list[int], list[list[float | None]], int]:
    """Ranks and steps put together so that they fit; the first rank of each row, and the steps of a column."""
    together = math.ceil(len(steps) / _MOST_ROWS)
    each = math.ceil(_longest(steps) / columns)
    means = [(rank, _means(found, each)) for rank, found in steps]
    rows = []
    for start in range(0, len(means), together):
        group = [found for _, found in means[start : start + together]]
        rows.append([_most([found[at] for found in group if at < len(found)]) for at in range(max(map(len, group)))])
    return [means[start][0] for start in range(0, len(means), together)], rows, each


def _means(entries: Entries, each: int) -> list[float | None]:
    """Of every `each` steps; an entry of several counts in all columns that it reaches into."""
    sums: list[float] = []
    known: list[int] = []
    room = 0
    for value, steps in entries:
        while steps:
            if not room:
                room = each
                sums.append(0.0)
                known.append(0)
            taken = min(steps, room)
            room, steps = room - taken, steps - taken
            if value is not None:
                sums[-1] += taken * value
                known[-1] += taken
    return [total / seen if seen else None for total, seen in zip(sums, known)]


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _heat(steps: Steps, other: Steps, width: float) -> Markup:
    left = 16 + max(text_width(f"rank {found[-1][0]}") for found in (steps, other) if found)
    columns = int((width - left - 14) // 4)
    ranks, rows, each = _rows(steps, columns)
    shades = _shades(steps, other, columns)
    tall = max(4.0, min(18.0, 260.0 / len(rows)))
    frame = Frame(width=width, height=tall * len(rows) + 28 + 44, left=left, right=14.0, top=28.0)
    across = frame.x1 - frame.left
    used = max(map(len, rows))
    drawn = cells(
        levels_of(rows, low=shades.low_s, high=shades.high_s, count=LEVELS), x=frame.left, y=frame.top, width=across, height=tall
    )
    return svg(
        frame,
        _scale(frame, shades),
        drawn,
        _rank_labels(ranks, frame, tall),
        _step_labels(frame, used * each),
        words="Each step of each rank against the median of all",
        data_heat=f"{frame.left:g} {frame.top:g} {across:g} {tall:g} {each} {_middle(steps):.6g}",
        data_ranks=" ".join(map(str, ranks)),
        data_rows=";".join(" ".join("" if value is None else f"{value:.3g}" for value in row) for row in rows),
    )


def _shades(steps: Steps, other: Steps, columns: int) -> _Shades:
    """The same for both of two runs: of seconds if these are alike, else of ratios to their medians."""
    both = [(_middle(found), _most_shown(_rows(found, columns)[1], _middle(found))) for found in (steps, other) if found]
    if _alike(steps, other):
        low, high = min(middle for middle, _ in both), max(middle * most for middle, most in both)
        return _Shades(low_s=low, high_s=high, words=(f"{quantity(low, 's')} or less", f"{quantity(high, 's')} and more"))
    middle, most = _middle(steps), max(most for _, most in both)
    return _Shades(low_s=middle, high_s=middle * most, words=("median or less", f"{most:.2f}× and more"))


def _most_shown(rows: Sequence[Sequence[float | None]], middle: float) -> float:
    """The ratio to the median from which on cells are darkest: beyond what most cells vary by, but no less than a quarter.

    Half of the cells lie within one deviation, so that neither a slow rank nor a first step that compiles stretches it.
    """
    apart = [abs(value - middle) for row in rows for value in row if value is not None]
    return 1 + max(_LEAST_SHOWN, _DEVIATIONS * statistics.median(apart) / middle) if apart and middle else 1 + _LEAST_SHOWN


def _scale(frame: Frame, shades: _Shades) -> Markup:
    """The colours from the median to slow, above to the right."""
    before, after = shades.words
    start = frame.x1 - text_width(after) - 6 - LEVELS * 14
    boxes = [tag("rect", x=start + at * 14, y=4, width=14, height=11, class_=f"fill h{at}") for at in range(LEVELS)]
    return tag(
        "g",
        tag("text", before, x=start - 6, y=14, class_="tick end"),
        *boxes,
        tag("text", after, x=start + LEVELS * 14 + 6, y=14, class_="tick"),
    )


def _rank_labels(ranks: Sequence[int], frame: Frame, tall: float) -> Markup:
    every = math.ceil(16 / tall)
    shown = range(0, len(ranks), every)
    return tag(
        "g",
        *(
            tag("text", f"rank {ranks[at]}", x=frame.left - 8, y=frame.top + (at + 0.5) * tall + 4, class_="tick end")
            for at in shown
        ),
    )


def _step_labels(frame: Frame, steps: int) -> Markup:
    scale = Scale(low=0.0, high=float(steps), start=frame.left, end=frame.x1)
    size = next(one for power in range(9) for one in (10**power, 2 * 10**power, 5 * 10**power) if steps / one <= 10)
    ticks = [float(at) for at in range(0, steps + 1, size)]
    return tag(
        "g",
        *(tag("text", plain(tick), x=scale(tick), y=frame.y1 + 17, class_="tick mid") for tick in thinned(ticks, scale, plain)),
        tag("text", "step", x=(frame.left + frame.x1) / 2, y=frame.y1 + 35, class_="axis-name mid"),
    )
