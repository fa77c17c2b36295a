"""Tables as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.results.table import Heading, Table

__all__ = ["FORMATS", "aligned", "as_csv", "as_latex", "as_markdown", "as_text", "check_format"]

FORMATS = ("text", "markdown", "csv", "latex")
_TYPED = str.maketrans({"\u202f": " ", "×": "x", "–": "-", "→": "->", "…": "..."})
"""For terminals and typesetters, which may know no other letters."""
_ESCAPED = str.maketrans({
    "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"$\sim$",
    "\\": r"\textbackslash{}", "^": r"\^{}", "<": "$<$", ">": "$>$",
})  # fmt: skip


def check_format(form: str) -> None:
    if form not in FORMATS:
        raise SettingsError(f"format={form!r} is unknown. Use one of {', '.join(FORMATS)}.")


def typed(text: str) -> str:
    """In letters that every terminal has."""
    return text.translate(_TYPED)


def as_text(table: Table) -> str:
    """One block for times and one for the rest, each with what tells rows apart."""
    blocks = [table.title]
    for group in (1, 2):
        shown = [at for at, heading in enumerate(table.headings) if heading.group in (0, group)]
        if any(table.headings[at].group == group and table.headings[at].name != "runs" for at in shown):
            head = [table.headings[at] for at in shown]
            lines = [list(map(str, head)), *([str(row[at]) for at in shown] for row in table.rows)]
            blocks += ["", *aligned(lines, head)]
    return typed("\n".join([*blocks, *(["", *table.notes] if table.notes else [])]))


def aligned(lines: Sequence[Sequence[str]], headings: Sequence[Heading] = ()) -> list[str]:
    """Cells below each other, words from the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    words = [heading.word for heading in headings] or [False] * len(widths)
    return [
        "  ".join(cell.ljust(w) if word else cell.rjust(w) for cell, w, word in zip(line, widths, words)).rstrip() for line in lines
    ]


def as_markdown(table: Table) -> str:
    def line(cells: Iterable[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    rule = f"|{''.join('---|' if heading.word else '---:|' for heading in table.headings)}"
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return typed("\n".join([f"**{table.title}**", "", line(table.headings), rule, *map(line, table.rows), *notes]))


def as_latex(table: Table) -> str:
    def line(cells: Iterable[object]) -> str:
        return " & ".join(typed(str(cell)).translate(_ESCAPED) for cell in cells) + r" \\"

    caption = typed(". ".join([table.title, *table.notes])).translate(_ESCAPED)
    columns = "".join("l" if heading.word else "r" for heading in table.headings)
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
