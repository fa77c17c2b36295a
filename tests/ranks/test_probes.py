"""Horovod's feature probes answer honestly: what is there, and what is not, on both doors."""

import pytest

from ranktest import rank_test

NEVER = ["gloo_enabled", "gloo_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"]


@rank_test(n=[1, 2])
def test_numpy_s_probes_say_that_mpi_is_the_transport(fd):
    assert fd.mpi_built() is fd.mpi_enabled() is True
    assert [getattr(fd, name)() for name in NEVER] == [False] * len(NEVER)


@rank_test(n=[1, 2], door="torch")
def test_torch_s_probes_say_the_same(hvd):
    assert hvd.mpi_built() is hvd.mpi_enabled() is hvd.mpi_threads_supported() is True
    assert [getattr(hvd, name)() for name in NEVER] == [False] * len(NEVER)
    # Scripts compare it with a version: `hvd.nccl_built() >= 2700`.
    assert type(hvd.nccl_built()) is int and hvd.nccl_built() == 0


@pytest.mark.parametrize("level", ["multiple", "serialized", "funneled"])
def test_threads_are_supported_where_mpi_lets_several_communicate(ranks, level):
    assert ranks(2, threads_supported, env={"FARANDOLE_MPI_THREAD_LEVEL": level}) == [level == "multiple"] * 2


def threads_supported(fd):
    assert fd.describe()["mpi"]["thread_level"] in ("multiple", "serialized", "funneled")
    return fd.mpi_threads_supported()
