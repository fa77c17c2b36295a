"""The MPI library of this environment: ranks load it, both launchers start them, and a wrong mpiexec is noticed.

`make test-more` runs this with MPICH, Open MPI and Intel MPI.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ranktest import run_ranks
from ranktest.job import Job, Launcher
from ranktest.library import MPIEXEC, make, mpiexec_command
from ranktest.processes import wait_until
from ranktest.segments import LIBRARIES as MADE_BY_MPI
from ranktest.segments import OURS, abandoned, segments
from repository import ROOT

LIBRARIES = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI"}
"""What mpiexec says it is, and what the library calls itself."""

TRAINS = """
import numpy as np, torch
import farandole.torch as hvd

hvd.init()
weights = torch.nn.Parameter(torch.zeros(300_000))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0))
for _ in range(3):
    optimizer.zero_grad()
    (weights * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
result([hvd.describe()["mpi"]["library"], rank_number(), hvd.rank(), hvd.size(), weights[::299_999].tolist()])
"""
DIES = """
import os
import farandole as fd

fd.init()
fd.barrier()
if fd.rank() == 1:
    os.kill(os.getpid(), 9)
fd.barrier()
"""
NOTES_ITS_WORLD = """
import os
import farandole as fd

fd.init()
with open(f"world.{os.getpid()}", "w") as note:
    note.write(str(fd.size()))
"""
ALONE = "import farandole as fd; fd.init(); print('training on', fd.size())"


@pytest.mark.parametrize("launcher", ["mpiexec", "farandole"])
def test_ranks_train_with_the_library_of_their_mpiexec(launcher: Launcher) -> None:
    library = LIBRARIES[make()]
    expected = [[library, rank, rank, 2, [-4.5, -4.5]] for rank in range(2)]
    assert run_ranks(2, TRAINS, launcher=launcher, timeout=120).results == expected


def test_a_killed_rank_is_named_and_nothing_is_left() -> None:
    run = run_ranks(2, DIES, launcher="farandole", timeout=30, expect=128 + signal.SIGKILL)
    assert "rank 1 failed: killed by SIGKILL" in run.stderr


def test_one_process_without_mpiexec_leaves_nothing() -> None:
    patterns = [OURS, *MADE_BY_MPI]
    before = segments(patterns)
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("training on 1\n", 0), done.stderr
    # A job of other tests, which run at the same time, may have left something that they are about to remove.
    assert wait_until(lambda: not abandoned(before, patterns, settle_s=0.0), 6.0)


def test_the_doctor_names_library_and_launcher() -> None:
    command = [sys.executable, "-m", "farandole", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, done.stdout
    assert found["mpi"]["library"] == LIBRARIES[make()]
    assert found["launcher"]["path"] == str(MPIEXEC)


def test_under_another_library_s_mpiexec_no_rank_trains_alone(tmp_path: Path) -> None:
    """MPICH and Intel MPI understand each other's mpiexec, Open MPI does not: there each rank would be a world."""
    others = [path for path in ROOT.glob(".venv*/bin/mpiexec") if path != MPIEXEC]
    if not others:
        pytest.skip("no other MPI is installed here. Type: make test-mpis")
    for number, other in enumerate(sorted(others)):
        workdir = tmp_path / str(number)
        workdir.mkdir()
        command = [*mpiexec_command(2, mpiexec=other), sys.executable, "-c", NOTES_ITS_WORLD]
        with Job(command, launcher="mpiexec", workdir=workdir, cwd=workdir, env={}) as job:
            assert job.wait(60.0), f"{other} hangs{job.output()}"
            assert job.leftovers() == []
        worlds = [int(note.read_text()) for note in workdir.glob("world.*")]
        assert 1 not in worlds, job.output()
        assert (worlds == [2, 2]) == (job.returncode == 0), f"{other}: {worlds}{job.output()}"
