"""How far a long read or write is: a bar on a terminal, a line now and then in a log.

    with Progress("nt_train2.csv", total_bytes, after_s=2.0) as bar:
        bar.advance(1 << 20)
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress"]

_REDRAW_S = 0.1
_LINE_S = 10.0
_BAR_WIDTH = 24


class Progress:
    """Counts bytes from any thread and says on stderr how far they are."""

    def __init__(
        self, label: str, total_bytes: int, *, after_s: float = 0.0, enabled: bool = True, stream: TextIO | None = None
    ) -> None:
        self._label = label
        self._total = max(1, total_bytes)
        self._enabled = enabled
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._done = 0
        self._width = 0
        self._start = time.monotonic()
        self._next = self._start + max(after_s, 0.0 if self._terminal else _LINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if not self._width:
                return
            if self._terminal:
                self._stream.write("\r" + " " * self._width + "\r")
            if kind is None:
                self._stream.write(f"{self._label}: {self._done / 1e6:,.0f} MB in {self._elapsed():.1f} s\n")
            self._stream.flush()

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._enabled and now >= self._next:
                self._next = now + (_REDRAW_S if self._terminal else _LINE_S)
                self._show()

    def _elapsed(self) -> float:
        return max(1e-6, time.monotonic() - self._start)

    def _show(self) -> None:
        text = self._text()
        if self._terminal:
            self._stream.write("\r" + text.ljust(self._width))
        else:
            self._stream.write(text + "\n")
        self._width = max(self._width, len(text))
        self._stream.flush()

    def _text(self) -> str:
        share = min(1.0, self._done / self._total)
        rate = self._done / self._elapsed()
        left_s = (1 - share) * self._total / rate if rate else 0.0
        filled = round(share * _BAR_WIDTH)
        bar = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] " if self._terminal else ""
        return f"{self._label}: {bar}{share:4.0%}, {rate / 1e6:,.0f} MB/s, {_clock(left_s)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
