"""Operations meet by name: asynchronous ones, in any order, by the thousand."""

import threading
import time

import numpy as np
import pytest

from ranktest import rank_test


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


@rank_test(n=[2, 3])
def test_poll_is_false_until_every_rank_has_come(fd):
    last = fd.size() - 1
    if fd.rank() != last:
        handle = fd.allreduce_async(np.ones(3), name="late", op=fd.Sum)
        for _ in range(50):
            assert fd.poll(handle) is False
            time.sleep(0.002)
    fd.broadcast_object("now", root_rank=0)  # another operation overtakes it
    if fd.rank() == last:
        handle = fd.allreduce_async(np.ones(3), name="late", op=fd.Sum)
    until(lambda: fd.poll(handle))
    assert fd.poll(handle) is True
    assert fd.synchronize(handle).tolist() == [fd.size()] * 3
    assert fd.poll(handle) is None
    assert fd.synchronize(handle) is None


@rank_test(n=1)
def test_unknown_handles(fd):
    assert fd.poll(123456789) is None
    assert fd.synchronize(123456789) is None


@rank_test(n=2)
def test_asynchronous_operations_finish_while_nobody_asks(fd):
    arrays = [np.full(200_000, float(fd.rank())) for _ in range(3)]
    handles = [fd.allreduce_async_(a, op=fd.Sum, name=f"alone.{i}") for i, a in enumerate(arrays)]
    until(lambda: all((a == 1).all() for a in arrays))
    for handle in handles:
        fd.synchronize(handle)


@rank_test(n=[2, 3])
def test_every_rank_may_have_its_own_order(fd):
    names = [f"tensor.{i}" for i in range(20)]
    order = np.random.default_rng(fd.rank()).permutation(20)
    handles = {}
    for i in order:
        array = np.full(i + 1, fd.rank() + i, np.float64)
        kinds = (
            lambda a, n: fd.allreduce_async(a, name=n, op=fd.Sum),
            lambda a, n: fd.allgather_async(a, name=n),
            lambda a, n: fd.broadcast_async(a, 1, name=n),
        )
        handles[names[i]] = kinds[i % 3](array, names[i])
    for i in reversed(order):
        found = fd.synchronize(handles[names[i]]).tolist()
        values = [rank + i for rank in range(fd.size())]
        wanted = ([sum(values)], [v for v in values for _ in range(i + 1)], [1 + i])[i % 3]
        assert found == (wanted * (i + 1) if i % 3 != 1 else wanted)


@rank_test(n=2)
def test_an_operation_before_the_barrier_meets_one_after_it(fd):
    if fd.rank() == 0:
        handle = fd.allreduce_async(np.ones(1), name="x", op=fd.Sum)
        fd.barrier()
    else:
        fd.barrier()
        handle = fd.allreduce_async(np.ones(1), name="x", op=fd.Sum)
    assert fd.synchronize(handle).tolist() == [2]


@rank_test(n=2)
def test_threads_of_one_rank_may_wait_for_different_operations(fd):
    results = {}

    def reduce(name):
        results[name] = fd.allreduce(np.full(5, fd.rank() + 1.0), name=name, op=fd.Sum)

    names = ["a", "b", "c", "d"]
    threads = [threading.Thread(target=reduce, args=(n,)) for n in (names if fd.rank() else names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == names
    assert all(found.tolist() == [3] * 5 for found in results.values())


@rank_test(n=2)
def test_one_name_may_serve_different_kinds_and_be_used_again(fd):
    for _ in range(3):
        handles = [
            fd.allreduce_async(np.ones(2), name="n", op=fd.Sum),
            fd.allgather_async(np.ones(1), name="n"),
            fd.broadcast_async(np.ones(2), 0, name="n"),
        ]
        assert [fd.synchronize(h).tolist() for h in handles] == [[2, 2], [1, 1], [1, 1]]


@rank_test(n=2)
def test_a_name_that_is_under_way_is_refused(fd):
    first = np.ones(2)
    if fd.rank() == 0:
        handle = fd.allreduce_async(first, name="twice")
        with pytest.raises(ValueError, match=r"allreduce\.twice is already under way.*another name"):
            fd.allreduce_async(np.zeros(2), name="twice")
        with pytest.raises(ValueError, match="already under way"):
            fd.allreduce(np.zeros(2), name="twice")
    else:
        handle = fd.allreduce_async(first, name="twice")
    assert fd.synchronize(handle).tolist() == [1, 1]
    assert fd.allreduce(np.ones(1), name="twice").tolist() == [1]


@rank_test(n=[2, 3], timeout=60)
def test_thousands_of_small_arrays_at_once(fd):
    count = 2000
    rng = np.random.default_rng(fd.rank())
    kinds = [np.float32, np.float64, np.int32, np.float16]
    handles = {}
    for i in rng.permutation(count) if fd.rank() % 2 else range(count):
        array = np.full(1 + i % 7, i % 50 + fd.rank(), kinds[i % 4])
        handles[i] = fd.allreduce_async(array, name=f"small.{i}", op=fd.Sum)
    for i, handle in handles.items():
        found = fd.synchronize(handle)
        assert found.dtype == kinds[i % 4]
        wanted = (i % 50) * fd.size() + sum(range(fd.size()))
        assert found.tolist() == [wanted] * (1 + i % 7)


@rank_test(n=2)
def test_a_group_of_thousands(fd):
    arrays = [np.full(i % 5, i, np.float32) for i in range(3000)]
    found = fd.grouped_allreduce(arrays, op=fd.Sum)
    assert all((f == 2 * a).all() and f.shape == a.shape for f, a in zip(found, arrays))


@rank_test(n=2)
def test_large_and_small_fuse_without_mixing(fd):
    sizes = [1, 40_000, 2, 300_000, 0, 3, 70_000, 5]
    handles = [
        fd.allreduce_async(np.full(n, i + fd.rank(), np.float32), name=f"mixed.{i}", op=op)
        for i, n in enumerate(sizes)
        for op in [fd.Max if i % 3 == 2 else fd.Sum]
    ]
    for i, (n, handle) in enumerate(zip(sizes, handles)):
        wanted = i + 1 if i % 3 == 2 else 2 * i + 1
        found = fd.synchronize(handle)
        assert found.shape == (n,) and (found == wanted).all()


@rank_test(n=2)
def test_an_idle_engine_costs_nearly_nothing(fd):
    fd.synchronize(fd.allreduce_async(np.ones(1)))
    time.sleep(0.2)
    shares = []
    for _ in range(3):  # cold caches and stolen time make some dearer
        start, used = time.monotonic(), time.process_time()
        time.sleep(1.0)
        shares.append((time.process_time() - used) / (time.monotonic() - start))
    assert min(shares) < 0.01, f"{min(shares):.1%} of a core"


@rank_test(n=2)
def test_a_call_that_fails_on_one_rank_is_not_counted(fd):
    fixed = np.ones(2)
    fixed.flags.writeable = False
    wrong = [
        lambda: fd.allreduce(np.array(["text"])),
        lambda: fd.allreduce_(fixed),
        lambda: fd.allgather(np.float64(1)),
        lambda: fd.gather(np.ones(1), root_rank=7),
        lambda: fd.broadcast(np.ones(1), root_rank=7),
        lambda: fd.alltoall(np.ones(2), splits=[2, 2]),
        lambda: fd.alltoall(np.ones(3)),
        lambda: fd.reducescatter(np.ones(2), op=fd.Max),
        lambda: fd.broadcast_object(None, root_rank=7),
        lambda: fd.broadcast_object(threading.Lock(), root_rank=1),
        lambda: fd.allgather_object(threading.Lock()),
    ]
    for call in wrong if fd.rank() == 1 else []:
        with pytest.raises((ValueError, TypeError)):
            call()
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]
    assert fd.allgather(np.ones(1)).tolist() == [1, 1]
    fd.gather(np.ones(1), root_rank=0)
    assert fd.broadcast(np.full(1, fd.rank()), root_rank=1).tolist() == [1]
    assert fd.alltoall(np.full(2, fd.rank())).tolist() == [0, 1]
    assert fd.reducescatter(np.ones(2), op=fd.Sum).tolist() == [2]
    assert fd.broadcast_object(fd.rank(), root_rank=1) == 1
    assert fd.allgather_object(fd.rank()) == [0, 1]
