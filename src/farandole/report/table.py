"""Tables of results as HTML that sorts, and that scripts copy as CSV or LaTeX; what is compared, and components of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.report.markup import Markup, join, tag
from farandole.results.cases import Case, as_word, is_reading, metric_of
from farandole.results.comparing import Comparison, Pair
from farandole.results.numbers import UNKNOWN, number, percent, plain
from farandole.results.schema import BUSY, OF_POWER, OVERSUBSCRIBED
from farandole.results.table import Cell, Heading, Table, counted

__all__ = ["compare_table", "components_table", "table_html"]


def table_html(table: Table, name: str) -> Markup:
    """`name` is unlike that of any other table on the page."""
    rows = [tag("tr", *(_cell(cell, heading, _said_in_copies(row, table)) for cell, heading in zip(row, table.headings)), class_=_row_class(row, table)) for row in table.rows]
    body = tag("table", tag("thead", tag("tr", *map(_heading, table.headings))), tag("tbody", *rows), id=name)
    note = tag("p", *_lines(table.notes), class_="quiet", id=f"{name}-note") if table.notes else None
    buttons = [
        tag("button", f"Copy as {kind}", type="button", class_="copy", data_copy=kind.lower(), data_table=name) for kind in ("CSV", "LaTeX")
    ]
    return join([tag("div", body, class_="scroll", tabindex="0"), note, tag("p", *buttons, class_="buttons needs-script")])


def _lines(notes: Sequence[str]) -> list[str]:
    return [f"{note[:1].upper()}{note[1:]}. " for note in notes]


def _said_in_copies(row: Sequence[Cell], table: Table) -> str:
    """With the number of runs, as copies have values alone: marks, and of how many runs a value is."""
    partly = [f"{heading.of or heading.name} {cell.partly}" for cell, heading in zip(row, table.headings) if cell.partly]
    told = ", ".join([*row[-1].marks, *partly])
    return f" ({told})" if told else ""


def _row_class(row: Sequence[Cell], table: Table) -> str | None:
    return "none" if table.headings[-1].name == "runs" and row[-1].value == 0 else None


def _kind(heading: Heading) -> str | None:
    return "word" if heading.word else "minor" if heading.minor else None


def _heading(heading: Heading) -> Markup:
    below = ", ".join(filter(None, [heading.unit, heading.caveat]))
    told = join([heading.name, tag("span", below, class_="unit") if below else None])
    full = ", ".join(filter(None, [heading.of, heading.name, heading.caveat])) + (f" [{heading.unit}]" if heading.unit else "")
    return tag("th", tag("button", told, type="button"), scope="col", data_name=full, class_=_kind(heading))


def _cell(cell: Cell, heading: Heading, in_copies: str) -> Markup:
    value = "" if cell.value is None else f"{cell.value:.6g}" if isinstance(cell.value, float) else str(cell.value)
    value += in_copies if heading.name == "runs" else ""
    small = [tag("small", told) for told in (cell.spread, cell.partly) if told]
    marks = [tag("span", mark, class_="mark bad" if mark.endswith(" failed") else "mark") for mark in cell.marks]
    kind = "runs" if heading.name == "runs" else " ".join(filter(None, [_kind(heading), "strong" if cell.strong else None])) or None
    return tag("td", cell.text, *small, *marks, data_v=value, class_=kind)


_COMPARED = (
    ("total", "s", "total_s"), ("load", "s", "load_s"), ("energy", "J", "energy_j"), ("above idle", "J", "above_idle_j"),
    ("power", "W", "power_w"), ("broadcast", "s", "broadcast_s"), ("train", "s", "train_s"),
)  # fmt: skip
"""What of both sides stands side by side."""
_MINOR = frozenset({"above idle", "broadcast", "train", "power"})


def compare_table(comparison: Comparison) -> Table:
    """Both sides of every pair and what changed: the ratio of means with its interval, as far as repeats tell it."""
    pairs = comparison.pairs
    cases = [case for pair in pairs for case in (pair.before, pair.after)]
    left_out = "total_s" if is_reading(cases) else ""
    shown = [one for one in _COMPARED if one[2] != left_out and any(case.median(one[2]) is not None for case in cases)]
    named = any(pair.label for pair in pairs)
    head = [Heading(name=comparison.axis.label), *([Heading(name="configuration", word=True)] if named else [])]
    for words, unit, measure in shown:
        before, after = ("modelled" if measure in OF_POWER and any(case.modelled for case in side) else "" for side in (cases[::2], cases[1::2]))
        minor = words in _MINOR
        head += [
            Heading(name=f"{words}, before", unit=unit, minor=minor, caveat=before), Heading(name="after", unit=unit, minor=minor, caveat=after, of=words),
            Heading(name="change", minor=minor, of=words),
        ]  # fmt: skip
    head += [Heading(name=f"test {metric_of(cases)}", word=True), Heading(name="runs", word=True)]
    rows = [
        [
            Cell(text=as_word(pair.value), value=pair.value), *([Cell(text=pair.label, value=pair.label)] if named else []),
            *(cell for _, _, measure in shown for cell in _changes(pair, measure)), _reached(pair), _runs(pair),
        ]
        for pair in pairs
    ]  # fmt: skip
    note = "changes are ratios of means with their 95% intervals; bold where the interval leaves out no change"
    return Table(title=f"{comparison.before} against {comparison.after}", headings=head, rows=rows, notes=[counted(cases), note])


def _changes(pair: Pair, measure: str) -> list[Cell]:
    cells = [_median(case, measure) for case in (pair.before, pair.after)]
    found = pair.difference(measure)
    if found is None:
        return [*cells, Cell(text=UNKNOWN)]
    if measure in OF_POWER and pair.energy_caveat:
        return [*cells, Cell(text=f"{pair.energy_caveat}: not compared")]
    if found.low is None or found.high is None:
        return [*cells, Cell(text=f"{_change(found.value)}, one run", value=found.value - 1)]
    return [*cells, Cell(text=_change(found.value), value=found.value - 1, spread=f"{_change(found.low)} to {_change(found.high)}", strong=found.claimed)]


def _median(case: Case, measure: str) -> Cell:
    value = case.median(measure)
    mark = "~" if measure in OF_POWER and case.modelled else ""
    return Cell(text=UNKNOWN) if value is None else Cell(text=f"{mark}{number(value)}", value=value, partly=case.partly(measure))


def _change(ratio: float) -> str:
    """Of nearly all, never rounded up to all."""
    more = ratio - 1
    if abs(more) < 0.005:
        return "0%"
    return f"{'−' if more < 0 else '+'}{100 * abs(more):.{1 if -1 < more <= -0.995 else 0}f}%"


def _reached(pair: Pair) -> Cell:
    told = " → ".join(_accuracy(case) for case in (pair.before, pair.after))
    return Cell(text=told, value=told)


def _accuracy(case: Case) -> str:
    value, partly = case.median("test_accuracy"), case.partly("test_accuracy")
    return UNKNOWN if value is None else f"{value:.3f}{f' ({partly})' if partly else ''}"


def _runs(pair: Pair) -> Cell:
    sides = (pair.before, pair.after)
    told = " → ".join(str(case.runs) for case in sides)
    return Cell(text=told, value=told, marks=[mark for mark in (OVERSUBSCRIBED, BUSY) if any(mark in case.marks for case in sides)])


_INDENT = "\u2003"
Components = tuple[Sequence[Mapping[str, Any]], float | None]
"""Of a run: calls and seconds by name, and the seconds of all of it."""


def components_table(sides: Mapping[str, Components]) -> Table:
    """Calls and seconds of an average rank, by side, which has no name where there is one; what lies within another stands below it."""
    head, found = [Heading(name="component", word=True)], []
    for side, (components, total_s) in sides.items():
        of = f", {side}" if side else ""
        head += [Heading(name=f"{name}{of}", unit=unit) for name, unit in (("calls", ""), ("time", "s"), ("of it by itself", "s"), ("share of the run", ""))]
        found.append(({str(row["name"]): row for row in components}, total_s))
    names = {name: int(row.get("depth") or 0) for rows, _ in found for name, row in rows.items()}
    rows = [
        [Cell(text=f"{_INDENT * depth}{name}", value=name), *(cell for known, total_s in found for cell in _component(known.get(name), total_s))]
        for name, depth in names.items()
    ]
    return Table(title="Components", headings=head, rows=rows)


def _component(row: Mapping[str, Any] | None, total_s: float | None) -> list[Cell]:
    if row is None:
        return [Cell(text=UNKNOWN)] * 4
    own_s = row.get("self_s", row["seconds"])
    share = row["seconds"] / total_s if total_s else None
    return [
        Cell(text=plain(round(row["calls"], 1)), value=row["calls"]), Cell(text=number(row["seconds"]), value=row["seconds"]),
        Cell(text=number(own_s), value=own_s), Cell(text=percent(share, 1), value=share),
    ]  # fmt: skip
