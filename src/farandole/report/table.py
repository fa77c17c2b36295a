"""All configurations in one table that sorts, and that scripts copy as CSV or LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from farandole.report.comparing import Comparison, Pair
from farandole.report.groups import BUSY, Axis, Point, metric_of, run_once, word_for
from farandole.report.loaders import Reading
from farandole.report.markup import Markup, join, tag
from farandole.report.numbers import UNKNOWN, count, number, percent, plain, seconds, times
from farandole.report.scaling import Scaling

__all__ = ["compare_table", "components_table", "loaders_table", "results_table"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A figure: its name, its unit, and how it is read and written."""

    name: str
    value: Callable[[Point, Scaling[Point] | None], float | None]
    figure: str = ""
    """Of results: what it is the median of."""
    unit: str = ""
    text: Callable[[float], str] = number
    spread: bool = False
    """Whether the least and the most are said below."""
    minor: bool = False
    """Left out in print, where there is no room for all."""

    def partly(self, point: Point) -> str:
        return point.partly(self.figure) if self.figure else ""


def _median(
    name: str, figure: str, unit: str = "", *, factor: float = 1.0, text: Callable[[float], str] = number, spread: bool = False, minor: bool = False
) -> Column:
    return Column(
        name=name, value=lambda point, _: _times(point.median(figure), factor), figure=figure, unit=unit, text=text, spread=spread, minor=minor
    )


def _setting(*names: str) -> Callable[[Point, Scaling[Point] | None], float | None]:
    def value(point: Point, _: Scaling[Point] | None) -> float | None:
        found = [point.settings.get(name) for name in names] + [point.median(name) for name in names]
        return next((float(one) for one in found if isinstance(one, (int, float))), None)

    return value


def _local_batch(point: Point, scaling: Scaling[Point] | None) -> float | None:
    """As the run has chosen it: rules of scaling change what was set."""
    known = point.median("local_batch")
    return known if known is not None else _setting("local_batch", "batch_size")(point, scaling)


_COLUMNS = (
    Column(name="nodes", value=_setting("nodes"), text=plain, minor=True),
    Column(name="local batch", value=_local_batch, text=plain, minor=True),
    Column(name="global batch", value=_setting("global_batch"), text=plain),
    Column(name="rate", value=_setting("rate", "learning_rate"), text=plain, minor=True),
    _median("total", "total_s", "s", spread=True),
    _median("load", "load_s", "s"),
    _median("broadcast", "broadcast_s", "s", minor=True),
    _median("train", "train_s", "s", minor=True),
    _median("epoch", "epoch_s", "s", minor=True),
    _median("step", "step_s", "ms", factor=1e3, minor=True),
    Column(name="speedup", value=lambda _, scaling: scaling.speedup if scaling else None, text=times),
    Column(name="efficiency", value=lambda _, scaling: scaling.efficiency if scaling else None, text=percent),
    _median("samples/s", "samples_per_s"),
    _median("power", "power_w", "W"),
    _median("energy", "energy_j", "kJ", factor=1e-3),
    _median("above idle", "above_idle_j", "kJ", factor=1e-3),
    _median("J/sample", "energy_per_sample_j", minor=True),
    _median("EDP", "edp_js", "kJ s", factor=1e-3, minor=True),
    _median("loss", "loss", minor=True),
    _median("{metric}", "accuracy", text="{:.3f}".format, minor=True),
    _median("test loss", "test_loss", minor=True),
    _median("test {metric}", "test_accuracy", text="{:.3f}".format, spread=True),
)
_MODELLED = "modelled power"
_OF_POWER = frozenset({"power", "energy", "above idle", "J/sample", "EDP"})


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def results_table(points: Sequence[Point], axis: Axis, scalings: Sequence[Scaling[Point]], varied: Sequence[str], name: str) -> Markup:
    """A row a configuration. Columns that nothing fills are left out. `name` is unlike that of any other table."""
    by_point = {id(one.point): one for one in scalings}
    modelled = any(point.provenance == "modelled" for point in points)
    metric = metric_of(points)
    shown = [
        replace(column, name=column.name.format(metric=metric))
        for column in _COLUMNS
        if any(column.value(point, by_point.get(id(point))) is not None for point in points)
    ]
    named = list(dict.fromkeys([axis.name, *varied]))
    as_set = all(_local_batch(point, None) == point.settings.get("batch_size") for point in points)
    hidden = {*named, *(["local batch"] if "batch_size" in named and as_set else [])}
    shown = [column for column in shown if column.name not in hidden]
    head = [_heading(word_for(name), kind="word" if _is_word(points, name) else None) for name in named]
    head += [
        _heading(
            column.name, column.unit, kind="minor" if column.minor else None,
            caveat="modelled" if modelled and column.name in _OF_POWER else "",
        )
        for column in shown
    ]  # fmt: skip
    told = {_MODELLED} if all(_MODELLED in point.marks for point in points if point.attempts) else set()
    rows = [_row(point, by_point.get(id(point)), named, shown, told) for point in points]
    return _table([*head, _heading("runs", kind="word")], rows, name, " ".join([_medians(points, {column.figure for column in shown}), *_base(scalings)]))


def _medians(points: Sequence[Point], figures: Set[str]) -> str:
    runs = sorted({len(point.attempts) for point in points if point.attempts})
    if not runs:
        return "No run has finished."
    if runs == [1]:
        return run_once([point for point in points if point.attempts])
    some = any(point.partly(figure) for point in points for figure in figures)
    told = " Where not all runs know a figure, its row says how many do." if some else ""
    return f"Medians of {runs[0] if len(runs) == 1 else f'{runs[0]} to {runs[-1]}'} runs.{told}"


def _base(scalings: Sequence[Scaling[Point]]) -> list[str]:
    bases = [one for one in scalings if one.ranks == one.base_ranks]
    told = f"{seconds(bases[0].time_s)} on {count(bases[0].ranks, 'rank')}" if len(bases) == 1 else "the fewest ranks of each configuration"
    return [f"Speedup and efficiency are against the base case, {told}."] if bases else []


def _is_word(points: Sequence[Point], name: str) -> bool:
    return any(isinstance(point.settings.get(name), str) for point in points)


def _heading(name: str, unit: str = "", *, kind: str | None = None, caveat: str = "", of: str = "") -> Markup:
    """`of` is said where the column stands by itself, in a copy: what the columns beside it are of, too."""
    below = ", ".join(filter(None, [unit, caveat]))
    told = join([name, tag("span", below, class_="unit") if below else None])
    full = ", ".join(filter(None, [of, name, caveat])) + (f" [{unit}]" if unit else "")
    return tag("th", tag("button", told, type="button"), scope="col", data_name=full, class_=kind)


def _row(point: Point, scaling: Scaling[Point] | None, named: Sequence[str], shown: Sequence[Column], told: Set[str]) -> Markup:
    """`told` are marks that the headings have already."""
    cells = [_setting_cell(point.settings.get(name)) for name in named]
    cells += [_cell(column, point, scaling) for column in shown]
    return tag("tr", *cells, _runs(point, told, _known_by_fewer(point, shown)), class_="none" if not point.attempts else None)


def _known_by_fewer(point: Point, shown: Sequence[Column]) -> list[str]:
    """For copies, whose cells are numbers alone: columns by how many runs know them."""
    found: dict[int, list[str]] = {}
    for column in shown:
        if column.partly(point):
            found.setdefault(len(point.values(column.figure)), []).append(column.name)
    return [f"{', '.join(names)} of {known}" for known, names in found.items()]


def _setting_cell(value: object) -> Markup:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return tag("td", plain(value), data_v=f"{value:.10g}")
    return tag("td", UNKNOWN if value is None else str(value), data_v="" if value is None else str(value), class_="word")


def _cell(column: Column, point: Point, scaling: Scaling[Point] | None) -> Markup:
    spread = point.spread(column.figure) if column.spread else None
    return _figure_cell(column.value(point, scaling), column.text, spread, "minor" if column.minor else None, partly=column.partly(point))


def _figure_cell(
    value: float | None, text: Callable[[float], str] = number, spread: tuple[float, float] | None = None, kind: str | None = None,
    *, partly: str = "",
) -> Markup:  # fmt: skip
    """`partly`: of how many runs it is, where these are not all."""
    if value is None:
        return tag("td", UNKNOWN, data_v="", class_=kind)
    low, high = (text(end) for end in spread) if spread else ("", "")
    small = [tag("small", told) for told in (f"{low}–{high}" if low != high else "", partly) if told]
    return tag("td", text(value), *small, data_v=f"{value:.6g}", class_=kind)


def _runs(point: Point, left_out: Set[str] = frozenset(), fewer: Sequence[str] = ()) -> Markup:
    """`fewer` is what the row's cells say of runs already, and copies do not."""
    failed = [f"{len(point.failed)} failed"] if point.failed else []
    marks = [mark for mark in point.marks if mark not in left_out]
    spans = [*(tag("span", told, class_="mark bad") for told in failed), *(tag("span", mark, class_="mark") for mark in marks)]
    return tag("td", f"{len(point.attempts)}", *spans, data_v=_with(len(point.attempts), [*failed, *marks, *fewer]), class_="runs")


def _with(runs: object, told: Sequence[str]) -> str:
    return f"{runs} ({', '.join(told)})" if told else f"{runs}"


def _table(head: Sequence[str], rows: Sequence[str], name: str, note: str = "") -> Markup:
    """`note` is what a reader must know to compare; copies as LaTeX have it, too."""
    buttons = [
        tag("button", f"Copy as {kind}", type="button", class_="copy", data_copy=kind.lower(), data_table=name)
        for kind in ("CSV", "LaTeX")
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), id=name)
    told = tag("p", note, class_="quiet", id=f"{name}-note") if note else None
    return join([tag("div", table, class_="scroll", tabindex="0"), told, tag("p", *buttons, class_="buttons needs-script")])


def loaders_table(readings: Sequence[Reading]) -> Markup:
    """A row for each way of reading a file."""
    head = [_heading(name, kind="word") for name in ("loader", "benchmark", "file", "state")]
    head += [
        _heading("ranks"), _heading("size", "MB", kind="minor"), _heading("time", "s"), _heading("gain", "over pandas"), _heading("speed", "MB/s"),
        _heading("contention", "× one rank"), _heading("peak", "MB"), _heading("held", "MB", kind="minor"), _heading("runs", kind="word"),
    ]  # fmt: skip
    return _table(head, [_reading_row(reading) for reading in readings], "results")


def _reading_row(reading: Reading) -> Markup:
    point = reading.point
    cells = [_setting_cell(word) for word in (reading.loader, reading.setting("benchmark"), reading.file, reading.state, point.ranks)]
    cells += [
        _figure_cell(reading.bytes / 1e6, kind="minor"), _figure_cell(reading.seconds, spread=reading.spread, partly=point.partly("load_s")), _figure_cell(reading.gain, times),
        _figure_cell(point.median("mb_per_s")), _figure_cell(reading.over_alone("load_s"), times),
        _figure_cell(_times(reading.most("peak_bytes"), 1e-6)), _figure_cell(_times(reading.most("held_bytes"), 1e-6), kind="minor"),
    ]  # fmt: skip
    return tag("tr", *cells, _runs(point), class_=None if point.attempts else "none")


Components = tuple[Sequence[Mapping[str, Any]], float | None]
"""Of a run: calls and seconds by name, and the seconds of all of it."""


def components_table(sides: Mapping[str, Components]) -> Markup:
    """Calls and seconds of an average rank, by side, which has no name where there is one; a component within another counts in both."""
    head, found = [_heading("component", kind="word")], []
    for side, (components, total_s) in sides.items():
        of = f", {side}" if side else ""
        head += [_heading(f"calls{of}"), _heading(f"time{of}", "s"), _heading(f"share of the run{of}")]
        found.append(({str(row["name"]): row for row in components}, total_s))
    names = dict.fromkeys(name for rows, _ in found for name in rows)
    rows = [tag("tr", _setting_cell(name), *(cell for known, total_s in found for cell in _component(known.get(name), total_s))) for name in names]
    return _table(head, rows, "components")


def _component(row: Mapping[str, Any] | None, total_s: float | None) -> list[Markup]:
    if row is None:
        return [_figure_cell(None)] * 3
    share = row["seconds"] / total_s if total_s else None
    return [_figure_cell(row["calls"], lambda calls: plain(round(calls, 1))), _figure_cell(row["seconds"]), _figure_cell(share, lambda one: percent(one, 1))]


_COMPARED = (
    ("total", "s", "total_s", 1.0), ("load", "s", "load_s", 1.0), ("energy", "kJ", "energy_j", 1e-3), ("above idle", "kJ", "above_idle_j", 1e-3),
    ("power", "W", "power_w", 1.0), ("broadcast", "s", "broadcast_s", 1.0), ("train", "s", "train_s", 1.0),
)  # fmt: skip
"""What of both sides stands side by side: words, unit, figure and its factor."""
_MINOR = frozenset({"above idle", "broadcast", "train", "power"})


def compare_table(comparison: Comparison) -> Markup:
    """Both sides of every pair and what changed."""
    pairs = comparison.pairs
    points = [point for pair in pairs for point in (pair.before, pair.after)]
    shown = [one for one in _COMPARED if any(point.median(one[2]) is not None for point in points)]
    named = any(pair.label for pair in pairs)
    head = [_heading(comparison.axis.label), *([_heading("configuration", kind="word")] if named else [])]
    for words, unit, _, _ in shown:
        kind = "minor" if words in _MINOR else None
        before, after = (
            "modelled" if words in _OF_POWER and any(point.provenance == "modelled" for point in side) else ""
            for side in (points[::2], points[1::2])
        )
        head += [
            _heading(f"{words}, before", unit, kind=kind, caveat=before), _heading("after", unit, kind=kind, caveat=after, of=words),
            _heading("change", kind=kind, of=words),
        ]  # fmt: skip
    head += [_heading(f"test {metric_of(points)}", kind="word"), _heading("runs", kind="word")]
    rows = [
        tag(
            "tr", _setting_cell(pair.value), *([_setting_cell(pair.label)] if named else []),
            *(cell for words, _, figure, factor in shown for cell in _changes(pair, words, figure, factor)),
            *_ends(pair, {figure: words for words, _, figure, _ in shown}),
        )
        for pair in pairs
    ]  # fmt: skip
    return _table(head, rows, "comparison", _medians(points, {"test_accuracy", *(figure for _, _, figure, _ in shown)}))


def _changes(pair: Pair, words: str, figure: str, factor: float) -> list[Markup]:
    of_power, kind = words in _OF_POWER, "minor" if words in _MINOR else None
    cells = [
        _figure_cell(
            _times(point.median(figure), factor), _modelled if of_power and point.provenance == "modelled" else number, kind=kind,
            partly=point.partly(figure),
        )
        for point in (pair.before, pair.after)
    ]  # fmt: skip
    saved = pair.saved(figure)
    if saved is not None and of_power and pair.energy_caveat:
        return [*cells, tag("td", f"{pair.energy_caveat}: not compared", data_v="", class_=_classes("word", kind))]
    return [*cells, tag("td", _change(saved), data_v="" if saved is None else f"{-saved:.4f}", class_=_classes("strong", kind))]


def _classes(*names: str | None) -> str:
    return " ".join(filter(None, names))


def _modelled(value: float) -> str:
    return f"~{number(value)}"


def _change(saved: float | None) -> str:
    if saved is None:
        return UNKNOWN
    if abs(saved) < 0.005:
        return "0%"
    return f"{'−' if saved > 0 else '+'}{100 * abs(saved):.{1 if 0.995 <= saved < 1 else 0}f}%"


def _ends(pair: Pair, shown: Mapping[str, str]) -> list[Markup]:
    """`shown` has figures and their words."""
    sides = (pair.before, pair.after)
    reached = " → ".join(map(_reached, sides))
    runs = " → ".join(str(len(point.attempts)) for point in sides)
    marks = [mark for mark in ("oversubscribed", BUSY) if any(mark in point.marks for point in sides)]
    fewer = [
        f"{words} of {' → '.join(str(len(point.values(figure))) for point in sides)}"
        for figure, words in shown.items()
        if any(point.partly(figure) for point in sides)
    ]
    spans = [tag("span", mark, class_="mark") for mark in marks]
    return [tag("td", reached, data_v=reached, class_="word"), tag("td", runs, *spans, data_v=_with(runs, [*marks, *fewer]), class_="runs")]


def _reached(point: Point) -> str:
    value, partly = point.median("test_accuracy"), point.partly("test_accuracy")
    return UNKNOWN if value is None else f"{value:.3f}{f' ({partly})' if partly else ''}"
