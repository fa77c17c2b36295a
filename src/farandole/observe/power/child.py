"""A command as a child process: waited for, whatever signals come meanwhile."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farandole.errors import LaunchError
from farandole.launch.passing import PassingOn

__all__ = ["CannotStart", "Ended", "run_command"]


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
    """Run to its end; signals to us are passed on (farandole.launch.passing), and we stay to tell the figures."""
    with PassingOn() as signals:
        began_cpu_s, start_ns = _children_cpu_s(), time.monotonic_ns()
        child = _started(words, environment)
        signals.to(child)
        code = child.wait()
        end_ns = time.monotonic_ns()
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
