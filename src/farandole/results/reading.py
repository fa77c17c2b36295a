"""A folder read: a study with its results, or one run as a study of one point.

One rule for what is damaged: a line of results.jsonl that was cut, is no result, or belongs to another study is left out, and a
warning says so. What was measured beside it counts; results are only ever appended to, so that nothing is lost by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.results.numbers import count
from farandole.results.runs import line_of_run
from farandole.results.schema import PLAN, READS, RESULTS, RUN, SCHEMA, Result, check_schema, is_result

__all__ = ["Study", "counting", "read_folder", "read_plan", "study_of"]

_ABOVE_0 = ("total_s", "train_s", "epoch_s")
_NOT_BELOW_0 = ("load_s", "energy_j", "energy_per_sample_j")


@dataclass(kw_only=True, slots=True)
class Study:
    """What was asked, what came of it, and where."""

    folder: Path
    kind: str
    """strong, weak, batch, lr, loaders; `run` for a single run."""
    title: str
    command: str | None
    about: Mapping[str, Any]
    """study.json, or run.json of a single run."""
    results: list[Result]
    """The one that counts of every point: the last that succeeded, or else the last."""
    tries: int
    """All results, those of points that were run again included."""
    raw: list[dict[str, Any]]
    """All lines, as they are in the file."""
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its folder, also where that was given as `.`"""
        return self.folder.resolve().name

    @property
    def is_run(self) -> bool:
        return self.kind == "run"

    @property
    def work(self) -> str:
        """How the time is expected to follow the ranks: strong, weak, or the same where no ranks are compared."""
        return self.kind if self.kind in ("strong", "weak") else "same"

    @property
    def finished(self) -> list[Result]:
        return [result for result in self.results if result.ok]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if not result.ok]

    @property
    def planned(self) -> int:
        return max(len(self.about.get("points") or []), len(self.results))

    @property
    def makings(self) -> list[Mapping[str, Any]]:
        """With what its results were made, one after the other: a folder itself knows only how it was typed last."""
        last = {name: self.about.get(name) for name in ("command", "environment", "git")}
        return [result.made_with or last for result in self.results] or [last]

    def reason(self, measure: str) -> str:
        """Why a measure is not known, in the words of the runs; empty where they say nothing."""
        if not self.finished:
            return "no run has finished"
        told = [result.reasons[measure] for result in self.finished if result.reasons.get(measure)]
        return max(set(told), key=told.count) if told else ""


def read_folder(folder: Path) -> Study:
    """A study (study.json, results.jsonl) or a run directory (run.json)."""
    if (folder / PLAN).is_file():
        return study_of(folder, read_plan(folder))
    if (folder / RUN).is_file():
        return _run(folder)
    what = "is not there" if not folder.exists() else f"has neither {PLAN} nor {RUN}"
    raise DataError(
        f"{folder} {what}. Name the folder of a study or of a run, made with e.g. farandole run nt3 -n 2 --output-dir DIR"
    )


def read_plan(folder: Path) -> dict[str, Any]:
    """study.json; DataError where it is none."""
    try:
        plan = check_schema(folder / PLAN, _object((folder / PLAN).read_bytes()))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no study: there is no {PLAN} in it.") from None
    except OSError as error:
        raise DataError(f"{folder / PLAN} cannot be read: {error.strerror}.") from error
    if "points" not in plan:
        raise DataError(f"{folder / PLAN} is no study: it has no points. Choose another folder.")
    return plan


def study_of(folder: Path, plan: Mapping[str, Any]) -> Study:
    """The study of a plan with the results in its folder; a study with none is one, too."""
    kind, warnings = str(plan.get("kind") or "study"), list[str]()
    keys = {str(point["key"]) for point in plan.get("points") or [] if isinstance(point, dict) and "key" in point}
    raw = _lines(folder / RESULTS, kind, keys, warnings)
    counted = _possible(counting(raw), warnings)
    return Study(
        folder=folder, kind=kind, title=str(plan.get("title") or folder.resolve().name), command=plan.get("command"), about=plan,
        results=[Result.of(folder, line) for line in counted], tries=len(raw), raw=raw, warnings=warnings,
    )  # fmt: skip


def _run(folder: Path) -> Study:
    path = folder / RUN
    about = check_schema(path, _object(path.read_bytes()))
    line = line_of_run(folder, about)
    title = " ".join(str(about[name]) for name in ("benchmark", "preset") if about.get(name)) or folder.resolve().name
    return Study(
        folder=folder, kind="run", title=title, command=about.get("command"), about=about, results=[Result.of(folder, line)],
        tries=1, raw=[line],
    )  # fmt: skip


def _lines(path: Path, kind: str, keys: Set[str], warnings: list[str]) -> list[dict[str, Any]]:
    """In the order in which they ended; `keys` are those of the plan."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        warnings.append(f"There is no {RESULTS} yet: no run has ended.")
        return []
    found: list[dict[str, Any]] = []
    strangers = newer = 0
    for number, text in enumerate(lines, 1):
        line = _object(text)
        if line is None:
            at = "its last line" if number == len(lines) else f"line {number}"
            warnings.append(f"{RESULTS}: {at} was cut off and is left out.")
        elif line.get("schema", SCHEMA) not in READS:
            newer += 1
        elif not is_result(line) or line["study"] != kind or str(line["key"]) not in keys:
            strangers += 1
        else:
            found.append(line)
    if newer:
        warnings.append(f"{RESULTS}: {newer} of its lines were written by a later version and are left out.")
    if strangers:
        verbs = ("belongs", "is") if strangers == 1 else ("belong", "are")
        warnings.append(f"{RESULTS}: {strangers} of its lines {verbs[0]} to another study and {verbs[1]} left out.")
    return found


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def counting(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several tries at one point the last that succeeded, or else the last."""
    chosen: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        at = str(line["key"]), int(line["repeat"])
        if at not in chosen or line["status"] == "ok" or chosen[at]["status"] != "ok":
            chosen[at] = line
    return list(chosen.values())


def _possible(lines: list[dict[str, Any]], warnings: list[str]) -> list[dict[str, Any]]:
    """Without times and joules that cannot be, as results that others have written may have them."""
    left_out: dict[str, list[float]] = {}
    kept = []
    for line in lines:
        measures = line["figures"] or {}
        wrong = [name for name in (*_ABOVE_0, *_NOT_BELOW_0) if _is_wrong(name, measures.get(name))]
        for name in wrong:
            left_out.setdefault(name, []).append(measures[name])
        kept.append({**line, "figures": {name: value for name, value in measures.items() if name not in wrong}})
    warnings += [_cannot_be(name, values) for name, values in left_out.items()]
    return kept


def _is_wrong(name: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and (value < 0 or (value == 0 and name in _ABOVE_0))


def _cannot_be(name: str, values: list[float]) -> str:
    *first, last = dict.fromkeys(f"{value:g}" for value in values)
    told = f"{', '.join(first)} or {last}" if first else last
    return f"{RESULTS}: {name} of {count(len(values), 'run')} is left out: it cannot be {told}."
