"""Text files to arrays: `fast` against pandas, the papers' remedy, polars and pyarrow; and two ranks at once.

Each reading has a process of its own that has imported its library already; files are in the page cache.
Contestants take turns on the same file. Compiling is a row of its own. `fast-storing` is `fast` with the writing
of its cache, until the array is handed out; `fast-cached` is the next reading.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.cases import Case
from bench.estimates import median
from bench.launching import BenchmarkFailed
from bench.rows import Row, Target, compared, fastest
from farandole.data.candle.files import BENCHMARKS
from farandole.data.make import make
from farandole.data.make.sheet import Sheet
from farandole.data.make.text import Format
from farandole.data.make.write import write_sheets
from farandole.study.compiling import compile_seconds
from farandole.study.nursery import Nursery, loader_of
from farandole.study.ranks import measure_on_ranks
from farandole.study.turn import CACHED, STORING, Figures, Turn

__all__ = ["measure"]

_ROUNDS = 3
_LIMIT_S = 120.0
_RANKS = 2
_READINGS = 5  # of one launch
_MOST = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """A file, and whom `fast` is to beat by how much on it."""

    name: str
    path: Path
    columns: tuple[str | int, ...]
    header: bool
    targets: dict[str, float]
    """By peer; without any, the best of polars and pyarrow is the one to be compared with."""
    stored: bool = False
    """Whether the cache is measured as well."""

    def turn(self, method: str, cache: Path) -> Turn:
        return Turn(
            method=method, path=str(self.path), columns=self.columns, header=self.header, delimiter=",", na=("",),
            cold=False, cache=str(cache / self.path.name),
        )  # fmt: skip

    @property
    def methods(self) -> list[str]:
        kept = [STORING, CACHED] if self.stored else []
        return ["fast", *kept, *(self.targets or ("polars", "pyarrow"))]


def measure(*, quick: bool) -> tuple[list[Row], list[Case]]:
    """With `quick`, files of a quarter of the rows and less; what a row says of its file is true for it."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder, ExitStack() as stack:
        files = _files(Path(folder), quick)
        fields = _Field(Path(folder, "cache"), stack)
        rows, cases = [_compiling()], []
        for file in files:
            case = fields.contest(file)
            rows += _rows(file, case)
            cases.append(case)
        together = _together(files[0], Path(folder, "cache"))
        return [*rows, *_together_rows(together)], [*cases, together]


# The files


def _files(folder: Path, quick: bool) -> list[_File]:
    _say("loading: making files")
    wide = {"pandas": 15.0, "pandas-chunked": 7.0, "polars-inferring": 10.0, "polars": 10.0}
    small = 4 if quick else 1
    return [
        _made("nt3", folder, 280 // small, targets=wide, stored=True),
        _made("p1b2", folder, 1_000 // small, targets={"pandas": 8.0}),
        _made("p1b1", folder, 1_000 // small, targets={"pandas": 8.0}),
        _tall(folder, 1_000_000 // (5 * small if quick else 1), 40),
        _tall(folder, 30_000 // (5 * small if quick else 1), 1_000),
    ]


def _made(name: str, folder: Path, rows: int, *, targets: dict[str, float], stored: bool = False) -> _File:
    """A benchmark's training file with all its columns and some of its rows."""
    make(name, folder / name, preset="paper", rows=rows)
    file = BENCHMARKS[name].files["train"]
    (folder / name / BENCHMARKS[name].files["test"].name).unlink()
    return _File(
        name=name, path=folder / name / file.name, columns=file.columns, header=file.header, targets=targets,
        stored=stored,
    )  # fmt: skip


def _tall(folder: Path, rows: int, columns: int) -> _File:
    """Numbers of up to six digits, four of them decimals."""

    def render(part: slice, random: np.random.Generator) -> memoryview:
        count = part.stop - part.start
        leads = np.arange(part.start, part.stop).astype("S8")
        return Format(decimals=4).rows(leads, random.integers(-(10**6), 10**6, (count, columns - 1)))

    name = f"{rows}x{columns}.csv"
    sheet = Sheet(name=name, header=b"", rows=rows, columns=columns, render=render, value_bytes=8.0)
    write_sheets([sheet], folder, 0, advance=lambda _: None, replacing=lambda: None)
    return _File(name="tall", path=folder / name, columns=(), header=False, targets={})


# The contests


class _Field:
    """Contestants, each with its nursery."""

    def __init__(self, cache: Path, stack: ExitStack) -> None:
        self._cache = cache
        self._stack = stack
        self._nurseries: dict[str, Nursery] = {}

    def contest(self, file: _File) -> Case:
        samples: dict[str, list[float]] = {method: [] for method in file.methods}
        shape: list[int] = []
        for number in range(_ROUNDS + 1):
            _say(f"loading: {file.path.name}, round {number} of {_ROUNDS}" + (" (dropped)" if number == 0 else ""))
            # The round that is dropped is for the page cache and the readers' first steps, not for slow peers.
            order = ["fast"] if number == 0 else file.methods[:: 1 if number % 2 else -1]
            for method in order:
                found = self._taken(file, method)
                shape = found.shape
                if number:
                    samples[method].append(_seconds(method, found))
        size = file.path.stat().st_size
        what = f"{file.name} {shape[0]:,} x {shape[1]:,}, {size / 1e6:.0f} MB"
        return Case(what=what, samples=samples, notes={"bytes": size, "load_average": os.getloadavg()})

    def _taken(self, file: _File, method: str) -> Figures:
        loader = loader_of(method)
        package = loader.partition("-")[0]
        if package not in self._nurseries:
            self._nurseries[package] = self._stack.enter_context(Nursery(package))
        return self._nurseries[package].measure(file.turn(method, self._cache), 1, _LIMIT_S)


def _seconds(method: str, found: Figures) -> float:
    if found.seconds is None:
        raise BenchmarkFailed(f"{method}: {found.reason}")
    return found.seconds


def _rows(file: _File, case: Case) -> list[Row]:
    if not file.targets:
        return [compared(case, "fast", fastest(case, ["polars", "pyarrow"]), least=0.8)]
    rows = [compared(case, "fast", peer, least=least) for peer, least in file.targets.items()]
    if not file.stored:
        return rows
    written = replace(case, what=f"{case.what}, cache written")
    mapped = replace(case, what=f"{case.what}, from the cache")
    rows += [compared(written, STORING, peer, least=least) for peer, least in file.targets.items()]
    return [*rows, compared(written, STORING, "fast"), compared(mapped, CACHED, "pandas", least=100.0)]


def _compiling() -> Row:
    _say("loading: compiling, in a folder of its own")
    return Row(what="loading: compiling, once", ours=compile_seconds(), peer="(in no other row)")


# Two ranks


def _together(file: _File, cache: Path) -> Case:
    """Launches in turns; of each, the first reading is dropped."""
    found: dict[int, list[Figures]] = {1: [], _RANKS: []}
    for number in range(_ROUNDS):
        _say(f"loading: ranks, round {number + 1} of {_ROUNDS}")
        for ranks in (1, _RANKS) if number % 2 == 0 else (_RANKS, 1):
            found[ranks] += measure_on_ranks([file.turn("fast", cache)] * _READINGS, ranks, _LIMIT_S)[1:]
    samples = {_ranks(ranks): [_seconds(_ranks(ranks), one) for one in of] for ranks, of in found.items()}
    notes = {f"held_bytes, {_ranks(ranks)}": [one.held_bytes for one in of] for ranks, of in found.items()}
    return Case(what=f"{file.name}, {_ranks(_RANKS)} together", samples=samples, notes=notes)


def _together_rows(case: Case) -> list[Row]:
    row = compared(case, _ranks(_RANKS), _ranks(1))
    assert row.ratio is not None
    times = 1 / row.ratio.value
    more = _held(case, _RANKS) / _held(case, 1)
    return [
        replace(row, target=Target(wanted=f"< {_MOST:g}x the time", found=times, met=times < _MOST)),
        Row(
            what=f"{case.what}: memory, of one's",
            ours=more,
            target=Target(wanted=f"< {_MOST:.0%}", found=more, met=more < _MOST),
        ),
    ]


def _held(case: Case, ranks: int) -> float:
    held: Sequence[float] = case.notes[f"held_bytes, {_ranks(ranks)}"]
    return median(held)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
