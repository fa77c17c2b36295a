"""Ranks that ask for different things: every one of them is told which ranks and what, and work goes on."""

import threading
import time

import numpy as np
import pytest

from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.opening import make_plan
from farandole.comm.gradients.team import Team
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.world.reports import DEADLOCK_S
from farandole.errors import EngineStopped
from ranktest import rank_test


def told_everywhere(fd, call, *patterns):
    """`call` raises RuntimeError on this rank, and does on all; its text has every pattern."""
    with pytest.raises(RuntimeError) as caught:
        call()
    text = str(caught.value)
    for pattern in (f"[rank {fd.rank()}/{fd.size()}]", *patterns):
        assert pattern in text, f"{pattern!r} is not in {text!r}"
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [fd.size()]  # the engine lives on
    assert (fd.allreduce(np.ones(100_000), op=fd.Sum) == fd.size()).all()


@rank_test(n=[2, 3])
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_allreduce(fd, last):
    odd = fd.size() - 1 if last else 0
    different = fd.rank() == odd
    others = [rank for rank in range(fd.size()) if rank != odd]
    group = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(map(str, others))} have"
    one = f"rank {odd} has"

    def reduce(array=None, **options):
        return lambda: fd.allreduce(
            np.ones(3, np.float32) if array is None else array, name="loss", **options
        )

    key = "allreduce.loss: ranks differ in "
    dtype = np.float64 if different else np.float32
    told_everywhere(fd, reduce(np.ones(3, dtype)), f"{key}dtype", f"{group} float32", f"{one} float64")
    shape = (3, 1) if different else (3,)
    told_everywhere(fd, reduce(np.ones(shape)), f"{key}shape", f"{group} (3,)", f"{one} (3, 1)", "same shape")
    told_everywhere(fd, reduce(np.ones(4 if different else 3)), f"{key}shape", f"{one} (4,)")
    op = fd.Max if different else fd.Sum
    told_everywhere(fd, reduce(op=op), f"{key}op", f"{group} SUM", f"{one} MAX")
    scale = 2.0 if different else 1.0
    told_everywhere(fd, reduce(prescale_factor=scale), f"{key}prescale_factor", f"{one} 2.0")
    told_everywhere(fd, reduce(postscale_factor=scale), f"{key}postscale_factor", f"{group} 1.0")


@rank_test(n=3)
def test_the_other_collectives(fd):
    different, x = fd.rank() == 1, np.ones((4, 2), np.float32)
    rows = "ranks differ in shape beyond dimension 0"
    wider = np.ones((4, 3)) if different else np.ones((4, 2))
    told_everywhere(fd, lambda: fd.allgather(wider, name="x"), f"allgather.x: {rows}", "rank 1 has (4, 3)")
    flat = np.ones(4) if different else np.ones((4, 1))
    told_everywhere(fd, lambda: fd.allgather(flat, name="x"), rows, "rank 1 has (4,)")
    root = 1 if different else 2
    told_everywhere(
        fd, lambda: fd.broadcast(x, root, name="x"), "broadcast.x: ranks differ in root_rank", "rank 1 has 1"
    )
    told_everywhere(
        fd, lambda: fd.gather(x, root, name="x"), "gather.x: ranks differ in root_rank", "ranks 0, 2 have 2"
    )
    told_everywhere(
        fd, lambda: fd.broadcast_(x[: 4 - different], 0, name="x"), "broadcast.x", "root's shape", "(3, 2)"
    )
    integers = x.astype(np.int32) if different else x
    told_everywhere(fd, lambda: fd.broadcast(integers, 0, name="x"), "dtype", "rank 1 has int32")
    told_everywhere(
        fd, lambda: fd.reducescatter(x[: 4 - different], name="x"), "reducescatter.x: ranks differ in shape"
    )
    six = np.ones(6, np.int16 if different else np.int8)
    told_everywhere(fd, lambda: fd.alltoall(six, name="x"), "alltoall.x: ranks differ in dtype")
    several = [np.ones(2)] * (3 if different else 2)
    told_everywhere(
        fd, lambda: fd.grouped_allreduce(several, name="x"), "the number of arrays", "rank 1 has 3"
    )
    second = [np.ones(2), np.ones(3 if different else 2)]
    told_everywhere(fd, lambda: fd.grouped_allreduce(second, name="x"), "shape of array 1", "rank 1 has (3,)")


@rank_test(n=2)
def test_an_asynchronous_mismatch_is_raised_where_it_is_waited_for(fd):
    good = fd.allreduce_async(np.ones(2), name="good", op=fd.Sum)
    bad = fd.allreduce_async(np.ones(2 + fd.rank()), name="bad", op=fd.Sum)
    also = fd.allreduce_async(np.ones(5), name="also", op=fd.Sum)
    assert fd.synchronize(good).tolist() == [2, 2]
    told_everywhere(fd, lambda: fd.synchronize(bad), "allreduce.bad", "rank 0 has (2,); rank 1 has (3,)")
    assert fd.synchronize(also).tolist() == [2] * 5


@rank_test(n=3)
def test_within_a_process_set_ranks_of_the_world_are_named(fd):
    pair = fd.add_process_set([0, 2])
    if pair.included():
        array = np.ones(3 if fd.rank() == 2 else 4)
        with pytest.raises(RuntimeError, match=r"rank 0 has \(4,\); rank 2 has \(3,\)"):
            fd.allreduce(array, process_set=pair)
    fd.remove_process_set(pair)


@rank_test(n=2)
def test_calls_without_a_name_meet_again_after_ranks_were_crossed(fd):
    calls = {
        "barrier": fd.barrier,
        "broadcast_object": lambda: fd.broadcast_object("x"),
    }
    for name, call in calls.items():
        with pytest.raises(
            RuntimeError, match=rf"rank 0 waits in {name.split('_')[0]}\.noname.*rank 1 waits in allgather\.y"
        ):
            call() if fd.rank() == 0 else fd.allgather(np.ones(1), name="y")
    fd.barrier()
    assert fd.allreduce(np.ones(2), op=fd.Sum).tolist() == [2, 2]
    assert fd.broadcast_object("x" if fd.rank() == 0 else "y") == "x"


@rank_test(n=2)
def test_ranks_whose_other_thread_computes_are_not_taken_for_crossed(fd):
    results = {}

    def use(name, computing_s):
        fd.allreduce(np.ones(1), name=f"{name}.1")
        time.sleep(computing_s)
        results[name] = fd.allreduce(np.ones(1), name=f"{name}.2", op=fd.Sum).tolist()

    long_s = DEADLOCK_S + 2
    seconds = {"a": 0, "b": long_s} if fd.rank() == 0 else {"a": long_s, "b": 0}
    threads = [threading.Thread(target=use, args=item) for item in seconds.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"a": [2], "b": [2]}


@rank_test(n=3)
def test_ranks_in_different_collectives_are_told_within_seconds(fd):
    start = time.monotonic()
    calls = (
        lambda: fd.allreduce(np.ones(3), name="loss"),
        lambda: fd.allgather(np.ones(3), name="loss"),
        lambda: fd.synchronize(fd.broadcast_async(np.ones(3), 0, name="weights")),
    )
    with pytest.raises(RuntimeError) as caught:
        calls[fd.rank()]()
    assert time.monotonic() - start < 25
    places = (
        "rank 0 waits in allreduce.loss; rank 1 waits in allgather.loss; rank 2 waits in broadcast.weights"
    )
    assert places in str(caught.value)
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [3]


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_training_step_against_an_allreduce(hvd, threads):
    import torch

    # One gradient of more than a megabyte, reduced where it lies; small ones, packed.
    model = torch.nn.ModuleList([torch.nn.Linear(600, 600), torch.nn.Linear(3, 3)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), team=hvd.Team(threads=threads)
    )

    def step(value):
        optimizer.zero_grad()
        sum(layer(torch.full((1, layer.in_features), value)).sum() for layer in model).backward()
        optimizer.step()
        return [layer.weight.grad.unique().tolist() for layer in model]

    assert step(1.0 + hvd.rank()) == [[1.5], [1.5]]
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"different operations.*gradients\.SGD.*allreduce\.metric"):
        step(100.0) if hvd.rank() == 0 else hvd.allreduce(torch.ones(3), name="metric")
    assert time.monotonic() - start < 25
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [2]
    if hvd.rank() == 0:
        time.sleep(0.3)  # the other rank must not take the gradients of the step that failed
    assert step(5.0 + hvd.rank()) == [[5.5], [5.5]]


@rank_test(n=2, env={"FARANDOLE_NODE_EXCHANGE": "none"})  # so that neighbours send messages, as nodes do
def test_after_a_step_that_failed_between_nodes_there_are_no_more(fd):
    entry, how, team = Entry("w", "float32", (3,)), Reduction("sum"), Team(threads=0)
    plan = make_plan(fd.global_process_set.runtime(), "SGD.1", [entry], PlanSettings(how=how, team=team))

    def step():
        plan.buffer(0)[:] = 1.0
        plan.ready(0, None)
        plan.finish()
        return plan.buffer(0).tolist()

    assert step() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="different operations"):
        step() if fd.rank() == 0 else fd.allreduce(np.ones(3), name="metric")
    if fd.rank() == 0:
        with pytest.raises(EngineStopped, match=r"step 2 of SGD\.1 has failed.*start the job again"):
            step()


@rank_test(n=2, door="torch")
def test_different_models_name_rank_and_parameter(hvd):
    import torch

    def wrap(model):
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

    for model, told in (
        (
            torch.nn.Linear(3, 4 + hvd.rank()),
            r"parameter 0: rank 0 has 'bias' float32 \(4,\), rank 1 has 'bias' float32 \(5,\)",
        ),
        (
            torch.nn.Linear(3, 4, bias=hvd.rank() == 0),
            r"rank 0 has 2 parameters, rank 1 has 1 \('bias' is not on both\)",
        ),
        (
            torch.nn.Linear(3, 4).to(torch.float64 if hvd.rank() else torch.float32),
            r"rank 1 has 'bias' float64",
        ),
    ):
        with pytest.raises(RuntimeError, match=told):
            wrap(model)
    wrap(torch.nn.Linear(3, 4))
