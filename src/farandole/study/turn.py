"""One measured reading of a file: what every process of it does.

    meet      all processes are there; what they have in memory counts as nothing
    load      from the moment at which the last begins until the last is done
    meet      all hold their table, and have touched it
    release   when every one has told what it holds
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farandole.data.loaders import load
from farandole.data.matrix import Matrix, read_matrix
from farandole.study.memory import (
    PeakMemory,
    anonymous_bytes,
    mapped_bytes,
    resident_peak_bytes,
    restart_resident_peak,
)
from farandole.study.pages import forget_pages

__all__ = ["CACHED", "STORING", "Figures", "Taken", "Turn", "combined", "take"]

CACHED = "fast-cached"
STORING = "fast-storing"
_MAPPING = ("fast", CACHED, STORING, "polars", "polars-inferring")
"""They map the file, whose pages are not their memory. The others copy it: all they have in memory is theirs."""
_CACHE_THREAD = "farandole-data-cache"


@dataclass(kw_only=True, slots=True)
class Turn:
    """What is to be read, and how."""

    method: str
    """A loader, or `fast` with its cache: CACHED, STORING."""
    path: str
    columns: Sequence[str | int]
    header: bool
    delimiter: str
    na: Sequence[str]
    cold: bool
    cache: str
    """The folder for methods that have a cache."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def prepare(self) -> str | None:
        """Called by one process before all begin. Why the turn cannot be taken, or None."""
        kept = sorted(Path(self.cache).glob("*.matrix")) if self.method in (CACHED, STORING) else []
        if self.method == STORING:
            for file in kept:
                file.unlink()
            kept = []
        elif self.method == CACHED and not kept:
            self._read(self.cache)
            _wait_for_cache()
            kept = sorted(Path(self.cache).glob("*.matrix"))
        return forget_pages([Path(self.path), *kept]) if self.cold else None

    def read(self) -> Matrix:
        if self.method in (CACHED, STORING):
            return self._read(self.cache)
        return load(self.method, self.path, **self._options())

    def _read(self, cache: str) -> Matrix:
        Path(cache).mkdir(parents=True, exist_ok=True)
        return read_matrix(self.path, cache=cache, **self._options())

    def _options(self) -> dict[str, Any]:
        return {"columns": self.columns, "header": self.header, "delimiter": self.delimiter, "na": self.na}


@dataclass(kw_only=True, slots=True)
class Taken:
    """What one process found."""

    start_s: float
    stop_s: float
    safe_s: float
    """When the cache file was safe on the disk; `stop_s` where none was written."""
    held_bytes: int
    peak_bytes: int
    resident_peak_bytes: int
    shape: tuple[int, ...]


@dataclass(kw_only=True, slots=True)
class Figures:
    """Of all processes of a turn; None where it could not be taken, with the reason."""

    seconds: float | None = None
    safe_s: float | None = None
    """Until the cache file was safe on the disk, where one was written."""
    peak_bytes: int | None = None
    """The most a process had at a time, mapped files not counted."""
    resident_peak_bytes: int | None = None
    """The same with mapped files."""
    held_bytes: int | None = None
    """What all hold together once they have the table; what they share counts once."""
    shape: list[int] = field(default_factory=list)
    reason: str | None = None


def take(turn: Turn, meet: Callable[[], object]) -> Taken:
    """One process's part; `meet` returns once every process has called it."""
    gc.collect()  # what a process frees meanwhile of before would be subtracted
    meet()
    before = anonymous_bytes()
    restart_resident_peak()
    resident = resident_peak_bytes()
    with PeakMemory() as memory:
        meet()
        start_s = time.monotonic()
        table = turn.read()
        stop_s = time.monotonic()
    resident = resident_peak_bytes() - resident
    _wait_for_cache()
    safe_s = time.monotonic()
    _touch(table)
    gc.collect()
    meet()
    held = anonymous_bytes() - before + mapped_bytes(table.values.ctypes.data, table.values.nbytes)
    meet()
    return Taken(
        start_s=start_s, stop_s=stop_s, safe_s=safe_s if turn.method == STORING else stop_s, held_bytes=held,
        peak_bytes=memory.bytes if turn.method in _MAPPING else resident, resident_peak_bytes=resident, shape=table.values.shape,
    )  # fmt: skip


def combined(taken: Sequence[Taken]) -> Figures:
    started_s = max(one.start_s for one in taken)
    done_s, safe_s = max(one.stop_s for one in taken), max(one.safe_s for one in taken)
    return Figures(
        seconds=done_s - started_s,
        safe_s=safe_s - started_s if safe_s > done_s else None,
        peak_bytes=max(one.peak_bytes for one in taken),
        resident_peak_bytes=max(one.resident_peak_bytes for one in taken),
        held_bytes=sum(one.held_bytes for one in taken),
        shape=list(taken[0].shape),
    )


def _wait_for_cache() -> None:
    for thread in threading.enumerate():
        if thread.name == _CACHE_THREAD:
            thread.join()


def _touch(table: Matrix) -> None:
    """Whoever uses a table needs all its pages: mapped ones are not there before."""
    flat = table.values.reshape(-1)
    flat[:: 4096 // flat.itemsize].sum()
