"""A point's command does not outlive the study: signals are passed on, and what is left is ended.

The command has a process group of its own, so that all it starts can be found. Signals of a terminal therefore reach this
program alone:

    ctrl-c                      goes to the whole group, as a terminal would send it
    SIGTERM, SIGHUP, SIGQUIT    become SIGTERM to the command, which may still need its own processes to save
    then                        the command has time to end; what it leaves of its group gets SIGTERM, and SIGKILL after a while
    once more                   SIGKILL to all of the group, at once
    ctrl-z                      stops the group, too, until both go on
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

__all__ = ["ENDING", "EndedBySignal", "ended_with_us", "ends_on", "say_stopped"]

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_END_S = 15.0
_LEFT_S = 3.0
_LOOK_S = 0.05

Handler = Callable[[int, FrameType | None], None]


class EndedBySignal(SystemExit):
    """Somebody wants this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def say_stopped(by: KeyboardInterrupt | EndedBySignal, folder: Path) -> int:
    """How to go on with the study in `folder`; the exit code."""
    number = by.number if isinstance(by, EndedBySignal) else signal.SIGINT
    print(f"\nfarandole: stopped; type the same again to go on, {folder} has what there is.", file=sys.stderr)
    return 128 + number


@contextmanager
def ends_on(*signals: int) -> Iterator[None]:
    """Inside, these are EndedBySignal, so that what is open is closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise EndedBySignal(number)

    with _handled(stop, *signals):
        yield


@contextmanager
def ended_with_us(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """However we end, the command, the first of its process group, has ended before with all of it."""
    try:
        with _stopped_with_us(child.pid):
            yield
    except BaseException as raised:
        _end(child, signal.SIGINT if isinstance(raised, KeyboardInterrupt) else signal.SIGTERM)
        raise


@contextmanager
def _handled(handler: Handler, *signals: int) -> Iterator[None]:
    """What the user chose to ignore (nohup) stays ignored."""
    before = {number: signal.signal(number, handler) for number in signals if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


@contextmanager
def _stopped_with_us(group: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        _send(group, number)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when somebody has this program go on
        _send(group, signal.SIGCONT)

    with _handled(stop, signal.SIGTSTP):
        yield


def _end(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        if number == signal.SIGINT:
            _send(child.pid, number)
        else:
            child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
            _end_rest(child.pid)
    finally:
        _send(child.pid, signal.SIGKILL)
        child.wait()


def _end_rest(group: int) -> None:
    _send(group, signal.SIGTERM)
    until = time.monotonic() + _LEFT_S
    while _send(group, 0) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _send(group: int, number: int) -> bool:
    """Whether there is anybody left in the group."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
