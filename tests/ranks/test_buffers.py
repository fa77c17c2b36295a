"""Gradients in memory of a framework's: reduced in place or beside it, and ranks that end together or not."""

import pytest

from ranktest import rank_test, run_ranks

SHAPES = [("large", (600, 1000)), ("bias", (7,)), ("middle", (40, 50))]


def reducer_of(hvd, *, in_place, threads=1, dtype="float32"):
    from farandole.comm.gradients.buffers import BufferReducer, BufferSettings
    from farandole.comm.gradients.interface import Entry
    from farandole.comm.gradients.team import Team
    from farandole.comm.named.process_sets import global_process_set
    from farandole.comm.node.arithmetic import Reduction

    settings = BufferSettings(
        how=Reduction("sum", 1.0, hvd.size()), wire=None, process_set=global_process_set, team=Team(threads=threads)
    )
    entries = [Entry(name, dtype, shape) for name, shape in SHAPES]
    return BufferReducer("test", global_process_set.runtime().next_plan(), entries, settings, in_place=in_place)


def step(hvd, reducer, *, number, in_place, dtype="float32"):
    import numpy as np

    grads = [np.full(shape, number + i + hvd.rank(), dtype) for i, (_, shape) in enumerate(SHAPES)]
    for i, reduced in enumerate(reducer.reduce(grads, grads if in_place else None)):
        assert reduced.shape == SHAPES[i][1]
        assert (reduced == number + i + (hvd.size() - 1) / 2).all()


@rank_test(n=[1, 2, 3], timeout=90)
@pytest.mark.parametrize("in_place", [True, False])
def test_training_goes_on_after_ranks_have_ended_together(hvd, in_place):
    reducer = reducer_of(hvd, in_place=in_place)
    for number in range(4):
        step(hvd, reducer, number=number, in_place=in_place)
        reducer.end()
    step(hvd, reducer, number=4, in_place=in_place)
    assert reducer.statistics.steps == 9


@rank_test(n=[1, 2], timeout=90)
@pytest.mark.parametrize("in_place", [True, False])
def test_complex_gradients(hvd, in_place):
    reducer = reducer_of(hvd, in_place=in_place, dtype="complex64")
    for number in range(2):
        step(hvd, reducer, number=number, in_place=in_place, dtype="complex64")


@rank_test(n=2, timeout=90)
def test_an_end_moves_nothing(hvd):
    reducer = reducer_of(hvd, in_place=True)
    step(hvd, reducer, number=0, in_place=True)
    before = reducer.statistics.nbytes
    reducer.end()
    assert reducer.statistics.nbytes == before


@rank_test(n=[2, 3], timeout=90)
@pytest.mark.parametrize(("threads", "exchange"), [(0, "direct"), (1, "direct"), (1, "none")])
def test_ranks_that_end_while_others_train_are_named_on_all(hvd, threads, exchange):
    import os
    from unittest.mock import patch

    import pytest

    with patch.dict(os.environ, {"FARANDOLE_NODE_EXCHANGE": exchange}):
        reducer = reducer_of(hvd, in_place=True, threads=threads)
    step(hvd, reducer, number=0, in_place=True)
    if hvd.rank() == 1:
        with pytest.raises(RuntimeError, match="this rank has ended its training after 1 steps, rank 0"):
            reducer.end()
    else:
        with pytest.raises(RuntimeError, match="rank 1 has ended its training, this rank is in step 2"):
            step(hvd, reducer, number=1, in_place=True)
    step(hvd, reducer, number=2, in_place=True)  # nobody was left waiting
    reducer.end()


@rank_test(n=2, timeout=90)
def test_plans_that_would_be_cut_differently_are_an_error(hvd):
    import pytest

    from farandole.comm.world import current

    with pytest.raises(RuntimeError, match=r"rank 0 has .* in other memory; rank 1 has .* in place"):
        reducer_of(hvd, in_place=hvd.rank() == 1)
    world = current()
    before, world.fusion_bytes = world.fusion_bytes, 1000 * (1 + hvd.rank())
    try:
        with pytest.raises(RuntimeError, match=r"buckets of 1000 bytes.*buckets of 2000 bytes.*FUSION_THRESHOLD"):
            reducer_of(hvd, in_place=True)
    finally:
        world.fusion_bytes = before


ON_NODES = """
    import os

    os.environ["FARANDOLE_NODE"] = "ab"[rank_number()]
    import farandole as hvd
    from test_buffers import reducer_of, step

    hvd.init()
    reducer = reducer_of(hvd, in_place=True)
    for number in range(3):
        step(hvd, reducer, number=number, in_place=True)
        reducer.end()
    result(reducer.statistics.steps)
"""


def test_training_goes_on_after_an_end_where_mpi_reduces_between_nodes():
    from pathlib import Path

    env = {"FARANDOLE_CROSS_ALGORITHMS": "*=mpi", "PYTHONPATH": str(Path(__file__).parent)}
    assert run_ranks(2, ON_NODES, env=env).results == [6, 6]


@rank_test(n=2, timeout=90)
def test_plans_can_be_made_and_dropped_all_day(hvd):
    from mpi4py import MPI

    # The library has about 2000 communicators, and every plan takes a few: leave it some hundred.
    taken = [MPI.COMM_SELF.Dup() for _ in range(1850)]
    for number in range(150):
        reducer = reducer_of(hvd, in_place=True)
        step(hvd, reducer, number=number, in_place=True)
        del reducer
    for comm in taken:
        comm.Free()
