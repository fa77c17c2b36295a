"""Process sets: some of the ranks, with collectives of their own that wait for nobody else."""

import threading

import numpy as np
import pytest

from ranktest import rank_test


@rank_test(n=3)
def test_a_set_knows_its_ranks(fd):
    some = fd.add_process_set([2, 0])
    assert some.ranks == [0, 2]
    assert some.size() == 2
    assert some.included() is (fd.rank() != 1)
    assert some.rank() == {0: 0, 2: 1}.get(fd.rank())
    assert some.process_set_id > 0
    assert fd.get_process_set(some.process_set_id) is some
    everyone = fd.global_process_set
    assert (everyone.process_set_id, everyone.size(), everyone.rank()) == (0, fd.size(), fd.rank())
    assert fd.remove_process_set(some) is True


@rank_test(n=3)
def test_every_collective_within_a_set(fd):
    pair = fd.add_process_set([0, 2])
    if pair.included():
        mine = np.array([fd.rank() + 1.0, 10.0])
        assert fd.allreduce(mine, op=fd.Sum, process_set=pair).tolist() == [4, 20]
        assert fd.allreduce(mine, process_set=pair).tolist() == [2, 10]  # by the size of the set
        assert (fd.allreduce(np.full(200_001, mine[0]), op=fd.Sum, process_set=pair) == 4).all()
        assert fd.allgather(mine[:1], process_set=pair).tolist() == [1, 3]
        assert fd.broadcast(mine, 2, process_set=pair).tolist() == [3, 10]  # a rank of the world
        gathered = fd.gather(mine[:1], 2, process_set=pair)
        assert gathered is None if fd.rank() == 0 else gathered.tolist() == [1, 3]
        assert fd.alltoall(mine, process_set=pair).tolist() == ([1, 3] if fd.rank() == 0 else [10, 10])
        assert fd.reducescatter(mine, op=fd.Sum, process_set=pair).tolist() == (
            [4] if fd.rank() == 0 else [20]
        )
        assert fd.broadcast_object(fd.rank(), root_rank=2, process_set=pair) == 2
        assert fd.allgather_object(fd.rank(), process_set=pair) == [0, 2]
        assert fd.check_buffers_match([mine], process_set=pair) == 1
        fd.barrier(process_set=pair)
        with pytest.raises(ValueError, match=r"root_rank=1 is not in the process set \[0, 2\]"):
            fd.broadcast(mine, 1, process_set=pair)
    else:
        for call in (fd.allreduce, fd.allgather, fd.alltoall, fd.reducescatter, fd.allgather_object):
            with pytest.raises(ValueError, match=r"\[rank 1\].*ranks=\[0, 2\].*does not include this rank"):
                call(np.ones(2), process_set=pair)
        with pytest.raises(ValueError, match="does not include this rank"):
            fd.barrier(process_set=pair)
    fd.remove_process_set(pair)


@rank_test(n=3)
def test_sets_may_overlap_and_use_the_same_names(fd):
    pairs = [fd.add_process_set(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    mine = [pair for pair in pairs if pair.included()]
    handles = [fd.allreduce_async(np.array([fd.rank()]), name="x", op=fd.Sum, process_set=p) for p in mine]
    handles.append(fd.allreduce_async(np.array([fd.rank()]), name="x", op=fd.Sum))
    found = [fd.synchronize(handle)[0] for handle in handles]
    assert found == [sum(pair.ranks) for pair in mine] + [3]
    assert all(fd.remove_process_set(pair) for pair in pairs)


@rank_test(n=3)
def test_a_stalled_set_holds_up_no_other(fd):
    stalled, lively = fd.add_process_set([0, 1]), fd.add_process_set([0, 2])
    if fd.rank() == 0:
        waiting = fd.allreduce_async(np.ones(4), name="stalled", op=fd.Sum, process_set=stalled)
        blocked = threading.Thread(target=fd.barrier, args=(stalled,))
        blocked.start()
    if lively.included():
        for i in range(200):
            assert fd.allreduce(np.array([i]), op=fd.Sum, process_set=lively)[0] == 2 * i
    if fd.rank() == 0:
        assert fd.poll(waiting) is False
    fd.barrier()
    if fd.rank() == 1:
        waiting = fd.allreduce_async(np.ones(4), name="stalled", op=fd.Sum, process_set=stalled)
        fd.barrier(stalled)
    if fd.rank() != 2:
        assert fd.synchronize(waiting).tolist() == [2] * 4
    if fd.rank() == 0:
        blocked.join(10)
        assert not blocked.is_alive()
    fd.remove_process_set(stalled)
    fd.remove_process_set(lively)


@rank_test(n=3)
def test_large_reductions_of_two_sets_run_at_the_same_time(fd):
    sets = [fd.add_process_set([0, 1]), fd.add_process_set([0, 2]), fd.global_process_set]
    mine = [s for s in sets if s.included()]
    handles = [
        fd.allreduce_async(np.full(300_000 + n, fd.rank() + 1.0), name=f"{n}", op=fd.Sum, process_set=s)
        for n in range(4)
        for s in (mine if fd.rank() else mine[::-1])
    ]
    order = [s for _ in range(4) for s in (mine if fd.rank() else mine[::-1])]
    for s, handle in zip(order, handles):
        assert (fd.synchronize(handle) == sum(r + 1 for r in s.ranks)).all()
    fd.remove_process_set(sets[0])
    fd.remove_process_set(sets[1])


@rank_test(n=2)
def test_a_set_that_exists_is_refused_on_every_rank(fd):
    with pytest.raises(ValueError, match=r"ranks \[0, 1\] exists already"):
        fd.add_process_set([1, 0])
    first = fd.add_process_set([1])
    with pytest.raises(ValueError, match=r"ranks \[1\] exists already"):
        fd.add_process_set(fd.ProcessSet([1]))
    assert fd.remove_process_set(first)
    again = fd.add_process_set([1])
    assert again.process_set_id != first.process_set_id
    fd.remove_process_set(again)


@rank_test(n=2)
def test_ranks_that_do_not_exist_or_differ_are_refused(fd):
    with pytest.raises(ValueError, match="the world has ranks 0 to 1"):
        fd.add_process_set([0, 2])
    with pytest.raises(ValueError, match=r"different sets: \[\[0\], \[1\]\]"):
        fd.add_process_set([fd.rank()])
    for odd in ([], [0, 0], [-1, 0]):
        with pytest.raises(ValueError, match="one or more different ranks"):
            fd.ProcessSet(odd)
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]


@rank_test(n=2)
def test_a_removed_set_and_one_never_added_cannot_be_used(fd):
    one = fd.ProcessSet([0])
    assert (one.size(), one.rank(), one.included(), one.process_set_id) == (None, None, None, None)
    with pytest.raises(ValueError, match=r"not registered.*add_process_set"):
        fd.allreduce(np.ones(1), process_set=one)
    assert fd.remove_process_set(one) is False
    fd.add_process_set(one)
    assert fd.remove_process_set(one) is True
    assert fd.remove_process_set(one) is False
    with pytest.raises(ValueError, match="not registered"):
        fd.allreduce(np.ones(1), process_set=one)
    assert fd.remove_process_set(fd.global_process_set) is False
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]
    with pytest.raises(ValueError, match=r"no process set 99; registered: \[0\]"):
        fd.get_process_set(99)


@rank_test(n=3)
def test_removing_a_set_ends_what_is_under_way_in_it(fd):
    pair = fd.add_process_set([0, 1])
    handle = fd.allreduce_async(np.ones(1), name="pending", process_set=pair) if fd.rank() == 0 else None
    assert fd.remove_process_set(pair)
    if handle is not None:
        with pytest.raises(RuntimeError, match=r"allreduce\.pending.*removed the process set"):
            fd.synchronize(handle)
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [3]


@rank_test(n=3)
def test_sets_can_be_made_and_removed_all_day(fd):
    from mpi4py import MPI

    # The library has about 2000 communicators, and every set takes a few: leave it some hundred.
    taken = [MPI.COMM_SELF.Dup() for _ in range(1850)]
    for i in range(90):
        some = fd.add_process_set([[0, 1], [1, 2]][i % 2])
        if some.included():
            found = fd.allreduce(np.full(100, fd.rank(), np.float16), op=fd.Sum, process_set=some)
            assert found[0] == sum(some.ranks)
        assert fd.remove_process_set(some)
    for comm in taken:
        comm.Free()


@rank_test(n=3)
def test_ranks_that_remove_different_sets_are_told(fd):
    first, second = fd.add_process_set([0, 1]), fd.add_process_set([1, 2])
    one, other = first.process_set_id, second.process_set_id
    told = rf"\[rank {fd.rank()}/3\] remove_process_set: .*different sets, by rank: \[{one}, {one}, {other}\]"
    with pytest.raises(RuntimeError, match=told):
        fd.remove_process_set(second if fd.rank() == 2 else first)
    assert fd.remove_process_set(first) and fd.remove_process_set(second)
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [3]


@rank_test(n=3)
def test_errors_in_a_set_count_ranks_as_the_world_does(fd):
    outer = fd.add_process_set([0, 2])
    if outer.included():
        with pytest.raises(RuntimeError, match=rf"\[rank {fd.rank()}/3\] allreduce\.x: ranks differ in shape"):
            fd.allreduce(np.ones(1 + fd.rank()), name="x", process_set=outer)
    assert fd.remove_process_set(outer)


@rank_test(n=3)
def test_a_set_from_an_mpi4py_communicator(fd):
    from mpi4py import MPI

    halves = MPI.COMM_WORLD.Split(0 if fd.rank() < 2 else MPI.UNDEFINED)
    first = fd.add_process_set(fd.ProcessSet(halves))
    assert first.ranks == [0, 1]
    assert first.included() is (fd.rank() < 2)
    if first.included():
        assert fd.allreduce(np.array([fd.rank()]), op=fd.Sum, process_set=first).tolist() == [1]
    fd.remove_process_set(first)
    if halves != MPI.COMM_NULL:
        halves.Free()
