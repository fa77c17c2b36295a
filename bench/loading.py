"""Text files to arrays: `fast` against pandas, the papers' remedy, polars and pyarrow; and two ranks at once.

Each reading has a fresh process that has imported its library already; files are in the page cache.
Contestants take turns on the same file. Compiling is a row of its own. `fast-storing` is `fast` with the writing
of its cache, until the array is handed out; `fast-cached` is the next reading.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import Case
from bench.estimates import median
from bench.launching import BenchmarkFailed
from bench.rows import Row, Target, compared, fastest
from farandole.data.loaders import CACHED, STORING
from farandole.data.make import make
from farandole.data.make.sheet import Sheet
from farandole.data.make.text import Format
from farandole.data.make.write import write_sheets
from farandole.results.schema import FIGURES_FILE
from farandole.workloads.finding import tables_of

__all__ = ["measure"]

_COMPILE = """
import time, numba
from farandole.data.parse import prepare
began = time.perf_counter()
prepare("float32", texts=True)
print(time.perf_counter() - began)
"""
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

    def read(self, method: str, cache: Path, *, ranks: int = 1, readings: int = 1) -> list[dict[str, Any]]:
        """What readings in fresh processes have measured; several of them go on in the same ones."""
        layout = json.dumps({"columns": self.columns, "header": self.header, "delimiter": ",", "na": [""]})
        program = ["-m", "farandole.study.reading", layout, str(self.path), "--loader", method, "--cache", str(cache / self.path.name)]
        words = [sys.executable, "-m", "farandole", "launch", "-n", str(ranks), "--", sys.executable, *program, "--readings", str(readings)]
        with tempfile.NamedTemporaryFile(prefix="farandole-bench-") as told:
            environment = os.environ | {FIGURES_FILE: told.name}
            run = subprocess.run(words, capture_output=True, text=True, timeout=readings * _LIMIT_S, env=environment)
            if run.returncode != 0:
                raise BenchmarkFailed(f"{method}: {run.stderr.strip()[-300:]}")
            found = json.loads(Path(told.name).read_text())
        return found if isinstance(found, list) else [found]

    @property
    def methods(self) -> list[str]:
        kept = [STORING, CACHED] if self.stored else []
        return ["fast", *kept, *(self.targets or ("polars", "pyarrow"))]


def measure(*, quick: bool) -> tuple[list[Row], list[Case]]:
    """With `quick`, files of a quarter of the rows and less; what a row says of its file is true for it."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        files, cache = _files(Path(folder), quick), Path(folder, "cache")
        rows, cases = [_compiling()], []
        for file in files:
            case = _contest(file, cache)
            rows += _rows(file, case)
            cases.append(case)
        together = _together(files[0], cache)
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
    tables = tables_of(name)
    make(tables, folder / name, preset="paper", rows=rows)
    file = tables.files["train"]
    (folder / name / tables.files["test"].name).unlink()
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


def _contest(file: _File, cache: Path) -> Case:
    samples: dict[str, list[float]] = {method: [] for method in file.methods}
    shape = (0, 0)
    for number in range(_ROUNDS + 1):
        _say(f"loading: {file.path.name}, round {number} of {_ROUNDS}" + (" (dropped)" if number == 0 else ""))
        # The round that is dropped is for the page cache and the readers' first steps, not for slow peers.
        order = ["fast"] if number == 0 else file.methods[:: 1 if number % 2 else -1]
        for method in order:
            (found,) = file.read(method, cache)
            shape = found["rows"], found["columns"]
            if number:
                samples[method].append(found["load_s"])
    size = file.path.stat().st_size
    what = f"{file.name} {shape[0]:,} x {shape[1]:,}, {size / 1e6:.0f} MB"
    return Case(what=what, samples=samples, notes={"bytes": size, "load_average": os.getloadavg()})


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
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        run = subprocess.run([sys.executable, "-c", _COMPILE], env=os.environ | {"NUMBA_CACHE_DIR": folder}, stdout=subprocess.PIPE, check=True)
    return Row(what="loading: compiling, once", ours=float(run.stdout), peer="(in no other row)")


# Two ranks


def _together(file: _File, cache: Path) -> Case:
    """Launches in turns; of each, the first reading is dropped."""
    found: dict[int, list[dict[str, Any]]] = {1: [], _RANKS: []}
    for number in range(_ROUNDS):
        _say(f"loading: ranks, round {number + 1} of {_ROUNDS}")
        for ranks in (1, _RANKS) if number % 2 == 0 else (_RANKS, 1):
            found[ranks] += file.read("fast", cache, ranks=ranks, readings=_READINGS)[1:]
    samples = {_ranks(ranks): [one["load_s"] for one in of] for ranks, of in found.items()}
    notes = {f"held_bytes, {_ranks(ranks)}": [one["held_bytes"] for one in of] for ranks, of in found.items()}
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
