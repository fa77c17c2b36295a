"""The coordinator: who asked for what, and what it answers."""

import pytest

from farandole.comm.named.letters import letters_from, message_of, verdicts_from
from farandole.comm.named.negotiate import Coordinator, OperationRequest, Verdict

MEMBERS = (0, 2, 5)


def allreduce(shape=(3,), dtype="float32", key="allreduce.x", **arguments):
    given = {"op": "SUM", "prescale_factor": 1.0, **arguments}
    return OperationRequest(key, "allreduce", ((dtype, shape),), tuple(given.items()))


def judged(*requests):
    coordinator = Coordinator(MEMBERS)
    verdicts = [coordinator.submit(rank, request) for rank, request in enumerate(requests)]
    assert verdicts[:-1] == [None, None]
    return verdicts[-1]


def test_the_last_rank_s_request_brings_the_verdict():
    verdict = judged(allreduce(), allreduce(), allreduce())
    assert verdict == Verdict("allreduce.x", None, ((3,), (3,), (3,)))


def test_keys_do_not_wait_for_each_other_and_may_come_again():
    coordinator = Coordinator(MEMBERS)
    for _ in range(2):
        for rank in (2, 0):
            assert coordinator.submit(rank, allreduce(key="allreduce.a")) is None
        for rank in (1, 2, 0):
            done = coordinator.submit(rank, allreduce(key="allreduce.b"))
        assert done == Verdict("allreduce.b", None, ((3,), (3,), (3,)))
        assert coordinator.missing("allreduce.a") == [2]  # rank 1 of the set is rank 2 of the world
        assert coordinator.submit(1, allreduce(key="allreduce.a")).error is None
        assert coordinator.missing("allreduce.a") == []


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (allreduce(dtype="float64"), "differ in dtype: ranks 0, 5 have float32; rank 2 has float64."),
        (
            allreduce((4,)),
            "differ in shape: ranks 0, 5 have (3,); rank 2 has (4,). Every rank must pass the same",
        ),
        (allreduce((3, 1)), "rank 2 has (3, 1)"),
        (allreduce(op="MAX"), "differ in op: ranks 0, 5 have SUM; rank 2 has MAX."),
        (allreduce(prescale_factor=2.0), "differ in prescale_factor: ranks 0, 5 have 1.0; rank 2 has 2.0."),
        (allreduce(extra=1), "differ in arguments"),
        (
            OperationRequest("allreduce.x", "allreduce", (), ()),
            "the number of arrays: ranks 0, 5 have 1; rank 2 has 0.",
        ),
    ],
)
def test_a_difference_names_ranks_of_the_world_and_values(odd, told):
    verdict = judged(allreduce(), odd, allreduce())
    assert verdict.error.startswith("allreduce.x: ranks ") and told in verdict.error
    assert not verdict.left


def test_gathered_arrays_may_differ_in_rows_only():
    def gather(*shape):
        return OperationRequest("allgather.x", "allgather", (("int8", shape),))

    assert judged(gather(1, 4), gather(0, 4), gather(7, 4)).rows == ((1,), (0,), (7,))
    assert "beyond dimension 0" in judged(gather(1, 4), gather(1, 5), gather(1, 4)).error
    assert "beyond dimension 0" in judged(gather(1), gather(1, 1), gather(1)).error


def test_splits_travel_with_the_verdict_and_must_be_given_by_all_or_none():
    def alltoall(splits):
        return OperationRequest("alltoall.x", "alltoall", (("int8", (3,)),), splits=splits)

    assert judged(*(alltoall((n, 1, 2 - n)) for n in range(3))).splits == ((0, 1, 2), (1, 1, 1), (2, 1, 0))
    assert (
        "whether splits are given" in judged(alltoall((1, 1, 1)), alltoall(None), alltoall((1, 1, 1))).error
    )


def test_a_rank_that_leaves_ends_what_is_pending_and_what_comes_later():
    coordinator = Coordinator(MEMBERS)
    coordinator.submit(0, allreduce())
    coordinator.submit(1, allreduce(key="allreduce.y"))
    verdicts = coordinator.leave(2, "has exited")
    assert {v.key for v in verdicts} == {"allreduce.x", "allreduce.y"}
    for verdict in [*verdicts, coordinator.submit(0, allreduce(key="allreduce.z"))]:
        assert verdict.left and "rank 5 has exited and takes part in nothing more" in verdict.error


def test_a_withdrawn_request_is_asked_for_again():
    coordinator = Coordinator((0, 1))
    coordinator.submit(0, allreduce((3,)))
    coordinator.withdraw(0, "allreduce.x")
    coordinator.withdraw(1, "allreduce.unknown")
    assert coordinator.submit(1, allreduce((9,))) is None
    assert coordinator.submit(0, allreduce((9,))).error is None


def test_many_ranks_are_told_shortly():
    coordinator = Coordinator(tuple(range(40)))
    for rank in range(40):
        verdict = coordinator.submit(rank, allreduce((rank == 7,)))
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 8 and 31 more have" in verdict.error
    assert "rank 7 has" in verdict.error


def test_messages_arrive_as_they_were_sent():
    given = OperationRequest("alltoall.x", "alltoall", (("int64", (3, 2)),), (("root_rank", 2),), splits=(1, 2, 0))
    letters = [(0, given), (1, "allreduce.x"), (2, ("allreduce.y", 7)), (3, "has ended: «é»")]
    assert letters_from(message_of(letters)) == letters
    verdicts = [Verdict("", joined=(1,)), Verdict("a", None, ((3,),), ((1, 2, 0),), stand_in=given), Verdict("b", "wrong", left=True)]
    assert verdicts_from(message_of(verdicts)) == verdicts
    assert isinstance(verdicts_from(message_of(verdicts))[1].stand_in, OperationRequest)
