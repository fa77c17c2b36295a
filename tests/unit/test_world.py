"""What the launcher says against what MPI says."""

import os
import subprocess
import sys

import pytest

from farandole.comm.world.checks import check_world_size
from farandole.errors import WorldMismatchError


@pytest.mark.parametrize(
    ("environment", "advice"),
    [
        ({"SLURM_NTASKS": "4"}, "srun --mpi=pmi2"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4"}, "srun --mpi=list"),
        ({"PMI_SIZE": "2"}, "MPI4PY_LIBMPI"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "Open MPI's libmpi.so"),
        ({"FARANDOLE_LAUNCH_SIZE": "3"}, "farandole doctor"),
    ],
)
def test_n_worlds_of_one_rank_are_an_error_with_advice(environment, advice):
    name, value = next(iter(environment.items()))
    with pytest.raises(WorldMismatchError) as caught:
        check_world_size(1, environment)
    assert f"{name}={value} ranks were started, but MPI sees only 1" in str(caught.value)
    assert advice in str(caught.value)


def test_ranks_without_an_mpi_library_are_told_what_to_install():
    with pytest.raises(WorldMismatchError) as caught:
        check_world_size(1, {"PMI_SIZE": "2"}, "libmpi.so.40: cannot open shared object file")
    for part in ("PMI_SIZE=2 ranks", "(libmpi.so.40: cannot open", "pip install 'farandole[mpi]'"):
        assert part in str(caught.value)


def test_a_thread_level_that_does_not_exist_is_an_error():
    script = "import farandole; farandole.init()"
    environment = {**os.environ, "FARANDOLE_MPI_THREAD_LEVEL": "multipel"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "FARANDOLE_MPI_THREAD_LEVEL=multipel: use one of funneled, multiple, serialized, single" in run.stderr


@pytest.mark.parametrize(
    ("size", "environment"),
    [
        (1, {}),
        (1, {"PMI_SIZE": "1", "SLURM_NTASKS": "4"}),  # one rank inside an allocation of four, started as one
        (1, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}),
        (1, {"SLURM_NTASKS": ""}),
        (4, {"SLURM_NTASKS": "4"}),
        (2, {"SLURM_NTASKS": "4", "PMI_SIZE": "2"}),
        (3, {"PMI_SIZE": "3", "OMPI_COMM_WORLD_SIZE": "3"}),
    ],
)
def test_a_world_as_large_as_it_was_started_is_none(size, environment):
    check_world_size(size, environment)
