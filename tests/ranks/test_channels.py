"""Arrays and tensors from rank to rank, by name."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from farandole.errors import MismatchError, SettingsError
from ranktest import rank_test, run_ranks
from ranktest.library import make

THROUGH_MPI = {"FARANDOLE_NODE_EXCHANGE": "none"}
"""As between nodes."""


LEAVE_THE_OTHERS = ["--enable-recovery" if make() == "openmpi" else "-disable-auto-cleanup"]


def awkward(count, dtype="float32"):
    return (np.arange(count) * 7 % 251).astype(dtype)


def in_a_ring(fd):
    """Small and large, many at once, received in another order than sent; and one that is sent to the rank itself."""
    me, size = fd.rank(), fd.size()
    right, left = (me + 1) % size, (me - 1) % size
    for count in (0, 3, 1_000, 300_001):
        sent = awkward(count) + me
        got = fd.sendrecv(sent, right, left, "ring", like=sent)
        assert got.dtype == sent.dtype and (got == awkward(count) + left).all()
    handles = [fd.send_async(np.full(1 + 5_000 * (i % 3), i + 100 * me), right, f"n{i}") for i in range(60)]
    order = np.random.default_rng(me).permutation(60).tolist()
    wanted = {i: fd.receive_async(left, f"n{i}") for i in order[:30]}
    for i in order[30:]:
        assert (fd.receive(left, f"n{i}") == i + 100 * left).all()
    for i, handle in wanted.items():
        found = fd.synchronize(handle)
        assert found.shape == (1 + 5_000 * (i % 3),) and (found == i + 100 * left).all()
    for handle in handles:
        while not fd.poll(handle):
            time.sleep(1e-3)
        assert fd.synchronize(handle) is None


@rank_test(n=[1, 2, 3])
def test_arrays_arrive_whatever_their_size_and_the_order_in_which_they_are_received(fd):
    in_a_ring(fd)


@rank_test(n=[2, 3], env=THROUGH_MPI)
def test_they_arrive_through_mpi_as_well(fd):
    in_a_ring(fd)


@rank_test(n=2, env=THROUGH_MPI | {"FARANDOLE_MPI_THREAD_LEVEL": "funneled"})
def test_they_arrive_where_only_the_main_thread_may_communicate(fd):
    in_a_ring(fd)


def test_arrays_arrive_within_a_node_and_across():
    """Ranks 0 and 1 are on one node, 2 on another."""
    script = """
        import os
        os.environ["FARANDOLE_NODE"] = "ab"[rank_number() // 2]
        import farandole as fd
        from test_channels import in_a_ring
        fd.init()
        in_a_ring(fd)
        fd.barrier()
    """
    run_ranks(3, script, launcher="farandole", env={"PYTHONPATH": str(Path(__file__).parent)}, timeout=60)


@rank_test(n=2)
def test_messages_of_one_name_keep_their_order(fd):
    if fd.rank() == 0:
        handles = [fd.send_async(np.full(1 + 3_000 * (i % 2), i), 1, "same") for i in range(20)]
        assert [fd.synchronize(handle) for handle in handles] == [None] * 20
    else:
        assert [int(fd.receive(0, "same")[0]) for _ in range(20)] == list(range(20))


@rank_test(n=2)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "complex128", ">f4"])
def test_any_type_of_numbers_and_any_shape_arrives(fd, dtype):
    import ml_dtypes  # noqa: F401  (it gives bfloat16 its name)

    for shape in ((), (3,), (2, 0, 4), (70, 90)):
        array = awkward(int(np.prod(shape)), "uint8").reshape(shape).astype(np.dtype(dtype))
        if fd.rank() == 0:
            fd.send(array[..., ::-1] if array.ndim else array, 1, "typed")
        else:
            got = fd.receive(0, "typed")
            assert got.dtype == array.dtype and got.shape == shape
            assert got.tobytes() == np.ascontiguousarray(array[..., ::-1] if array.ndim else array).tobytes()


@rank_test(n=2)
def test_an_array_is_received_where_it_is_wanted(fd):
    if fd.rank() == 0:
        fd.send(awkward(20_000), 1, "into")
        return
    room = np.zeros((2, 20_000), np.float32)
    assert fd.receive(0, "into", out=room[1]).base is room
    assert (room[1] == awkward(20_000)).all() and not room[0].any()
    with pytest.raises(SettingsError, match="contiguous"):
        fd.receive(0, "into", out=room[:, 3])


def misfit(fd, count):
    """Both ranks hear of it, where the sender still waits; and the next message is received."""
    if fd.rank() == 0:
        if count > 5_000:
            with pytest.raises(MismatchError, match=r"rank 0 sends float32 .*, rank 1 expects float64 of shape \(3,\)"):
                fd.send(np.zeros((count, 2), np.float32), 1, "x")
        else:
            fd.send(np.zeros((count, 2), np.float32), 1, "x")
        fd.send(np.arange(3.0), 1, "x")
    else:
        text = rf"channel.x.0-1: rank 0 sends float32 of shape \({count}, 2\), rank 1 expects float64 of shape \(3,\)"
        with pytest.raises(MismatchError, match=text):
            fd.receive(0, "x", like=np.zeros(3))
        assert fd.receive(0, "x", like=np.zeros(3)).tolist() == [0, 1, 2]


@rank_test(n=2)
@pytest.mark.parametrize("count", [2, 10_000])
def test_another_type_or_shape_than_expected_is_an_error_that_names_both(fd, count):
    misfit(fd, count)


@rank_test(n=2, env=THROUGH_MPI)
@pytest.mark.parametrize("count", [2, 10_000])
def test_another_type_or_shape_is_an_error_through_mpi_too(fd, count):
    misfit(fd, count)


@rank_test(n=2)
def test_what_cannot_be_sent_is_said_at_once(fd):
    with pytest.raises(SettingsError, match=r"send\(dest=2\): the world has ranks 0 to 1"):
        fd.send(np.zeros(1), 2, "x")
    with pytest.raises(SettingsError, match="name=''"):
        fd.receive(0, "")
    with pytest.raises(SettingsError, match="object"):
        fd.send(np.array([None]), 0, "x")


def while_the_sender_computes(fd):
    """It holds Python's lock the whole time, so that no thread of its process can help."""
    if fd.rank() == 0:
        handles = [fd.send_async(awkward(2_000_000), 1, f"large{i}") for i in range(2)]
        fd.barrier()
        held = np.ones(1_000)
        end = time.monotonic() + 1.0
        sort = sorted
        while time.monotonic() < end:
            sort(range(300_000), key=int)  # one call of C code
        held.sum()
        computed = time.monotonic()
        fd.send(np.array([computed]), 1, "computed")
        for handle in handles:
            fd.synchronize(handle)
    else:
        fd.barrier()
        for i in range(2):
            assert (fd.receive(0, f"large{i}") == awkward(2_000_000)).all()
        received = time.monotonic()
        assert received < fd.receive(0, "computed")[0]


@rank_test(n=2)
def test_a_receive_completes_while_its_sender_computes(fd):
    while_the_sender_computes(fd)


@rank_test(n=2)
def test_small_messages_that_nobody_receives_do_not_fill_memory(fd):
    """Beyond a window of them the sender waits until some are received."""
    count = 3_000
    if fd.rank() == 0:
        handles = [fd.send_async(np.full(500, i, np.float64), 1, "many") for i in range(count)]
        done = sum(map(fd.poll, handles))
        assert 0 < done < 400  # 4,000 bytes each, of 1 MiB
        fd.barrier()
        assert [fd.synchronize(handle) for handle in handles] == [None] * count
    else:
        fd.barrier()
        assert [int(fd.receive(0, "many")[7]) for _ in range(count)] == list(range(count))


@rank_test(n=2)
def test_large_messages_are_whole_whoever_comes_first(fd):
    """Both ranks copy where both are there, and neither touches the array once it is done."""
    rng = np.random.default_rng(fd.rank())
    kept = np.zeros(700_001, np.int64)
    for turn in range(40):
        time.sleep(float(rng.uniform(0, 1e-3)) if turn % 2 else 0.0)
        if fd.rank() == turn % 4 // 2:
            sent = awkward(kept.size, "int64") + turn
            fd.send(sent, 1 - fd.rank(), "large")
            sent[:] = -1
        else:
            fd.receive(1 - fd.rank(), "large", out=kept)
            assert (kept == awkward(kept.size, "int64") + turn).all()
            kept[:] = -2
            assert (kept == -2).all()


@rank_test(n=2)
def test_threads_receive_each_its_own(fd):
    me, peer = fd.rank(), 1 - fd.rank()
    found = {}

    def work(number):
        for turn in range(10):
            sent = awkward(200_000 + 3_000 * turn if number % 2 else 3_000, "int64") + 10 * number + turn
            got = fd.sendrecv(sent, peer, peer, f"thread{number}")
            found[number, turn] = (got == sent).all()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(found.values()) and me in (0, 1)


@rank_test(n=2, timeout=20)
def test_two_ranks_that_send_to_each_other_and_wait_are_told_so(fd):
    with pytest.raises(MismatchError, match=r"rank 0 waits in channel.a.0-1; rank 1 waits in channel.a.1-0"):
        fd.send(np.zeros(100_000), 1 - fd.rank(), "a")


def test_a_peer_that_died_ends_the_wait_with_its_name():
    script = """
        import os, numpy as np, farandole as fd
        from farandole.errors import RankFailedError
        fd.init()
        if fd.rank() == 2:
            os._exit(0)  # mpiexec lets the others go on
        try:
            if fd.rank() == 0:
                fd.receive(2, "x")
            else:
                fd.send(np.zeros(100_000), 2, "y")
        except RankFailedError as error:
            result(str(error))
            os._exit(0)
    """
    run = run_ranks(3, script, launcher_args=LEAVE_THE_OTHERS, timeout=40, expect=None)
    assert len(run.by_rank) == 2 and all("rank 2" in text and "died" in text for text in run.by_rank.values()), run


@pytest.mark.parametrize("env", [{}, THROUGH_MPI], ids=["direct", "mpi"])
def test_what_a_rank_has_not_sent_before_it_leaves_is_an_error_that_names_it(env):
    script = """
        import time, numpy as np, farandole as fd
        from farandole.errors import RankFailedError
        fd.init()
        if fd.rank() == 0:
            fd.send(np.ones(2), 1, "small")
            handle = fd.send_async(np.ones(100_000), 1, "large")
            fd.shutdown()
            time.sleep(2)
        else:
            time.sleep(0.5)
            assert fd.receive(0, "small").sum() == 2
            try:
                fd.receive(0, "large")
            except RankFailedError as error:
                result(str(error))
    """
    run = run_ranks(2, script, launcher="farandole", env=env, timeout=30)
    assert "rank 0" in run.by_rank[1] and "channel.large.0-1" in run.by_rank[1]


def test_channels_are_in_the_timeline(tmp_path):
    script = """
        import sys, numpy as np, farandole as fd
        fd.init()
        fd.start_timeline(sys.argv[1])
        if fd.rank() == 0:
            handles = [fd.send_async(np.ones(50_000), 1, "x") for _ in range(3)]
            fd.barrier()
            for handle in handles:
                fd.synchronize(handle)
        else:
            fd.barrier()
            for _ in range(3):
                fd.receive(0, "x")
        fd.stop_timeline()
    """
    path = tmp_path / "trace.json"
    run_ranks(2, script, args=[str(path)], launcher="farandole", timeout=30)
    events = json.loads(path.read_text())
    events = events if isinstance(events, list) else events["traceEvents"]
    sent = [event for event in events if event.get("name") == "SEND"]
    received = [event for event in events if event.get("name") == "RECEIVE"]
    assert len(sent) == len(received) == 3
    assert all(event["args"]["bytes"] == 400_000 and event["args"]["peer"] == 0 for event in received)
    lines = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {"channel.x.0-1", "channel.x.0-1 #2", "channel.x.0-1 #3"} <= lines


@rank_test(n=2)
def test_a_second_world_has_channels_of_its_own(fd):
    if fd.rank() == 0:
        fd.send(np.zeros(3), 1, "lost")  # nobody receives it
    fd.shutdown()
    fd.init()
    if fd.rank() == 0:
        fd.send(np.ones(3), 1, "lost")
    else:
        assert fd.receive(0, "lost").tolist() == [1, 1, 1]


# Tensors


def halves():
    import torch

    torch.manual_seed(3)
    return torch.nn.Linear(60, 90), torch.nn.Linear(90, 1)


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("order", ["as sent", "reversed"])
def test_a_model_in_two_halves_gets_the_gradients_of_the_whole(hvd, order):
    import torch

    first, second = halves()
    batches = [torch.randn(40, 60, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    sum(second(first(batch).relu()).square().mean() for batch in batches).backward()
    expected = [p.grad.clone() for p in (*first.parameters(), *second.parameters())]
    for parameter in (*first.parameters(), *second.parameters()):
        parameter.grad = None
    step = -1 if order == "reversed" else 1
    if hvd.rank() == 0:
        handles = [hvd.send_async(first(batch).relu(), 1, "hidden") for batch in batches]
        for sent in [hvd.synchronize(handle) for handle in handles][::step]:
            sent.backward()
        mine, theirs = first.parameters(), expected[:2]
    else:
        received = [hvd.receive(0, "hidden", like=torch.empty(40, 90)) for _ in batches]
        for hidden in received[::step]:
            second(hidden).square().mean().backward()
        mine, theirs = second.parameters(), expected[2:]
    for parameter, wanted in zip(mine, theirs):
        torch.testing.assert_close(parameter.grad, wanted)


@rank_test(n=2, door="torch")
def test_tensors_without_gradients_are_plain_ones_on_the_other_side(hvd):
    import torch

    for tensor in (torch.arange(5), torch.full((3, 700), 0.5, dtype=torch.bfloat16), torch.tensor(2.0)):
        if hvd.rank() == 0:
            assert hvd.send(tensor, 1, "plain") is None
            with torch.no_grad():
                assert hvd.send(torch.ones(3, requires_grad=True), 1, "not recorded") is None
        else:
            got = hvd.receive(0, "plain")
            assert got.dtype == tensor.dtype and torch.equal(got, tensor) and not got.requires_grad
            assert not hvd.receive(0, "not recorded").requires_grad
    got = hvd.sendrecv(torch.full((9_000,), hvd.rank()), 1 - hvd.rank(), 1 - hvd.rank(), "both")
    assert set(got.tolist()) == {1 - hvd.rank()}


@rank_test(n=2, door="torch")
def test_a_tensor_of_another_type_is_an_error(hvd):
    import torch

    if hvd.rank() == 0:
        hvd.send(torch.zeros(2), 1, "x")
    else:
        with pytest.raises(MismatchError, match=r"rank 0 sends float32 of shape \(2,\), rank 1 expects bfloat16 of shape \(2,\)"):
            hvd.receive(0, "x", like=torch.zeros(2, dtype=torch.bfloat16))


def test_gradients_reach_a_rank_that_comes_for_them_after_their_sender_has_ended():
    script = """
        import time, torch, farandole.torch as hvd
        hvd.init()
        x = torch.ones(50_000, requires_grad=True)
        if hvd.rank() == 0:
            sent = hvd.send(x * 2, 1, "x")
            time.sleep(1.5)
            sent.backward()
            result(float(x.grad.sum()))
        else:
            hvd.receive(0, "x").sum().backward()
    """
    assert run_ranks(2, script, launcher="farandole", timeout=40).by_rank[0] == 100_000
