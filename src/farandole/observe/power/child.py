"""A command as a child process: waited for, whatever signals come meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farandole.observe.machine_time import children_cpu_s
from farandole.processes.child import Child

__all__ = ["Ended", "run_command"]


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
    """Run to its end; signals to us are passed on (farandole.processes.child), and we stay to tell the figures."""
    began_cpu_s, start_ns = children_cpu_s(), time.monotonic_ns()
    with Child(words, env=environment) as child:
        code = child.wait()
        end_ns = time.monotonic_ns()
    return Ended(
        exit_code=code if code >= 0 else 128 - code, start_ns=start_ns, end_ns=end_ns,
        cpu_s=children_cpu_s() - began_cpu_s,
    )  # fmt: skip
