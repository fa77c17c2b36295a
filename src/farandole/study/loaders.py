"""How long it takes to load the benchmarks' files: the papers' Tables 3 and 4, for this machine.

    plan      the files, made where they are missing; for each, the ways to read it, alone and N at once
    measure   each in fresh processes, the file dropped from the page cache (cold) and just read (warm)
    keep      a line for every reading, so that a study that was stopped goes on where it was
    tell      tables, a verdict, and where the page is
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.data.candle.files import BENCHMARKS, PRESETS, benchmark, find
from farandole.data.loaders import LOADERS, VARIANTS, installed
from farandole.data.make import make
from farandole.errors import SettingsError
from farandole.report.loaders import BASE, KIND, STATES
from farandole.study.cases import BUSY, is_busy
from farandole.study.compiling import compile_seconds
from farandole.study.estimate import reading_s
from farandole.study.folder import SCHEMA, StudyFolder, made_with, now
from farandole.study.live import LiveLine
from farandole.study.machine_time import MachineTime, own_cpu_s
from farandole.study.nursery import Nursery, loader_of
from farandole.study.points import Point, usable_cores, warning_of
from farandole.study.ranks import measure_on_ranks
from farandole.study.turn import CACHED, STORING, Figures, Turn

__all__ = ["METHODS", "LoaderStudy", "Source", "Unit", "check_folder", "left_of", "planned", "run", "units_of"]

METHODS = (
    "pandas", "pandas-low-memory-off", "pandas-chunks-only", "pandas-chunked", "dask", "polars-inferring", "polars",
    "pyarrow", "fast", STORING, CACHED,
)  # fmt: skip
_LIMIT_S = 1800.0
# P1B3 is nine tables: the tallest, the widest and the largest of them stand for it.
_ROLES = ("train", "test", "dose_response", "expressions", "descriptors")
_TOGETHER = ("fast", CACHED)
"""Read by ranks that share one parse; the others know nothing of each other."""
_IDENTITY: dict[str, Any] = {"kind": KIND, "benchmark": None, "preset": None, "fixed": {}}
"""A folder takes further files and loaders, but no other kind of study."""


@dataclass(kw_only=True, slots=True)
class LoaderStudy:
    benchmarks: Sequence[str]
    out: Path
    """Results, and the caches and files made for them."""
    data_dir: Path | None = None
    """Where the benchmarks' files are or go; None: a folder of `out`."""
    preset: str | None = None
    """How large missing files are made; None: test."""
    loaders: Sequence[str] = (*LOADERS, *VARIANTS)
    ranks: Sequence[int] = (1, 2)
    """How many processes load at once."""
    repeats: int = 1
    force: bool = False
    """Measure again what there are figures of."""
    title: str = "Loaders compared"

    def __post_init__(self) -> None:
        if not self.benchmarks:
            raise SettingsError(f"no benchmark was given. Use one or more of {', '.join(BENCHMARKS)}.")
        for name in self.benchmarks:
            benchmark(name)
        for name in self.loaders:
            installed(name)
        if self.preset not in (None, *PRESETS):
            raise SettingsError(f"preset={self.preset!r} is unknown. Use one of {', '.join(PRESETS)}.")
        if not self.ranks or min(self.ranks) < 1:
            raise SettingsError(f"ranks={list(self.ranks)}: use numbers from 1 on, e.g. --ranks 1,2")
        if self.repeats < 1:
            raise SettingsError(f"repeats={self.repeats}: use 1 or more")

    @property
    def methods(self) -> list[str]:
        return [method for method in METHODS if loader_of(method) in self.loaders]

    @property
    def folder(self) -> Path:
        """Of the files."""
        return self.data_dir or self.out / "data" / (self.preset or "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file of the study."""

    benchmark: str
    role: str
    path: Path

    @property
    def identity(self) -> dict[str, Any]:
        told = self.path.stat()
        return {
            "path": str(self.path.resolve()), "bytes": told.st_size, "mtime_ns": told.st_mtime_ns, "inode": told.st_ino,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One way to read one file, in both states."""

    source: Source
    method: str
    ranks: int
    repeats: int

    def points(self) -> list[Point]:
        """All readings; what a file was, and with which version it was read, tells them from others."""
        settings = {
            "ranks": self.ranks, "benchmark": self.source.benchmark, "role": self.source.role, **self.source.identity,
            "loader": self.method, "version": installed(loader_of(self.method)),
        }  # fmt: skip
        return [Point(settings={**settings, "state": state}, repeat=repeat) for state in STATES for repeat in range(self.repeats)]

    def turn(self, state: str, cache: Path) -> Turn:
        file = BENCHMARKS[self.source.benchmark].files[self.source.role]
        folder = cache / f"{self.source.benchmark}-{self.source.role}"
        return Turn(
            method=self.method, path=str(self.source.path), columns=file.columns, header=file.header,
            delimiter=file.delimiter, na=file.na or ("",), cold=state == "cold", cache=str(folder),
        )  # fmt: skip


def run(study: LoaderStudy, folder: StudyFolder, command: Sequence[str]) -> int:
    """Measure what is asked for and not yet known; an exit code. `command` are the words that were typed."""
    before = check_folder(study, folder)  # which comes before files are made
    units = units_of(study, [source for name in study.benchmarks for source in _sources(study, name)])
    compile_s = before.get("compile_s")
    if "fast" in study.loaders and installed("fast") and (study.force or compile_s is None):
        _say("fast: compiling, in a folder of its own")
        compile_s = compile_seconds()
    made = made_with(shlex.join(["farandole", *command]), "pandas", "dask", "polars", "pyarrow")
    folder.write_plan(_plan(study, units) | made | {"compile_s": compile_s})
    left = left_of(study, folder, units)
    if len(left) < len(units):
        _say(f"{len(units) - len(left)} of {len(units)} measurements are in {folder.path} already (--force repeats them)")
    if crowded := [unit.ranks for unit, _ in left if unit.ranks > usable_cores()]:
        _say(warning_of(crowded))
    with ExitStack() as stack:
        _Runner(folder, stack, made).run(left)
    return 1 if _has_failed(study, folder, units) else 0


def _has_failed(study: LoaderStudy, folder: StudyFolder, units: Sequence[Unit]) -> bool:
    """Loaders that are not installed count where they were named: without a list all that there are were meant."""
    named = {*study.loaders} != {*LOADERS, *VARIANTS}
    asked = [unit for unit in units if named or installed(loader_of(unit.method)) is not None]
    return bool(folder.missing([point for unit in asked for point in unit.points()]))


def check_folder(study: LoaderStudy, folder: StudyFolder) -> dict[str, Any]:
    """The plan of before, empty where there is none; DataError where it is of something else."""
    return folder.check_same({"title": study.title, **_IDENTITY})


def _plan(study: LoaderStudy, units: Sequence[Unit]) -> dict[str, Any]:
    points = [point.as_dict() for unit in units for point in unit.points()]
    return {**_IDENTITY, "title": study.title, "base": {"loader": BASE}, "points": points}


def left_of(study: LoaderStudy, folder: StudyFolder, units: Sequence[Unit]) -> list[tuple[Unit, list[Point]]]:
    """Units with those of their readings that have no good result."""
    asked = [(unit, unit.points()) for unit in units]
    points = [point for _, found in asked for point in found]
    names = {point.name for point in (points if study.force or not folder.exists else folder.missing(points))}
    left = [(unit, [point for point in found if point.name in names]) for unit, found in asked]
    return [(unit, found) for unit, found in left if found]


def planned(study: LoaderStudy, name: str) -> list[Source]:
    """The files of a benchmark that are read, whether they are there or not."""
    files = benchmark(name).files
    return [Source(benchmark=name, role=role, path=study.folder / files[role].name) for role in _ROLES if role in files]


def _sources(study: LoaderStudy, name: str) -> list[Source]:
    sources = planned(study, name)
    complete = all(source.path.is_file() for source in sources)
    if study.preset is not None or not complete:
        make(name, study.folder, preset=study.preset or "test", progress=True)
    find(name, study.folder, [source.role for source in sources])
    return sources


def units_of(
    study: LoaderStudy, sources: Sequence[Source], size_of: Callable[[Path], int] = lambda path: path.stat().st_size
) -> list[Unit]:
    """One process reads every file; several at once the largest of each benchmark, which says it all."""
    largest = {
        max((s for s in sources if s.benchmark == name), key=lambda s: size_of(s.path))
        for name in study.benchmarks
    }
    contended = [method for method in study.methods if method in LOADERS or method == CACHED]
    return [
        Unit(source=source, method=method, ranks=ranks, repeats=study.repeats)
        for source in sources
        for ranks in sorted(set(study.ranks))
        if ranks == 1 or source in largest
        for method in (study.methods if ranks == 1 else contended)
    ]


class _Runner:
    """Takes the turns of units, and keeps what was found."""

    def __init__(self, folder: StudyFolder, stack: ExitStack, made_with: Mapping[str, Any]) -> None:
        """`stack` ends the processes; `made_with` goes into every line."""
        self._folder = folder
        self._stack = stack
        self._made_with = dict(made_with)
        self._nurseries: dict[str, Nursery] = {}

    def run(self, left: Sequence[tuple[Unit, Sequence[Point]]]) -> None:
        live, began = LiveLine(sys.stderr), time.monotonic()
        guesses_s = [_guess_s(unit, points) for unit, points in left]
        left_s = sum(guesses_s)
        for number, (unit, points) in enumerate(left, 1):
            told = f"study: {number}/{len(left)} {_named(unit)}"
            with live.ticking(told, left_s):
                lines = self._measured(unit, points)
            self._folder.append(*lines)
            left_s = (time.monotonic() - began) * sum(guesses_s[number:]) / sum(guesses_s[:number])
            live.say(f"{told}: {_found(lines)}; {left_s:.0f} s left")

    def _measured(self, unit: Unit, points: Sequence[Point]) -> list[dict[str, Any]]:
        started, machine = now(), MachineTime(self._cpu_s)
        found = self._taken(unit, [unit.turn(point.settings["state"], self._folder.path / "cache") for point in points])
        share = machine.others_share()
        return [_line(point, figures, share, started) | {"made_with": self._made_with} for point, figures in zip(points, found)]

    def _cpu_s(self) -> float:
        """Of this program with all that it has started."""
        return own_cpu_s() + sum(nursery.cpu_s for nursery in self._nurseries.values())

    def _taken(self, unit: Unit, turns: list[Turn]) -> list[Figures]:
        loader = loader_of(unit.method)
        if installed(loader) is None:
            extra = "data" if loader == "fast" else "loaders"
            return [Figures(reason=f"not installed; type: pip install 'farandole[{extra}]'")] * len(turns)
        if unit.ranks > 1 and unit.method in _TOGETHER:
            return measure_on_ranks(turns, unit.ranks, _LIMIT_S)
        package = loader.partition("-")[0]
        if package not in self._nurseries:
            self._nurseries[package] = self._stack.enter_context(Nursery(package))
        return [self._nurseries[package].measure(turn, unit.ranks, _LIMIT_S) for turn in turns]


def _guess_s(unit: Unit, points: Sequence[Point]) -> float:
    return len(points) * reading_s(unit.method, unit.ranks, unit.source.path.stat().st_size)


def _line(point: Point, found: Figures, others_share: float | None, started: str) -> dict[str, Any]:
    """Of results.jsonl."""
    settings = point.settings
    marks = {"oversubscribed": settings["ranks"] > usable_cores(), BUSY: is_busy(others_share)}
    return {
        "schema": SCHEMA, "study": KIND, **point.as_dict(), "status": "ok" if found.seconds is not None else "failed",
        "reason": found.reason, "started": started, "wall_s": found.seconds, "run": None,
        "marks": [mark for mark, is_so in marks.items() if is_so],
        "figures": {} if found.seconds is None else _figures(found, settings["bytes"]) | {"others_share": others_share}, "reasons": {},
    }  # fmt: skip


def _figures(found: Figures, size: int) -> dict[str, Any]:
    return {
        "load_s": found.seconds,
        "mb_per_s": size / 1e6 / found.seconds if found.seconds else None,
        "safe_s": found.safe_s,
        "peak_bytes": found.peak_bytes,
        "resident_peak_bytes": found.resident_peak_bytes,
        "held_bytes": found.held_bytes,
        "rows": found.shape[0],
        "columns": found.shape[1],
    }


def _named(unit: Unit) -> str:
    return f"{unit.source.path.name} {unit.method}" + (f", {unit.ranks} at once" if unit.ranks > 1 else "")


def _found(lines: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(_state(state, [line for line in lines if line["settings"]["state"] == state]) for state in STATES)


def _state(state: str, lines: Sequence[Mapping[str, Any]]) -> str:
    seconds = [line["figures"]["load_s"] for line in lines if line["status"] == "ok"]
    if seconds:
        return f"{state} {statistics.median(seconds):.3f} s"
    return f"{state}: {lines[-1]['reason']}" if lines else f"{state} known"


def _say(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)
