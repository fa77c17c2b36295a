"""What a command that was signalled leaves behind: asked to end, then killed, and nothing else is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.processes.child import CannotStart, Child
from farandole.processes.tree import Family, end

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
# Starts one that ignores SIGTERM, in the same group or in a session of its own.
LEAVES_ONE = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {IGNORES!r}], stdout=subprocess.PIPE, start_new_session=sys.argv[1] == "away")
worker.stdout.readline()
print(worker.pid, flush=True)
worker.wait()
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("where", ["here", "away"])
@pytest.mark.parametrize("own_group", [True, False])
def test_a_worker_that_ignores_its_end_is_killed(where: str, own_group: bool) -> None:
    words = [sys.executable, "-c", LEAVES_ONE, where]
    group = 0 if own_group else None
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=group) as child:
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        begun = time.monotonic()
        end(child, grace_s=0.3)
        assert child.wait(30) == -signal.SIGTERM
        assert not runs(worker) and time.monotonic() - begun > 0.3


def test_what_its_parents_have_left_in_the_group_of_a_child_is_found() -> None:
    leaves = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {IGNORES!r}], stdout=subprocess.DEVNULL).pid, flush=True)"
    with subprocess.Popen([sys.executable, "-c", leaves], stdout=subprocess.PIPE, process_group=0) as child:
        assert child.stdout is not None
        left = int(child.stdout.readline())
        assert child.wait(30) == 0
        try:
            assert Family(child).running() == [left]
        finally:
            os.kill(left, signal.SIGKILL)


def test_a_child_that_has_ended_and_ours_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["true"]) as child:
        child.wait(30)
        end(child, grace_s=0.1)
        assert Family(child).running() == []
        assert other.poll() is None
        other.kill()


def test_an_error_meanwhile_ends_the_command_and_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)]
    with pytest.raises(ZeroDivisionError), Child(["sleep", "60"], own_group=True) as child:
        raise ZeroDivisionError
    assert child.wait() == -signal.SIGTERM
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)]


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/", 126)])
def test_what_cannot_be_started_says_so_and_handlers_are_put_back(program: str, code: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(CannotStart, match=f"{program}: ") as raised, Child([program]):
        pass
    assert raised.value.exit_code == code
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_kills_a_group_of_its_own_at_once() -> None:
    begun, (reader, writer) = time.monotonic(), os.pipe()
    with Child([sys.executable, "-c", IGNORES], own_group=True, stdout=writer) as child:
        assert os.read(reader, 1) == b"\n"
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == -signal.SIGKILL
    os.close(reader)
    os.close(writer)
    assert child.ended_by == signal.SIGTERM and time.monotonic() - begun < 10


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Child(["sleep", "0.2"], own_group=True) as child:
            os.kill(os.getpid(), signal.SIGHUP)
            assert child.wait(30) == 0
        assert child.ended_by == 0
    finally:
        signal.signal(signal.SIGHUP, before)
