"""Tables of words as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.errors import SettingsError

__all__ = ["FORMATS", "Table", "aligned", "as_csv", "as_latex", "as_markdown", "as_text", "check_format", "have", "number"]

FORMATS = ("text", "markdown", "csv", "latex")
_ESCAPED = str.maketrans({
    "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"$\sim$",
    "\\": r"\textbackslash{}", "^": r"\^{}", "<": "$<$", ">": "$>$",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What is printed, cell by cell."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: int = 0
    """So many columns begin at the left; those after them are figures, which end at the right."""


def check_format(form: str) -> None:
    if form not in FORMATS:
        raise SettingsError(f"format={form!r} is unknown. Use one of {', '.join(FORMATS)}.")


def number(value: float | None) -> str:
    """For people: four digits or so."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def have(how_many: int, of: str = "") -> str:
    """`1 has`, `2 have`; with what they are of, `1 of 2 points has`."""
    return f"{how_many} {of}{'has' if how_many == 1 else 'have'}"


def as_text(table: Table) -> str:
    notes = ["", *table.notes] if table.notes else []
    return "\n".join([table.title, "", *aligned([table.headings, *table.rows], table.words), *notes])


def aligned(lines: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Cells below each other."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join(cell.ljust(w) if at < words else cell.rjust(w) for at, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    ]


def as_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    figures = len(table.headings) - table.words
    head = [line(table.headings), f"|{'---|' * table.words}{'---:|' * figures}"]
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([f"**{table.title}**", "", *head, *map(line, table.rows), *notes])


def as_latex(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(_ESCAPED) for cell in cells) + r" \\"

    caption = ". ".join([table.title, *table.notes]).translate(_ESCAPED)
    columns = "l" * table.words + "r" * (len(table.headings) - table.words)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}.}}", rf"\begin{{tabular}}{{{columns}}}",
        r"\hline", line(table.headings), r"\hline", *map(line, table.rows), r"\hline",
        r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def as_csv(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([headings, *rows])
    return stream.getvalue().rstrip("\n")
