"""When to save."""

import math
import os
import signal
import time

import pytest

from farandole.checkpoint import timing
from farandole.checkpoint.timing import Clock, SignalNotes, When, best_interval_s, end_of_job
from farandole.errors import SettingsError
from farandole.processes.tree import handles


def expected_loss(interval_s: float, save_s: float, failures_s: float) -> float:
    """Share of time that is lost to saves, failures and what has to be done again, for failures at random (Daly)."""
    segment_s = interval_s + save_s
    return failures_s * math.expm1(segment_s / failures_s) / interval_s - 1


@pytest.mark.parametrize(("save_s", "failures_s"), [(1, 3600), (60, 86400), (300, 7200), (0.1, 60)])
def test_no_other_interval_loses_noticeably_less(save_s: float, failures_s: float) -> None:
    chosen = expected_loss(best_interval_s(save_s, failures_s), save_s, failures_s)
    tried = [expected_loss(failures_s * 1.05**k / 1e4, save_s, failures_s) for k in range(200)]
    assert chosen <= 1.01 * min(tried)


def test_saves_that_cost_more_than_failures_are_not_made_all_the_time() -> None:
    assert best_interval_s(100, 10) == 10


@pytest.mark.parametrize("wish", [{"steps": 0}, {"seconds": -1}, {"epochs": 0}, {"seconds": 1, "failures_s": 2}])
def test_impossible_wishes_are_refused(wish) -> None:
    with pytest.raises(SettingsError, match=r"When\("):
        When(**wish)


def test_the_job_s_end_is_what_the_launcher_says_and_then_slurm() -> None:
    assert end_of_job({}) is None
    assert end_of_job({"SLURM_JOB_END_TIME": "1700000000"}) == 1.7e9
    assert end_of_job({"SLURM_JOB_END_TIME": "1700000000", "FARANDOLE_ENDS_AT": "5"}) == 5
    with pytest.raises(SettingsError, match="FARANDOLE_ENDS_AT='soon'"):
        end_of_job({"FARANDOLE_ENDS_AT": "soon"})


def test_a_save_is_due_after_its_interval() -> None:
    clock = Clock(When(seconds=0.05), 0)
    assert not clock.is_due()
    time.sleep(0.06)
    assert clock.is_due()
    clock.saved(0.0, 0.0)
    assert not clock.is_due()


def test_the_interval_follows_what_saves_cost() -> None:
    clock = Clock(When(failures_s=3600), 0)
    clock.saved(1.0, 1.0)
    cheap = clock.interval_s()
    clock.saved(100.0, 100.0)
    assert clock.interval_s() > 5 * cheap


def test_time_is_up_while_there_is_enough_left_to_save() -> None:
    clock = Clock(When(ends_at=time.time() + 60), 0)
    assert not clock.time_is_up()
    clock.saved(30.0, 30.0)
    assert clock.time_is_up()
    assert not Clock(When(), 1 << 40).time_is_up()


def test_a_save_that_is_not_on_disk_yet_is_not_taken_for_a_short_one() -> None:
    clock = Clock(When(ends_at=time.time() + 60), int(30 * timing._FIRST_SAVE_BYTES_S))
    assert clock.time_is_up()
    clock.saved(0.01, None)
    assert clock.time_is_up()
    clock.saved(0.01, 0.5)
    assert not clock.time_is_up()
    clock.saved(30.0, None)
    assert clock.time_is_up(), "it has waited for the one before"


def test_the_longest_time_without_a_meeting_may_come_again(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(timing.time, "monotonic", lambda: now)
    clock = Clock(When(ends_at=time.time() + 60), 0)
    clock.saved(70.0, 0.1)
    now += 75  # of which the save took 70
    clock.next_meeting(100)
    assert not clock.time_is_up()
    now += 54  # validation
    clock.next_meeting(0)
    now += 1
    clock.next_meeting(100)
    assert clock.time_is_up()


def test_ranks_meet_about_once_a_second() -> None:
    clock = Clock(When(), 0)
    time.sleep(0.02)
    assert clock.next_meeting(1) == 2  # one step of 20 ms: 50 a second, but not at once
    time.sleep(0.02)
    assert clock.next_meeting(100) == 200
    assert clock.next_meeting(10_000) == 1000
    time.sleep(1.1)
    assert clock.next_meeting(1) == 1


def test_signals_are_noted_and_a_later_sigterm_counts(monkeypatch) -> None:
    ended = []
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    notes = SignalNotes()
    try:
        notes.start()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (notes.take(), notes.take(), ended) == ({"SIGUSR1", "SIGTERM"}, set(), [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert (notes.take(), ended) == ({"SIGTERM"}, []), "launchers and batch systems may send it twice"
        monkeypatch.setattr(timing, "_SAME_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [1]
        notes.stop()
        assert ended == [1]
        monkeypatch.undo()
        notes = SignalNotes()
        notes.start()
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [1]
        notes.stop()
        assert ended == [1, 1], "a SIGTERM that nobody heeded"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_program_that_is_ending_is_still_one_whose_processes_the_launcher_leaves_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notes = SignalNotes()
    notes.start()
    try:
        notes.ignore()
        notes.stop()
        assert handles(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # another rank has been told first, and this one has saved with it
        assert notes.take() == set()
    finally:
        signal.signal(signal.SIGTERM, before)
