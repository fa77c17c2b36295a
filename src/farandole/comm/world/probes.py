"""What this build can do: Horovod's feature probes, answered honestly."""

from __future__ import annotations

from farandole.comm.bytes import mpi

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_threads_supported() -> bool:
    """Whether several threads may communicate at once (MPI_THREAD_MULTIPLE)."""
    return mpi.thread_level() == "multiple"


def mpi_enabled() -> bool:
    """Whether ranks communicate over MPI."""
    return mpi.thread_level() != "none"


def mpi_built() -> bool:
    """Whether an MPI library can be loaded."""
    return mpi_enabled()


def gloo_enabled() -> bool:
    """Never: MPI is the transport."""
    return False


def gloo_built() -> bool:
    """Never: MPI is the transport."""
    return False


def nccl_built() -> int:
    """0: device tensors travel through host memory."""
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    """False: no operation runs on the device itself."""
    return False


def rocm_built() -> bool:
    return False
