"""A command as our child: signals are passed on to it, and what it leaves when one has ended it is ended.

    with Child(["python", "train.py"]) as child:
        code = child.wait()

In our own process group (the default) it may use the terminal, and a Ctrl-C there reaches it without us:

    SIGTERM, SIGHUP             to the command, at once, and as often as they come
    SIGINT                      a second later, if the command still runs, to all of it that a terminal would have reached;
                                not where a terminal has us in its foreground, which is a Ctrl-C
    then                        the command has the time it takes

With `own_group=True` a terminal's signals reach us alone:

    SIGINT                      to the whole group, as a terminal would send it
    SIGTERM, SIGHUP, SIGQUIT    become SIGTERM to the command, which may still need its own processes to save
    then                        the command has GRACE_S to end
    once more                   SIGKILL to all of it, at once
    SIGTSTP (Ctrl-Z)            stops the group, too, until both go on

Either way, what the command has left then gets SIGTERM, and SIGKILL after GRACE_S.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from farandole.errors import LaunchError
from farandole.processes.signals import ENDING, handled, restored
from farandole.processes.tree import LOOK_S, NEVER, Ending, Family, send

__all__ = ["GRACE_S", "CannotStart", "Child"]

GRACE_S = 15.0
_SHARED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DOUBLED_S = 1.0


class CannotStart(LaunchError):
    """A command that is no program, or may not be run."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program}: {error.strerror}")
        self.exit_code = 126 if isinstance(error, PermissionError) else 127


class Child:
    """While entered, the command runs, and the signals above are for it; only the main thread gets any."""

    def __init__(self, words: Sequence[str], *, own_group: bool = False, **how: Any) -> None:
        """`how`: as for subprocess.Popen. Entering raises CannotStart."""
        self.ended_by = 0
        """The first signal that was to end it; 0 for none."""
        self._words, self._own_group, self._how = list(words), own_group, how
        self._came: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        signals = (signal.SIGINT, *ENDING, signal.SIGTSTP) if self._own_group else _SHARED
        self._before = handled(self._note, *signals)
        try:
            self._process = subprocess.Popen(self._words, process_group=0 if self._own_group else None, **self._how)
        except OSError as error:
            restored(self._before)
            raise CannotStart(self._words[0], error) from error
        self._family = Family(self._process)
        self._ending = Ending(self._has_ended, self._family.running, GRACE_S)
        self._thread = threading.Thread(target=self._attend, name="farandole-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.ended_by:
            self._came.put(signal.SIGTERM)
        self._came.put(None)
        self._thread.join()
        restored(self._before)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, -N for signal N; subprocess.TimeoutExpired where it still runs."""
        return self._process.wait(timeout_s)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGTSTP:
            self.ended_by = self.ended_by or number
        self._came.put(number)

    # On a thread

    def _attend(self) -> None:
        """Until the command is left, and, if a signal has ended it, nothing of it is."""
        leaving = False
        while not leaving or (self._ending.begun and not self._ending.over):
            with contextlib.suppress(queue.Empty):
                number = self._came.get(timeout=LOOK_S if self._ending.begun else None)
                leaving |= number is None
                if number is not None:
                    self._pass_on(number)
            self._ending.tick()

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._stop_with_us()
        elif not self._own_group:
            self._pass_on_in_our_group(number)
        elif self._ending.begun:
            self._ending.begin(0.0)
        else:
            self._family.running()
            self._ending.begin(GRACE_S)
            self._to_group(number) if number == signal.SIGINT else self._process.terminate()

    def _pass_on_in_our_group(self, number: int) -> None:
        if number == signal.SIGINT and _in_foreground():
            return
        self._family.running()
        if number != signal.SIGINT:
            self._process.send_signal(number)
        elif not self._ends_within(_DOUBLED_S):
            send((pid for pid in self._family.running() if _is_in_our_group(pid)), number)
        self._ending.begin(NEVER)

    def _stop_with_us(self) -> None:
        self._to_group(signal.SIGTSTP)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # returns when somebody has this program go on
        self._to_group(signal.SIGCONT)

    def _to_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _ends_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < until:
            time.sleep(LOOK_S)
        return self._has_ended()


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


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
