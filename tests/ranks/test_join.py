"""A rank that has run out of data joins: the others go on, with zeros from it."""

import contextlib

import ml_dtypes
import numpy as np
import pytest

from ranktest import rank_test


@rank_test(n=[1, 2, 3])
def test_everybody_learns_who_joined_last(fd):
    for last in range(fd.size()):
        if fd.rank() == last:
            fd.allreduce(np.ones(1), name="until the others have joined")
        assert fd.join() == last


@rank_test(n=[2, 3])
@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float32", "float64"])
def test_ranks_that_have_joined_add_zeros(fd, dtype):
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    for step in range(fd.rank() + 1):
        left = [r for r in range(fd.size()) if r >= step]
        mine = np.full(5, 6 * (fd.rank() + 1)).astype(kind)
        total = sum(6 * (r + 1) for r in left)
        assert fd.allreduce(mine, name=f"s{step}", op=fd.Sum).tolist() == [total] * 5
        average = fd.allreduce(mine, name=f"a{step}")
        expected = total // fd.size() if kind.kind == "i" else np.array(total / fd.size()).astype(kind)
        assert average.tolist() == [expected] * 5
    assert fd.join() == fd.size() - 1


@rank_test(n=[2, 3])
def test_large_grouped_and_asynchronous_ones_too(fd):
    large = np.full(700_001, fd.rank() + 1.0, np.float32)
    if fd.rank() == 0:
        handles = [fd.allreduce_async(large, name=f"h{i}", op=fd.Sum) for i in range(5)]
        small, again = fd.grouped_allreduce([large[:3], large], op=fd.Sum)
        results = [fd.synchronize(handle) for handle in handles]
        assert all(result.tolist() == [1.0] * large.size for result in [*results, again])
        assert small.tolist() == [1.0] * 3
    assert fd.join() == 0


@rank_test(n=[2, 3])
def test_what_cannot_be_done_with_zeros_raises_on_those_who_ask(fd):
    if fd.rank() != 1:
        row = np.ones(2)
        for ask in (fd.allgather, fd.alltoall, fd.reducescatter):
            with pytest.raises(RuntimeError, match=r"rank 1 has joined.*join.. on every rank"):
                ask(np.ones(6), name="never")
        with pytest.raises(RuntimeError, match="rank 1 has joined"):
            fd.broadcast(row, 0, name="never")
        assert fd.allreduce(row, op=fd.Sum).tolist() == [fd.size() - 1.0] * 2
        fd.barrier()
    fd.join()
    assert fd.allgather(np.array([fd.rank()])).tolist() == list(range(fd.size()))


@rank_test(n=[2, 3])
def test_operations_without_a_name_meet_again_afterwards(fd):
    for _ in range(2):
        for _ in range(3 * fd.rank()):
            fd.allreduce(np.ones(1))
        fd.join()
        assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [fd.size()]


@rank_test(n=[3])
def test_mismatches_among_the_others_are_still_told(fd):
    if fd.rank() != 0:
        with pytest.raises(RuntimeError, match=r"rank 1 has \(1,\); rank 2 has \(2,\)"):
            fd.allreduce(np.ones(fd.rank()), name="odd")
    assert fd.join() in (1, 2)


# Gradients


def newest_plan():
    from farandole.comm.world import current

    return [*current().plans][-1]


@contextlib.contextmanager
def no_plans():
    """As if every optimizer of this rank had been dropped."""
    from farandole.comm.world import current

    plans = dict(current().plans)
    current().plans.clear()
    yield
    current().plans.update(plans)


def model_and_data(torch):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(600, 500), torch.nn.Tanh(), torch.nn.Linear(500, 2))
    return model, torch.randn(12, 4, 600), torch.randn(12, 4, 2)


def train(hvd, batches):
    """Uneven numbers of batches: rank r has batches[r] of them."""
    import torch

    model, x, y = model_and_data(torch)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for step in range(batches[hvd.rank()]):
        optimizer.zero_grad()
        index = step * hvd.size() + hvd.rank()
        torch.nn.functional.mse_loss(model(x[index]), y[index]).backward()
        optimizer.step()
    return hvd.join(), model


def train_alone(size, batches):
    """The same on one process: the ranks that still have data, their sum divided by the number of ranks."""
    import torch

    model, x, y = model_and_data(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(max(batches)):
        optimizer.zero_grad()
        for rank in range(size):
            if step < batches[rank]:
                index = step * size + rank
                (torch.nn.functional.mse_loss(model(x[index]), y[index]) / size).backward()
        optimizer.step()
    return model


def compare(hvd, batches):
    import torch

    last, model = train(hvd, batches)
    longest = [rank for rank in range(hvd.size()) if batches[rank] == max(batches)]
    assert last in longest
    if hvd.rank() in longest:
        for found, expected in zip(model.parameters(), train_alone(hvd.size(), batches).parameters()):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    assert hvd.check_buffers_match(list(model.parameters())) == 0


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("batches", [(3, 1, 4), (0, 2, 3), (2, 2, 2), (4, 0, 0)])
def test_gradients_of_ranks_without_data_are_zeros(hvd, batches):
    compare(hvd, batches[: hvd.size()])


@rank_test(n=3, door="torch", env={"FARANDOLE_NODE_EXCHANGE": "none"})
def test_across_nodes_too(hvd):
    compare(hvd, (3, 1, 2)[: hvd.size()])


@rank_test(n=[2], door="torch")
def test_joining_in_the_middle_of_a_step_is_refused(hvd):
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"call step.. first"):
        hvd.join()
    optimizer.step()
    hvd.join()


@rank_test(n=2, door="torch")
def test_optimizers_of_other_sets_are_none_of_the_world_s(hvd):
    import torch

    from farandole.comm.named.join import join

    alone = hvd.add_process_set([0])
    every, own = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    of_all = hvd.DistributedOptimizer(torch.optim.SGD([every], lr=1.0), op=hvd.Sum)
    plans = [newest_plan()]
    if alone.included():
        of_one = hvd.DistributedOptimizer(torch.optim.SGD([own], lr=1.0), process_set=alone)
        plans.append(newest_plan())
        plans[1].label = plans[0].label  # as if each were the first of its set
        own.sum().backward()
        of_one.step()
    else:
        every.sum().backward()
        of_all.step()
    assert join(hvd.global_process_set.runtime(), plans) == 1
    assert every.tolist() == ([0, 0, 0] if hvd.rank() == 0 else [-1, -1, -1])
    assert own.tolist() == ([-1, -1, -1] if hvd.rank() == 0 else [0, 0, 0])
    hvd.remove_process_set(alone)


@rank_test(n=2, door="torch")
def test_a_rank_that_has_dropped_its_optimizer_cannot_stand_in(hvd):
    import torch

    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    if hvd.rank() == 0:
        kept = newest_plan().step_with_zeros
        with no_plans():
            with pytest.raises(ValueError, match=r"step 1 of SGD.*optimizer this rank has dropped.*Keep optimizers"):
                hvd.join()
        kept(1)
    else:
        weight.sum().backward()
        optimizer.step()
    assert hvd.join() in (0, 1)


@rank_test(n=[2, 3], door="torch")
@pytest.mark.parametrize("known", [False, True])
def test_sparse_gradients_wait_until_all_have_joined(hvd, known):
    import torch

    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), op=hvd.Sum)

    def step():
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()

    if known:
        step()
    if hvd.rank() != 1:
        with pytest.raises(RuntimeError, match=r"is sparse.*rank 1 has joined.*sparse_as_dense=True"):
            step()
    hvd.join()
    step()
    times = 2.0 if known else 1.0
    assert table.weight[:, 0].tolist() == [-times if rank < hvd.size() else 0.0 for rank in range(5)]


@rank_test(n=3, door="torch")
def test_a_step_that_one_rank_alone_has_announced_is_over_when_it_ends(hvd):
    import time
    from unittest.mock import patch

    import torch

    from farandole.comm.node.two_level import TwoLevel

    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    engine, released = hvd.global_process_set.runtime().engine, TwoLevel.released

    def hear_of_a_join_first(*arguments):
        while not engine.joined:
            engine.advance()
            time.sleep(0.001)
        released(*arguments)

    weight.sum().backward()
    with patch.object(TwoLevel, "released", hear_of_a_join_first if hvd.rank() == 0 else released):
        optimizer.step()
    assert weight.tolist() == [-3.0] * 3
    if hvd.rank() == 2:
        time.sleep(0.5)
    assert [key for key in engine.pending_keys() if "gradients" in key] == []
    hvd.join()
