"""How long it takes to load the benchmarks' files: the papers' Tables 3 and 4, for this machine.

    plan      the files, made where they are missing; for each, the ways to read it, alone and N at once
    measure   each in fresh processes, the file dropped from the page cache (cold) and just read (warm)
    keep      after every measurement, so that a study that was stopped goes on where it was
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.data.candle.files import BENCHMARKS, PRESETS, benchmark, find
from farandole.data.loaders import LOADERS, VARIANTS, installed
from farandole.data.make import make
from farandole.errors import SettingsError
from farandole.observe.environment import environment
from farandole.study.compiling import compile_seconds
from farandole.study.nursery import Nursery, loader_of
from farandole.study.ranks import measure_on_ranks
from farandole.study.record import Record
from farandole.study.turn import CACHED, STORING, Figures, Turn

__all__ = ["METHODS", "STATES", "LoaderStudy", "Source", "Unit", "planned", "run", "units_of"]

METHODS = (
    "pandas", "pandas-low-memory-off", "pandas-chunks-only", "pandas-chunked", "dask", "polars-inferring", "polars",
    "pyarrow", "fast", STORING, CACHED,
)  # fmt: skip
STATES = ("cold", "warm")
_LIMIT_S = 1800.0
# P1B3 is nine tables: the tallest, the widest and the largest of them stand for it.
_ROLES = ("train", "test", "dose_response", "expressions", "descriptors")
_TOGETHER = ("fast", CACHED)
"""Read by ranks that share one parse; the others know nothing of each other."""


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

    @property
    def key(self) -> dict[str, Any]:
        """What the figures are figures of."""
        return {
            "benchmark": self.source.benchmark, "role": self.source.role, **self.source.identity,
            "method": self.method, "version": installed(loader_of(self.method)), "ranks": self.ranks,
            "repeats": self.repeats,
        }  # fmt: skip

    def turn(self, state: str, cache: Path) -> Turn:
        file = BENCHMARKS[self.source.benchmark].files[self.source.role]
        folder = cache / f"{self.source.benchmark}-{self.source.role}"
        return Turn(
            method=self.method, path=str(self.source.path), columns=file.columns, header=file.header,
            delimiter=file.delimiter, na=file.na or ("",), cold=state == "cold", cache=str(folder),
        )  # fmt: skip


def run(study: LoaderStudy) -> dict[str, Any]:
    """Measure what is asked for and not yet known; all results, which are in `out`/loaders.json as well."""
    sources = [source for name in study.benchmarks for source in _sources(study, name)]
    record = Record(study.out / "loaders.json", environment=environment("pandas", "dask", "polars", "pyarrow"))
    record.set(loaders={name: installed(name) for name in study.loaders})
    units = units_of(study, sources)
    if "fast" in study.loaders and installed("fast") and (study.force or record.get("compile_s") is None):
        _say("fast: compiling, in a folder of its own")
        record.set(compile_s=compile_seconds())
    missing = [unit for unit in units if study.force or not record.has(unit.key, STATES)]
    if len(missing) < len(units):
        _say(f"{len(units) - len(missing)} of {len(units)} measurements are in {record.path} already (--force repeats them)")
    with ExitStack() as stack:
        _Runner(study.out / "cache", record, stack).run(missing)
    return record.of([unit.key for unit in units])


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

    def __init__(self, cache: Path, record: Record, stack: ExitStack) -> None:
        """`stack` ends the processes."""
        self._cache = cache
        self._record = record
        self._stack = stack
        self._nurseries: dict[str, Nursery] = {}

    def run(self, units: Sequence[Unit]) -> None:
        began = time.monotonic()
        total = sum(_weight(unit) for unit in units)
        done = 0.0
        for number, unit in enumerate(units, 1):
            by_state = self._measured(unit)
            for state, found in by_state.items():
                self._record.add(unit.key, state, _figures(unit, found))
            done += _weight(unit)
            left_s = (time.monotonic() - began) * (total - done) / done
            _say(f"{number}/{len(units)} {_described(unit, by_state)}; {left_s:.0f} s left")

    def _measured(self, unit: Unit) -> dict[str, list[Figures]]:
        turns = [(state, unit.turn(state, self._cache)) for state in STATES for _ in range(unit.repeats)]
        found = self._taken(unit, [turn for _, turn in turns])
        return {state: [f for (s, _), f in zip(turns, found) if s == state] for state in STATES}

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


def _weight(unit: Unit) -> float:
    """About how long a unit takes, in MB of text: a process's beginning is worth a few."""
    return unit.ranks * (unit.source.path.stat().st_size / 1e6 + 5.0)


def _figures(unit: Unit, found: Sequence[Figures]) -> dict[str, Any]:
    """Of the repeats of a measurement: the median of seconds, the most of memory."""
    good = [one for one in found if one.seconds is not None]
    samples = [one.seconds for one in good if one.seconds is not None]
    seconds = statistics.median(samples) if samples else None
    size = unit.source.path.stat().st_size
    return {
        "seconds": seconds,
        "samples": samples,
        "mb_per_s": size / 1e6 / seconds if seconds else None,
        "safe_s": _most(good, "safe_s"),
        "peak_bytes": _most(good, "peak_bytes"),
        "resident_peak_bytes": _most(good, "resident_peak_bytes"),
        "held_bytes": _most(good, "held_bytes"),
        "shape": good[0].shape if good else None,
        "reason": next((one.reason for one in found if one.reason), None),
    }


def _most(found: Sequence[Figures], name: str) -> Any:
    return max((value for one in found if (value := getattr(one, name)) is not None), default=None)


def _described(unit: Unit, by_state: dict[str, list[Figures]]) -> str:
    figures = {state: _figures(unit, found) for state, found in by_state.items()}
    told = ", ".join(
        f"{state} {f['seconds']:.3f} s" if f["seconds"] is not None else f"{state}: {f['reason']}"
        for state, f in figures.items()
    )
    ranks = f", {unit.ranks} at once" if unit.ranks > 1 else ""
    return f"{unit.source.path.name} {unit.method}{ranks}: {told}"


def _say(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)
