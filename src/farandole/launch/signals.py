"""Signals to the launcher, collected where its loop can see them."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Signals"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1,)


class Signals:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted in `received`, and make `awake` readable.

    SIGUSR1, with which batch systems announce the end, does the same with `to_pass_on`: it is for the ranks.

    What the user chose to ignore (nohup) stays ignored; outside the main thread nothing is changed.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.to_pass_on: list[int] = []
        self.awake, self._wake = socket.socketpair()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
            for number in _PASSED_ON:
                self._before[number] = signal.signal(number, self._note_for_ranks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_noting()
        self.awake.close()
        self._wake.close()

    def stop_noting(self) -> None:
        """Back to what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

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
