"""What a study says while it goes on: on a terminal one line that is written over, elsewhere plain lines."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from farandole.train.progress import duration

__all__ = ["LiveLine"]

_EVERY_S = 1.0


class LiveLine:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown = 0

    def show(self, text: str) -> None:
        """For the moment; only people who watch see it."""
        if not self._terminal:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r{text.ljust(self._shown)}")
        self._shown = len(text)

    @contextmanager
    def ticking(self, told: str, left_s: float) -> Iterator[None]:
        """For what says nothing itself: how long it has been under way, and how long all takes that is left, every second."""
        ended, began = threading.Event(), time.monotonic()

        def tick() -> None:
            while True:
                passed_s = time.monotonic() - began
                self.show(f"{told}: {passed_s:.0f} s, about {duration(max(left_s - passed_s, 0.0))} left")
                if ended.wait(_EVERY_S):
                    return

        thread = threading.Thread(target=tick, name="farandole-study-line", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def say(self, text: str) -> None:
        """To stay."""
        if self._shown:
            self._write(f"\r{' ' * self._shown}\r")
            self._shown = 0
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
