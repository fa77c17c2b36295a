"""Allgather, gather, broadcast, alltoall, reducescatter, objects: on NumPy arrays of every type and shape."""

import ml_dtypes
import numpy as np
import pytest

from ranktest import rank_test

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def type_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def of_rank(rank, shape, dtype):
    """Values that tell the rank and the place."""
    count = int(np.prod(shape))
    return ((np.arange(count) + 7 * rank) % 11).astype(type_of(dtype)).reshape(shape)


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()


# Allgather and gather


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_joins_different_numbers_of_rows(fd, dtype):
    for rows, rest in (([2, 2, 2], (3,)), ([3, 0, 5], ()), ([0, 1, 0], (2, 2)), ([100_003, 1, 50_000], (3,))):
        arrays = [of_rank(rank, (rows[rank], *rest), dtype) for rank in range(fd.size())]
        same(fd.allgather(arrays[fd.rank()]), np.concatenate(arrays))


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_gives_the_root_all_rows_and_the_others_none(fd, dtype):
    for root in range(fd.size()):
        arrays = [of_rank(rank, (rank + 1, 2), dtype) for rank in range(fd.size())]
        mine = arrays[fd.rank()]
        for found in (fd.gather(mine, root), fd.synchronize(fd.gather_async(mine, root))):
            if fd.rank() == root:
                same(found, np.concatenate(arrays))
            else:
                assert found is None


@rank_test(n=[1, 2])
def test_a_group_is_gathered_as_one(fd):
    shapes, kinds = [(2, 3), (0, 4), (fd.rank() + 1,)], ["float32", "int64", "bool"]
    mine = [of_rank(fd.rank(), shape, kind) for shape, kind in zip(shapes, kinds)]
    singly = [fd.allgather(array) for array in mine]
    for found in (fd.grouped_allgather(mine), fd.synchronize(fd.grouped_allgather_async(mine))):
        assert len(found) == 3
        for array, alone in zip(found, singly):
            same(array, alone)
    same(fd.synchronize(fd.allgather_async(mine[0])), singly[0])


@rank_test(n=[1, 2])
def test_single_values_have_no_rows(fd):
    for call in (fd.allgather, fd.reducescatter, fd.alltoall, lambda x: fd.gather(x, 0)):
        with pytest.raises(ValueError, match=r"0-d array has no rows.*reshape\(1\)"):
            call(np.float32(1))
    fd.barrier()


@rank_test(n=2)
def test_layouts_with_gaps_are_gathered_by_value(fd):
    base = of_rank(fd.rank(), (6, 8), "float32")
    for view in (base.T, base[::2], base[::-1, ::3], base[:, 1]):
        everyone = fd.allgather(view)
        same(everyone[fd.rank() * len(view) :][: len(view)], np.ascontiguousarray(view))


# Broadcast


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_every_rank_the_root_s_values(fd, dtype):
    for shape in ((), (1,), (5, 3), (0, 4), (400_001,)):
        for root in {0, fd.size() - 1}:
            mine = of_rank(fd.rank(), shape, dtype)
            wanted = of_rank(root, shape, dtype)
            same(fd.broadcast(mine, root), wanted)
            same(fd.synchronize(fd.broadcast_async(mine, root)), wanted)
            same(mine, of_rank(fd.rank(), shape, dtype))  # the input is left alone
            assert fd.broadcast_(mine, root) is mine
            same(mine, wanted)
            mine = of_rank(fd.rank(), shape, dtype)
            assert fd.synchronize(fd.broadcast_async_(mine, root)) is mine
            same(mine, wanted)


@rank_test(n=2)
def test_broadcast_into_layouts_with_gaps(fd):
    for pick in (lambda a: a.T, lambda a: a[::2], lambda a: a[::-1, ::3], lambda a: a[:, 1]):
        base = of_rank(fd.rank(), (6, 8), "float32")
        fd.broadcast_(pick(base), 1)
        wanted = of_rank(fd.rank(), (6, 8), "float32")
        pick(wanted)[...] = pick(of_rank(1, (6, 8), "float32"))
        same(base, wanted)


@rank_test(n=2)
def test_a_root_that_does_not_exist_is_refused(fd):
    for call in (fd.broadcast, fd.gather):
        with pytest.raises(ValueError, match=r"root_rank=2 is not in the process set \[0, 1\]"):
            call(np.ones(1), 2)
    with pytest.raises(ValueError, match="root_rank=5"):
        fd.broadcast_object("x", 5)
    fd.barrier()


# Alltoall


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alltoall_deals_rows_out(fd, dtype):
    me, size = fd.rank(), fd.size()
    for rows in (1, 4, 30_001):
        arrays = [of_rank(rank, (rows * size, 2), dtype) for rank in range(size)]
        wanted = np.concatenate([array[me * rows : (me + 1) * rows] for array in arrays])
        same(fd.alltoall(arrays[me]), wanted)
        same(fd.synchronize(fd.alltoall_async(arrays[me])), wanted)


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("form", [list, np.array])
def test_alltoall_with_splits_says_how_many_rows_came(fd, form):
    me, size = fd.rank(), fd.size()
    table = [[0, 2, 1], [3, 0, 0], [1, 1, 70_000]]
    splits = [row[:size] for row in table[:size]]
    arrays = [of_rank(rank, (sum(splits[rank]), 3), "float32") for rank in range(size)]
    parts = [np.split(array, np.cumsum(split)[:-1]) for array, split in zip(arrays, splits)]
    out, received = fd.alltoall(arrays[me], form(splits[me]))
    same(out, np.concatenate([part[me] for part in parts]))
    assert received.dtype == np.int32
    assert received.tolist() == [split[me] for split in splits]
    again, counts = fd.synchronize(fd.alltoall_async(arrays[me], form(splits[me])))
    same(again, out)
    assert counts.tolist() == received.tolist()


@rank_test(n=2)
def test_splits_that_do_not_fit_are_refused_on_the_spot(fd):
    for splits in ([1], [1, 2, 1], [1, 2], [5, -1]):
        with pytest.raises(ValueError, match=rf"splits=\[{splits[0]}.*2 counts.*4 rows"):
            fd.alltoall(np.ones((4, 2)), splits)
    with pytest.raises(ValueError, match="3 rows do not divide over 2 ranks"):
        fd.alltoall(np.ones(3))
    assert fd.alltoall(np.ones(2)).tolist() == [1, 1]


# Reducescatter


def shared_rows(array, rank, size):
    """The first `rows % size` ranks get one row more."""
    return np.array_split(array, size)[rank]


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_reducescatter_gives_each_rank_its_rows(fd, dtype, op):
    for rows in (0, 1, 2, 7, 9, 40_001):
        arrays = [of_rank(rank, (rows, 2), dtype) for rank in range(fd.size())]
        whole = fd.allreduce(arrays[fd.rank()], op=getattr(fd, op))
        found = fd.reducescatter(arrays[fd.rank()], op=getattr(fd, op))
        same(found, np.ascontiguousarray(shared_rows(whole, fd.rank(), fd.size())))


@rank_test(n=[1, 3])
def test_reducescatter_in_every_form(fd):
    mine = [of_rank(fd.rank(), (5, 2), "float32"), of_rank(fd.rank(), (3,), "int64")]
    singly = [fd.reducescatter(array, op=fd.Sum) for array in mine]
    same(fd.synchronize(fd.reducescatter_async(mine[0], op=fd.Sum)), singly[0])
    for found in (
        fd.grouped_reducescatter(mine, op=fd.Sum),
        fd.synchronize(fd.grouped_reducescatter_async(mine, op=fd.Sum)),
    ):
        assert len(found) == 2
        for array, alone in zip(found, singly):
            same(array, alone)
    scaled = fd.reducescatter(mine[0], op=fd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    same(scaled, singly[0] * 2)
    same(
        fd.reducescatter(mine[0].T[:, ::2], op=fd.Sum), fd.reducescatter(mine[0].T[:, ::2].copy(), op=fd.Sum)
    )
    mean = fd.reducescatter(np.full(3, fd.rank(), np.float64))
    assert mean.tolist() == [(fd.size() - 1) / 2] * (3 // fd.size())
    short = fd.reducescatter(np.full((6, 2), 1 / 3), compression=fd.Compression.fp16)
    assert short.dtype == np.float64 and (short == np.float64(np.float16(1 / 3))).all()


@rank_test(n=2)
def test_reducescatter_only_adds(fd):
    for op in (fd.Min, fd.Max, fd.Product, fd.Adasum):
        with pytest.raises(ValueError, match="only Average and Sum"):
            fd.reducescatter(np.ones(4), op=op)
    assert fd.reducescatter(np.ones(2), op=fd.Sum).tolist() == [2]


# Objects and barriers


@rank_test(n=[1, 2, 3])
def test_objects_of_any_kind_and_size(fd):
    last = fd.size() - 1
    mine = {"rank": fd.rank(), "big": bytes(fd.rank() * 300_000), "function": lambda x: x + fd.rank()}
    given = fd.broadcast_object(mine, root_rank=last)
    assert given["rank"] == last and len(given["big"]) == last * 300_000
    everyone = fd.allgather_object(("rank", fd.rank(), [None] * fd.rank()))
    assert everyone == [("rank", rank, [None] * rank) for rank in range(fd.size())]
    assert fd.broadcast_object(None) is None
    assert fd.broadcast_object(fd.rank(), name="who") == 0
    assert fd.allgather_object(fd.rank(), name="who") == list(range(fd.size()))


@rank_test(n=[2, 3])
def test_nobody_leaves_a_barrier_before_all_have_come(fd):
    import time

    for late in range(fd.size()):
        if fd.rank() == late:
            time.sleep(0.2)
        came = time.monotonic()
        fd.barrier()
        left = time.monotonic()
        arrivals = fd.allgather(np.array([came]))
        assert left >= arrivals.max()


@rank_test(n=1)
def test_alone_every_call_gives_back_what_it_got(fd):
    array = np.arange(6.0).reshape(3, 2)
    calls = (fd.allreduce, fd.allgather, fd.alltoall, fd.reducescatter)
    assert all((call(array) == array).all() for call in calls)
    assert (fd.broadcast(array, 0) == array).all()
    assert (fd.gather(array, 0) == array).all()
    with pytest.raises(ValueError, match="root_rank=1"):
        fd.broadcast(array, 1)
