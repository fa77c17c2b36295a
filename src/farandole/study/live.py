"""What a study says while it goes on: on a terminal with a bar of what is under way, elsewhere lines."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from farandole.processes.signals import EndedBySignal
from farandole.progress import Shown, clear, screen_of

__all__ = ["LiveLine", "say_stopped"]


class LiveLine:
    def __init__(self, stream: TextIO) -> None:
        self._screen = screen_of(stream)
        self._began = time.monotonic()

    def show(self, text: str, left_s: float | None = None, note: str = "") -> None:
        """For the moment: what is under way, how long all takes that is left, and what fits behind."""
        self._screen.show(Shown(text, done=time.monotonic() - self._began, left_s=left_s, note=note))

    def say(self, text: str) -> None:
        """To stay."""
        self._screen.clear()
        self._screen.say(text)


def say_stopped(by: KeyboardInterrupt | EndedBySignal, folder: Path) -> int:
    """How to go on with the study in `folder`; the exit code."""
    number = by.number if isinstance(by, EndedBySignal) else signal.SIGINT
    clear()
    print(f"\nfarandole: stopped; type the same again to go on, {folder} has what there is.", file=sys.stderr)
    return 128 + number
