"""The loaders study as tables: what the papers show, every way of reading, and several processes at once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from farandole.study.turn import CACHED, STORING

__all__ = ["as_text"]

Row = dict[str, Any]

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
_SHOWN = ("pandas", "pandas-chunked", "fast", CACHED)


def as_text(results: dict[str, Any]) -> str:
    rows: list[Row] = results["rows"]
    parts = [_machine(results), _papers(rows), _methods(rows), _at_once(rows), _notes(results)]
    return "\n\n".join(part for part in parts if part)


def _machine(results: dict[str, Any]) -> str:
    found = results["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    machine = f"{found['cpu']}, {found['cores']} cores, {found['memory_bytes'] / 2**30:.0f} GiB"
    return f"{machine}\n{textwrap.fill(packages, _WIDTH)}"


def _papers(rows: Sequence[Row]) -> str:
    """Their tables: seconds for each file, read from the disk by one process."""
    lines = [["benchmark", "file", "MB", *_SHOWN, "gain"]]
    alike = {_file(row): told for row in rows if (told := _paper(row)) is not None}
    if alike:
        lines[0] += ["Summit", "Theta"]
    for source in _files(rows):
        by_method = {row["method"]: row for row in _some(rows, source, ranks=1, state="cold")}
        first = next(iter(by_method.values()), None)
        if first is None:
            continue
        seconds = [_seconds(by_method.get(method)) for method in _SHOWN]
        gain = _ratio(by_method.get("pandas"), by_method.get("fast"))
        lines.append([first["benchmark"], first["role"], _mb(first["bytes"]), *seconds, gain, *alike.get(source, ())])
    title = "Loading in seconds, one process, cold. gain: fast over pandas."
    if alike:
        title += "\nSummit, Theta: the papers' seconds with pandas -> pandas-chunked."
    return _table(title, lines, left=2) if len(lines) > 1 else ""


def _paper(row: Row) -> tuple[str, str] | None:
    mb, summit, theta = _PAPERS.get((row["benchmark"], row["role"]), (0, "", ""))
    return (summit, theta) if abs(row["bytes"] / 1e6 - mb) < _LIKE_THE_PAPERS * mb else None


def _methods(rows: Sequence[Row]) -> str:
    tables = []
    for source in _files(rows):
        cold = {row["method"]: row for row in _some(rows, source, ranks=1, state="cold")}
        warm = {row["method"]: row for row in _some(rows, source, ranks=1, state="warm")}
        if not cold:
            continue
        lines = [["method", "cold s", "MB/s", "warm s", "MB/s", "peak MB", "held MB"]]
        for method, row in cold.items():
            other = warm.get(method)
            lines.append([
                method, _seconds(row), _rate(row), _seconds(other), _rate(other),
                _mb(_of(row, "peak_bytes")), _mb(_of(row, "held_bytes")),
            ])  # fmt: skip
        shape = next((row["shape"] for row in cold.values() if row["shape"]), None)
        size = f"{shape[0]:,} x {shape[1]:,}" if shape else "not read"
        tables.append(_table(f"{row['benchmark']} {row['path'].rpartition('/')[2]}: {_mb(row['bytes'])} MB, {size}", lines))
    return "\n\n".join(tables)


def _at_once(rows: Sequence[Row]) -> str:
    """The papers' contention."""
    lines = [["benchmark", "method", "at once", "cold s", "x one", "warm s", "x one", "held MB", "x one"]]
    for cold in rows:
        if cold["ranks"] == 1 or cold["state"] != "cold":
            continue
        same = [row for row in rows if _file(row) == _file(cold) and row["method"] == cold["method"]]
        one = {row["state"]: row for row in same if row["ranks"] == 1}
        warm = next((row for row in same if row["ranks"] == cold["ranks"] and row["state"] == "warm"), None)
        lines.append([
            cold["benchmark"], cold["method"], str(cold["ranks"]),
            _seconds(cold), _ratio(cold, one.get("cold")), _seconds(warm), _ratio(warm, one.get("warm")),
            _mb(_of(cold, "held_bytes")), _ratio(cold, one.get("cold"), "held_bytes"),
        ])  # fmt: skip
    title = "Several processes loading the largest file of a benchmark at once, against one of them.\n"
    title += "fast and fast-cached: ranks that share one parse and one copy; the others: each on its own."
    return _table(title, lines, left=2) if len(lines) > 1 else ""


def _notes(results: dict[str, Any]) -> str:
    notes = [
        "cold: the file's pages were dropped from the page cache. warm: they are in it.",
        "peak: the most a process needed beyond its imports, mapped files not counted; of the cold reading.",
        "held: what all processes have in memory once they hold the table, shared pages counted once.",
        f"{STORING}: parses and writes the cache. {CACHED}: maps and checks it, the next time.",
    ]
    if results.get("compile_s") is not None:
        notes.append(f"fast compiles once, for {results['compile_s']:.1f} s, which is in no figure above.")
    reasons = {(row["method"], row["role"], row["reason"]): None for row in results["rows"] if row["reason"]}
    notes += [f"not measured: {method}, {role}: {reason}" for method, role, reason in reasons]
    if any(row["benchmark"] == "p1b3" for row in results["rows"]):
        notes.append(
            "p1b3: three of its tables; the papers do not describe the two files (318 and 103 MB) they give figures of."
        )
    return "\n".join(textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in notes)


def _files(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(_file(row) for row in rows))


def _file(row: Row) -> str:
    return str(row["path"])


def _some(rows: Sequence[Row], source: str, *, ranks: int, state: str) -> Iterable[Row]:
    return (row for row in rows if _file(row) == source and row["ranks"] == ranks and row["state"] == state)


def _of(row: Row | None, name: str) -> Any:
    return None if row is None else row[name]


def _seconds(row: Row | None) -> str:
    value = _of(row, "seconds")
    if value is None:
        return "-"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _rate(row: Row | None) -> str:
    value = _of(row, "mb_per_s")
    return "-" if value is None else f"{value:,.0f}"


def _mb(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:,.0f}" if value >= 1e7 else f"{value / 1e6:,.1f}"


def _ratio(above: Row | None, below: Row | None, name: str = "seconds") -> str:
    a, b = _of(above, name), _of(below, name)
    return f"{a / b:.1f}x" if a is not None and b else "-"


def _table(title: str, lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The first `left` columns are texts, the others figures."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = [
        "  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([title, "", shown[0], rule, *(line.rstrip() for line in shown[1:])])
