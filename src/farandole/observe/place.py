"""Which process of a node looks after what a node has once: its power meters."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["set_local_rank", "speaks_for_node"]

# As launchers name it, for ranks that have not called init(), such as those of torchrun.
_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

_local_rank: int | None = None


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
