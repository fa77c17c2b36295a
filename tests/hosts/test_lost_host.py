"""A host that is gone: `farandole launch --restarts` goes on from the last checkpoint with the hosts that remain."""

import sys
from pathlib import Path

from hosts import Network
from ranktest.job import Job, launch_command
from ranktest.processes import describe, tagged, wait_until

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import farandole as fd
from farandole.checkpoint import Checkpointer, When

fd.init()
state = {"sum": np.zeros(3)}
checkpointer = Checkpointer("run", {"state": state}, when=When(steps=10))
checkpointer.restore()
while checkpointer.progress.step < 50:
    state["sum"] += fd.allreduce(np.ones(3), op=fd.Average, name="sum")
    checkpointer.step()
    if fd.size() == 2 and fd.rank() == 1 and checkpointer.progress.step == 25:
        Path("down").touch()
        if sys.argv[1] == "cut":
            time.sleep(600)
        # A host that goes down takes everything along: the rank, its worker, and what mpiexec has started there.
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
checkpointer.close()
print("ended", fd.size(), checkpointer.progress.step, state["sum"].tolist(), flush=True)
"""

# What mpiexec starts hosts with, until beta is down.
REMOTE_SHELL = """#!/bin/sh
case " $* " in *" beta "*) if [ -e {down} ]; then echo "connect to host beta: No route to host" >&2; exit 255; fi ;; esac
exec {ssh} "$@"
"""


def training(hosts: Network, folder: Path, how: str) -> Job:
    (folder / "train.py").write_text(SCRIPT)
    shell = folder / "shell"
    shell.write_text(REMOTE_SHELL.format(down=folder / "down", ssh=hosts.variables["HYDRA_LAUNCHER_EXEC"]))
    shell.chmod(0o755)
    options = ["--hosts", "alpha:1,beta:1", "--restarts", "2", "--start-timeout", "60"]
    command = [*launch_command("farandole", 2, options), sys.executable, "train.py", how]
    env = {**hosts.variables, "HYDRA_LAUNCHER_EXEC": str(shell), "FARANDOLE_HOST_SILENCE_SECONDS": "6"}
    return Job(hosts.on_head(command), launcher="farandole", workdir=folder, cwd=folder, env=env)


def check_it_went_on(job: Job) -> None:
    assert job.wait(90), job.output()
    assert job.returncode == 0, job.output()
    assert "it was saved by 2 ranks, this is a job of 1" in job.stderr
    assert "ended 1 50 [50.0, 50.0, 50.0]" in job.stdout


def test_a_host_that_went_down_is_left_out_once_it_cannot_be_reached(hosts: Network, tmp_path: Path) -> None:
    with training(hosts, tmp_path, "down") as job:
        check_it_went_on(job)
        assert "starting again (1 of 2 restarts)\n" in job.stderr
        assert "starting again (2 of 2 restarts) without beta, on 1 rank\n" in job.stderr
        # An mpiexec that cannot reach one host leaves its helper on the other, which soon gives up.
        assert not [pid for pid in tagged(job.tag) if "train.py" in describe(pid)]


def test_a_host_that_no_longer_answers_is_left_out(hosts: Network, tmp_path: Path) -> None:
    with training(hosts, tmp_path, "cut") as job:
        assert wait_until((tmp_path / "down").exists, 60), job.output()
        hosts.cut("beta")
        check_it_went_on(job)
        assert "starting again (1 of 2 restarts) without beta, on 1 rank\n" in job.stderr
        hosts.mend("beta")
        assert job.leftovers(15.0) == []
