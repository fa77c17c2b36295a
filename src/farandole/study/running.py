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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.progress import duration
from farandole.results.analysis import analyse_study, table_text
from farandole.results.cases import described, varying
from farandole.results.formats import typed
from farandole.results.numbers import count
from farandole.study.collecting import collect
from farandole.study.estimate import Estimate
from farandole.study.folder import StudyFolder, made_with, versions_of
from farandole.study.live import LiveLine
from farandole.study.pointrun import PointRunner
from farandole.study.points import Point, is_crowded, run_settings, usable_cores, warning_of
from farandole.study.settings import REPEATS, SHORT_S, StudySettings
from farandole.train.settings import FRAMEWORKS

__all__ = ["Pages", "as_json", "identity", "plan_text", "prepare_data", "run_study", "summary", "table_of", "write_plan"]

Pages = Callable[[Path], Path | None]
"""Writes the page of a folder: its path, or None where that could not be."""
_LOADERS_PACKAGES = ("pandas", "dask", "polars", "pyarrow")


def plan_text(study: StudySettings, folder: StudyFolder) -> str:
    """What would be run, and how long that may take."""
    folder.check_same(identity(study))
    points = study.points()
    left = folder.missing(points) if folder.exists else points
    estimate = Estimate(folder.results() if folder.exists else [])
    names = _names(points)
    lines = [f"{study.title}: {count(len(points), 'point')}, {_have(len(points) - len(left))} a result already", ""]
    for point in points:
        state = "done" if point not in left else f"about {duration(estimate.seconds([point]))}"
        marks = f"  oversubscribed: {count(usable_cores(), 'core')}" if is_crowded(point.settings, study.hosts) else ""
        lines.append(f"  {point.name}  {_told(point, names, _repeats(points))}  {state}{marks}")
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
    made = _made(study, command)
    base = {**first.settings, "loader": "pandas"} if study.kind == "loaders" else dict(first.settings)
    folder.write_plan({**identity(study), **made, "base": base, "points": [point.as_dict() for point in points]})
    return points


def _made(study: StudySettings, command: Sequence[str]) -> dict[str, Any]:
    packages = _LOADERS_PACKAGES if study.kind == "loaders" else ("keras", *(FRAMEWORKS if study.command else (study.framework,)))
    return made_with(shlex.join(["farandole", *command]), *packages, "mpich")


def check_versions(study: StudySettings, folder: StudyFolder, *, mixed: bool) -> None:
    """SettingsError where results are there that other versions have made, unless somebody agrees: nothing would tell them apart."""
    if mixed or not folder.exists:
        return
    now, before = versions_of(_made(study, [])), dict[str, set[str]]()
    for result in folder.last_results().values():
        if result["status"] != "ok":
            continue  # it is tried again
        for name, version in versions_of(result.get("made_with") or {}).items():
            before.setdefault(name, set()).add(version)
    differing = [f"{name} {', '.join(sorted(before[name]))}, now {now[name]}" for name in before if name in now and before[name] != {now[name]}]
    told = f"{folder.path} has results that were made with other versions: {'; '.join(differing)}."
    if differing and not _agreed(f"{told} Mix them?"):
        raise SettingsError(f"{told} Go on with --mixed-versions, or choose another --out")


def _agreed(question: str) -> bool:
    """Asked on a terminal; elsewhere nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"farandole: {question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def identity(study: StudySettings) -> dict[str, Any]:
    """What a folder's plan is compared by, and its title."""
    named = {"benchmark": study.benchmark or None, "preset": study.preset if study.benchmark else None}
    return {"kind": study.kind, "title": study.title, **named, "fixed": study.fixed}


def prepare_data(points: Sequence[Point]) -> None:
    """Files that are missing are made; what is read once is in the cache for all points."""
    from farandole.train.preparing import make_missing_data

    seen: set[Path] = set()
    for point in points:
        if "command" in point.settings:
            continue
        settings = run_settings(point.settings)
        if settings.data_folder not in seen:
            seen.add(settings.data_folder)
            make_missing_data(settings)
            if settings.workload.files is not None:
                settings.workload.load(settings.parameters, settings.data_folder)


def run_study(
    study: StudySettings, folder: StudyFolder, *, command: Sequence[str], power: bool, pages: Pages, mixed: bool = False
) -> int:  # fmt: skip
    """An exit code: 1 where a point has failed. Stopped at any moment, it goes on when typed again."""
    if folder.exists:
        collect(folder)
    check_versions(study, folder, mixed=mixed)
    points = write_plan(study, folder, command)
    left = folder.missing(points)
    live = LiveLine(sys.stderr)
    if len(left) < len(points):
        done, planned = len(points) - len(left), count(len(points), "point")
        live.say(f"{_have(done, f'of {planned} ')} a result in {folder.path} already")
    if crowded := [point.settings for point in left if is_crowded(point.settings, study.hosts)]:
        live.say(warning_of(crowded))
    if left:
        prepare_data(left)
    sampled = power and study.kind != "loaders"
    _run(study, folder, left, live, sampled, pages)
    if _is_short(study, folder, points):
        study.repeats = REPEATS
        points = write_plan(study, folder, command)
        _run(study, folder, folder.missing(points), live, sampled, pages)
    print(summary(folder, pages))
    return 1 if folder.missing(points) else 0


def _is_short(study: StudySettings, folder: StudyFolder, points: Sequence[Point]) -> bool:
    """Whether a program that ran once is repeated: how long it takes was not known before."""
    if study.repeats or not study.command or study.kind == "loaders" or study.is_repeated or max(point.repeat for point in points):
        return False
    took = [line.get("wall_s") for line in folder.last_results().values() if line["status"] == "ok"]
    return len(took) >= len(points) and all(seconds is not None and seconds < SHORT_S for seconds in took)


def _run(study: StudySettings, folder: StudyFolder, left: Sequence[Point], live: LiveLine, power: bool, pages: Pages) -> None:
    plan = folder.plan()
    points = [Point(**point) for point in plan["points"]]
    names, repeats = _names(points), _repeats(points)
    estimate = Estimate(folder.results())
    made = {name: plan[name] for name in ("command", "environment", "git")}
    runner = PointRunner(folder=folder, kind=study.kind, power=power, idle_s=study.idle_s, hosts=study.hosts, made_with=made, pages=pages)
    for number, point in enumerate(left, 1):
        told, later = f"{number}/{len(left)} {_told(point, names, repeats)}", left[number:]
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
        self._live.show(self._told, left_s, line)


def table_of(folder: StudyFolder, form: str) -> str:
    """FORMATS has the forms."""
    return table_text(analyse_study(folder.study()), form)


def summary(folder: StudyFolder, pages: Pages) -> str:
    """Table, verdicts, failed points with their logs, and the path of the page."""
    analysis = analyse_study(folder.study())
    page = pages(folder.path)
    told = [str(verdict) for verdict in analysis.verdicts()]
    lines = [table_text(analysis, "text"), "", *map(typed, told), *_failed(folder, list(folder.last_results().values()))]
    return "\n".join([*lines, "", f"results   {folder.path / 'results.jsonl'}", *([f"page      {page}"] if page else [])])


def _failed(folder: StudyFolder, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each point."""
    points = [Point(settings=one["settings"], repeat=one["repeat"], key=one["key"]) for one in results]
    names, repeats = _names(points), _repeats(points)
    return [
        f"failed: {_told(point, names, repeats)}: {result['reason']}"
        + (f"; see {folder.path / result['run'] / 'console.txt'}" if result["run"] else "")
        for point, result in zip(points, results)
        if result["status"] != "ok"
    ]


_UNTOLD = ("ranks", "nodes", "data", "path", "bytes", "role")
"""Told otherwise, or no use to people."""


def _names(points: Sequence[Point]) -> list[str]:
    return [name for name in varying(dict(point.settings) for point in points) if name not in _UNTOLD]


def _repeats(points: Sequence[Point]) -> int:
    return 1 + max((point.repeat for point in points), default=0)


def _told(point: Point, names: Sequence[str], repeats: int) -> str:
    return described(dict(point.settings), names) + (f", repeat {point.repeat + 1}" if repeats > 1 else "")


def _have(how_many: int, of: str = "") -> str:
    """`1 has`, `2 have`; with what they are of, `1 of 2 points has`."""
    return f"{how_many} {of}{'has' if how_many == 1 else 'have'}"


def _ended(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"FAILED after {result['wall_s']:.0f} s, {result['reason']}"
    figures = result["figures"]
    shown = [f"{result['wall_s']:.1f} s"]
    if figures.get("mb_per_s") is not None:
        shown = [f"read in {figures['load_s']:.3g} s"]
    if figures.get("test_accuracy") is not None:
        shown.append(f"{figures.get('metric', 'accuracy')} {figures['test_accuracy']:.4f}")
    if figures.get("energy_j") is not None:
        mark = "~" if figures["power_provenance"] == "modelled" else ""
        shown.append(f"{mark}{figures['energy_j']:,.0f} J" + (" (modelled)" if mark else ""))
    return ", ".join(shown)


def as_json(folder: StudyFolder) -> str:
    """The attempts that count, for programs."""
    return json.dumps({**folder.plan(), "results": list(folder.last_results().values())}, indent=1)
