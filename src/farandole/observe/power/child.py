"""A command as a child process: waited for, whatever signals come meanwhile."""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from farandole.errors import LaunchError

__all__ = ["CannotStart", "Ended", "run_command"]

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


class CannotStart(LaunchError):
    """A command that is no program, or may not be run."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program}: {error.strerror}")
        self.exit_code = 126 if isinstance(error, PermissionError) else 127


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command has ended."""

    exit_code: int
    """128 + N where signal N has ended it, as in a shell."""
    start_ns: int
    end_ns: int
    cpu_s: float
    """Of it and all the children it has waited for."""


def run_command(words: Sequence[str], environment: Mapping[str, str]) -> Ended:
    """Run to its end.

    SIGTERM and SIGHUP are passed on. Ctrl-C reaches the command from the terminal, and we stay to tell the figures.
    """
    child: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number not in _PASSED_ON:
            return
        if child:
            child[0].send_signal(number)
        else:
            early.append(number)

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, *_PASSED_ON):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, pass_on)
    try:
        began_cpu_s, start_ns = _children_cpu_s(), time.monotonic_ns()
        child.append(_started(words, environment))
        for signalled in early:  # while it was being started
            child[0].send_signal(signalled)
        code = child[0].wait()
        end_ns = time.monotonic_ns()
    finally:
        for number in before:
            signal.signal(number, before[number])
    return Ended(
        exit_code=code if code >= 0 else 128 - code, start_ns=start_ns, end_ns=end_ns,
        cpu_s=_children_cpu_s() - began_cpu_s,
    )  # fmt: skip


def _started(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(words), env=dict(environment))
    except OSError as error:
        raise CannotStart(words[0], error) from error


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
