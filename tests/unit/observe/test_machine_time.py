"""Whose processor time it was, and when a machine is busy."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.observe.machine_time import MachineTime, spread_of_steps, why_busy

STAT = "cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\n"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell")
def test_another_program_is_seen_and_our_own_is_not() -> None:
    machine = MachineTime()
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while machine.own_s() < 0.3:
            pass
    finally:
        other.kill()
        seen = machine.others_share(), machine.own_s()  # before it is waited for: until then it is no child of ours
        other.wait()
    share, own_s = seen
    assert share is not None and share > 0.05 and own_s >= 0.3
    assert machine.steal_share() is not None


def test_what_the_host_took_is_told_from_what_programs_took(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"user": 100, "steal": 50}
    monkeypatch.setattr(Path, "read_text", lambda *_: STAT.format(**shown))
    monkeypatch.setattr("os.sysconf", lambda _: 100)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    clock = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    machine = MachineTime(lambda: 0.0)
    clock[0], shown["user"], shown["steal"] = 20.0, 300, 450  # of 20 s: 2 s of programs, 4 s of the host
    assert (machine.others_share(), machine.steal_share()) == (0.1, 0.2)
    assert machine.others_share(own_s=1.5) == 0.025, "of all ranks of the node"


def test_a_system_that_counts_nothing_is_not_taken_for_a_quiet_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [0.0]
    monkeypatch.setattr(Path, "read_text", lambda *_: STAT.format(user=0, steal=0))
    machine = MachineTime(lambda: own[0])
    own[0] = 5.0
    assert machine.others_share() is None


def test_when_a_machine_is_busy() -> None:
    assert why_busy(None) == why_busy(0.03, 0.01, 0.1) == []
    assert why_busy(0.04, 0.03) == ["other programs took 4% and its host took 3% of its processor time"]
    assert why_busy(0.0, 0.0, 0.27) == ["the middle half of the steps spreads by 27%"]


def test_the_spread_is_that_of_the_middle_half() -> None:
    steps: dict[str, float | None] = {"p05": 0.1, "p25": 0.9, "p50": 1.0, "p75": 1.2, "max": 90.0, "count": 20}
    assert spread_of_steps(steps) == 0.3
    assert spread_of_steps(steps | {"count": 3}) is None
    assert spread_of_steps(dict.fromkeys(steps)) is None
