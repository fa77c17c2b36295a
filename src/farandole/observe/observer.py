"""A script observed from outside: a timeline that begins with the first thing worth showing.

Which rank a process is may only come to light when torch.distributed is initialised, and many a process that imports a
framework trains nothing (torchrun itself, workers of data loaders). So nothing is written before there is a span; spans
wait until the rank is known, and a process that ends its first step without one is rank 0 of 1.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farandole.errors import FarandoleError
from farandole.observe import hooks, process, timeline
from farandole.observe.part import CALENDAR, ClockOffset, part_path
from farandole.observe.phases import START

__all__ = ["OBSERVE_VARIABLE", "TIMELINE", "Observer", "begin"]

OBSERVE_VARIABLE = "FARANDOLE_OBSERVE"
"""The folder that observed processes write into."""
TIMELINE = "timeline.json"
_PATIENCE = 256  # spans that wait until the rank is known
_READING_NS = 1_000  # within one host: how far apart two clocks are read

# rank, ranks
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Observer:
    """Takes spans from hooks, and starts this process's timeline when it knows whose it is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TIMELINE
        self._process = os.getpid()
        self._waiting: list[tuple[str, str, int, int, Mapping[str, object] | None]] = []
        self._begun = self._off = False

    def active(self) -> bool:
        return not self._off and self._process == os.getpid()

    def span(
        self, track: str, name: str, start_ns: int, end_ns: int, args: Mapping[str, object] | None = None
    ) -> None:
        if timeline.active():  # begun by us, or by a script that records one itself
            timeline.span(track, name, start_ns, end_ns, args)
            return
        if self._begun or not self.active():
            return
        self._waiting.append((track, name, start_ns, end_ns, args))
        place = known_place(os.environ)
        if place is None and (name == "STEP" or len(self._waiting) >= _PATIENCE):
            place = 0, 1
        if place is not None:
            self._begin(*place)

    def _begin(self, rank: int, size: int) -> None:
        waiting, self._waiting = self._waiting, []
        # A child that was started by multiprocessing and has no rank of its own works for one that has.
        if (size == 1 and _is_worker()) or _is_recorded(self._path, rank):
            self._off = True
            return
        first_ns = min(start_ns for _, _, start_ns, _, _ in waiting)
        began_ns = process.began_ns()
        try:
            timeline.start(
                self._path, rank=rank, size=size, host=socket.gethostname(), clock=_calendar(),
                origin_ns=began_ns or first_ns, provisional=True,
            )  # fmt: skip
        except FarandoleError as error:
            self._off = True
            print(f"farandole observe: {error} The script runs on, unobserved.", file=sys.stderr)
            return
        self._begun = True
        if began_ns is not None:
            timeline.span("phases", START, began_ns, first_ns)
        for span in waiting:
            timeline.span(*span)

    def end(self) -> None:
        if not self.active():
            return
        if self._waiting and not self._begun:
            self._begin(*(known_place(os.environ) or (0, 1)))
        timeline.stop()


def begin() -> None:
    """Watch this process, as `farandole observe` asks for."""
    observer = Observer(Path(os.environ[OBSERVE_VARIABLE]))
    hooks.watch(observer)
    timeline.otherwise(observer.span)
    atexit.register(observer.end)


def known_place(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of ranks, as torch.distributed or the launcher says.

    One that a launcher has started alone, as a batch system does with a job's script, may start ranks itself: nobody knows yet.
    """
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in _NAMES:
        values = [environment.get(name, "") for name in names]
        if all(value.isdecimal() for value in values) and int(values[1]) > 1:
            return int(values[0]), int(values[1])
    return None


def _is_worker() -> bool:
    multiprocessing: Any = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _calendar() -> ClockOffset:
    """Ranks that know nothing of each other meet on the calendar's clock."""
    before_ns = time.monotonic_ns()
    return ClockOffset(
        offset_ns=time.time_ns() - (before_ns + time.monotonic_ns()) // 2, residual_ns=_READING_NS, how=CALENDAR
    )


def _is_recorded(path: Path, rank: int) -> bool:
    """Whether another process that is still there records as this rank; what one that has ended left is replaced."""
    part = part_path(path, rank)
    with contextlib.suppress(OSError, IndexError, KeyError, ValueError):
        with part.open() as file:
            file.readline()
            writer = int(json.loads(file.readline().rstrip(",\n"))["args"]["process"])
        os.kill(writer, 0)
        print(
            f"farandole observe: rank {rank} is recorded by process {writer} already; process {os.getpid()} is left out",
            file=sys.stderr,
        )
        return True
    return False
