"""A folder as the page sees it: a study with its attempts, or one run. Files only; what is damaged is left out and said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.report.numbers import count
from farandole.report.runs import attempt_of_run, read_json

__all__ = ["Attempt", "Study", "read_folder"]

SCHEMA = 1
_ABOVE_0 = ("total_s", "train_s", "epoch_s")
_NOT_BELOW_0 = ("load_s", "energy_j", "energy_per_sample_j")


@dataclass(kw_only=True, slots=True, frozen=True)
class Attempt:
    """One line of results: a configuration run once."""

    key: str
    settings: Mapping[str, Any]
    repeat: int
    ok: bool
    reason: str | None
    run: Path | None
    """Its run directory, where there is one."""
    marks: tuple[str, ...]
    figures: Mapping[str, Any]
    reasons: Mapping[str, str]
    started: str | None = None
    made_with: Mapping[str, Any] = field(default_factory=dict)
    """Command, environment and commit; empty where the folder alone knows them."""

    def figure(self, name: str) -> float | None:
        value = self.figures.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)


@dataclass(kw_only=True, slots=True)
class Study:
    """What was asked, what came of it, and where."""

    folder: Path
    kind: str
    title: str
    command: str | None
    about: Mapping[str, Any]
    """study.json, or run.json of a single run."""
    attempts: list[Attempt]
    """The last attempt at every point."""
    tries: int
    """All attempts, those that were made again included."""
    raw: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its folder, also where that was given as `.`"""
        return self.folder.resolve().name

    @property
    def is_run(self) -> bool:
        return self.kind == "run"

    @property
    def finished(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.ok]

    @property
    def failed(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.ok]

    @property
    def planned(self) -> int:
        return max(len(self.about.get("points") or []), len(self.attempts))

    @property
    def makings(self) -> list[Mapping[str, Any]]:
        """With what its attempts were made, one after the other: a folder itself knows only how it was typed last."""
        last = {name: self.about.get(name) for name in ("command", "environment", "git")}
        return [attempt.made_with or last for attempt in self.attempts] or [last]

    def reason(self, figure: str) -> str:
        """Why `figure` is not known, in the words of the runs; empty where they say nothing."""
        if not self.finished:
            return "no run has finished"
        told = [attempt.reasons[figure] for attempt in self.finished if attempt.reasons.get(figure)]
        return max(set(told), key=told.count) if told else ""


def read_folder(folder: Path) -> Study:
    """A study (study.json, results.jsonl) or a run directory (run.json)."""
    if (folder / "study.json").is_file():
        return _study(folder)
    if (folder / "run.json").is_file():
        return _run(folder)
    what = "is not there" if not folder.exists() else "has neither study.json nor run.json"
    raise DataError(
        f"{folder} {what}. Name the folder of a study or of a run, made with e.g. farandole run nt3 -n 2 --output-dir DIR"
    )


def _study(folder: Path) -> Study:
    about = _known(folder / "study.json")
    kind = str(about.get("kind") or "study")
    warnings: list[str] = []
    keys = {str(point["key"]) for point in about.get("points") or [] if isinstance(point, dict) and "key" in point}
    raw = _lines(folder / "results.jsonl", kind, keys, warnings)
    return Study(
        folder=folder,
        kind=kind,
        title=str(about.get("title") or folder.resolve().name),
        command=about.get("command"),
        about=about,
        attempts=[_attempt(folder, line) for line in _possible(_last(raw), warnings)],
        tries=len(raw),
        raw=raw,
        warnings=warnings,
    )


def _run(folder: Path) -> Study:
    about = _known(folder / "run.json")
    line = attempt_of_run(folder, about)
    return Study(
        folder=folder,
        kind="run",
        title=" ".join(str(about[name]) for name in ("benchmark", "preset") if about.get(name)) or folder.resolve().name,
        command=about.get("command"),
        about=about,
        attempts=[_attempt(folder, line)],
        tries=1,
        raw=[line],
    )


def _known(path: Path) -> dict[str, Any]:
    about = read_json(path)
    if about is None:
        raise DataError(f"{path} is no JSON object: it was cut off, or something else has that name. Make it again.")
    if about.get("schema") != SCHEMA:
        raise DataError(f"{path} has schema {about.get('schema')!r}, this version reads {SCHEMA}. Make it again.")
    return about


def _lines(path: Path, kind: str, keys: Set[str], warnings: list[str]) -> list[dict[str, Any]]:
    """The attempts in the order they ended; `keys` are those of the plan."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        warnings.append("There is no results.jsonl yet: no run has ended.")
        return []
    found: list[dict[str, Any]] = []
    strangers = 0
    for number, line in enumerate(lines, 1):
        told = _object(line)
        if told is None:
            at = "its last line" if number == len(lines) else f"line {number}"
            warnings.append(f"results.jsonl: {at} was cut off and is left out.")
        elif told.get("study", kind) != kind or not isinstance(told.get("settings"), dict) or str(told.get("key")) not in keys:
            strangers += 1
        else:
            found.append(told)
    if strangers:
        verbs = ("belongs", "is") if strangers == 1 else ("belong", "are")
        warnings.append(f"results.jsonl: {strangers} of its lines {verbs[0]} to another study and {verbs[1]} left out.")
    return found


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _last(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several attempts at one point the last that succeeded, or else the last."""
    chosen: dict[tuple[str, int], dict[str, Any]] = {}
    for line in raw:
        at = str(line.get("key")), int(line.get("repeat") or 0)
        if at not in chosen or line.get("status") == "ok" or chosen[at].get("status") != "ok":
            chosen[at] = line
    return list(chosen.values())


def _possible(lines: list[dict[str, Any]], warnings: list[str]) -> list[dict[str, Any]]:
    """Without times and joules that cannot be, as results that others have written may have them."""
    left_out: dict[str, list[float]] = {}
    kept = []
    for line in lines:
        figures = line.get("figures") or {}
        wrong = [name for name in (*_ABOVE_0, *_NOT_BELOW_0) if _is_wrong(name, figures.get(name))]
        for name in wrong:
            left_out.setdefault(name, []).append(figures[name])
        kept.append({**line, "figures": {name: value for name, value in figures.items() if name not in wrong}})
    warnings += [_cannot_be(name, values) for name, values in left_out.items()]
    return kept


def _is_wrong(name: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and (value < 0 or (value == 0 and name in _ABOVE_0))


def _cannot_be(name: str, values: list[float]) -> str:
    *first, last = dict.fromkeys(f"{value:g}" for value in values)
    told = f"{', '.join(first)} or {last}" if first else last
    return f"results.jsonl: {name} of {count(len(values), 'run')} is left out: it cannot be {told}."


def _attempt(folder: Path, line: Mapping[str, Any]) -> Attempt:
    return Attempt(
        key=str(line.get("key")),
        settings=line["settings"],
        repeat=int(line.get("repeat") or 0),
        ok=line.get("status") == "ok",
        reason=line.get("reason"),
        run=folder / line["run"] if line.get("run") else None,
        marks=tuple(line.get("marks") or ()),
        figures=line.get("figures") or {},
        reasons=line.get("reasons") or {},
        started=line.get("started"),
        made_with=line.get("made_with") or {},
    )
