"""A study from its plan to its page.

    plan       every combination of the axes; those that have a result already are left out
    prepare    missing data is made and read once, so that no point pays for it and all find it in the cache
    run        one point after the other, each in a run directory of its own, its line appended when it has ended
    tell       the table, a verdict, and where the page is
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.report.loaders import is_measured
from farandole.report.numbers import count
from farandole.report.reading import read_folder
from farandole.study.cases import cases_of
from farandole.study.collecting import collect
from farandole.study.estimate import Estimate
from farandole.study.folder import StudyFolder, made_with
from farandole.study.formats import have
from farandole.study.live import LiveLine
from farandole.study.loaders_table import loaders_table
from farandole.study.pointrun import PointRunner
from farandole.study.points import LONG, OWN, Point, described, is_crowded, usable_cores, varying, warning_of
from farandole.study.settings import StudySettings
from farandole.study.table import as_table
from farandole.train.progress import duration

__all__ = ["as_json", "plan_text", "prepare_data", "run_study", "summary", "table_of", "write_plan"]


def plan_text(study: StudySettings, folder: StudyFolder) -> str:
    """What would be run, and how long that may take."""
    folder.check_same(_identity(study))
    points = study.points()
    left = folder.missing(points) if folder.exists else points
    estimate = Estimate(folder.results() if folder.exists else [])
    names = _names(points)
    lines = [f"{study.title}: {count(len(points), 'point')}, {have(len(points) - len(left))} a result already", ""]
    for point in points:
        state = "done" if point not in left else f"about {duration(estimate.seconds([point]))}"
        marks = f"  oversubscribed: {count(usable_cores(), 'core')}" if is_crowded(point.settings, study.hosts) else ""
        lines.append(f"  {point.name}  {_told(point, names, study.repeats)}  {state}{marks}")
    basis = "from points that have run here" if estimate.measured else "a guess, good for a factor of 3, until one has run"
    if study.command and not estimate.measured:
        basis = "a minute a point, until one has run"
    nodes = sum(point.settings["nodes"] * estimate.seconds([point]) for point in left) / 3600
    lines += ["", f"about {duration(estimate.seconds(left))} in all, {nodes:.2g} node-hours ({basis}); results: {folder.path}"]
    return "\n".join(lines)


def write_plan(study: StudySettings, folder: StudyFolder, command: Sequence[str]) -> list[Point]:
    """study.json; the points, each with its repeat."""
    points = study.points()
    first = min(points, key=lambda point: point.settings["ranks"])
    made = made_with(shlex.join(["farandole", *command]), "keras", study.framework, "mpich")
    folder.write_plan({**_identity(study), **made, "base": dict(first.settings), "points": [point.as_dict() for point in points]})
    return points


def _identity(study: StudySettings) -> dict[str, Any]:
    """What a folder's plan is compared by, and its title."""
    named = {"benchmark": study.benchmark or None, "preset": study.preset if study.benchmark else None}
    return {"kind": study.kind, "title": study.title, **named, "fixed": study.fixed}


def prepare_data(points: Sequence[Point]) -> None:
    """Files that are missing are made; what is read once is in the cache for all points."""
    from farandole.benchmarks import benchmark
    from farandole.train.session import make_missing_data
    from farandole.train.settings import RunSettings

    seen: set[Path] = set()
    for point in points:
        if "command" in point.settings:
            continue
        run = {LONG.get(name, name): value for name, value in point.settings.items() if name not in OWN}
        settings = RunSettings.from_flat(run)
        if settings.data_folder not in seen:
            seen.add(settings.data_folder)
            make_missing_data(settings)
            benchmark(settings.benchmark).load(settings.data_folder, settings.parameters)


def run_study(study: StudySettings, folder: StudyFolder, *, command: Sequence[str], power: bool) -> int:
    """An exit code: 1 where a point has failed. Stopped at any moment, it goes on when typed again."""
    points = write_plan(study, folder, command)
    collect(folder)
    left = folder.missing(points)
    live = LiveLine(sys.stderr)
    if len(left) < len(points):
        done, planned = len(points) - len(left), count(len(points), "point")
        live.say(f"{have(done, f'of {planned} ')} a result in {folder.path} already")
    if crowded := [point.settings["ranks"] for point in left if is_crowded(point.settings, study.hosts)]:
        live.say(warning_of(crowded))
    if left:
        prepare_data(left)
    _run(study, folder, left, live, power)
    print(summary(folder))
    return 1 if folder.missing(points) else 0


def _run(study: StudySettings, folder: StudyFolder, left: Sequence[Point], live: LiveLine, power: bool) -> None:
    names = _names(study.points())
    estimate = Estimate(folder.results())
    plan = folder.plan()
    made = {name: plan[name] for name in ("command", "environment", "git")}
    runner = PointRunner(folder=folder, kind=study.kind, power=power, idle_s=study.idle_s, hosts=study.hosts, made_with=made)
    for number, point in enumerate(left, 1):
        told, later = f"{number}/{len(left)} {_told(point, names, study.repeats)}", left[number:]
        runner.watch = _Watch(live, told, estimate.seconds([point]), estimate.seconds(later))
        result = runner.run(point)
        folder.append(result)
        estimate.learn(result)
        live.say(f"{told}: {_ended(result)}; about {duration(estimate.seconds(later))} left")


class _Watch:
    """The live line of a running point."""

    def __init__(self, live: LiveLine, told: str, point_s: float, later_s: float) -> None:
        self._live, self._told, self._point_s, self._later_s = live, told, point_s, later_s
        self._began = time.monotonic()
        self("begins")

    def __call__(self, line: str) -> None:
        """With the last line of the point's console."""
        passed_s = time.monotonic() - self._began
        left_s = max(self._point_s - passed_s, 0.0) + self._later_s
        self._live.show(f"{self._told}: {passed_s:.0f} s, about {duration(left_s)} left | {line}")


def table_of(folder: StudyFolder, form: str) -> str:
    """The table of a study of any kind; FORMATS has the forms."""
    return _table(folder, list(folder.last_results().values()), form)


def _table(folder: StudyFolder, results: Sequence[Mapping[str, Any]], form: str) -> str:
    plan = folder.plan()
    if is_measured(plan):
        return loaders_table(read_folder(folder.path), form)
    return as_table(plan, cases_of(plan["kind"], results), form)


def summary(folder: StudyFolder) -> str:
    """Table, verdict, failed points with their logs, and the path of the page."""
    from farandole.report import write_page_if_possible

    results = list(folder.last_results().values())
    page = write_page_if_possible(folder.path)
    lines = [_table(folder, results, "text"), "", *([page.verdict] if page else [])]
    lines += [*_failed(folder, results), "", f"results   {folder.path / 'results.jsonl'}", *([f"page      {page.path}"] if page else [])]
    return "\n".join(lines)


def _failed(folder: StudyFolder, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each point; none of loaders, whose table has the reasons."""
    if is_measured(folder.plan()):
        return []
    points = [Point(settings=one["settings"], repeat=one["repeat"], key=one["key"]) for one in results]
    names, repeats = _names(points), 1 + max((point.repeat for point in points), default=0)
    return [
        f"failed: {_told(point, names, repeats)}: {result['reason']}"
        + (f"; see {folder.path / result['run'] / 'console.txt'}" if result["run"] else "")
        for point, result in zip(points, results)
        if result["status"] != "ok"
    ]


def _names(points: Sequence[Point]) -> list[str]:
    return [name for name in varying(point.settings for point in points) if name not in ("ranks", "nodes")]


def _told(point: Point, names: Sequence[str], repeats: int) -> str:
    return described(point.settings, names) + (f", repeat {point.repeat + 1}" if repeats > 1 else "")


def _ended(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"FAILED after {result['wall_s']:.0f} s, {result['reason']}"
    figures = result["figures"]
    shown = [f"{result['wall_s']:.1f} s"]
    if figures.get("test_accuracy") is not None:
        shown.append(f"{figures.get('metric', 'accuracy')} {figures['test_accuracy']:.4f}")
    if figures.get("energy_j") is not None:
        mark = "~" if figures["power_provenance"] == "modelled" else ""
        shown.append(f"{mark}{figures['energy_j']:,.0f} J" + (" (modelled)" if mark else ""))
    return ", ".join(shown)


def as_json(folder: StudyFolder) -> str:
    """The attempts that count, for programs."""
    return json.dumps({**folder.plan(), "results": list(folder.last_results().values())}, indent=1)
