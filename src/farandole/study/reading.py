"""One measured reading of a file, by one process or several at once: the program that a study of loaders runs at every point.

    farandole launch -n 2 -- python -m farandole.study.reading nt3/train nt_train2.csv --loader pandas --state cold

    warm      a small file is read, so that modules are imported and functions compiled
    store     fast-cached alone: its cache is written
    prepare   cold: the file's pages are dropped from the page cache; warm: the file is read through
    meet      all processes are there; what they have in memory counts as nothing
    load      from the moment at which the last begins until the last is done
    meet      all hold their table, and have touched it
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import farandole
from farandole.data.loaders import CACHED, STORING, load, loader_of
from farandole.data.matrix import Matrix, read_matrix
from farandole.errors import DataError, FarandoleError
from farandole.results.schema import FIGURES_FILE
from farandole.study.memory import (
    PeakMemory,
    anonymous_bytes,
    mapped_bytes,
    resident_peak_bytes,
    restart_resident_peak,
)
from farandole.study.pages import forget_pages
from farandole.workloads.finding import tables_of

__all__ = ["Reading", "measures_of", "take", "warm"]

_MAPPING = ("fast", CACHED, STORING, "polars", "polars-inferring")
"""They map the file, whose pages are not their memory. The others copy it: all they have in memory is theirs."""
_CACHE_THREAD = "farandole-data-cache"
_CHUNK_BYTES = 1 << 24


@dataclass(kw_only=True, slots=True)
class Reading:
    """What is to be read, and how."""

    layout: Mapping[str, Any]
    """Options of readers: columns, header, delimiter, na."""
    path: Path
    method: str
    cold: bool
    cache: Path

    def store(self) -> None:
        """Fill the cache, where it is to be read. Collective: every rank calls it, as they read together."""
        if self.method == CACHED:
            self._read_matrix(self.cache)
            _wait_for_cache()

    def prepare(self) -> str | None:
        """By one process. Why the file cannot be read in this state, or None."""
        if self.method == STORING:
            for kept in self.cache.glob("*.matrix"):
                kept.unlink()
        files = [self.path, *self.cache.glob("*.matrix")]
        if self.cold:
            return forget_pages(files)
        for path in files:
            with path.open("rb") as file:
                while file.read(_CHUNK_BYTES):
                    pass
        return None

    def read(self) -> Matrix:
        if self.method in (CACHED, STORING):
            return self._read_matrix(self.cache)
        return load(self.method, self.path, **self.layout)

    def _read_matrix(self, cache: Path) -> Matrix:
        cache.mkdir(parents=True, exist_ok=True)
        return read_matrix(self.path, cache=cache, **self.layout)


@dataclass(kw_only=True, slots=True)
class _Taken:
    """What one process found."""

    start_s: float
    stop_s: float
    safe_s: float | None
    """When the cache file was safe on the disk, where one was written."""
    held_bytes: int
    peak_bytes: int
    resident_peak_bytes: int
    shape: tuple[int, ...]


def warm(method: str) -> None:
    with tempfile.TemporaryDirectory(prefix="farandole-study-") as folder:
        path = Path(folder, "t.csv")
        path.write_text("id,kind,a,b\nx,1,1.5,\ny,2,2e-7,1\n")
        load(loader_of(method), path, columns=["id", "kind"], delimiter=",", na=("",))


def take(reading: Reading, meet: Callable[[], object]) -> _Taken:
    """One process's part; `meet` returns once every process has called it."""
    gc.collect()  # what a process frees meanwhile of before would be subtracted
    meet()
    before = anonymous_bytes()
    restart_resident_peak()
    resident = resident_peak_bytes()
    with PeakMemory() as memory:
        meet()
        start_s = time.monotonic()
        table = reading.read()
        stop_s = time.monotonic()
    resident = resident_peak_bytes() - resident
    _wait_for_cache()
    safe_s = time.monotonic() if reading.method == STORING else None
    _touch(table)
    gc.collect()
    meet()
    held = anonymous_bytes() - before + mapped_bytes(table.values.ctypes.data, table.values.nbytes)
    meet()
    return _Taken(
        start_s=start_s, stop_s=stop_s, safe_s=safe_s, held_bytes=held, shape=table.values.shape,
        peak_bytes=memory.bytes if reading.method in _MAPPING else resident, resident_peak_bytes=resident,
    )  # fmt: skip


def measures_of(taken: Sequence[_Taken], size: int) -> dict[str, Any]:
    """Of all processes."""
    started_s, safe_s = max(one.start_s for one in taken), [one.safe_s for one in taken if one.safe_s is not None]
    load_s = max(one.stop_s for one in taken) - started_s
    return {
        "load_s": load_s, "mb_per_s": size / 1e6 / load_s if load_s else None, "safe_s": max(safe_s) - started_s if safe_s else None,
        "peak_bytes": max(one.peak_bytes for one in taken), "resident_peak_bytes": max(one.resident_peak_bytes for one in taken),
        "held_bytes": sum(one.held_bytes for one in taken), "rows": taken[0].shape[0], "columns": taken[0].shape[1],
    }  # fmt: skip


def _wait_for_cache() -> None:
    for thread in threading.enumerate():
        if thread.name == _CACHE_THREAD:
            thread.join()


def _touch(table: Matrix) -> None:
    """Whoever uses a table needs all its pages: mapped ones are not there before."""
    flat = table.values.reshape(-1)
    flat[:: 4096 // flat.itemsize].sum()


def main(words: Sequence[str]) -> None:
    """Collective: every rank calls it; the first one leaves what was measured where the study looks for it."""
    options = _options(words)
    reading = Reading(
        layout=options.layout, path=options.path, method=options.loader, cold=options.state == "cold",
        cache=options.cache or _cache(options.path),
    )  # fmt: skip
    farandole.init()
    warm(options.loader)
    found = [_measured(reading) for _ in range(options.readings)]
    if farandole.rank() == 0:
        told = json.dumps(found[0] if len(found) == 1 else found)
        print(told)
        if place := os.environ.get(FIGURES_FILE):
            Path(place).write_text(told)
    farandole.shutdown()


def _measured(reading: Reading) -> dict[str, Any]:
    reading.store()
    farandole.barrier()  # pages that another process has mapped cannot be dropped
    reason = farandole.broadcast_object(reading.prepare() if farandole.rank() == 0 else None)
    if reason is not None:
        raise DataError(reason)
    return measures_of(farandole.allgather_object(take(reading, farandole.barrier)), reading.path.stat().st_size)


def _cache(path: Path) -> Path:
    """Of a file, in the folder of the study that runs this; alone, in the working directory."""
    told = os.environ.get(FIGURES_FILE)
    study = Path(told).parents[2] if told and len(Path(told).parents) > 3 else Path()
    return study / "cache" / f"{path.parent.name}-{path.name}"


def _layout(word: str) -> dict[str, Any]:
    """`nt3/train`, a workload's file, or the options of readers as JSON."""
    if word.startswith("{"):
        return dict(json.loads(word))
    name, _, role = word.partition("/")
    file = tables_of(name).files[role]
    return {"columns": file.columns, "header": file.header, "delimiter": file.delimiter, "na": file.na or ("",)}


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m farandole.study.reading", description="Measure one reading of a file.")
    parser.add_argument("layout", type=_layout, help="a workload's file, e.g. nt3/train, or options of readers as JSON")
    parser.add_argument("path", type=Path)
    parser.add_argument("--loader", required=True, help="e.g. pandas, fast, fast-cached")
    parser.add_argument("--state", choices=("cold", "warm"), default="warm")
    parser.add_argument("--cache", type=Path, help="where readers that have one keep it; default: cache/ in the folder of the study")
    parser.add_argument("--readings", type=int, default=1, help="so many, one after the other")
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FarandoleError as error:
        sys.exit(f"farandole: {error}")
