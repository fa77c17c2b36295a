"""A host that is gone: `farandole launch --restarts` goes on from the last checkpoint with the hosts that remain."""

import sys
from pathlib import Path

from hosts import Network
from ranktest.job import Job, launch_command
from ranktest.processes import describe, tagged

SCRIPT = """
import os, signal, sys
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
        # A host that goes down takes everything along: the rank, its worker, and what mpiexec has started there.
        Path("down").touch()
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
checkpointer.close()
print("ended", fd.size(), checkpointer.progress.step, state["sum"].tolist(), flush=True)
"""

# What mpiexec starts hosts with, until beta is down.
REMOTE_SHELL = """#!/bin/sh
case " $* " in *" beta "*) if [ -e {down} ]; then echo "connect to host beta: No route to host" >&2; exit 255; fi ;; esac
exec {ssh} "$@"
"""


def test_a_host_that_is_gone_is_left_out(hosts: Network, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    shell = tmp_path / "shell"
    shell.write_text(REMOTE_SHELL.format(down=tmp_path / "down", ssh=hosts.variables["HYDRA_LAUNCHER_EXEC"]))
    shell.chmod(0o755)
    options = ["--hosts", "alpha:1,beta:1", "--restarts", "2", "--start-timeout", "20"]
    command = [*launch_command("farandole", 2, options), sys.executable, "train.py"]
    env = {**hosts.variables, "HYDRA_LAUNCHER_EXEC": str(shell)}
    with Job(hosts.on_head(command), launcher="farandole", workdir=tmp_path, cwd=tmp_path, env=env) as job:
        assert job.wait(90), job.output()
        assert job.returncode == 0, job.output()
        assert "starting again (1 of 2 restarts)\n" in job.stderr
        assert "starting again (2 of 2 restarts) without beta, on 1 rank\n" in job.stderr
        assert "it was saved by 2 ranks, this is a job of 1" in job.stderr
        assert "ended 1 50 [50.0, 50.0, 50.0]" in job.stdout
        # An mpiexec that cannot reach one host leaves its helper on the other, which soon gives up.
        assert not [pid for pid in tagged(job.tag) if "train.py" in describe(pid)]
