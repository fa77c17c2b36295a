"""This process: when it began, and whether it is the one of its node that reads what a node has once, its power meters."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["began_ns", "set_local_rank", "speaks_for_node"]

# As launchers name it, for ranks that have not called init(), such as those of torchrun.
_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_START = 19  # of the fields of /proc/self/stat that follow the command's name: ticks since the machine was booted

_local_rank: int | None = None


def began_ns(stat: Path = Path("/proc/self/stat")) -> int | None:
    """When this process was started, to a hundredth of a second, on the clock of `time.monotonic_ns()`; None if unknown."""
    try:
        ticks = int(stat.read_text().rpartition(")")[2].split()[_START])
    except (OSError, ValueError, IndexError):
        return None
    now_ns = time.monotonic_ns()
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return now_ns - age_ns if ticks and age_ns >= 0 else None


def set_local_rank(local_rank: int | None) -> None:
    """Told by init(), and None by shutdown()."""
    global _local_rank
    _local_rank = local_rank


def speaks_for_node(environment: Mapping[str, str] = os.environ) -> bool:
    """True on the first rank of each node, and on a process that is no rank."""
    if _local_rank is not None:
        return _local_rank == 0
    named = (environment[name] for name in _LOCAL_RANK if name in environment)
    return next(named, "0") == "0"
