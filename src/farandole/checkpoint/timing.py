"""When to save: every so many steps, epochs or seconds, as often as failures make it worth, and before time is up.

Steps and epochs are the same on all ranks. Everything else (clocks, signals) is not, and ranks have to agree: they
meet about once a second, not at every step.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from farandole.errors import SettingsError

__all__ = ["Clock", "SignalNotes", "When", "best_interval_s", "end_of_job"]

_CHECK_S = 1.0
_MOST_STEPS = 1000
"""Between two meetings, however short the steps."""
_FIRST_SAVE_BYTES_S = 200e6
"""What a save is assumed to write a second before one was measured."""
_MARGIN_S = 5.0
_SAME_S = 5.0
"""SIGTERMs this close to one another are one: batch systems send it to ranks and to whoever passes it on to them."""


@dataclass(kw_only=True, slots=True)
class When:
    """Any of these; without one, only signals and the end of the job's time make it save."""

    steps: int | None = None
    """Every so many steps."""
    epochs: int | None = None
    """At the end of every so many epochs."""
    seconds: float | None = None
    """When so many seconds have passed since the last."""
    failures_s: float | None = None
    """The mean time between failures of the whole job: save as often as loses least (Young, Daly)."""
    signals: bool = True
    """SIGUSR1: save and go on. SIGTERM: save and end."""
    ends_at: float | None = None
    """Save and end before this time (seconds since 1970); None takes what the launcher or Slurm says."""

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "seconds", "failures_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"When({name}={value}): give a number above 0, or leave it out")
        if self.seconds is not None and self.failures_s is not None:
            raise SettingsError("When(seconds=..., failures_s=...): the second chooses the seconds; give one of them")
        if self.ends_at is None:
            self.ends_at = end_of_job(os.environ)


def end_of_job(environment: Mapping[str, str]) -> float | None:
    """When the time given to this job is over, in seconds since 1970; None where nobody says so."""
    for name in ("FARANDOLE_ENDS_AT", "SLURM_JOB_END_TIME"):
        text = environment.get(name, "")
        try:
            if text:
                return float(text)
        except ValueError:
            raise SettingsError(f"{name}={text!r}: give seconds since 1970, e.g. $(date -d '+2 hours' +%s)") from None
    return None


def best_interval_s(save_s: float, failures_s: float) -> float:
    """The time between saves that loses least when each costs `save_s` (Daly's second-order estimate)."""
    if save_s >= 2 * failures_s:
        return failures_s
    ratio = save_s / (2 * failures_s)
    return math.sqrt(2 * save_s * failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


class Clock:
    """What the deciding rank knows of time."""

    def __init__(self, when: When, state_bytes: int) -> None:
        self._when = when
        self._save_s = state_bytes / _FIRST_SAVE_BYTES_S
        self._exposed_s = self._save_s
        self._saved_at = self._met_at = time.monotonic()
        self._step_s = self._longest_s = 0.0

    def saved(self, exposed_s: float, save_s: float | None) -> None:
        """A save has made training wait for `exposed_s`; to be on disk it took `save_s`, None while nobody knows."""
        self._saved_at = time.monotonic()
        self._met_at += exposed_s  # what is between two meetings is the training's
        self._exposed_s, self._save_s = exposed_s, max(self._save_s, exposed_s) if save_s is None else save_s

    def interval_s(self) -> float | None:
        """How far apart saves should be; None where time alone is no reason."""
        if self._when.failures_s is not None:
            # A save in the background may cost next to nothing, but the next one waits for its end.
            return max(best_interval_s(self._exposed_s, self._when.failures_s), self._save_s)
        return self._when.seconds

    def is_due(self) -> bool:
        interval_s = self.interval_s()
        return interval_s is not None and time.monotonic() - self._saved_at >= interval_s

    def time_is_up(self) -> bool:
        """Whether what is left is needed to save, even if the disk is slower than before.

        Nobody may look at the clock for as long as they once did not: an epoch's validation has no steps.
        """
        if self._when.ends_at is None:
            return False
        needed_s = 2 * self._save_s + 2 * _CHECK_S + 2 * self._step_s + self._longest_s + _MARGIN_S
        return time.time() + needed_s >= self._when.ends_at

    def next_meeting(self, steps: int) -> int:
        """After how many steps to ask again, `steps` having been made since the last time."""
        now = time.monotonic()
        stretch_s, self._met_at = max(0.0, now - self._met_at), now
        self._step_s, self._longest_s = stretch_s / max(1, steps), max(self._longest_s, stretch_s)
        wanted = int(_CHECK_S / self._step_s) if self._step_s else _MOST_STEPS
        # Twice as many at most: the first steps are slow, and the next ones may be again.
        return max(1, min(wanted, 2 * steps, _MOST_STEPS))


class SignalNotes:
    """From start() to stop(), SIGTERM and SIGUSR1 are noted; a later SIGTERM does what it did before."""

    def __init__(self) -> None:
        self.received: set[str] = set()
        self._told_at: float | None = None
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                # None: a handler that was not set from Python, and cannot be put back.
                self._before[number] = signal.signal(number, self._note) or signal.SIG_DFL

    def stop(self) -> None:
        """Back to what they did before; a SIGTERM that nobody has heeded does it now."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if "SIGTERM" in self.take():
            os.kill(os.getpid(), signal.SIGTERM)

    def ignore(self) -> None:
        """The program is about to end: ranks get the same signal one after the other, and none is to be killed by it."""
        if self._before:
            # Not SIG_IGN: a launcher leaves the processes of a program that handles it alone, and only of such a one.
            self._before[signal.SIGTERM] = _heedless
            signal.signal(signal.SIGTERM, _heedless)
        self.received.clear()

    def take(self) -> set[str]:
        """Those that have come since the last time."""
        taken, self.received = self.received, set()
        return taken

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.add(signal.Signals(number).name)
        if number == signal.SIGTERM:
            self._told_at = self._told_at or time.monotonic()
            if time.monotonic() > self._told_at + _SAME_S:
                self.stop()


def _heedless(number: int, frame: FrameType | None) -> None:
    pass
