"""Figures from elsewhere as a study: a CSV file, or one of the papers' tables that are shipped with this package."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from farandole.errors import DataError, SettingsError
from farandole.results.reading import Study
from farandole.results.schema import MEASURES, PROVENANCES, SCHEMA, Result
from farandole.results.table import MEASURE, SETTING, SETTINGS_TOO
from farandole.study.folder import StudyFolder, now
from farandole.study.measures import Measures
from farandole.study.points import Point, as_name

__all__ = ["import_figures", "paper_results", "paper_study", "papers_tables"]

_PROVENANCES = (*PROVENANCES, "none")
_A_RANK = {"power_w_a_rank": "power_w", "energy_j_a_rank": "energy_j"}
"""Columns that are multiplied by the ranks."""
_TEXT = ("metric", "power_provenance", "collective", "validation")
_DERIVED = ("runs", "failed", "marks", "speedup", "efficiency")
"""Columns of our own tables that are neither settings nor figures."""
_SPREAD = ("_min", "_max", "_runs")
"""How columns end that say more of a figure: from where to where it lies, and how many runs have it."""
_UNITS = ("_s", "_j", "_w", "_a_rank")
_NEVER_BELOW_0 = ("_s", "_j", "_js", "_j_a_rank")


def papers_tables() -> dict[str, dict[str, Any]]:
    """By name, each with its `source`; figures as printed."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(files("farandole.study").joinpath("papers").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            paper = tomllib.loads(file.read_text())
            source = f"{paper['authors']}: {paper['title']}. {paper['venue']}"
            for table in paper["table"]:
                found[table["name"]] = {**table, "source": source, "machine": paper["machine"]}
    return found


def paper_results(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table of the papers as lines of results."""
    rows = [{**table["settings"], **dict(zip(table["columns"], row))} for row in table["rows"]]
    return list(_results(rows, table["kind"], table.get("power_provenance", "none")))


def paper_study(table: Mapping[str, Any]) -> Study:
    """The same as a study that is in no folder."""
    lines = paper_results(table)
    return Study(
        folder=Path(), kind=table["kind"], title=table["name"], command=None, about=table, raw=lines, tries=len(lines),
        results=[Result.of(Path(), line) for line in lines],
    )  # fmt: skip


def import_figures(source: str, out: Path | None, title: str | None, kind: str = "strong") -> StudyFolder:
    """The folder of a new study. `source` is a CSV file, of a study of `kind`, or the name of a table."""
    if source in papers_tables():
        table = papers_tables()[source]
        lines, kind, notes, name = paper_results(table), table["kind"], table.get("notes", []), source
        told = f"{table['source']}; {table['where']}"
    else:
        lines, notes, name, told = list(_results(_read(Path(source)), kind, "none")), [], Path(source).stem, source
    folder = StudyFolder(out or Path("out", f"import-{name}"))
    if folder.exists:
        raise DataError(f"{folder.path} holds a study already: choose another --out")
    folder.write_plan({
        "kind": kind, "title": title or name, "benchmark": lines[0]["settings"].get("benchmark"), "preset": None,
        "command": f"farandole study import {source} --out {folder.path}", "source": told, "notes": notes,
        "fixed": {}, "base": lines[0]["settings"], "environment": None, "git": None,
        "points": [{name: line[name] for name in ("key", "settings", "repeat")} for line in lines],
    })  # fmt: skip
    folder.append(*lines)
    return folder


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix != ".csv" or not path.exists():
        raise SettingsError(
            f"{path}: no CSV file, and no table of the papers. There are {', '.join(papers_tables())}."
        )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [_row(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}. In a spreadsheet, save it as CSV in UTF-8.") from None
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def _row(path: Path, line: int, row: dict[Any, Any]) -> dict[str, Any]:
    beyond = row.pop(None, [])
    if any(cell.strip() for cell in beyond):
        raise DataError(f"{path}, line {line}: {', '.join(beyond)} has no column: name as many as there are cells")
    return {name: _cell(f"{path}, line {line}, column {name}", name, text) for name, text in row.items() if name.strip()}


def _cell(where: str, name: str, text: str | None) -> Any:
    """None where it is empty."""
    if text is None or not text.strip():
        return None
    return _number(where, _of_figure(name), text) if _is_figure(_of_figure(name)) else _value(text)


def _of_figure(name: str) -> str:
    """The column whose spread this one tells, or itself."""
    return next((name.removesuffix(end) for end in _SPREAD if name.endswith(end)), name)


def _tells_spread(name: str) -> bool:
    return name.endswith(("_min", "_max")) or (_of_figure(name) != name and _is_figure(_of_figure(name)))


def _is_figure(name: str) -> bool:
    """A column of numbers in seconds, joules or watts that we do not know is one as well."""
    if name.startswith(SETTING) and name.removeprefix(SETTING) in MEASURES:
        return False
    if name.startswith(MEASURE) and name.removeprefix(MEASURE) in MEASURES:
        return True
    return (name in MEASURES and name not in SETTINGS_TOO) or name.endswith(_UNITS)


def _number(where: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise DataError(f"{where}: {text!r} is no number. Write e.g. 1200.5, or nothing where it is not known") from None
    if not math.isfinite(number):
        raise DataError(f"{where}: {text!r} is no finite number. Write nothing where it is not known")
    if number < 0 and name.endswith(_NEVER_BELOW_0) and name != "above_idle_j":
        raise DataError(f"{where}: {text!r} is below 0. Write nothing where it is not known")
    return int(number) if number.is_integer() else number


def _value(text: str) -> Any:
    try:
        number = json.loads(text)
    except ValueError:
        return text
    return number if isinstance(number, (int, float)) else text


def _results(rows: Sequence[Mapping[str, Any]], kind: str, provenance: str) -> Iterator[dict[str, Any]]:
    seen: dict[str, int] = {}
    for row in rows:
        settings, figures = _split(row)
        told = Measures()
        told.add(dict.fromkeys(MEASURES), "not in what was imported")
        told.add(figures)
        _check_power(told.values, row.get("power_provenance") or provenance)
        failed = row.get("runs") == 0
        point = Point(settings=settings)
        repeat = seen[point.key] = seen.get(point.key, -1) + 1
        yield {
            "schema": SCHEMA, "study": kind, "key": point.key, "settings": settings, "repeat": repeat,
            "status": "failed" if failed else "ok", "reason": "it failed where it comes from" if failed else None,
            "started": now(), "wall_s": None, "run": None, "marks": _marks(settings, told.values, row.get("marks")),
            "figures": told.values, "reasons": told.reasons, **_summed_up(row),
        }  # fmt: skip


def _summed_up(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of medians of several runs: how many, and what else is told of a figure, from where to where and of how many."""
    runs = row.get("runs")
    if type(runs) is not int or runs < 2:
        return {}
    told = {name: [row.get(f"{name}{end}") for end in _SPREAD] for name in row if _is_figure(name)}
    spreads = {name.removeprefix(MEASURE): [low, high, count or runs] for name, (low, high, count) in told.items()}
    return {"runs": runs, "spreads": spreads}


def _split(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and figures."""
    ranks = row.get("ranks")
    if type(ranks) is not int or ranks < 1:
        raise DataError(f"ranks={ranks!r}: every row needs a column `ranks` with a whole number from 1 on")
    settings: dict[str, Any] = {"ranks": ranks}
    figures: dict[str, Any] = {}
    for name, value in row.items():
        if name in _DERIVED or _tells_spread(name) or value is None:
            continue
        if name in _A_RANK:
            figures[_A_RANK[name]] = value * ranks
        if name.startswith(SETTING) and name.removeprefix(SETTING) in MEASURES:
            settings[name.removeprefix(SETTING)] = value
        elif name in _TEXT or _is_figure(name):
            figures[name.removeprefix(MEASURE)] = value
        else:
            settings[as_name(name)] = value
    return settings, figures


def _check_power(figures: dict[str, Any], provenance: str) -> None:
    has_power = any(figures.get(name) is not None for name in ("power_w", "energy_j"))
    if provenance not in _PROVENANCES or (has_power and provenance == "none"):
        raise DataError(
            f"power_provenance={provenance!r}: watts and joules need a column power_provenance that says how they are "
            f"known: {', '.join(_PROVENANCES)}"
        )
    figures["power_provenance"] = provenance if has_power else "none"


def _marks(settings: Mapping[str, Any], figures: Mapping[str, Any], told: Any) -> list[str]:
    """Those of one of our own tables are kept."""
    modelled = ["modelled power"] if figures["power_provenance"] == "modelled" else []
    emulated = ["emulated ranks"] if settings.get("emulate_ranks") else []
    return list(dict.fromkeys(["imported", *emulated, *modelled, *(str(told).split("; ") if told else [])]))
