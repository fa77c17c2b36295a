"""How far something is: a live bar at the foot of a terminal, a line now and then in a log.

    with Progress("reading nt_train2.csv", total_bytes) as bar:
        bar.advance(1 << 20)

    screen = screen_of(sys.stdout)
    screen.show(Shown("training", done=3, total=20, unit="epochs"))
    screen.say("epoch 3/20  loss 0.41")      # stays, above the bar
    screen.clear()

Ranks have no terminal: with SENT=1 in its environment, one sends what it has to show to its launcher, which draws it. Such lines
are never in a log. rich is imported when a terminal has something to show, and nowhere else.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["SENT", "Progress", "Screen", "Shown", "clear", "duration", "is_terminal", "screen_of", "show_sent"]

SENT = "FARANDOLE_SEND_PROGRESS"
_MARK = "\x1eprogress "
"""Begins a line that is to be drawn, not printed, after ASCII's record separator."""
_REDRAWS_PER_S = 4
_LINE_S = 10.0
_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to show, for the moment."""

    label: str
    done: float = 0.0
    total: float = 0.0
    """0: nobody knows."""
    unit: str = ""
    """Of what is counted; "B" for bytes."""
    passed_s: float = 0.0
    """Seconds in which this was done, where that was not shown from its beginning on."""
    left_s: float | None = None
    """Seconds that all will take from now on, where that is not told by what is done so far."""
    note: str = ""
    """What fits behind."""


class Screen:
    """Where nobody watches: what is said is written, and nothing is shown."""

    draws = False
    every_s = _LINE_S
    """How often it is worth to tell something new."""
    keeps_after_s = _LINE_S
    """What took less leaves no line behind."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, shown: Shown) -> None:
        """For the moment; only people who watch see it."""

    def clear(self) -> None:
        """Nothing is shown any more."""

    def say(self, text: str, stream: TextIO | None = None) -> None:
        """To stay, in `stream` where it is another than ours."""
        to = stream or self._stream
        to.write(f"{text}\n")
        to.flush()


class _Sender(Screen):
    """Of a rank: what is shown goes to its launcher, by its output."""

    draws = True
    every_s = 1 / _REDRAWS_PER_S

    def show(self, shown: Shown) -> None:
        print(f"{_MARK}{json.dumps(asdict(shown))}\n", end="", flush=True)

    def clear(self) -> None:
        print(f"{_MARK}null\n", end="", flush=True)


class _Terminal(Screen):
    """One line at its foot, drawn by a thread of rich's; a process has one at most."""

    draws = True
    every_s = 1 / _REDRAWS_PER_S
    keeps_after_s = 0.0
    drawn: _Terminal | None = None
    _lock = threading.RLock()

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._live: Any = None
        self._shown: Shown | None = None
        self._began = self._at = self._done_before = 0.0

    def show(self, shown: Shown) -> None:
        with self._lock:
            self._at = time.monotonic()
            if self._shown is None or (shown.label, shown.unit) != (self._shown.label, self._shown.unit):
                self._began, self._done_before = self._at - shown.passed_s, 0.0 if shown.passed_s else shown.done
            self._shown = shown
            self._start()

    def clear(self) -> None:
        with self._lock:
            self._stop()
            self._shown = None

    def say(self, text: str, stream: TextIO | None = None) -> None:
        with self._lock:
            was_drawn = self._live is not None
            self._stop()
            super().say(text, stream)
            if was_drawn:
                self._start()

    def _start(self) -> None:
        if self._live is not None:
            return
        if _Terminal.drawn is None:
            atexit.register(clear)
        else:
            _Terminal.drawn._stop()
        _Terminal.drawn = self
        self._live = _live(self._stream, self._line)
        self._live.start(refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self) -> Table:
        shown, now = self._shown or Shown(""), time.monotonic()
        passed_s, done, total, left_s = now - self._began, shown.done, shown.total, shown.left_s
        if left_s is not None:
            done += now - self._at
            left_s = max(left_s - (now - self._at), 0.0)
            total = done + left_s
        elif total and done > self._done_before:
            rate = (done - self._done_before) / max(self._at - self._began, 1e-6)
            left_s = max((total - done) / rate - (now - self._at), 0.0)
        words = [*_counted(shown, self._at - self._began), duration(passed_s), *([] if left_s is None else [f"about {duration(left_s)} left"])]
        return _drawing(shown, done, total, ", ".join(words))


def is_terminal(stream: TextIO) -> bool:
    """Whether a line of it can be written over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def screen_of(stream: TextIO) -> Screen:
    if os.environ.get(SENT):
        return _Sender(stream)
    return _Terminal(stream) if is_terminal(stream) else Screen(stream)


def clear() -> None:
    """Nothing of this process is shown any more, wherever."""
    if _Terminal.drawn is not None:
        _Terminal.drawn.clear()


def show_sent(line: str, screen: Screen) -> bool:
    """Whether a rank's line was sent to be drawn, which is done on `screen`."""
    if not line.startswith(_MARK):
        return False
    fields = json.loads(line.removeprefix(_MARK))
    screen.clear() if fields is None else screen.show(Shown(**fields))
    return True


class Progress:
    """Counts bytes, from any thread; shown where they take a while."""

    def __init__(
        self, label: str, total_bytes: int, *, after_s: float = 2.0, enabled: bool = True, stream: TextIO | None = None
    ) -> None:
        self._label, self._total, self._enabled = label, max(1, total_bytes), enabled
        self._screen = screen_of(stream or sys.stderr)
        self._lock = threading.Lock()
        self._done = 0
        self._is_shown = False
        self._began = time.monotonic()
        self._next = self._began + max(after_s, 0.0 if self._screen.draws else _LINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_shown:
            return
        self._screen.clear()
        if kind is None and self._passed_s() >= self._screen.keeps_after_s:
            self._screen.say(f"{self._label}: {self._done / 1e6:,.0f} MB in {self._passed_s():.1f} s")

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._enabled and now >= self._next:
                self._next, self._is_shown = now + self._screen.every_s, True
                self._show()

    def _passed_s(self) -> float:
        return max(1e-6, time.monotonic() - self._began)

    def _show(self) -> None:
        shown = Shown(self._label, done=self._done, total=self._total, unit="B", passed_s=self._passed_s())
        if self._screen.draws:
            self._screen.show(shown)
            return
        left_s = max(self._total - self._done, 0) * shown.passed_s / max(self._done, 1)
        self._screen.say(f"{self._label}: {', '.join(_counted(shown, shown.passed_s))}, about {duration(left_s)} left")


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _counted(shown: Shown, passed_s: float) -> list[str]:
    if not shown.total:
        return []
    if shown.unit == "B":
        return [f"{min(1.0, shown.done / shown.total):.0%}", f"{shown.done / 1e6 / max(passed_s, 1e-6):,.0f} MB/s"]
    return [f"{shown.done:g}/{shown.total:g} {shown.unit}"]


def _live(stream: TextIO, line: Any) -> Any:
    from rich.console import Console
    from rich.live import Live

    class Plain(Console):
        def show_cursor(self, show: bool = True) -> bool:
            """Left alone: who is killed could not show it again."""
            return False

    return Live(
        console=Plain(file=stream, highlight=False), get_renderable=line, refresh_per_second=_REDRAWS_PER_S, transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip


def _drawing(shown: Shown, done: float, total: float, words: str) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, ratio=1)
    bar = ProgressBar(total or None, min(done, total), width=_BAR_WIDTH)
    grid.add_row(Text(shown.label), bar, Text(words), Text(Text.from_ansi(shown.note).plain))
    return grid
