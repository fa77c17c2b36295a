"""The gradient plan: what all ranks must agree on, and how gradients are cut into pieces."""

import numpy as np
import pytest

from farandole.comm.bytes.transport import LocalTransport
from farandole.comm.gradients.agreement import agree
from farandole.comm.gradients.plan import DIRECT_BYTES, PIECE_BYTES, WIRE_BYTES, Entry, GradientPlan
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
        given = {"how": Reduction("sum"), "staged": False, "team": Team(threads=0), **options}
        plans.append(GradientPlan(runtime, "SGD.1", entries, **given))
        return plans[-1]

    yield plan
    for one in plans:
        one.retire()


def entry(count, dtype="float32", group=-1):
    return Entry("w", dtype, (count,), "", group)


def bucket_of(plan, index):
    """What memory a packed gradient lies in; None for one that is reduced in place."""
    buffer = plan.buffer(index)
    return None if buffer is None else id(buffer.base if buffer.base is not None else buffer)


def test_small_gradients_share_buckets_up_to_a_size_and_large_ones_stay_where_they_are(make):
    large = DIRECT_BYTES // 4
    plan = make(entry(100), entry(100), entry(large), entry(100), entry(700), entry(500), bucket_bytes=4000)
    buckets = [bucket_of(plan, i) for i in range(6)]
    assert buckets[0] == buckets[1] and buckets[3] == buckets[4]
    assert buckets[2] is None
    assert len({buckets[0], buckets[3], buckets[5]}) == 3  # 100 + 700 + 500 would be too much
    assert [plan.buffer(i).size for i in (0, 4, 5)] == [100, 700, 500]


def test_types_and_groups_do_not_mix(make):
    plan = make(
        entry(9), entry(9, "float16"), entry(9, "bfloat16"), entry(9, group=0), entry(9, group=0), entry(9)
    )
    buckets = [bucket_of(plan, i) for i in range(6)]
    assert buckets[3] == buckets[4]
    assert len(set(buckets)) == 5
    assert [plan.buffer(i).dtype.name for i in range(3)] == ["float32", "float16", "bfloat16"]


def test_a_group_is_one_bucket_whatever_its_size(make):
    plan = make(*(entry(DIRECT_BYTES // 4, group=3) for _ in range(3)), bucket_bytes=1000)
    assert len({bucket_of(plan, i) for i in range(3)}) == 1


def test_staged_gradients_are_packed_even_when_large(make):
    assert bucket_of(make(entry(DIRECT_BYTES), staged=True), 0) is not None


def test_very_large_gradients_are_cut(make):
    plan = make(entry(3 * PIECE_BYTES // 4 + 1))
    assert plan.describe()["pieces"] == 4


@pytest.mark.parametrize("staged", [False, True])
def test_between_nodes_large_gradients_are_cut_smaller(make, staged):
    count = 3 * WIRE_BYTES // 4 + 1
    assert make(entry(count), staged=staged).describe()["pieces"] == 1
    plan = make(entry(count), staged=staged, nodes=2, how=Reduction("sum", 1.0, 2))
    assert plan.describe()["pieces"] == 4
    gradient = np.arange(count, dtype=np.float32)
    if staged:
        plan.buffer(0)[:] = gradient
    plan.ready(0, None if staged else gradient)
    plan.finish()
    assert ((plan.buffer(0) if staged else gradient) == np.arange(count, dtype=np.float32) / 2).all()


def test_a_step_says_on_how_many_ranks_each_gradient_exists(make):
    plan = make(entry(4), entry(DIRECT_BYTES // 4), how=Reduction("sum", 1.0, 2))
    for step in range(3):
        plan.buffer(0)[:] = 6
        large = np.full(DIRECT_BYTES // 4, 8, np.float32)
        plan.ready(0, None)
        plan.ready(1, large, present=step != 1)
        assert plan.finish().tolist() == [1, int(step != 1)]
        assert plan.buffer(0).tolist() == [3] * 4
        assert (large == 4).all()
    assert plan.statistics.steps == 3


def test_no_step_follows_one_that_a_thread_is_still_in(make, monkeypatch):
    monkeypatch.setattr("farandole.comm.gradients.plan.ABANDON_S", 0.01)
    plan = make(Entry("w", "float32", (3,)))
    plan.ready(0, None)
    monkeypatch.setattr(plan, "_join", lambda count: (_ for _ in ()).throw(KeyboardInterrupt))
    plan._busy += 1  # a thread of the team that does not come back
    with pytest.raises(KeyboardInterrupt):
        plan.finish()
    with pytest.raises(EngineStopped, match=r"step 1 of SGD\.1 has failed, and a thread of its team is still in it"):
        plan.ready(0, None)
