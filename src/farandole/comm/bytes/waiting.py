"""Waiting without burning the core a neighbour needs.

MPI's blocking calls spin. Here every wait is a loop over a cheap test: it spins for some tens of
microseconds (only where each local rank has a core of its own), then yields the core, then sleeps, a
little longer each time. A wait of more than half a second registers itself in `slow_waits`, so that the
watchdog (watchdog.py) can say who waits for what, and end it with an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = [
    "SLOW_S",
    "SlowWait",
    "SlowWaits",
    "Subject",
    "all_arrived",
    "call_while_waiting",
    "count_callers",
    "mark_internal_thread",
    "note_caller",
    "pauses",
    "set_spinning",
    "shown_when_slow",
    "slow_waits",
    "spins",
    "wait_until",
]

SPIN_S = 40e-6
SPINS = 2000  # about as long
YIELD_S = 400e-6
FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 1e-3
PATIENCE = 0.01
LONGEST_PATIENT_SLEEP_S = 10e-3
SLOW_S = 0.5
CALL_AFTER_S = 2e-3

_spin_s = SPIN_S
_while_waiting: Callable[[], None] | None = None
_thread = threading.local()
_callers: set[int] = set()


def mark_internal_thread() -> None:
    """This thread is farandole's own: the watchdog must not take its waits for those of the program."""
    _thread.internal = True


def _is_internal() -> bool:
    return hasattr(_thread, "internal")


def note_caller() -> None:
    """Remember that this thread of the program uses farandole: while it computes, it may still join an operation."""
    if not _is_internal():
        _callers.add(threading.get_ident())


def count_callers() -> int:
    """How many threads of the program use farandole. A framework's own do not count: the thread that runs its graph does."""
    python = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    for ended in [ident for ident in list(_callers) if ident not in python]:
        _callers.discard(ended)
    return len(_callers)


def call_while_waiting(work: Callable[[], None] | None) -> None:
    """Every wait of more than some milliseconds calls `work` between its tests; None ends this."""
    global _while_waiting
    _while_waiting = work


def set_spinning(allowed: bool) -> None:
    """Spin at the start of a wait only where local ranks do not outnumber the cores."""
    global _spin_s
    _spin_s = SPIN_S if allowed else 0.0


def spins() -> int:
    """How often compiled code tests a condition before it leaves the wait to `wait_until`."""
    return SPINS if _spin_s else 0


@dataclass(frozen=True, slots=True)
class Subject:
    """What a wait is for."""

    key: str
    """The operation's key, the same on every rank that takes part: `allreduce.loss`, `gradients.SGD#12`."""
    members: tuple[int, ...]
    """World ranks that take part."""
    missing: Callable[[], list[int] | None] = lambda: None
    """World ranks this rank knows to be late (`all_arrived`: none); None where it cannot know."""


def all_arrived() -> list[int]:
    """No rank is missing: the data is on its way, and ranks that have done their part may have gone on."""
    return []


@dataclass(slots=True)
class SlowWait:
    """One wait that takes long."""

    subject: Subject
    since: float
    thread: int | None
    """The thread of the program that waits; None where it may be elsewhere."""
    error: BaseException | None = None
    failed_at: float = 0.0
    """When the watchdog set the error; a wait inside a library call cannot raise it."""


@dataclass(slots=True)
class SlowWaits:
    """The slow waits of this process."""

    waits: dict[int, SlowWait] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, subject: Subject, since: float, thread: int | None) -> SlowWait:
        entry = SlowWait(subject, since, thread)
        with self.lock:
            self.waits[id(entry)] = entry
        return entry

    def leave(self, entry: SlowWait) -> None:
        with self.lock:
            self.waits.pop(id(entry), None)

    def entries(self) -> list[SlowWait]:
        with self.lock:
            return list(self.waits.values())

    def fail(self, key: str, error: BaseException) -> None:
        """End the waits for `key` with an error."""
        with self.lock:
            for entry in self.waits.values():
                if entry.error is None and entry.subject.key == key:
                    entry.error, entry.failed_at = error, time.monotonic()


slow_waits = SlowWaits()


def pauses(patient: bool = False) -> Iterator[None]:
    """Pause between tests of a condition: spinning, then yielding, then sleeping.

    `patient` sleeps for up to a hundredth of the time waited so far. It is for ranks that are late, not for data in
    transit, which moves only while MPI is called.
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
    """For waits that `wait_until` does not do: call the function given now and then; it raises the watchdog's error."""
    start = time.monotonic()
    entry: SlowWait | None = None

    def check() -> None:
        nonlocal entry
        if entry is None and time.monotonic() - start > SLOW_S:
            entry = slow_waits.enter(subject, start, threading.get_ident())
        elif entry is not None and entry.error is not None:
            raise entry.error

    try:
        yield check
    finally:
        if entry is not None:
            slow_waits.leave(entry)


def wait_until(ready: Callable[[], bool], subject: Subject, *, patient: bool = False) -> None:
    """Return once `ready()` is true; raise the watchdog's error if it ends the wait."""
    if ready():
        return
    start = time.monotonic()
    entry: SlowWait | None = None
    try:
        for _ in pauses(patient):
            if ready():
                return
            if _while_waiting is not None and time.monotonic() - start > CALL_AFTER_S:
                _while_waiting()
            if entry is None:
                if time.monotonic() - start > SLOW_S:
                    entry = slow_waits.enter(subject, start, None if _is_internal() else threading.get_ident())
            elif entry.error is not None:
                raise entry.error
    finally:
        if entry is not None:
            slow_waits.leave(entry)
