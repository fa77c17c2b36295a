"""Bars before and after, phase by phase."""

from __future__ import annotations

from farandole.report.comparing import Comparison, Pair
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import PHASES, Bar, phases_of, stacked_bars
from farandole.report.groups import Point
from farandole.report.numbers import percent, plain

__all__ = ["compare_figure"]

_MOST_PAIRS = 8


def compare_figure(comparison: Comparison) -> Figure:
    title = f"Before and after: {comparison.before}, {comparison.after}"
    pairs = [pair for pair in comparison.pairs if pair.before.median("total_s") and pair.after.median("total_s")]
    if not pairs:
        return missing(
            "compare", title, "No configuration has finished in both: they have no settings in common but for what differs.",
            full=True,
        )  # fmt: skip
    shown = _spread_out(pairs)
    more = f" {len(shown)} of {len(pairs)} configurations are drawn." if len(shown) < len(pairs) else ""
    caption = f"Medians of all repeats; percentages are the change of the total.{more}"
    bars = [bar for pair in shown for bar in _bars(pair, comparison)]
    return Figure(
        name="compare", title=title, caption=caption, full=True,
        draw=lambda width: stacked_bars(bars, width, title),
    )  # fmt: skip


def _spread_out(pairs: list[Pair]) -> list[Pair]:
    if len(pairs) <= _MOST_PAIRS:
        return pairs
    step = (len(pairs) - 1) / (_MOST_PAIRS - 1)
    return [pairs[round(at * step)] for at in range(_MOST_PAIRS)]


def _bars(pair: Pair, comparison: Comparison) -> list[Bar]:
    name, value = comparison.axis.label, pair.value
    value = plain(value) if isinstance(value, (int, float)) else str(value)
    group = (f"{value} rank" if value == "1" else f"{value} ranks") if name == "ranks" else f"{name} {value}"
    saved = pair.saved("total_s") or 0.0
    note = f"{'−' if saved >= 0 else '+'}{percent(abs(saved))}"
    return [
        Bar(label=comparison.before, parts=_phases(pair.before), group=group),
        Bar(label=comparison.after, parts=_phases(pair.after), group=group, note=note),
    ]


def _phases(point: Point) -> dict[str, float]:
    return phases_of({f"{name}_s": point.median(f"{name}_s") for name in (*PHASES, "total")})
