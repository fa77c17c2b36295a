"""Random programs: every rank submits the same operations in an order of its own, some of them wrong."""

import random
import time

import ml_dtypes
import numpy as np
import pytest

from ranktest import rank_test

DTYPES = (np.uint8, np.int16, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def program(seed, sets, count):
    """What to do, the same on every rank: (name, kind, dtype, shape, set, root, odd rank)."""
    draw = random.Random(seed)
    for number in range(count):
        ranks = draw.choice(sets)
        rows = draw.choice([0, 1, 3, 7, 64, 1000, 40_000])
        shape = (rows, *draw.choice([(), (1,), (3,)]))
        kind = draw.choice(
            ["sum", "average", "max", "allgather", "broadcast", "reducescatter", "alltoall", "group"]
        )
        odd = draw.choice(ranks) if len(ranks) > 1 and draw.random() < 0.1 else None
        yield f"{seed}.{number}", kind, draw.choice(DTYPES), shape, tuple(ranks), draw.choice(ranks), odd


def data(name, rank, dtype, shape):
    numbers = np.random.default_rng([hash_of(name), rank]).integers(0, 5, shape)
    return numbers.astype(dtype)


def hash_of(name):
    return int.from_bytes(name.encode()) % 2**32


def submit(fd, step, process_set):
    name, kind, dtype, shape, _, root, odd = step
    array = data(name, fd.rank(), dtype, shape)
    if odd == fd.rank():
        array = array[..., None]  # of another shape than the others'
    options = {"name": name, "process_set": process_set}
    if kind in ("sum", "average", "max"):
        op = {"sum": fd.Sum, "average": fd.Average, "max": fd.Max}[kind]
        return fd.allreduce_async(array, op=op, **options)
    if kind == "group":
        return fd.grouped_allreduce_async([array, array[:1], array], op=fd.Sum, **options)
    if kind == "broadcast":
        return fd.broadcast_async(array, root, **options)
    if kind == "reducescatter":
        return fd.reducescatter_async(array, op=fd.Sum, **options)
    if kind == "alltoall":
        splits = np.full(len(step[4]), len(array) // len(step[4]), np.int32)
        splits[0] += len(array) % len(step[4])
        return fd.alltoall_async(array, splits, **options)
    return fd.allgather_async(array, **options)


def expected(step, rank):
    name, kind, dtype, shape, ranks, root, _ = step
    arrays = [data(name, r, dtype, shape) for r in ranks]
    me = ranks.index(rank)
    if kind == "broadcast":
        return [arrays[ranks.index(root)]]
    if kind == "allgather":
        return [np.concatenate(arrays)]
    if kind == "alltoall":
        counts = [len(arrays[0]) // len(ranks)] * len(ranks)
        counts[0] += len(arrays[0]) % len(ranks)
        return [np.concatenate([np.split(a, np.cumsum(counts)[:-1])[me] for a in arrays])]
    wide = np.array(arrays, np.float64)
    if kind == "max":
        return [wide.max(0).astype(dtype)]
    if kind == "average":
        mean = wide.sum(0) / len(ranks)
        whole = np.dtype(dtype).kind in "iu"
        return [
            np.trunc(mean).astype(dtype)
            if whole
            else mean.astype(np.float32 if dtype != np.float64 else dtype).astype(dtype)
        ]
    total = wide.sum(0).astype(dtype)
    if kind == "reducescatter":
        return [np.array_split(total, len(ranks))[me]]
    return [total, total[:1], total] if kind == "group" else [total]


def check(fd, step, handle):
    if step[6] is not None:
        with pytest.raises(RuntimeError, match=rf"{step[0]}: ranks differ in shape"):
            fd.synchronize(handle)
        return
    found = fd.synchronize(handle)
    found = found[:1] if step[1] == "alltoall" else found if step[1] == "group" else [found]
    for array, wanted in zip(found, expected(step, fd.rank()), strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape, step
        assert array.tobytes() == wanted.tobytes(), step


def run_program(fd, seed, count):
    subsets = [[r for r in range(fd.size()) if r != out] for out in range(fd.size())] if fd.size() > 2 else []
    sets = {tuple(range(fd.size())): fd.global_process_set}
    sets |= {tuple(ranks): fd.add_process_set(ranks) for ranks in subsets}
    own = random.Random(seed * 100 + fd.rank())
    steps = [s for s in program(seed, [list(ranks) for ranks in sets], count) if fd.rank() in s[4]]
    handles = {}
    for window in range(0, count, 25):  # the same window on every rank, by number
        here = [s for s in steps if window <= int(s[0].split(".")[1]) < window + 25]
        own.shuffle(here)
        for step in here:
            handles[step[0]] = submit(fd, step, sets[step[4]])
            if own.random() < 0.1:
                time.sleep(own.random() * 0.003)
        own.shuffle(here)
        for step in here[: len(here) // 2 + own.randrange(2)]:
            check(fd, step, handles.pop(step[0]))
        if own.random() < 0.3:
            fd.poll(next(iter(handles.values()), 0))
    for step in steps:
        if step[0] in handles:
            check(fd, step, handles.pop(step[0]))
    for ranks in subsets:
        assert fd.remove_process_set(sets[tuple(ranks)])


@rank_test(n=[2, 3], timeout=60)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_program(fd, seed):
    run_program(fd, seed, 200)


@rank_test(n=3, timeout=60, env={"FARANDOLE_NODE_EXCHANGE": "window", "FARANDOLE_FUSION_THRESHOLD": "100000"})
def test_a_random_program_through_windows(fd):
    run_program(fd, 3, 200)


@rank_test(n=3, timeout=60, env={"FARANDOLE_MPI_THREAD_LEVEL": "serialized"})
def test_a_random_program_where_threads_take_turns(fd):
    assert fd.describe()["mpi"]["thread_level"] == "serialized"
    run_program(fd, 4, 200)


@rank_test(n=2, timeout=60, env={"FARANDOLE_MPI_THREAD_LEVEL": "single"})
def test_a_random_program_without_threads(fd):
    assert fd.describe()["mpi"]["thread_level"] == "single"
    run_program(fd, 5, 200)


@pytest.mark.soak
@rank_test(n=[2, 3, 4], timeout=120)
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_programs(fd, seed):
    run_program(fd, seed, 400)


@pytest.mark.soak
@rank_test(n=4, timeout=120, env={"FARANDOLE_NODE_EXCHANGE": "none"})
@pytest.mark.parametrize("seed", range(200, 220))
def test_many_random_programs_over_mpi(fd, seed):
    run_program(fd, seed, 400)
