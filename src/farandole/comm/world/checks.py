"""Whether the launcher and MPI agree on how many ranks there are."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.errors import WorldMismatchError
from farandole.launch.mpiexec import INSTALL_MPI

__all__ = ["check_world_size"]

_PMI_ADVICE = {
    "FARANDOLE_LAUNCH_SIZE": "The MPI library Python loads is not the one `farandole launch` starts ranks with; "
    "`farandole doctor` shows both",
    "OMPI_COMM_WORLD_SIZE": "Start the ranks with the mpiexec of the MPI library Python loads (`farandole doctor` "
    "shows which), or set MPI4PY_LIBMPI to Open MPI's libmpi.so",
    "PMI_SIZE": "Start the ranks with the mpiexec of the MPI library Python loads (`farandole doctor` shows which), "
    "or set MPI4PY_LIBMPI to the library that belongs to this mpiexec",
    "SLURM_STEP_NUM_TASKS": "Use `srun --mpi=pmi2` (MPICH, Intel MPI) or `srun --mpi=pmix` (Open MPI); "
    "`srun --mpi=list` shows what this Slurm has",
    "SLURM_NTASKS": "Start the ranks with `srun --mpi=pmi2` (MPICH, Intel MPI) or `srun --mpi=pmix` (Open MPI); "
    "for one rank inside this allocation use `srun -n 1`",
}


def check_world_size(size: int, environment: Mapping[str, str], problem: str = "") -> None:
    """N worlds of one rank each, instead of one of N, is the classic trap of a wrong PMI.

    `problem`: why no MPI library could be loaded.
    """
    for name, advice in _PMI_ADVICE.items():
        value = environment.get(name, "")
        if value.isdigit():
            if size == 1 and int(value) > 1:
                if name == "PMI_SIZE" and "SLURM_STEP_NUM_TASKS" in environment:
                    advice = _PMI_ADVICE["SLURM_STEP_NUM_TASKS"]
                if problem:
                    raise WorldMismatchError(
                        f"{name}={value} ranks were started, but no MPI library can be loaded ({problem}): each would "
                        f"train alone. Type: {INSTALL_MPI}"
                    )
                raise WorldMismatchError(
                    f"{name}={value} ranks were started, but MPI sees only 1: each would train alone. {advice}."
                )
            return
