"""The gradient plan: what all ranks must agree on, and how gradients are cut into pieces."""

import signal
import threading

import numpy as np
import pytest

from farandole.comm.bytes.transport import LocalTransport
from farandole.comm.gradients.agreement import agree
from farandole.comm.gradients.cutting import DIRECT_BYTES, PIECE_BYTES, WIRE_BYTES, cut, part_bytes
from farandole.comm.gradients.interface import BUCKET_BYTES, Entry, PlanSettings
from farandole.comm.gradients.opening import make_plan
from farandole.comm.gradients.status import Kind
from farandole.comm.gradients.team import Team
from farandole.comm.named.process_sets import SetRuntime
from farandole.comm.node.arithmetic import Reduction
from farandole.errors import EngineStopped, PlanMismatchError

ENTRIES = [Entry("head.bias", "float32", (10,)), Entry("head.weight", "float32", (10, 4))]


def test_equal_lists_agree():
    agree([ENTRIES, list(ENTRIES), ENTRIES], (0, 1, 2))


def test_keras_numbers_do_not_matter():
    ours = [Entry("sequential/dense/kernel", "float32", (3,)), Entry("sgd/dense_1_kernel_momentum", "float32", (3,))]
    theirs = [Entry("sequential_1/dense_4/kernel", "float32", (3,)), Entry("sgd/dense_5_kernel_momentum", "float32", (3,))]
    agree([ours, theirs], (0, 1))
    with pytest.raises(PlanMismatchError, match=r"parameter 1: rank 0 has 'sgd/dense_1_.* has 'sgd/dense_5_kernel_velocity'"):
        agree([ours, [theirs[0], theirs[1]._replace(name="sgd/dense_5_kernel_velocity")]], (0, 1))


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ([ENTRIES[0]], "rank 0 has 2 parameters, rank 7 has 1 ('head.weight' is not on both)"),
        (ENTRIES[::-1], "parameter 0: rank 0 has 'head.bias' float32 (10,), rank 7 has 'head.weight'"),
        ([ENTRIES[0], Entry("head.weight", "float32", (4, 10))], "rank 7 has 'head.weight' float32 (4, 10)"),
        ([ENTRIES[0], Entry("head.weight", "float64", (10, 4))], "rank 7 has 'head.weight' float64"),
        ([ENTRIES[0], Entry("head.weight", "float32", (10, 4), "strides (1, 10)")], "strides (1, 10)"),
    ],
)
def test_a_difference_names_rank_and_parameter(theirs, told):
    with pytest.raises(PlanMismatchError) as caught:
        agree([ENTRIES, ENTRIES, theirs], (0, 3, 7))
    assert told in str(caught.value)
    assert "Build the same model on every rank" in str(caught.value)


@pytest.fixture
def make():
    """Plans of one rank."""
    plans = []

    def plan(*entries, nodes=1, **options):
        runtime = SetRuntime(LocalTransport(), (0,), "", 1 << 26, nodes, 1)
        settings = PlanSettings(**{"how": Reduction("sum"), "team": Team(threads=0), **options})
        plans.append(make_plan(runtime, "SGD.1", entries, settings))
        return plans[-1]

    yield plan
    for one in plans:
        one.retire()


def entry(count, dtype="float32", group=-1):
    return Entry("w", dtype, (count,), "", group)


def pieces_of(*entries, staged=False, bucket_bytes=BUCKET_BYTES, nodes=1):
    return cut(entries, staged=staged, bucket_bytes=bucket_bytes, part_bytes=part_bytes(nodes))


def shown(pieces):
    return [(list(piece.entries), piece.stop - piece.start, piece.packed) for piece in pieces]


def test_small_gradients_share_buckets_up_to_a_size_and_large_ones_stay_where_they_are():
    large = DIRECT_BYTES // 4
    pieces = pieces_of(entry(100), entry(100), entry(large), entry(100), entry(700), entry(500), bucket_bytes=4000)
    # 100 + 700 + 500 would be too much
    assert shown(pieces) == [([0, 1], 200, True), ([2], large, False), ([3, 4], 800, True), ([5], 500, True)]


def test_types_and_groups_do_not_mix():
    kinds = "float32", "float16", "bfloat16"
    pieces = pieces_of(*(entry(9, kind) for kind in kinds), entry(9, group=0), entry(9, group=0), entry(9))
    assert [list(piece.entries) for piece in pieces] == [[0], [1], [2], [3, 4], [5]]
    assert [piece.dtype.name for piece in pieces] == [*kinds, "float32", "float32"]


def test_a_group_is_one_bucket_whatever_its_size():
    count = DIRECT_BYTES // 4
    assert shown(pieces_of(*(entry(count, group=3) for _ in range(3)), bucket_bytes=1000)) == [([0, 1, 2], 3 * count, True)]


def test_staged_gradients_are_packed_even_when_large():
    assert shown(pieces_of(entry(DIRECT_BYTES), staged=True)) == [([0], DIRECT_BYTES, True)]


@pytest.mark.parametrize("staged", [False, True])
def test_very_large_gradients_are_cut_into_parts_without_gaps(staged):
    count = 3 * PIECE_BYTES // 4 + 1
    pieces = pieces_of(entry(5), entry(count), staged=staged)
    assert [list(piece.entries) for piece in pieces] == [[0], *([1] for _ in range(4))]
    assert [piece.start for piece in pieces[1:]] + [count] == [0, *(piece.stop for piece in pieces[1:])]
    assert all(piece.nbytes <= PIECE_BYTES and piece.packed == staged for piece in pieces[1:])


def test_packed_gradients_have_memory_of_their_size_and_type(make):
    plan = make(entry(100), entry(DIRECT_BYTES // 4), entry(700, "bfloat16"))
    assert plan.buffer(1) is None
    assert [(plan.buffer(i).size, plan.buffer(i).dtype.name) for i in (0, 2)] == [(100, "float32"), (700, "bfloat16")]


@pytest.mark.parametrize("staged", [False, True])
def test_between_nodes_large_gradients_are_cut_smaller(make, staged):
    count = 3 * WIRE_BYTES // 4 + 1
    assert make(entry(count), elsewhere=staged).describe()["pieces"] == 1
    plan = make(entry(count), elsewhere=staged, nodes=2, how=Reduction("sum", 1.0, 2))
    assert plan.describe()["pieces"] == 4
    gradient = np.arange(count, dtype=np.float32)
    if staged:
        plan.buffer(0)[:] = gradient
    plan.ready(0, None if staged else gradient)
    plan.finish()
    assert ((plan.buffer(0) if staged else gradient) == np.arange(count, dtype=np.float32) / 2).all()


def test_a_step_says_which_gradients_exist(make):
    plan = make(entry(4), entry(DIRECT_BYTES // 4), how=Reduction("sum", 1.0, 2))
    for step, kind in enumerate([Kind.DENSE, Kind.ABSENT, Kind.SPARSE, Kind.DENSE], start=1):
        plan.buffer(0)[:] = 6
        large = np.full(DIRECT_BYTES // 4, 8, np.float32)
        plan.ready(0, None)
        plan.ready(1, large, kind)
        status = plan.finish()
        assert (status.step, status.kinds) == (step, [Kind.DENSE, kind])
        assert plan.buffer(0).tolist() == [3] * 4
        assert (large == 4).all()
    assert plan.statistics.steps == 4


def interrupted(*_):
    raise KeyboardInterrupt


def test_no_step_follows_one_that_a_thread_is_still_in(make, monkeypatch):
    """Ctrl-C while a thread reduces a piece and does not come back."""
    monkeypatch.setattr("farandole.comm.gradients.host.ABANDON_S", 0.01)
    in_a_piece, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr("farandole.comm.node.two_level.TwoLevel.finish", lambda *_, **__: in_a_piece.set() or go_on.wait())
    plan = make(Entry("w", "float32", (3,)))
    plan.ready(0, None)
    thread = threading.Thread(target=plan.finish)
    thread.start()
    in_a_piece.wait()
    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            plan.finish()
        with pytest.raises(EngineStopped, match=r"step 1 of SGD\.1 has failed, and a thread of its team is still in it"):
            plan.ready(0, None)
    finally:
        signal.signal(signal.SIGALRM, before)
        go_on.set()
        thread.join()
