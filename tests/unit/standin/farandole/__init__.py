"""The least that the harness needs of the package, so that its own tests are quick and depend on nothing else."""

from mpi4py import MPI

__all__ = ["barrier", "init", "rank", "size"]


def init() -> None:
    """mpi4py has initialised MPI at import."""


def rank() -> int:
    return MPI.COMM_WORLD.Get_rank()


def size() -> int:
    return MPI.COMM_WORLD.Get_size()


def barrier() -> None:
    MPI.COMM_WORLD.Barrier()
