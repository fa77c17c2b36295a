"""What a study says while it goes on: on a terminal one line that is written over, elsewhere plain lines."""

from __future__ import annotations

import shutil
from typing import TextIO

__all__ = ["LiveLine"]


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

    def say(self, text: str) -> None:
        """To stay."""
        if self._shown:
            self._write(f"\r{' ' * self._shown}\r")
            self._shown = 0
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
