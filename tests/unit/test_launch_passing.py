"""What a command that was signalled leaves behind: asked to end, then killed, and nothing else is."""

import signal
import subprocess
import sys
import time

from farandole.launch.passing import Process, end_all, pass_on
from farandole.launch.processes import started

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
LEAVES_ONE = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {IGNORES!r}], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
worker.wait()
"""


def test_a_worker_that_ignores_its_end_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVES_ONE], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        left = pass_on(child, signal.SIGTERM)
        assert {one.pid for one in left} == {child.pid, worker}
        assert child.wait(30) == -signal.SIGTERM
        assert [one.pid for one in left if one.runs] == [worker]
        begun = time.monotonic()
        end_all(left, grace_s=0.3)
        assert not any(one.runs for one in left) and time.monotonic() - begun > 0.3


def test_another_process_of_the_same_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        end_all([Process(child.pid, started(child.pid) - 1)], grace_s=0.1)
        assert child.poll() is None
        child.kill()


def test_a_child_that_has_ended_gets_no_signal() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait(30)
        assert pass_on(child, signal.SIGTERM) == pass_on(child, signal.SIGINT) == set()
