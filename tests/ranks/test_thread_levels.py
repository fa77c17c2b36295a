"""MPI libraries that let only some threads communicate: fewer threads work, and no bit changes."""

import hashlib
import os
import threading
import time
import warnings

import numpy as np
import pytest

from onrank import rank_number
from ranktest import rank_test

TEAM_THREADS = {"multiple": 2, "serialized": 1, "funneled": 0}
"""Thread levels of MPI, and what each leaves of a team of two threads."""
LEVEL = "FARANDOLE_MPI_THREAD_LEVEL"


def everything(fd):
    """Each collective once, on arrays that go over MPI and on arrays that go through shared memory."""
    me, size = fd.rank(), fd.size()
    for count in (3, 200_000):
        mine = np.arange(count, dtype=np.float64) + me
        assert (fd.allreduce(mine, op=fd.Sum) == size * np.arange(count) + sum(range(size))).all()
        assert (fd.broadcast(mine, root_rank=size - 1)[:3] == np.arange(3) + size - 1).all()
        assert fd.allgather(mine).reshape(size, count)[:, 0].tolist() == list(range(size))
        assert fd.alltoall(np.repeat(np.arange(size), count) + 10 * me)[::count].tolist() == [
            me + 10 * peer for peer in range(size)
        ]
        assert (fd.reducescatter(np.ones((size, count)), op=fd.Sum) == size).all()
    assert fd.allgather_object({"rank": me}) == [{"rank": rank} for rank in range(size)]
    fd.barrier()


def asynchronous(fd):
    """Many at once, begun in a different order on each rank, some asked after and some waited for."""
    numbers = np.random.default_rng(fd.rank()).permutation(30)
    handles = {i: fd.allreduce_async(np.full(1 + 9000 * (i % 3), i), name=f"n{i}", op=fd.Sum) for i in numbers}
    while not fd.poll(handles[7]):
        pass
    for i in reversed(numbers):
        assert (fd.synchronize(handles[i]) == i * fd.size()).all()


def in_a_process_set(fd):
    """All but rank 0, so that two ranks have a set that is not the world."""
    others = fd.add_process_set(list(range(1, fd.size())))
    if others.included():
        total = fd.allreduce(np.array([fd.rank()]), op=fd.Sum, process_set=others)
        assert total.tolist() == [sum(range(fd.size()))]
    assert fd.remove_process_set(others)


PROGRAMS = {function.__name__: function for function in (everything, asynchronous, in_a_process_set)}


@rank_test(n=[2, 3], env={LEVEL: "serialized"})
@pytest.mark.parametrize("program", PROGRAMS)
def test_threads_take_turns(fd, program):
    assert fd.describe()["mpi"]["thread_level"] == "serialized"
    PROGRAMS[program](fd)


@rank_test(n=[2, 3], env={LEVEL: "funneled"})
@pytest.mark.parametrize("program", PROGRAMS)
def test_only_the_main_thread_communicates(fd, program):
    assert fd.describe()["mpi"]["thread_level"] == "funneled"
    PROGRAMS[program](fd)


@rank_test(n=2, env={LEVEL: "single"})
@pytest.mark.parametrize("program", PROGRAMS)
def test_mpi_knows_no_threads(fd, program):
    assert fd.describe()["mpi"]["thread_level"] == "single"
    PROGRAMS[program](fd)


@rank_test(n=3, env={LEVEL: "funneled"})
def test_a_rank_that_waits_in_one_set_takes_part_in_the_others(fd):
    sets = [fd.add_process_set([rank, (rank + 1) % 3]) for rank in range(3)]
    mine = [s for s in (sets[fd.rank()], sets[fd.rank() - 1]) if s.included()]
    for count in (1, 200_000):
        # Each waits first for the next rank, which waits first for the one after it.
        handles = [fd.allreduce_async(np.ones(count), op=fd.Sum, process_set=s) for s in mine]
        assert all((fd.synchronize(handle) == 2).all() for handle in handles)
    for one in sets:
        fd.remove_process_set(one)


@rank_test(n=3, env={LEVEL: "serialized"})
def test_sets_that_share_ranks_begin_in_any_order(fd):
    pair = fd.add_process_set([0, 1])
    if pair.included():
        # The world's first large array comes first on rank 0, the pair's on rank 1.
        first = (fd.global_process_set, pair)[1 - fd.rank()].runtime().lane
        two_level = first.two_level
        first.two_level = lambda nbytes: (time.sleep(0.3), two_level(nbytes))[1]
    handles = [
        fd.allreduce_async(np.ones(100_000), op=fd.Sum, process_set=s)
        for s in (pair, fd.global_process_set)
        if s.included()
    ]
    assert [fd.synchronize(handle)[0] for handle in handles] == ([2, 3] if pair.included() else [3])
    fd.remove_process_set(pair)


@rank_test(n=2, env={LEVEL: "serialized", "FARANDOLE_NODE_EXCHANGE": "window"})
def test_arrays_larger_than_a_window_go_in_parts(fd):
    mine = np.arange(5_000_001, dtype=np.float32) + fd.rank()
    expected = 2 * np.arange(5_000_001, dtype=np.float32) + 1
    assert (fd.allreduce(mine, op=fd.Sum) == expected).all()
    fd.allreduce_(mine, op=fd.Sum)
    assert (mine == expected).all()


def trained(hvd, nodes):
    """Train two models with teams of two threads: the threads they got, what was said, the weights' bits."""
    import torch

    hvd.shutdown()
    os.environ["FARANDOLE_NODE"] = nodes[rank_number()]
    hvd.init()
    torch.manual_seed(3)
    models = [[torch.randn(count).requires_grad_() for count in counts] for counts in ((5, 300_000), (70_000, 17))]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(model, lr=0.1, momentum=0.9), team=hvd.Team(threads=2))
            for model in models
        ]
    torch.manual_seed(50 + hvd.rank())
    for _ in range(3):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            sum((torch.rand_like(p) * p * p).sum() for p in model).backward()
            optimizer.step()
    return {
        "threads": [plan["threads"] for plan in hvd.describe()["plans"]],
        "running": sum(thread.name.startswith("farandole-team") for thread in threading.enumerate()),
        "said": [str(warning.message) for warning in said],
        "bits": [hashlib.blake2b(p.detach().numpy()).hexdigest() for model in models for p in model],
    }


def trained_on_one_and_two_nodes(hvd):
    return hvd.describe()["mpi"]["thread_level"], [trained(hvd, "aa"), trained(hvd, "ab")]


@pytest.mark.more
def test_a_team_with_fewer_threads_trains_the_same_weights(ranks):
    runs = {
        level: ranks(2, trained_on_one_and_two_nodes, door="torch", env={LEVEL: level}, timeout=60)
        for level in TEAM_THREADS
    }
    expected = [found["bits"] for found in runs["multiple"][0][1]]
    for level, left in TEAM_THREADS.items():
        less = f"MPI gives thread level {level}, not multiple: teams get {left} threads instead of 2"
        for rank, (given, found) in enumerate(runs[level]):
            assert given == level
            assert [run["bits"] for run in found] == expected
            assert [run["threads"] for run in found] == [[left, left]] * 2
            assert [run["running"] for run in found] == [2 * left] * 2
            assert [run["said"] for run in found] == [[less] if left < 2 and rank == 0 else [], []]
