"""Every step of every rank: who is late, and when."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from farandole.report.chart import Frame, Scale, svg, text_width, thinned
from farandole.report.figures import Figure, missing
from farandole.report.markup import Markup, tag
from farandole.report.numbers import count, plain, quantity
from farandole.report.raster import binned, cells, levels_of
from farandole.report.traces import Trace

__all__ = ["heat_figure"]

LEVELS = 9
_MOST_ROWS = 64
_TITLE = "Steps of every rank"


def heat_figure(trace: Trace) -> Figure:
    steps = [(int(rank["rank"]), [_known(step) for step in rank.get("steps") or []]) for rank in trace.ranks]
    steps = [(rank, found) for rank, found in steps if found]
    if not steps:
        reason = trace.reason or f"The trace of the run on {trace.of} has no steps."
        return missing("heat", _TITLE, reason, full=True)
    together = math.ceil(len(steps) / _MOST_ROWS)
    longest = max(len(found) for _, found in steps)
    per = max(int(rank.get("steps_per_entry") or 1) for rank in trace.ranks)
    caption = (
        f"The run on {trace.of}, {count(longest * per, 'step')}. A row is a rank"
        + (f" (the slowest of {together} neighbours)" if together > 1 else "")
        + "; dark cells took long. A dark row is a rank that is late throughout, a dark column a step that all waited in."
    )
    return Figure(name="heat", title=_TITLE, caption=caption, draw=lambda width: _heat(steps, per, width), full=True)


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _rows(
    steps: Sequence[tuple[int, Sequence[float | None]]], columns: int
) -> tuple[list[int], list[list[float | None]], int]:
    """Ranks and steps put together so that they fit; the first rank of each row."""
    together = math.ceil(len(steps) / _MOST_ROWS)
    longest = max(len(found) for _, found in steps)
    each = math.ceil(longest / columns)
    means = [(rank, binned(found, math.ceil(longest / each))) for rank, found in steps]
    rows = []
    for start in range(0, len(means), together):
        group = [found for _, found in means[start : start + together]]
        rows.append([_most([found[at] for found in group if at < len(found)]) for at in range(max(map(len, group)))])
    return [means[start][0] for start in range(0, len(means), together)], rows, each


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _heat(steps: Sequence[tuple[int, Sequence[float | None]]], per: int, width: float) -> Markup:
    left = 16 + text_width("rank " + str(steps[-1][0]))
    columns = int((width - left - 14) // 4)
    ranks, rows, each = _rows(steps, columns)
    each *= per
    low, high = _limits(rows)
    tall = max(4.0, min(18.0, 260.0 / len(rows)))
    frame = Frame(width=width, height=tall * len(rows) + 28 + 44, left=left, right=14.0, top=28.0)
    across = frame.x1 - frame.left
    used = max(map(len, rows))
    drawn = cells(
        levels_of(rows, low=low, high=high, count=LEVELS), x=frame.left, y=frame.top, width=across, height=tall
    )
    return svg(
        frame,
        _scale(frame, low, high),
        drawn,
        _rank_labels(ranks, frame, tall),
        _step_labels(frame, used * each),
        words="Seconds of each step of each rank",
        data_heat=f"{frame.left:g} {frame.top:g} {across:g} {tall:g} {each}",
        data_ranks=" ".join(map(str, ranks)),
        data_rows=";".join(" ".join("" if value is None else f"{value:.3g}" for value in row) for row in rows),
    )


def _limits(rows: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """From the quickest to what 98% of the cells stay below: a first step that compiles would darken nothing else."""
    values = sorted(value for row in rows for value in row if value is not None)
    low, high = values[0], values[min(len(values) - 1, int(0.98 * len(values)))]
    return (low, high) if high > low else (low * 0.9, statistics.fmean(values) * 1.1 or 1.0)


def _scale(frame: Frame, low: float, high: float) -> Markup:
    """The colours from quick to slow, above to the right."""
    after = f"≥ {quantity(high, 's')}"
    start = frame.x1 - text_width(after) - 6 - LEVELS * 14
    boxes = [tag("rect", x=start + at * 14, y=4, width=14, height=11, class_=f"fill h{at}") for at in range(LEVELS)]
    return tag(
        "g",
        tag("text", quantity(low, "s"), x=start - 6, y=14, class_="tick end"),
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
