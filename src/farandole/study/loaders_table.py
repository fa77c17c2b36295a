"""A study of loaders as tables: what the papers show, every way of reading, and several processes at once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from farandole.report.loaders import BASE, FROM_CACHE, Reading, by_file, current, failures, readings_of
from farandole.report.reading import Study
from farandole.study.cases import BUSY
from farandole.study.formats import Table, as_csv, as_latex, as_markdown, as_text, check_format
from farandole.study.turn import CACHED, STORING

__all__ = ["loaders_table"]

# Seconds of the papers' Tables 3 (Summit) and 4 (Theta): pandas.read_csv, and in chunks with low_memory=False.
_PAPERS = {
    ("nt3", "train"): (597, "81.7 -> 14.3", "52.9 -> 13.8"),
    ("nt3", "test"): (150, "22.3 -> 5.3", "13.9 -> 3.6"),
    ("p1b1", "train"): (771, "235.7 -> 31.0", "139.7 -> 27.4"),
    ("p1b1", "test"): (258, "80.8 -> 14.5", "48.4 -> 11.7"),
    ("p1b2", "train"): (162, "41.0 -> 11.0", "25.1 -> 9.5"),
    ("p1b2", "test"): (55, "16.0 -> 5.3", "9.6 -> 4.4"),
}
_WIDTH = 100
_LIKE_THE_PAPERS = 0.1
_SHOWN = (BASE, "pandas-chunked", "fast", CACHED)
_SPREAD = "min..max"
_FIGURES = ("load_s", "mb_per_s", "safe_s", "peak_bytes", "resident_peak_bytes", "held_bytes", "rows", "columns", "others_share")
_SETTINGS = ("ranks", "benchmark", "role", "path", "bytes", "loader", "version", "state")


def loaders_table(study: Study, form: str) -> str:
    """All of its tables, one below the other; as CSV one, of every reading."""
    check_format(form)
    study = current(study)
    readings = readings_of(study)
    if form == "csv":
        return _csv(readings)
    tables = [table for table in (_papers(readings), *_methods(readings), _at_once(readings)) if table.rows]
    if not tables:
        return f"{study.title}\n\nno file has been read yet; type: {study.command}"
    tables[0] = replace(tables[0], title=f"{study.title}: {tables[0].title}")
    tables[-1] = replace(tables[-1], notes=_notes(study, readings, _WIDTH if form == "text" else None))
    write = {"text": as_text, "markdown": as_markdown, "latex": as_latex}[form]
    return "\n\n".join(map(write, tables))


def _papers(readings: Sequence[Reading]) -> Table:
    """Their tables: seconds for each file, read from the disk by one process."""
    alike = {at: told for at, group in by_file(readings).items() if (told := _paper(group[0])) is not None}
    rows = []
    for at, group in by_file(_some(readings, "cold")).items():
        by_loader = {reading.loader: reading for reading in group}
        fast = by_loader.get("fast")
        seconds = [_seconds(by_loader.get(name)) for name in _SHOWN]
        rows.append([*at, _mb(group[0].bytes), *seconds, _times(fast.gain if fast else None), *(alike.get(at, ("", "")) if alike else ())])
    headings = ["benchmark", "file", "MB", *_SHOWN, "gain", *(("Summit", "Theta") if alike else ())]
    return Table(title="seconds of one process, cold", headings=headings, rows=rows, words=2)


def _paper(reading: Reading) -> tuple[str, str] | None:
    mb, summit, theta = _PAPERS.get((reading.setting("benchmark"), reading.setting("role")), (0, "", ""))
    return (summit, theta) if abs(reading.bytes / 1e6 - mb) < _LIKE_THE_PAPERS * mb else None


def _methods(readings: Sequence[Reading]) -> Iterable[Table]:
    """One for each file: every loader, alone."""
    headings = ["loader", "state", "s", _SPREAD, "gain", "MB/s", "peak MB", "held MB"]
    for (benchmark, _), group in by_file(_some(readings)).items():
        rows = [
            [
                one.loader, one.state, _seconds(one), _spread(one), _times(one.gain), _rate(one),
                _mb(one.most("peak_bytes")), _mb(one.most("held_bytes")),
            ]
            for one in group
        ]  # fmt: skip
        read = next((one for one in group if not one.failed), None)
        shape = "not read" if read is None else f"{read.point.median('rows'):,.0f} x {read.point.median('columns'):,.0f}"
        title = f"{benchmark} {group[0].file}: {_mb(group[0].bytes)} MB, {shape}"
        yield _spread_where_known(Table(title=title, headings=headings, rows=rows, words=2))


def _at_once(readings: Sequence[Reading]) -> Table:
    """The papers' contention."""
    headings = ["benchmark", "loader", "state", "at once", "s", _SPREAD, "x one", "gain", "held MB", "x one"]
    rows = [
        [
            one.setting("benchmark"), one.loader, one.state, str(one.point.ranks), _seconds(one), _spread(one), _times(one.over_alone("load_s")),
            _times(one.gain), _mb(one.most("held_bytes")), _times(one.over_alone("held_bytes")),
        ]
        for one in readings
        if one.point.ranks > 1
    ]  # fmt: skip
    title = "several processes that read the largest file of a benchmark at once, against one"
    return _spread_where_known(Table(title=title, headings=headings, rows=rows, words=3))


def _spread_where_known(table: Table) -> Table:
    at = table.headings.index(_SPREAD)
    if any(row[at] != "-" for row in table.rows):
        return table

    def rest(cells: Sequence[str]) -> list[str]:
        return [*cells[:at], *cells[at + 1 :]]

    return replace(table, headings=rest(table.headings), rows=[rest(row) for row in table.rows])


def _notes(study: Study, readings: Sequence[Reading], width: int | None) -> list[str]:
    """What a reader must know to compare; in lines of `width`."""
    known = {reading.loader for reading in readings if not reading.failed}
    notes = [_machine(study), _base(known), _repeats(readings)]
    if any(_paper(reading) for reading in readings):
        notes.append("Summit, Theta: the papers' seconds with pandas -> pandas-chunked")
    notes += [
        "cold: the file's pages were dropped from the page cache; warm: they are in it",
        "peak: the most a process needed beyond its imports, mapped files not counted",
        "held: what all processes have in memory once they hold the table, shared pages counted once",
    ]
    if known & {*FROM_CACHE}:
        notes.append(f"{STORING}: parses and writes the cache; {CACHED}: maps and checks it, the next time")
    if any(reading.point.ranks > 1 for reading in readings):
        notes.append(f"fast and {CACHED} at once: ranks that share one parse and one copy; the others: each on its own")
    if study.about.get("compile_s") is not None:
        notes.append(f"fast compiles once, for {study.about['compile_s']:.1f} s, which is in no figure above")
    crowded = sorted({reading.point.ranks for reading in readings if "oversubscribed" in reading.point.marks})
    if crowded:
        notes.append(f"oversubscribed, with fewer cores than processes: {', '.join(map(str, crowded))} at once")
    busy = [share for reading in readings if BUSY in reading.point.marks for share in reading.point.values("others_share")]
    if busy:
        notes.append(f"{BUSY}: other programs took up to {max(busy):.0%} of its processor time")
    if any(reading.setting("benchmark") == "p1b3" for reading in readings):
        notes.append("p1b3: three of its tables; the papers do not describe the two files (318 and 103 MB) they give figures of")
    notes += [f"failed: {told}" for told in failures(readings)]
    return notes if width is None else [textwrap.fill(note, width, subsequent_indent="  ") for note in notes]


def _machine(study: Study) -> str:
    found = study.about["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    return f"{found['cpu']}, {found['cores']} cores, {found['memory_bytes'] / 2**30:.0f} GiB; {packages}"


def _base(known: set[str]) -> str:
    if BASE not in known:
        return f"base case: {BASE}, of which there is no reading: no gain is known"
    return f"base case: {BASE} as it is by default; gain: its seconds over a loader's, same file, state and number of processes"


def _repeats(readings: Sequence[Reading]) -> str:
    counts = sorted({len(reading.point.attempts) for reading in readings} - {0})
    if not counts:
        return "no reading has ended well"
    if counts == [1]:
        return "each was read once: no spread is known"
    return f"medians of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} readings; memory is the most of them"


def _csv(readings: Sequence[Reading]) -> str:
    spreads = [f"{name}{end}" for name in _FIGURES for end in ("", "_min", "_max")]
    headings = [*_SETTINGS, "runs", "failed", "reason", "marks", "gain", "load_s_x_one", "held_bytes_x_one", *spreads]
    return as_csv(headings, map(_csv_row, readings))


def _csv_row(reading: Reading) -> list[Any]:
    point = reading.point
    reasons = dict.fromkeys(attempt.reason for attempt in point.failed)
    told = [len(point.attempts), len(point.failed), "; ".join(map(str, reasons)), "; ".join(point.marks)]
    ratios = [reading.gain, reading.over_alone("load_s"), reading.over_alone("held_bytes")]
    figures = [value for name in _FIGURES for value in (point.median(name), *(_ends(point.values(name))))]
    return [*(reading.setting(name) for name in _SETTINGS), *told, *ratios, *figures]


def _ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    return min(values, default=None), max(values, default=None)


def _some(readings: Iterable[Reading], state: str = "") -> list[Reading]:
    """Of one process."""
    return [reading for reading in readings if reading.point.ranks == 1 and state in ("", reading.state)]


def _seconds(reading: Reading | None) -> str:
    if reading is None:
        return "-"
    return "failed" if reading.failed else _digits(reading.seconds)


def _digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _spread(reading: Reading) -> str:
    return "-" if reading.spread is None else "..".join(map(_digits, reading.spread))


def _rate(reading: Reading) -> str:
    value = reading.point.median("mb_per_s")
    return "-" if value is None else f"{value:,.0f}"


def _mb(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:,.0f}" if value >= 1e7 else f"{value / 1e6:,.1f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"
