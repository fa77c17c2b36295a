"""A study as a table: one model of columns, cells and notes, which text, Markdown, LaTeX, CSV and the page write as they are.

Medians; the base case, repeats, and how watts are known are stated. CSV has every setting and measure besides, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farandole.results.cases import (
    Axis,
    Case,
    Series,
    as_word,
    described,
    is_reading,
    judged_on,
    metric_of,
    said_by_another,
    varying,
    why_busy_in,
    word_for,
)
from farandole.results.formats import as_csv
from farandole.results.numbers import UNKNOWN, number, percent, plain, seconds, times
from farandole.results.reading import Study
from farandole.results.runs import training_api
from farandole.results.scaling import Scaling
from farandole.results.schema import BUSY, MEASURES, OF_POWER, PERHAPS_PARTS

__all__ = ["MEASURE", "SETTING", "SETTINGS_TOO", "Cell", "Heading", "Table", "cases_csv", "counted", "power_notes", "results_table", "trained_by"]

SETTING, MEASURE = "setting_", "figure_"
"""In a CSV file, before names that are a setting's and a measure's at once."""
SETTINGS_TOO = ("epochs", "threads", "replicas", "partitions", "hosts")
"""Measures whose names alone are taken for settings."""
_LEFT_OUT = ("seed", "command")
"""Settings that are no use in a column."""
_MOST_BASES = 3
_OF_READING = {"total_s": False, "peak_bytes": True, "held_bytes": True}
"""Measures with a column only where files are read and nothing else is done, or only elsewhere."""
_MEASURED = {
    "measured-component": "power of the parts of nodes that have meters, measured",
    "measured-node": "power of whole nodes, measured",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    name: str
    unit: str = ""
    group: int = 0
    """0: which case, 1: time, 2: energy and quality. Text has a block for each of 1 and 2."""
    word: bool = False
    """Its cells are words, which begin at the left."""
    minor: bool = False
    """Left out where there is no room for all, as in print."""
    caveat: str = ""
    of: str = ""
    """Said where the column stands by itself, in a copy: what the columns beside it are of, too."""

    def __str__(self) -> str:
        """For text: `energy J`."""
        return f"{self.name} {self.unit}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    text: str
    value: float | str | None = None
    """For sorting and copying; None where it is not known."""
    spread: str = ""
    """From the least to the most, of several runs."""
    partly: str = ""
    """Of how many runs it is, where these are not all."""
    marks: Sequence[str] = ()
    strong: bool = False
    """A difference that repeats support."""

    def __str__(self) -> str:
        """For text."""
        told = ", ".join(filter(None, [self.spread, self.partly, *self.marks]))
        return f"{self.text} ({told})" if told else self.text


@dataclass(kw_only=True, slots=True)
class Table:
    title: str
    headings: list[Heading]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    """What a reader must know to compare."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    heading: Heading
    value: Callable[[Case, Scaling | None], float | None]
    measure: str = ""
    """What it is the median of."""
    text: Callable[[float], str] = number
    spread: bool = False

    def cell(self, case: Case, scaling: Scaling | None) -> Cell:
        value = self.value(case, scaling)
        if value is None:
            return Cell(text=UNKNOWN)
        ends = case.spread(self.measure) if self.spread else None
        low, high = (self.text(end) for end in ends) if ends else ("", "")
        mark = "~" if case.modelled and self.measure in OF_POWER else ""
        return Cell(text=f"{mark}{self.text(value)}", value=value, spread=f"{low}–{high}" if low != high else "", partly=case.partly(self.measure))


def _median(name: str, measure: str, unit: str = "", group: int = 1, *, text: Callable[[float], str] = number, spread: bool = False, minor: bool = False) -> _Column:
    heading = Heading(name=name, unit=unit, group=group, minor=minor)
    return _Column(heading=heading, value=lambda case, _: case.median(measure), measure=measure, text=text, spread=spread)


def _local_batch(case: Case, _: Scaling | None) -> float | None:
    """As the run has chosen it: rules of scaling change what was set."""
    known = case.median("local_batch")
    given = case.settings.get("batch_size")
    return known if known is not None else float(given) if isinstance(given, (int, float)) else None


def _threads(case: Case, _: Scaling | None) -> float | None:
    given = case.settings.get("threads")
    return float(given) if isinstance(given, int) and given else case.median("threads")


def _nodes(case: Case, _: Scaling | None) -> float | None:
    given = case.settings.get("nodes")
    return float(given) if isinstance(given, int) else None


_THREE_DECIMALS = "{:.3f}".format
_COLUMNS = (
    _Column(heading=Heading(name="threads", minor=True), value=_threads, text=plain),
    _Column(heading=Heading(name="nodes", minor=True), value=_nodes, text=plain),
    _Column(heading=Heading(name="local batch", minor=True), value=_local_batch, text=plain, measure="local_batch"),
    _median("global batch", "global_batch", group=0, text=plain),
    _median("total", "total_s", "s", spread=True),
    _median("load", "load_s", "s"),
    _median("broadcast", "broadcast_s", "s", minor=True),
    _median("train", "train_s", "s", minor=True),
    _median("epoch", "epoch_s", "s", minor=True),
    _median("step", "step_s", "s", minor=True),
    _Column(heading=Heading(name="speedup", group=1), value=lambda _, scaling: scaling.speedup if scaling else None, text=times),
    _Column(
        heading=Heading(name="efficiency", group=1), text=percent,
        value=lambda _, scaling: scaling.efficiency if scaling and scaling.work != "same" else None,
    ),
    _Column(
        heading=Heading(name="of training", group=1, minor=True), text=percent,
        value=lambda _, scaling: scaling.training_efficiency if scaling and scaling.work != "same" else None,
    ),
    _median("samples/s", "samples_per_s"),
    _median("read", "mb_per_s", "MB/s"),
    _median("peak", "peak_bytes", "bytes", minor=True),
    _median("held", "held_bytes", "bytes", minor=True),
    _median("power", "power_w", "W", 2),
    _median("energy", "energy_j", "J", 2),
    _median("above idle", "above_idle_j", "J", 2),
    _median("J/sample", "energy_per_sample_j", "", 2, minor=True),
    _median("EDP", "edp_js", "J s", 2, minor=True),
    _median("loss", "loss", "", 2, minor=True),
    _median("{metric}", "accuracy", "", 2, text=_THREE_DECIMALS, minor=True),
    _median("test loss", "test_loss", "", 2, minor=True),
    _median("test {metric}", "test_accuracy", "", 2, text=_THREE_DECIMALS, spread=True),
)  # fmt: skip


def results_table(study: Study, cases: Sequence[Case], series: Sequence[Series], axis: Axis, scalings: Sequence[Scaling]) -> Table:
    """A row a case: series after series, along the axis. Columns that nothing fills are left out."""
    by_case = {id(one.case): one for one in scalings}
    named = _named(cases, axis, series)
    rows = _in_order(cases, series, axis)
    columns = [column for column in _COLUMNS if column.heading.name not in named and _is_shown(column, cases, by_case, named)]
    head = [Heading(name=word_for(name), word=any(isinstance(case.settings.get(name), (str, list)) for case in cases)) for name in named]
    head += [_heading(column, cases) for column in columns]
    told = {"modelled power"} if all("modelled power" in case.marks for case in cases if case.results) else set()
    cells = [[*(_setting(case.settings.get(name)) for name in named), *(column.cell(case, by_case.get(id(case))) for column in columns), _runs(case, told)] for case in rows]
    return Table(title=study.title, headings=[*head, Heading(name="runs", word=True, group=1)], rows=cells, notes=_notes(study, cases, scalings))


def _named(cases: Sequence[Case], axis: Axis, series: Sequence[Series]) -> list[str]:
    """The settings that tell rows apart; ranks always do."""
    differing = _differing(cases, "nodes")
    parting = [name for one in series for name in one.settings]
    return list(dict.fromkeys(name for name in (axis.name, *parting, *differing, "ranks") if name not in _LEFT_OUT))


def _differing(cases: Sequence[Case], *left_out: str) -> list[str]:
    names = varying(case.settings for case in cases)
    return [name for name in names if name not in (*_LEFT_OUT, *left_out) and not said_by_another(name, cases)]


def _is_shown(column: _Column, cases: Sequence[Case], by_case: Mapping[int, Scaling], named: Sequence[str]) -> bool:
    if column.measure == "local_batch" and "batch_size" in named:  # rules of scaling change what was set
        return any(_local_batch(case, None) != case.settings.get("batch_size") for case in cases)
    values, reading = {column.value(case, by_case.get(id(case))) for case in cases} - {None}, is_reading(cases)
    if column.heading.name == "nodes":
        return values not in (set(), {1.0})
    return bool(values) and _OF_READING.get(column.measure, reading) is reading


def _heading(column: _Column, cases: Sequence[Case]) -> Heading:
    modelled = column.measure in OF_POWER and any(case.modelled for case in cases)
    return replace(column.heading, name=column.heading.name.format(metric=metric_of(cases)), caveat="modelled" if modelled else "")


def _in_order(cases: Sequence[Case], series: Sequence[Series], axis: Axis) -> list[Case]:
    """Those that never finished stand where they would."""
    parting = list(dict.fromkeys(name for one in series for name in one.settings))
    groups = list(dict.fromkeys(repr([case.settings.get(name) for name in parting]) for case in cases))

    def place(case: Case) -> tuple[int, float]:
        value = case.settings.get(axis.name)
        return groups.index(repr([case.settings.get(name) for name in parting])), value if axis.numeric and value else 0.0

    return sorted(cases, key=place)


def _setting(value: Any) -> Cell:
    return Cell(text=UNKNOWN if value is None else as_word(value), value=value if isinstance(value, (int, float, str)) else None)


def _runs(case: Case, left_out: set[str]) -> Cell:
    """`left_out` are marks that a heading or a note has already."""
    failed = [f"{len(case.failed)} failed"] if case.failed else []
    return Cell(text=str(case.runs), value=case.runs, marks=[*failed, *(mark for mark in case.marks if mark not in left_out)])


def _notes(study: Study, cases: Sequence[Case], scalings: Sequence[Scaling]) -> list[str]:
    names = _differing(cases, "emulate_ranks")
    compared = [one for one in scalings if not one.is_base or len(cases) == 1]
    bases = {id(one.base): one for one in compared}
    told = [f"base case: {described(one.base.settings, names)}, {seconds(one.base.median(one.whole))}{_of(one.whole)}" for one in bases.values()]
    if len(told) > _MOST_BASES:
        told = [f"base cases: the first of each of {len(told)} series"]
    told += [counted(cases), *trained_by(study.about, cases), *judged_on(cases), *power_notes(cases)]
    if any(case.partly(name) for case in cases for name in MEASURES):
        told.append("(N of M): M runs ended well, and N of them have the value")
    for mark in sorted({mark for case in cases for mark in case.marks} - {"modelled power"}):
        marked = [case for case in cases if mark in case.marks]
        told.append(f"{mark}: {_ranks_of(marked)}{_how_busy(marked) if mark == BUSY else ''}")
    return [*told, *([f"source: {study.about['source']}"] if study.about.get("source") else [])]


def trained_by(about: Mapping[str, Any], cases: Sequence[Case]) -> list[str]:
    """Keras or PyTorch, where it is the same for all; otherwise a column tells."""
    of_case = [{**about, **case.settings} for case in cases] or [dict(about)]
    found = {training_api(settings) for settings in of_case}
    return [f"trained by {api}" for api in found if api and len(found) == 1]


def _of(whole: str) -> str:
    return {"total_s": " in all", "train_s": " of training", "load_s": " of loading"}.get(whole, "")


def counted(cases: Sequence[Case]) -> str:
    """Of how many runs medians are."""
    runs = sorted({case.runs for case in cases if case.runs})
    if not runs:
        return "no run has ended well"
    if runs == [1]:
        return "as imported" if all(case.imported for case in cases if case.runs) else "one run a case: no spread is known"
    told = " to ".join(map(str, dict.fromkeys((runs[0], runs[-1]))))
    return f"medians of {told} runs a case{', made where they come from' if any(case.summed_up for case in cases) else ''}"


def _ranks_of(cases: Sequence[Case]) -> str:
    """For people: `1, 2 ranks`."""
    ranks = ", ".join(dict.fromkeys(str(case.ranks) for case in cases))
    return f"{ranks} rank{'s' * (ranks != '1')}"


def _how_busy(cases: Sequence[Case]) -> str:
    return f" ({', '.join(why)})" if (why := why_busy_in(cases)) else ""


def power_notes(cases: Sequence[Case]) -> list[str]:
    """How watts and joules are known; where that differs, of how many ranks."""
    told = ["~ modelled power (TDP x utilisation), not measured: no evidence of a saving"] if any(case.modelled for case in cases) else []
    sure = [case for case in cases if PERHAPS_PARTS not in case.marks]  # of the others their mark tells
    found = {kind: [case for case in sure if case.provenance == kind] for kind in _MEASURED}
    alike = len({case.provenance for case in cases} - {"none"}) == 1
    told += [_MEASURED[kind] + ("" if alike else f": {_ranks_of(of)}") for kind, of in found.items() if of]
    windows = dict.fromkeys(str(window) for case in cases for one in case.results if (window := one.measures.get("energy_window")))
    return told + [f"energy: {window}" for window in windows if window != "ranks"]


def cases_csv(cases: Sequence[Case], scalings: Sequence[Scaling]) -> str:
    """Every setting and measure under its own name, with `_min` and `_max` of the measures; read again by `study import`.

    Of measures that not all runs of a case have, `_runs` says how many do.
    Where a setting and a measure have one name, as `epochs`, they are `setting_epochs` and `figure_epochs`.
    """
    by_case = {id(one.case): one for one in scalings}
    settings = list(dict.fromkeys(name for case in cases for name in case.settings))
    measures = [name for name in MEASURES if any(case.values(name) for case in cases)]
    both = {name for name in MEASURES if name in (*settings, *SETTINGS_TOO)}
    known = [f"{SETTING}{name}" if name in both else name for name in settings]
    ends = {name: ("", "_min", "_max", *(["_runs"] if any(case.partly(name) for case in cases) else [])) for name in measures}
    spreads = [f"{MEASURE if name in both else ''}{name}{end}" for name in measures for end in ends[name]]
    rows = []
    for case in cases:
        scaling = by_case.get(id(case))
        rate = ("", "") if scaling is None else (scaling.speedup, scaling.efficiency if scaling.work != "same" else "")
        given = [" ".join(map(str, value)) if isinstance(value := case.settings.get(name), list) else value for name in settings]
        told = [case.runs, len(case.failed), "; ".join(case.marks), *rate, case.metric, case.provenance, "; ".join(judged_on([case], ""))]
        rows.append([*given, *told, *(value for name in measures for value in _in_csv(case, name, len(ends[name])))])
    derived = ("runs", "failed", "marks", "speedup", "efficiency", "metric", "power_provenance", "validation")
    return as_csv([*known, *derived, *spreads], rows)


def _in_csv(case: Case, measure: str, cells: int) -> Sequence[float | str | None]:
    value = case.median(measure)
    if value is None:
        return [""] * cells
    low, high = case.spread(measure) or ((value, value) if case.runs == 1 else (None, None))
    return [value, low, high, case.known(measure)][:cells]
