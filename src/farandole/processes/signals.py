"""Signals to this program: with handlers of ours for a while, as an exception, or collected where a loop can see them.

What the user chose to ignore (nohup) stays ignored, but for what is not about us; outside the main thread nothing is changed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["ENDING", "EndedBySignal", "Signals", "ends_on", "handled", "restored"]

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a program, but for Ctrl-C, which Python makes an exception of."""
_NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1,)

Handler = Callable[[int, FrameType | None], None]


class EndedBySignal(SystemExit):
    """Somebody wants this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def ends_on(*signals: int) -> Iterator[None]:
    """Inside, these are EndedBySignal, so that what is open is closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise EndedBySignal(number)

    before = handled(stop, *signals)
    try:
        yield
    finally:
        restored(before)


def handled(handler: Handler, *signals: int, ignored_too: bool = False) -> dict[int, Any]:
    """Have `handler` called; the handlers before, for `restored`."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    ours = [number for number in signals if ignored_too or signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in ours}


def restored(before: dict[int, Any]) -> None:
    """Back to what they did before, once."""
    while before:
        signal.signal(*before.popitem())


class Signals:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted in `received`, and make `awake` readable.

    SIGUSR1, with which batch systems announce the end, does the same with `to_pass_on`: it is for the ranks.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.to_pass_on: list[int] = []
        self.awake, self._wake = socket.socketpair()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = handled(self._note, *_NOTED) | handled(self._note_for_ranks, *_PASSED_ON, ignored_too=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_noting()
        self.awake.close()
        self._wake.close()

    def stop_noting(self) -> None:
        """Back to what they did before."""
        restored(self._before)

    def calm(self) -> None:
        """Take note that `awake` was read."""
        self.awake.recv(4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self._awaken()

    def _note_for_ranks(self, number: int, frame: FrameType | None) -> None:
        self.to_pass_on.append(number)
        self._awaken()

    def _awaken(self) -> None:
        self._wake.setblocking(False)
        with contextlib.suppress(OSError):
            self._wake.send(b".")
