"""Where a process stands, in the words of whatever mpiexec started it."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from farandole.launch.messages import Place

__all__ = ["MPI_PREFIXES", "find_place", "without_mpi"]

# rank, size, local rank, local size
_NAMES = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)
MPI_PREFIXES = ("PMI_", "PMIX_", "HYDI_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "PRTE_", "ORTE_")


def find_place(environment: Mapping[str, str]) -> Place:
    """This process's place in its job; one alone is rank 0 of 1."""
    host = socket.gethostname()
    for names in _NAMES:
        values = [environment.get(name, "") for name in names]
        if all(value.isdecimal() for value in values):
            rank, size, local_rank, local_size = map(int, values)
            return Place(rank, size, local_rank, local_size, host)
    return Place(0, 1, 0, 1, host)


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before an mpiexec around us added its own: a job within a job starts anew."""
    return {name: value for name, value in environment.items() if not name.startswith(MPI_PREFIXES)}
