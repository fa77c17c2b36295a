"""A study as a table: text, Markdown, CSV, LaTeX. Medians; the base case, repeats and how watts are known are stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.study.cases import BUSY, OF_POWER, Case, Spread, power_notes, ranks_of, work_of
from farandole.study.figures import FIGURES
from farandole.study.formats import Table, aligned, as_csv, as_latex, as_markdown, check_format, number
from farandole.study.points import described, varying

__all__ = ["FIGURE", "SETTING", "as_table"]

SETTING, FIGURE = "setting_", "figure_"
"""In a CSV file, before names that are a setting's and a figure's at once."""
_OWN_COLUMNS = ("ranks", "nodes", "batch_size", "seed", "command")
"""Settings that have a column anyway, or are no use in one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    heading: str
    cell: Callable[[Case], str]
    group: int
    """0: which case, 1: time, 2: energy and quality. Text has a block for each of 1 and 2."""


def as_table(plan: Mapping[str, Any], cases: Sequence[Case], form: str) -> str:
    """`plan` is the study's; FORMATS has the forms."""
    check_format(form)
    ideal = work_of(plan["kind"]) != "same"
    if form == "csv":
        return _csv(cases, ideal)
    columns = _columns(cases, ideal)
    title, notes = str(plan["title"]), _notes(plan, cases)
    if form == "text":
        return _text(title, columns, cases, notes)
    table = Table(title=title, headings=[column.heading for column in columns], rows=_rows(columns, cases), notes=notes)
    return as_markdown(table) if form == "markdown" else as_latex(table)


def _columns(cases: Sequence[Case], ideal: bool) -> list[Column]:
    """Those of which anything is known; without an ideal there is no efficiency."""
    axes = [name for name in varying(case.settings for case in cases) if name not in _OWN_COLUMNS]
    which = [
        _setting("ranks"), _setting("nodes"), *(_setting(name) for name in axes),
        Column(heading="local batch", cell=_local_batch, group=0), _figure("global_batch", "global batch", 0),
    ]  # fmt: skip
    time = [
        _figure("step_s", "s/step", 1), _figure("epoch_s", "s/epoch", 1), _figure("total_s", "total s", 1), _spread("total_s"),
        _figure("load_s", "load s", 1), _figure("broadcast_s", "broadcast s", 1), Column(heading="speedup", cell=_speedup, group=1),
        Column(heading="efficiency", cell=_efficiency, group=1), _figure("samples_per_s", "samples/s", 1),
        Column(heading="runs", cell=_runs, group=1),
    ]  # fmt: skip
    metric = next((case.metric for case in cases if case.runs), "accuracy")
    rest = [
        _figure("power_w", "W", 2), _figure("energy_j", "J", 2), _figure("above_idle_j", "J above idle", 2),
        _figure("energy_per_sample_j", "J/sample", 2), _figure("edp_js", "EDP J s", 2), _figure("loss", "loss", 2),
        _figure("accuracy", metric, 2), _figure("test_loss", "test loss", 2), _figure("test_accuracy", f"test {metric}", 2), _spread("test_accuracy"),
    ]  # fmt: skip
    several = any(spread.count > 1 for case in cases for spread in case.figures.values())
    shown = {"min..max": several, "efficiency": ideal}
    columns = [column for column in (*which, *time, *rest) if shown.get(column.heading, True)]
    return [column for column in columns if any(column.cell(case) != "-" for case in cases)]


def _setting(name: str) -> Column:
    heading = {"emulate_ranks": "as ranks"}.get(name, name.replace("_", " "))
    return Column(heading=heading, cell=lambda case: _plain(case.settings.get(name)), group=0)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _figure(name: str, heading: str, group: int) -> Column:
    def cell(case: Case) -> str:
        value = case.median(name)
        mark = "~" if case.modelled and name in OF_POWER and value is not None else ""
        return mark + number(value) + _fewer(case, name)

    return Column(heading=heading, cell=cell, group=group)


def _fewer(case: Case, name: str) -> str:
    return f" ({told})" if (told := case.fewer(name)) else ""


def _local_batch(case: Case) -> str:
    """As it was set where no run has told it: a failed one, or a program of the user's."""
    known = case.median("local_batch")
    return _plain(case.settings.get("batch_size")) if known is None else number(known) + _fewer(case, "local_batch")


def _spread(name: str) -> Column:
    def cell(case: Case) -> str:
        spread = case.figures.get(name)
        return "-" if spread is None or spread.low is None else f"{number(spread.low)}..{number(spread.high)}"

    return Column(heading="min..max", cell=cell, group=1 if name == "total_s" else 2)


def _speedup(case: Case) -> str:
    return "-" if case.scaled is None else f"{case.scaled.speedup:.2f}"


def _efficiency(case: Case) -> str:
    return "-" if case.scaled is None else f"{case.scaled.efficiency:.0%}"


def _runs(case: Case) -> str:
    return f"{case.runs}" + (f" ({case.failed} failed)" if case.failed else "")


def _notes(plan: Mapping[str, Any], cases: Sequence[Case]) -> list[str]:
    """What a reader must know to compare."""
    names = [name for name in varying(case.settings for case in cases) if name != "seed"]
    compared = [case for case in cases if case.scaled is not None and (case.base is not case or len(cases) == 1)]
    bases = {id(case.base): case.base for case in compared if case.base is not None}
    told = [
        f"base case: {described(base.settings, [n for n in names if n != 'emulate_ranks'])}, "
        f"{number(base.median('total_s'))} s in all"
        for base in bases.values()
    ]
    told += [_counted(cases), *power_notes(cases)]
    if any(case.fewer(name) for case in cases for name in case.figures):
        told.append("(N of M): M runs ended well, and N of them have the figure")
    for mark in sorted({mark for case in cases for mark in case.marks} - {"modelled power"}):
        marked = [case for case in cases if mark in case.marks]
        told.append(f"{mark}: {ranks_of(marked)}{_how_busy(marked) if mark == BUSY else ''}")
    if plan.get("source"):
        told.append(f"source: {plan['source']}")
    return told


def _counted(cases: Sequence[Case]) -> str:
    runs = sorted({case.runs for case in cases if case.runs})
    if not runs:
        return "no run has ended well"
    if runs == [1]:
        return "one run a case: no spread is known"
    told = " to ".join(map(str, dict.fromkeys((runs[0], runs[-1]))))
    return f"medians of {told} runs a case{', made where they come from' if any(case.summed_up for case in cases) else ''}"


def _how_busy(cases: Sequence[Case]) -> str:
    shares = [share for case in cases if (found := case.figures.get("others_share")) for share in (found.median, found.high or 0.0)]
    return f" (other programs took up to {max(shares):.0%} of its processor time)" if shares else ""


def _rows(columns: Sequence[Column], cases: Sequence[Case]) -> list[list[str]]:
    return [[column.cell(case) for column in columns] for case in cases]


def _text(title: str, columns: Sequence[Column], cases: Sequence[Case], notes: Sequence[str]) -> str:
    blocks = [title]
    for group in (1, 2):
        shown = [column for column in columns if column.group in (0, group)]
        if any(column.group == group and column.heading != "runs" for column in shown):
            blocks += ["", *aligned([[column.heading for column in shown], *_rows(shown, cases)])]
    return "\n".join([*blocks, "", *notes])


def _csv(cases: Sequence[Case], ideal: bool) -> str:
    """Every setting and figure under its own name, with `_min` and `_max` of the figures; read again by `study import`.

    Of figures that not all runs of a case have, `_runs` says how many do.
    Where a setting and a figure have one name, as `epochs`, they are `setting_epochs` and `figure_epochs`.
    """
    settings = list(dict.fromkeys(name for case in cases for name in case.settings))
    figures = [name for name in FIGURES if any(name in case.figures for case in cases)]
    both = {*figures} & {*settings, "epochs"}  # which alone is taken for the setting
    known = [f"{SETTING}{name}" if name in both else name for name in settings]
    fewer = [name for name in figures if any(case.fewer(name) for case in cases)]
    ends = {name: ("", "_min", "_max", *(["_runs"] if name in fewer else [])) for name in figures}
    spreads = [f"{FIGURE if name in both else ''}{name}{end}" for name in figures for end in ends[name]]
    rows = []
    for case in cases:
        values = [value for name in figures for value in _csv_figure(case.figures.get(name), len(ends[name]))]
        rate = ("", "") if case.scaled is None else (case.scaled.speedup, case.scaled.efficiency if ideal else "")
        given = [_csv_value(case.settings.get(name)) for name in settings]
        told = [case.runs, case.failed, "; ".join(case.marks), *rate, case.metric, case.provenance]
        rows.append([*given, *told, *values])
    derived = ("runs", "failed", "marks", "speedup", "efficiency", "metric", "power_provenance")
    return as_csv([*known, *derived, *spreads], rows)


def _csv_figure(spread: Spread | None, cells: int) -> Sequence[float | str | None]:
    return [""] * cells if spread is None else [spread.median, spread.low, spread.high, spread.count][:cells]


def _csv_value(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
