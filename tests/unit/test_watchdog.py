"""Who waits for whom: the decisions of the watchdog."""

import os
import pickle
import subprocess
import sys

import pytest

from farandole.comm.bytes.waiting import Subject, slow_waits
from farandole.comm.node.neighbours import alive
from farandole.comm.world.lifelines import Lifelines
from farandole.comm.world.reports import (
    DEADLOCK_S,
    Farewell,
    Report,
    ReportedWait,
    deadlocked,
    departed_ranks,
    missing_ranks,
)
from farandole.comm.world.stall_settings import StallSettings
from farandole.comm.world.watchdog import Watchdog
from farandole.errors import SettingsError

LONG = DEADLOCK_S + 1


def waits(key, *, members=(0, 1), seconds=LONG, missing=None, blocking=True):
    return ReportedWait(key, seconds, members, missing, blocking)


def report(*found, pending=(), done=(), threads=1):
    return Report(tuple(found), frozenset(pending) | {wait.key for wait in found}, frozenset(done), threads)


def test_ranks_in_two_operations_that_need_both_are_deadlocked():
    reports = {0: report(waits("gradients.SGD#3")), 1: report(waits("allreduce.loss"))}
    assert {rank: wait.key for rank, wait in deadlocked(reports).items()} == {
        0: "gradients.SGD#3",
        1: "allreduce.loss",
    }


def test_a_circle_over_process_sets_is_deadlocked_and_a_chain_is_not():
    circle = {
        0: report(waits("a", members=(0, 1))),
        1: report(waits("b", members=(1, 2))),
        2: report(waits("c", members=(2, 0))),
    }
    assert sorted(deadlocked(circle)) == [0, 1, 2]
    chain = circle | {2: report()}  # rank 2 still computes, and will come
    assert deadlocked(chain) == {}


@pytest.mark.parametrize(
    "other",
    [
        report(waits("allreduce.loss", seconds=DEADLOCK_S / 2)),  # has just come
        report(),  # computes
        report(waits("allreduce.loss", blocking=False)),  # asynchronous: its thread is elsewhere
        report(waits("allreduce.loss"), waits("barrier.1")),  # two threads: one may come to help
        report(waits("allreduce.loss"), threads=2),  # the other thread computes, and may come
        report(waits("allreduce.loss"), pending=["gradients.SGD#3"]),  # takes part in both
        report(waits("gradients.SGD#3")),  # waits for the same
        report(waits("allreduce.loss"), done=["gradients.SGD#3"]),  # has sent its part
    ],
    ids=["new", "computing", "asynchronous", "two threads", "one computes", "announced", "same", "done"],
)
def test_ranks_that_may_still_meet_are_not_deadlocked(other):
    assert deadlocked({0: report(waits("gradients.SGD#3")), 1: other}) == {}


def test_several_threads_may_wait_in_one_operation():
    step = [waits("gradients.SGD#3", seconds=LONG + n) for n in range(3)]
    assert sorted(deadlocked({0: report(*step), 1: report(waits("allreduce.loss"))})) == [0, 1]


def test_nobody_is_missing_where_the_data_is_on_its_way():
    gather = waits("allgather.x", members=(0, 1, 2), missing=())
    assert missing_ranks(gather, {}) == []
    others = {rank: report(waits("barrier.1", members=(0, 1, 2))) for rank in (0, 2)}
    assert deadlocked({1: report(gather)} | others) == {}


def test_a_rank_that_has_done_its_part_may_leave():
    moving, step = waits("allgather.x", missing=()), waits("gradients.SGD#3")
    left_well = {1: Farewell("has exited", report(done=["gradients.SGD#3"]))}
    assert departed_ranks(moving, {}, left_well) == departed_ranks(step, {}, left_well) == []
    left_before = {1: Farewell("has exited", report(pending=["allgather.x"], done=["gradients.SGD#2"]))}
    assert departed_ranks(moving, {}, left_before) == departed_ranks(step, {}, left_before) == [1]


def test_who_is_missing():
    reports = {0: report(waits("x")), 1: report(pending=["x"]), 2: report(waits("y"))}
    assert missing_ranks(waits("x", members=(0, 1, 2, 3)), reports) == [2, 3]
    assert missing_ranks(waits("x", members=(0, 1, 2, 3), missing=(1,)), reports) == [1]  # knows better


class FromRank0:
    """Rank 1 of 4: a transport on which nothing comes but these messages of rank 0."""

    rank, size, any_thread = 1, 4, True

    def __init__(self, *messages):
        self.inbox = [(0, pickle.dumps(message)) for message in messages]

    def send_message(self, data, dest, tag):
        return self

    def test(self):
        return True

    def poll_message(self, tag):
        return self.inbox.pop(0) if self.inbox else None


@pytest.fixture
def waiting():
    """Makes slow waits of this process; returns what each was ended with."""
    entries = []

    def enter(*subjects):
        entries.extend(slow_waits.enter(subject, 0.0, None) for subject in subjects)
        return lambda: [entry.error and type(entry.error).__name__ for entry in entries]

    yield enter
    for entry in entries:
        slow_waits.leave(entry)


def test_waits_without_rank_0_go_on_when_it_ends(waiting):
    errors = waiting(Subject("allreduce.loss", (0, 1, 2, 3)), Subject("set 1: allreduce.loss", (1, 2)))
    farewell = FromRank0(("left", None, Farewell("has exited", report())))
    watchdog = Watchdog(farewell, {}, Lifelines({}), list, list, StallSettings())
    watchdog.check()  # hears of it
    watchdog.check()
    assert errors() == ["RankFailedError", None]


def test_only_waits_for_a_neighbour_that_died_end_with_it(waiting):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    errors = waiting(Subject("set 1: barrier.1", (1, 2)), Subject("set 2: barrier.1", (1, 3)))
    Watchdog(FromRank0(), {3: child.pid}, Lifelines({}), list, list, StallSettings()).check()
    assert errors() == [None, "RankFailedError"]


def settings(monkeypatch, **variables):
    for name in list(os.environ):
        if "STALL" in name:
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return StallSettings.from_environment()


def test_settings_come_from_the_environment(monkeypatch):
    assert settings(monkeypatch) == StallSettings(warn_s=60, abort_s=0)
    old = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}
    assert settings(monkeypatch, **old) == StallSettings(warn_s=5, abort_s=9)
    assert settings(monkeypatch, **old, FARANDOLE_STALL_CHECK_TIME_SECONDS="2.5").warn_s == 2.5
    assert settings(monkeypatch, **old, HOROVOD_STALL_CHECK_DISABLE="1").warn_s == 0


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_settings_that_cannot_work_are_refused(monkeypatch, text):
    with pytest.raises(SettingsError, match="seconds"):
        settings(monkeypatch, FARANDOLE_STALL_CHECK_TIME_SECONDS=text)


def test_processes_that_are_gone_or_zombies_are_dead():
    assert alive(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert alive(child.pid)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked
    assert not alive(child.pid)
    child.wait()
    assert not alive(child.pid)
