"""Checkpoints of several ranks: everyone goes on from the same one, or everyone gets the same error."""

import contextlib
import errno
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from ranktest import rank_test, run_ranks, shared_folder


def quiet():
    """The harness has a use for signals itself."""
    from farandole.checkpoint import When

    return When(signals=False)


def message(call) -> str:
    from farandole.errors import CheckpointError

    with pytest.raises(CheckpointError) as caught:
        call()
    return str(caught.value)


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("background", [False, True])
def test_every_rank_goes_on_where_it_was(fd, background):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    weights = np.arange(5.0)
    own = {"seen": [fd.rank()], "window": np.full(2, fd.rank())}
    generator = np.random.default_rng(fd.rank())
    random.seed(fd.rank())
    np.random.seed(fd.rank())
    generator.normal()
    with Checkpointer(folder, {"w": {"w": weights}}, own={"own": own, "g": generator}, when=quiet()) as first:
        first.progress.step, first.progress.energy_j = 7, 12.5
        (first.async_save if background else first.save)({"loss": 0.25})
        expected = [random.random(), np.random.rand(), generator.random()]
        weights += 1
    state, mine = {"w": np.zeros(5)}, {}
    with Checkpointer(folder, {"w": state}, own={"own": mine, "g": generator}, when=quiet()) as second:
        found = second.restore()
        assert (found.step, found.ranks, found.metrics) == (7, fd.size(), {"loss": 0.25})
        assert (second.progress.step, second.progress.energy_j) == (7, 12.5)
        assert second.progress.train_s > 0
        assert state["w"].tolist() == [0, 1, 2, 3, 4]
        assert (mine["seen"], mine["window"].tolist()) == ([fd.rank()], [fd.rank()] * 2)
        assert [random.random(), np.random.rand(), generator.random()] == expected


@rank_test(n=[1, 2, 3])
def test_nothing_to_go_on_from(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder / "a" / "b", {}, when=quiet()) as checkpointer:
        assert checkpointer.restore() is None


@rank_test(n=[1, 2])
def test_all_ranks_use_the_one_before_a_damaged_one(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    state = {"value": 0}
    with Checkpointer(folder, {"state": state}, when=quiet()) as checkpointer:
        for step in (1, 2):
            state["value"] = checkpointer.progress.step = step
            checkpointer.save()
        if fd.rank() == 0:
            (folder / "00000002-step-2" / "state.json").write_text("{}")
        assert checkpointer.restore().step == 1
        assert state == {"value": 1}


@rank_test(n=[1, 2])
@pytest.mark.parametrize("background", [False, True])
def test_a_save_that_fails_fails_on_every_rank_and_the_next_works(fd, background):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {"state": {"w": np.ones(10)}}, when=quiet()) as checkpointer:
        pwrite = os.pwrite

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        os.pwrite = full
        try:
            if background:
                checkpointer.async_save()
                told = message(checkpointer.wait)
            else:
                told = message(checkpointer.save)
        finally:
            os.pwrite = pwrite
        assert "No space left on device" in told
        checkpointer.save()
        assert checkpointer.restore() is not None


@rank_test(n=[1, 2])
@pytest.mark.parametrize("background", [False, True])
def test_a_state_that_cannot_be_kept_is_named_on_every_rank(fd, background):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {"state": {"seen": {1, 2}}}, when=quiet()) as checkpointer:
        assert "state/seen is a set" in message(checkpointer.async_save if background else checkpointer.save)


@rank_test(n=[1, 2])
def test_a_save_in_the_background_that_fails_is_told_by_the_next_steps(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {"state": {"w": np.ones(10)}}, when=quiet()) as checkpointer:
        checkpointer.step()
        if fd.rank() == 0:
            checkpointer._store.write = lambda *_: [][0]
        checkpointer.async_save()

        def trains():
            for _ in range(3):
                time.sleep(0.1)
                checkpointer.step()

        assert "the save in the background has failed: IndexError" in message(trains)
        checkpointer.step()


@rank_test(n=[1, 2])
def test_no_rank_waits_for_a_first_one_that_fails(fd):
    from farandole.checkpoint import Checkpointer, store
    from farandole.checkpoint.store import Store

    class Broken:
        def state_dict(self):
            if fd.rank() == 0:
                raise ValueError("lost")
            return {}

        load_state_dict = None

    folder = shared_folder(fd)
    with Checkpointer(folder, {"broken": Broken()}, when=quiet()) as checkpointer:
        checkpointer.step()
        assert message(checkpointer.save) == "ValueError: lost"
    before, store.entries = store.entries, lambda _: [][0]
    try:
        assert "IndexError" in message(lambda: Checkpointer(folder, {}, when=quiet()))
        store.entries = before
        with Checkpointer(folder, {}, when=quiet()) as checkpointer:
            newest, Store.newest = Store.newest, lambda _: [][0]
            assert "IndexError" in message(checkpointer.restore)
            Store.newest = newest
    finally:
        store.entries = before


@rank_test(n=[1, 2])
def test_a_second_job_is_refused_on_every_rank(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {}, when=quiet()):
        assert f"writes checkpoints to {folder} already" in message(lambda: Checkpointer(folder, {}, when=quiet()))
    Checkpointer(folder, {}, when=quiet()).close()


@rank_test(n=[1, 2])
def test_a_training_from_the_start_does_not_push_out_another_s_checkpoints(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {"a": {}}, when=quiet()) as checkpointer:
        checkpointer.save()
    with Checkpointer(folder, {"a": {}, "b": {}}, when=quiet()) as checkpointer:
        assert "the newest is 00000001-step-0, which this training has not gone on from" in message(checkpointer.save)
        message(checkpointer.restore)
        assert "has not gone on from" in message(checkpointer.async_save)
    with Checkpointer(folder, {"a": {}}, when=quiet()) as checkpointer:
        checkpointer.restore()
        checkpointer.save()


@rank_test(n=[1, 2])
def test_a_part_the_checkpoint_lacks_is_named(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    with Checkpointer(folder, {"a": {}, "b": {}}, when=quiet()) as checkpointer:
        checkpointer.save()
    with Checkpointer(folder, {"a": {}, "c": {}}, when=quiet()) as checkpointer:
        assert "it has no 'c', only a, b" in message(checkpointer.restore)


@rank_test(n=3)
def test_sets_of_ranks_have_checkpoints_of_their_own(fd):
    from farandole.checkpoint import Checkpointer

    folder = shared_folder(fd)
    pair = fd.add_process_set([1, 2])
    if fd.rank() > 0:
        state = {"value": fd.rank()}
        with Checkpointer(folder, {"state": state}, when=quiet(), process_set=pair) as checkpointer:
            checkpointer.save()
            state["value"] = None
            assert checkpointer.restore().ranks == 2
        assert state["value"] == 1
    fd.remove_process_set(pair)


@rank_test(n=2)
def test_steps_epochs_and_seconds(fd):
    from farandole.checkpoint import Checkpointer, Keep, When
    from farandole.checkpoint.folder import entries

    folder = shared_folder(fd)

    def saved(when, background=False):
        place = folder / str(time.monotonic_ns()) if fd.rank() == 0 else None
        place = fd.broadcast_object(place)
        with Checkpointer(place, {}, when=when, keep=Keep(last=99), background=background) as checkpointer:
            for _ in range(3):
                for _ in range(4):
                    time.sleep(0.01 * fd.rank())
                    checkpointer.step()
                checkpointer.end_epoch()
        return [entry.step for entry in entries(place)]

    assert saved(When(steps=3, signals=False)) == [3, 6, 9, 12]
    assert saved(When(steps=5, signals=False), background=True) == [5, 10]
    assert saved(When(epochs=2, signals=False)) == [8]
    assert len(saved(When(seconds=0.03, signals=False))) >= 2
    assert saved(quiet()) == []
    fd.barrier()


def save_on(fd, folder):
    from farandole.checkpoint import Checkpointer

    random.seed(fd.rank())
    with Checkpointer(folder, {"w": {"w": np.arange(3)}}, own={"own": {"rank": fd.rank()}}, when=quiet()) as one:
        one.save()
    return random.random()


def restore_on(fd, folder):
    from farandole.checkpoint import Checkpointer

    random.seed(100 + fd.rank())
    state, own = {}, {"rank": None}
    with Checkpointer(folder, {"w": state}, own={"own": own}, when=quiet()) as one:
        assert one.restore().ranks != fd.size()
    return [state["w"].tolist(), own["rank"], random.random()]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_another_number_of_ranks(ranks, tmp_path: Path, before: int, after: int) -> None:
    """Ranks that were there draw on; those that are new draw as the script has told them to."""
    drawn = ranks(before, save_on, str(tmp_path / "run"))
    fresh = [random.Random(100 + rank).random() for rank in range(after)]
    expected = [[[0, 1, 2], rank if rank < before else None, (drawn + fresh)[rank] if rank < before else fresh[rank]] for rank in range(after)]
    assert ranks(after, restore_on, str(tmp_path / "run")) == expected


def spend(fd, machine, joules: float, seconds: float) -> None:
    """The counter of a machine that takes so much meanwhile; rank 0 turns it."""
    began, from_j = time.monotonic(), machine.second
    while (passed := time.monotonic() - began) < seconds:
        if fd.rank() == 0:
            machine.at(from_j + joules * passed / seconds)
        time.sleep(0.005)
    machine.at(from_j + joules)


@contextlib.contextmanager
def sampled(fd, root: Path):
    """By the meters below `root`."""
    from farandole.observe.power.session import forget_energy

    forget_energy()
    os.environ["FARANDOLE_POWER_ROOT"] = str(root)
    try:
        with fd.observe.energy("a life"):
            yield
    finally:
        del os.environ["FARANDOLE_POWER_ROOT"]
        forget_energy()


@rank_test(n=[1, 2])
def test_joules_go_on_after_a_resume_and_say_how_they_are_known(fd):
    from farandole.checkpoint import Checkpointer
    from powertree import Machine

    folder, root = shared_folder(fd), shared_folder(fd)
    machine = Machine(root / "meter" / str(fd.rank()))  # rank 0 samples, and reads its own
    machine.rapl("0", "package-0", lambda second: second)
    known = []

    def life(work) -> None:
        with Checkpointer(folder, {"state": {}}, when=quiet()) as checkpointer:
            checkpointer.restore()
            before = checkpointer.progress.energy_j
            work()
            checkpointer.save()
            progress = checkpointer.progress
            known.append((before, progress.energy_j, progress.energy_provenance, progress.energy_reason))
            found = checkpointer.restore()
            assert (found.energy_j, found.energy_provenance, found.energy_reason) == known[-1][1:]

    with sampled(fd, machine.root):
        life(lambda: spend(fd, machine, 2.0, 0.25))
        life(lambda: spend(fd, machine, 3.0, 0.25))
    (root / "model" / "proc").mkdir(parents=True, exist_ok=True)
    for name in ("stat", "meminfo"):
        shutil.copy(f"/proc/{name}", root / "model" / "proc" / name)
    with sampled(fd, root / "model"):
        life(lambda: time.sleep(0.2))
    life(lambda: None)
    (_, first, *how), (again, second, *_), (_, third, *modelled), (_, nothing, none, reason) = known
    assert how == ["measured-component", ""]
    assert (first, second) == (pytest.approx(2.0, rel=0.3), pytest.approx(5.0, rel=0.3)) and again == first
    assert third > second and modelled == ["modelled", ""], "what has modelled joules in it is modelled"
    assert (nothing, none) == (None, "none")
    assert reason.startswith("power was not sampled: ") and reason.endswith(f"; {third:,.1f} J (modelled) are of before")
    assert len(set(fd.allgather_object(known[-1]))) == 1
    for path in (folder, root):
        shutil.rmtree(path, ignore_errors=True)


LOOP = """
import os, signal, sys, time
import farandole as fd
from farandole.checkpoint import Checkpointer, When
fd.init()
state = {"value": 0}
checkpointer = Checkpointer("run", {"state": state}, when=When())
checkpointer.restore()
if "SIGTERM" in sys.argv and fd.rank() == 0:
    # The same signal reaches this rank later than the other, when it saves on account of it.
    fsync = os.fsync
    os.fsync = lambda handle: (os.kill(os.getpid(), signal.SIGTERM), fsync(handle))
while state["value"] < int(sys.argv[1]):
    state["value"] += 1
    if state["value"] == 30 and fd.rank() == 1 and len(sys.argv) > 2:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep(0.01)
    checkpointer.step()
checkpointer.close()
result([state["value"], checkpointer.progress.step])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_to_one_rank_saves_on_all(tmp_path: Path, name: str) -> None:
    from farandole.checkpoint.folder import entries

    run = run_ranks(2, LOOP, args=["200", name], cwd=tmp_path, timeout=60)
    (entry,) = entries(tmp_path / "run")
    assert 30 <= entry.step < 200
    if name == "SIGUSR1":
        assert run.results == [[200, 200]] * 2
        return
    assert run.by_rank == {}
    assert f"ended at step {entry.step} on account of the SIGTERM, with everything saved in run" in run.stderr
    again = run_ranks(2, LOOP, args=["220"], cwd=tmp_path, timeout=60)
    assert again.results == [[220, 220]] * 2
    assert f"going on from {tmp_path}/run/{entry.path.name} (step {entry.step}, epoch 0)" in again.stderr


def test_a_job_ends_before_its_time_is_up_and_goes_on_when_started_again(tmp_path: Path) -> None:
    from farandole.checkpoint.folder import entries

    options = ["--time-limit", "14"]
    run = run_ranks(
        2, LOOP, args=["100000"], launcher="farandole", launcher_args=options, cwd=tmp_path, timeout=60
    )
    assert "on account of the time limit, with everything saved in run. To go on, start the same" in run.stderr
    assert run.seconds < 14
    (entry,) = entries(tmp_path / "run")
    assert run_ranks(2, LOOP, args=[str(entry.step + 5)], cwd=tmp_path, timeout=60).results[0][0] == entry.step + 5
