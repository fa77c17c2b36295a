"""Waiting without burning the core a neighbour needs.

MPI's blocking calls spin. Here every wait is a loop over a cheap test: it spins for some tens of
microseconds (only where each local rank has a core of its own), then yields the core, then sleeps, a
little longer each time. A wait that has become slow registers itself, so that the watchdog
(watchdog.py) can say who waits for what, and end it with an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["SLOW_S", "Blocked", "BlockedTable", "Subject", "blocked", "callers", "help_out", "nobody", "note_caller", "pauses", "set_spinning", "shown_when_slow", "spins", "wait_until", "while_waiting"]

SPIN_S = 40e-6
SPINS = 2000  # about as long
YIELD_S = 400e-6
FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 1e-3
PATIENCE = 0.01
LONGEST_PATIENT_SLEEP_S = 10e-3
SLOW_S = 0.5
MEANWHILE_S = 2e-3

_spin_s = SPIN_S
_meanwhile: Callable[[], None] | None = None
_helping = threading.local()
_callers: set[int] = set()


def help_out() -> None:
    """Say that this thread is one of ours: where it waits is not where the program stands."""
    _helping.always = True


def note_caller() -> None:
    """Remember that this thread of the program uses farandole: while it computes, it may still come."""
    if not hasattr(_helping, "always"):
        _callers.add(threading.get_ident())


def callers() -> int:
    """How many threads of the program use farandole. One of a framework stands for the one that runs its graph."""
    python = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    for ended in [ident for ident in list(_callers) if ident not in python]:
        _callers.discard(ended)
    return len(_callers)


def while_waiting(work: Callable[[], None] | None) -> None:
    """What a thread does between two looks at something that takes longer than some milliseconds."""
    global _meanwhile
    _meanwhile = work


def set_spinning(allowed: bool) -> None:
    """Spin at the start of a wait only where local ranks do not outnumber the cores."""
    global _spin_s
    _spin_s = SPIN_S if allowed else 0.0


def spins() -> int:
    """How often compiled code looks at something before it leaves the wait to `wait_until`."""
    return SPINS if _spin_s else 0


@dataclass(frozen=True, slots=True)
class Subject:
    """What a wait is for."""

    key: str
    """The same on every rank that takes part, e.g. `allreduce.loss` or `gradients.SGD#12`."""
    members: tuple[int, ...]
    """World ranks that take part."""
    missing: Callable[[], list[int] | None] = lambda: None
    """World ranks this rank knows to be late, `nobody` once all have come; None where it cannot know."""


def nobody() -> list[int]:
    """Every rank has come, and the data is on its way: ranks that have done their part may be elsewhere already."""
    return []


@dataclass(slots=True)
class Blocked:
    """A slow wait."""

    subject: Subject
    since: float
    thread: int | None
    """The thread of the program that waits; None where it may be elsewhere."""
    error: BaseException | None = None
    failed_at: float = 0.0
    """When it was told to end; a wait inside a library call cannot."""


@dataclass(slots=True)
class BlockedTable:
    """The slow waits of this process."""

    waits: dict[int, Blocked] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, subject: Subject, since: float, thread: int | None) -> Blocked:
        entry = Blocked(subject, since, thread)
        with self.lock:
            self.waits[id(entry)] = entry
        return entry

    def leave(self, entry: Blocked) -> None:
        with self.lock:
            self.waits.pop(id(entry), None)

    def entries(self) -> list[Blocked]:
        with self.lock:
            return list(self.waits.values())

    def fail(self, key: str, error: BaseException) -> None:
        """End the waits for `key` with an error."""
        with self.lock:
            for entry in self.waits.values():
                if entry.error is None and entry.subject.key == key:
                    entry.error, entry.failed_at = error, time.monotonic()


blocked = BlockedTable()


def pauses(patient: bool = False) -> Iterator[None]:
    """Pause between tests of a condition: spinning, then yielding, then sleeping.

    `patient` sleeps for up to a hundredth of what it has waited: for others to come, not while data moves, which it
    does only when it is looked at.
    """
    start = time.perf_counter()
    while time.perf_counter() - start < _spin_s:
        yield
    while time.perf_counter() - start < YIELD_S:
        os.sched_yield()
        yield
    sleep_s = FIRST_SLEEP_S
    while True:
        time.sleep(sleep_s)
        sleep_s = min(sleep_s * 1.25, LONGEST_SLEEP_S)
        if patient:
            sleep_s = max(sleep_s, min((time.perf_counter() - start) * PATIENCE, LONGEST_PATIENT_SLEEP_S))
        yield


@contextmanager
def shown_when_slow(subject: Subject) -> Iterator[Callable[[], None]]:
    """For waits in other ways: call what this gives between looks; it raises what the watchdog decided."""
    start = time.monotonic()
    entry: Blocked | None = None

    def look() -> None:
        nonlocal entry
        if entry is None and time.monotonic() - start > SLOW_S:
            entry = blocked.enter(subject, start, threading.get_ident())
        elif entry is not None and entry.error is not None:
            raise entry.error

    try:
        yield look
    finally:
        if entry is not None:
            blocked.leave(entry)


def wait_until(ready: Callable[[], bool], subject: Subject, *, patient: bool = False) -> None:
    """Return once `ready()` is true; raise what the watchdog decided otherwise."""
    if ready():
        return
    start = time.monotonic()
    entry: Blocked | None = None
    try:
        for _ in pauses(patient):
            if ready():
                return
            if _meanwhile is not None and time.monotonic() - start > MEANWHILE_S:
                _meanwhile()
            if entry is None:
                if time.monotonic() - start > SLOW_S:
                    helps = hasattr(_helping, "always")
                    entry = blocked.enter(subject, start, None if helps else threading.get_ident())
            elif entry.error is not None:
                raise entry.error
    finally:
        if entry is not None:
            blocked.leave(entry)
