"""The processes of this node's other ranks: which rank each is, and whether it is still there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farandole.errors import RankFailedError

__all__ = ["alive", "death_of", "know_neighbours"]

_ranks_by_process: dict[int, int] = {}


def death_of(pid: int) -> RankFailedError:
    """The error for a neighbour that is no more."""
    rank = _ranks_by_process.get(pid)
    who = "a rank" if rank is None else f"rank {rank}"
    return RankFailedError(f"{who} (process {pid}, on this node) has died")


def know_neighbours(processes: Mapping[int, int]) -> None:
    """The process of each rank."""
    _ranks_by_process.update({pid: rank for rank, pid in processes.items()})


def alive(pid: int) -> bool:
    """False for a process that is gone or a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
