"""Streams between the ranks of a world: in place, as tensors, and from node to node."""

import numpy as np
import pytest

from farandole.errors import SettingsError
from ranktest import rank_test, run_ranks


@rank_test(n=[1, 2, 3])
def test_all_ranks_of_a_node_read_what_one_makes(fd):
    stream = fd.Stream("ranks", {"x": np.zeros((20, 30)), "y": ((), "bool")}, subscribers=fd.size())
    subscriber = stream.subscribe()
    if fd.rank() == 0:
        with stream.producer() as producer:
            for i in range(3):
                producer.put({"x": np.full((20, 30), float(i)), "y": np.array(i == 1)})
    found = [(batch["x"].mean(), bool(batch["y"])) for batch in subscriber]
    assert found == [(0, False), (1, True), (2, False)]
    fd.barrier()


@rank_test(n=2, door="torch")
def test_tensors_are_read_in_place_and_not_to_be_changed(hvd):
    import torch

    fields = {"x": ((40, 5), torch.bfloat16), "y": torch.zeros(40, dtype=torch.int64)}
    stream = hvd.Stream("tensors", fields, subscribers=2, depth=8)
    subscriber = stream.subscribe()
    if hvd.rank() == 0:
        with stream.producer() as producer:
            for i in range(4):
                producer.put(x=torch.full((40, 5), i / 4, dtype=torch.bfloat16), y=torch.arange(40) + i)
    for i, batch in zip(range(3), subscriber):
        assert batch["x"].dtype == torch.bfloat16 and batch["x"].unique().tolist() == [i / 4]
        assert torch.equal(batch["y"], torch.arange(40) + i)
    hvd.barrier()
    if hvd.rank() == 1:
        batch["y"].add_(100)
        with pytest.raises(SettingsError, match="changed in place"):
            next(subscriber)
    hvd.barrier()


@rank_test(n=2)
def test_waits_are_in_the_timeline_and_a_second_world_has_its_own_streams(fd):
    for _ in range(2):
        stream = fd.Stream("again", {"x": ((3,), "int32")}, subscribers=0)
        assert stream.position() == 0
        fd.barrier()
        if fd.rank() == 0:
            with stream.producer() as producer:
                producer.put(x=np.zeros(3, np.int32))
        fd.barrier()
        assert stream.position() == 1
        fd.barrier()
        fd.shutdown()
        fd.init()


RELAYED = """
import contextlib, os, sys, threading
import numpy as np
os.environ["FARANDOLE_NODE"] = "ab"[rank_number() // 2]
import farandole as fd
from farandole.errors import RankFailedError

fd.init()
failing = sys.argv[1] == "True"
stream = fd.Stream("far", {"x": ((9_000,), "float64"), "n": ((), "int32")}, subscribers=2, depth=3)
found, problem, relaying = [], "", None

def relay():
    with contextlib.suppress(RankFailedError):  # which the subscribers get as well
        fd.relay(stream, 1, [2])

if fd.rank() == 0:
    with contextlib.suppress(ValueError), stream.producer(name="reader") as producer:
        for i in range(10):
            producer.put(x=np.full(9_000, float(i)), n=np.int32(i))
        if failing:
            raise ValueError
if fd.rank() in (1, 2):
    relaying = threading.Thread(target=relay)
    relaying.start()
if fd.rank() > 0:
    try:
        for batch in stream.subscribe():
            assert (batch["x"] == batch["n"]).all()
            found.append(int(batch["n"]))
    except RankFailedError as error:
        problem = str(error)
if relaying is not None:
    relaying.join()
result([found, problem])
"""


@pytest.mark.parametrize("failing", [False, True])
def test_a_relay_brings_every_slot_to_another_node(failing):
    """Ranks 0 and 1 are on one node, 2 and 3 on another; rank 3 joins whenever it comes."""
    told = run_ranks(4, RELAYED, args=[str(failing)], launcher="farandole", timeout=60).results
    assert [found for found, _ in told] == [[], *[[*range(10)]] * 3]
    assert all(("'reader'" in problem) == failing for _, problem in told[1:]), told
