"""Signals for a command that runs as our child: passed on to it, and what it leaves behind is ended.

The command stays in our process group: it may use the terminal, and a Ctrl-C there reaches it without us. A signal that
somebody sends to us alone does not:

    SIGTERM, SIGHUP    to the command, at once
    SIGINT             a second later, if the command still runs, to all of it that a terminal would have reached;
                       not where a terminal has us in its foreground, which is a Ctrl-C

Processes that the command has started are looked for before the signal goes out, while they still have their parents.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Collection
from types import FrameType
from typing import Any, NamedTuple, Self

from farandole.launch.processes import descendants, started

__all__ = ["PassingOn", "Process", "end_all", "pass_on"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DOUBLED_S = 1.0
_GRACE_S = 15.0
_KILLED_S = 1.0
_LOOK_S = 0.05


class Process(NamedTuple):
    """One that runs, or did: numbers are given out again."""

    pid: int
    started: int

    @property
    def runs(self) -> bool:
        return started(self.pid) == self.started


class PassingOn:
    """While entered, SIGINT, SIGTERM and SIGHUP are for the child that `to` names; leaving ends what such a child has left.

    What the user chose to ignore (nohup) stays ignored. Only the main thread enters it.
    """

    def __init__(self) -> None:
        self._noted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._before: dict[int, Any] = {}
        self._left: set[Process] = set()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._noted.put(None)
        if self._thread is not None:
            self._thread.join()
        end_all(self._left)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """From now on; signals that came while it was being started are passed on, too."""
        self._thread = threading.Thread(target=self._pass_on, args=(child,), name="farandole-signals", daemon=True)
        self._thread.start()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.put(number)

    def _pass_on(self, child: subprocess.Popen[bytes]) -> None:
        for number in iter(self._noted.get, None):
            self._left |= pass_on(child, number)


def pass_on(child: subprocess.Popen[bytes], number: int) -> set[Process]:
    """Pass a signal on; what ran of the command by then, to be ended once the child has: `end_all`.

    SIGINT takes a second, or until the child has ended; a Ctrl-C is not passed on, and leaves nothing to end.
    """
    if number == signal.SIGINT and _in_foreground():
        return set()
    found = _family(child)
    if number != signal.SIGINT:
        child.send_signal(number)
    elif not _ends_within(child, _DOUBLED_S):
        _interrupt(_family(child))
    return found


def end_all(left: Collection[Process], grace_s: float = _GRACE_S) -> None:
    """SIGTERM to those that still run, and after `grace_s` SIGKILL."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_S)):
        for one in _running(left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, number)
        until = time.monotonic() + wait_s
        while _running(left) and time.monotonic() < until:
            time.sleep(_LOOK_S)


def _family(child: subprocess.Popen[bytes]) -> set[Process]:
    """A child that has not been waited for, and all that comes from it, as far as they run."""
    pids = [] if child.poll() is not None else [child.pid, *descendants(child.pid)]
    return {Process(pid, since) for pid in pids if (since := started(pid)) >= 0}


def _running(processes: Collection[Process]) -> list[Process]:
    return [one for one in processes if one.runs]


def _ends_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return child.poll() is not None


def _interrupt(processes: Collection[Process]) -> None:
    """As a terminal would: those of our own process group."""
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(one.pid) == os.getpgrp():
                os.kill(one.pid, signal.SIGINT)


def _in_foreground() -> bool:
    """Whether a Ctrl-C of our terminal reaches us, and all of our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
