"""Before and after: bars phase by phase, and time and energy along the axis."""

from __future__ import annotations

from farandole.observe.analysis import spread_out
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Bar, phases_of, stacked_bars
from farandole.report.figures.lines import Axes, Line, Mark, line_chart
from farandole.report.figures.scaling import HOLLOW, joined, unknown_caption
from farandole.results.cases import Axis, Case, Series
from farandole.results.comparing import Comparison, Pair
from farandole.results.numbers import number, percent, plain, prefix_for
from farandole.results.schema import PHASES

__all__ = ["compare_energy_figure", "compare_figure", "compare_times_figure"]

_MOST_PAIRS = 8


def compare_figure(comparison: Comparison) -> Figure:
    title = f"Before and after: {comparison.before}, {comparison.after}"
    pairs = [pair for pair in comparison.pairs if pair.before.median("total_s") and pair.after.median("total_s")]
    if not pairs:
        return missing(
            "compare", title, "No configuration has finished in both: they have no settings in common but for what differs.",
            full=True,
        )  # fmt: skip
    shown = spread_out(pairs, _MOST_PAIRS)
    more = f" {len(shown)} of {len(pairs)} configurations are drawn." if len(shown) < len(pairs) else ""
    unknown = unknown_caption([case for pair in shown for case in (pair.before, pair.after)], "total_s")
    caption = f"Medians; percentages are the change of the total.{unknown}{more}"
    bars = [bar for pair in shown for bar in _bars(pair, comparison)]
    return Figure(
        name="compare", title=title, caption=caption, full=True,
        draw=lambda width: stacked_bars(bars, width, title),
    )  # fmt: skip


def compare_times_figure(comparison: Comparison) -> Figure:
    """Totals and loading along the axis, of both."""
    title = f"Time against {comparison.axis.label}, before and after"
    measures = (("total_s", "total", "solid"), ("load_s", "loading", "dotted"))
    lines = [line for figure, words, style in measures for line in _lines(comparison, figure, words, style)]
    if not lines:
        return missing("compare-time", title, f"A line needs two values of {comparison.axis.label} that both have.")
    return _lines_figure("compare-time", title, "Totals and loading; medians.", lines, comparison, "seconds")


def compare_energy_figure(comparison: Comparison) -> Figure:
    """Of measured joules alone: modelled ones would only say once more how long it took."""
    title = f"Energy against {comparison.axis.label}, before and after"
    known = [pair for pair in comparison.first_series if pair.saved("energy_j") is not None]
    if not known:
        return missing("compare-energy", title, "No configuration knows its energy in both.")
    caveats = {pair.energy_caveat for pair in known}
    if "modelled" in caveats:
        return missing(
            "compare-energy", title, "Energy is modelled: it restates CPU time, and a difference is no evidence of a saving."
        )
    if any(caveats):
        return missing("compare-energy", title, "Whole nodes were measured in some runs, parts of nodes in others: they do not compare.")
    factor, prefix = prefix_for(max(pair.before.median("energy_j") or 0.0 for pair in known))
    lines = _lines(comparison, "energy_j", "", "solid", factor)
    if not lines:
        return missing("compare-energy", title, f"A line needs two values of {comparison.axis.label} that both have.")
    best = max(known, key=lambda pair: pair.saved("energy_j") or 0.0)
    saved = best.saved("energy_j") or 0.0
    caption = f"Measured. At best {percent(saved)} less, {comparison.where(best)}." if saved > 0 else "Measured."
    return _lines_figure("compare-energy", title, caption, lines, comparison, f"{prefix}J")


def _lines(comparison: Comparison, figure: str, words: str, style: str, factor: float = 1.0) -> list[Line]:
    """Of each side; none where fewer than two values are known."""
    pairs = comparison.first_series if comparison.axis.numeric else []
    sides = (
        (comparison.before, "s2", [pair.before for pair in pairs if pair.before.median(figure)]),
        (comparison.after, "s1", [pair.after for pair in pairs if pair.after.median(figure)]),
    )
    if any(len(cases) < 2 for _, _, cases in sides):
        return []
    shared = {pair.value for pair in pairs if pair.oversubscribed}
    named = [(Series(label=", ".join(filter(None, [label, words])), settings={}, cases=cases), kind) for label, kind, cases in sides]
    return [
        Line(label=part.label, kind=kind, marks=[_mark(case, comparison.axis, figure, series.label, factor, shared) for case in part.cases], style=style)
        for series, kind in named
        for part in joined(series, comparison.axis)
    ]


def _mark(case: Case, axis: Axis, figure: str, label: str, factor: float, shared: set[float]) -> Mark:
    """Hollow where one side is oversubscribed."""
    value, x = case.median(figure) or 0.0, case.settings[axis.name]
    words = f"{axis.label} {x}\n{label}: {number(value)} {figure[-1].replace('j', 'J')}"
    return Mark(x=float(x), y=value / factor, hollow=x in shared, words=words)


def _lines_figure(
    name: str, title: str, caption: str, lines: list[Line], comparison: Comparison, unit: str
) -> Figure:
    axes = Axes(
        x_label=comparison.axis.label, y_label=unit, words=title,
        x_ticks=sorted({mark.x for line in lines for mark in line.marks}),
    )  # fmt: skip
    pairs = comparison.first_series
    told = [caption, HOLLOW] if any(pair.oversubscribed for pair in pairs) else [caption]
    told += [f"Of {pairs[0].label}; the table has all."] if len(pairs) < len(comparison.pairs) else []
    return Figure(name=name, title=title, caption=" ".join(told), draw=lambda width: line_chart(lines, axes, width))


def _bars(pair: Pair, comparison: Comparison) -> list[Bar]:
    name, value = comparison.axis.label, pair.value
    value = plain(value) if isinstance(value, (int, float)) else str(value)
    group = (f"{value} rank" if value == "1" else f"{value} ranks") if name == "ranks" else f"{name} {value}"
    group = ", ".join(filter(None, [group, pair.label, "oversubscribed" if pair.oversubscribed else ""]))
    saved = pair.saved("total_s") or 0.0
    note = f"{'−' if saved >= 0 else '+'}{percent(abs(saved))}"
    return [
        Bar(label=comparison.before, parts=_phases(pair.before), group=group),
        Bar(label=comparison.after, parts=_phases(pair.after), group=group, note=note),
    ]


def _phases(case: Case) -> dict[str, float]:
    return phases_of({f"{name}_s": case.median(f"{name}_s") for name in (*PHASES, "total")})
