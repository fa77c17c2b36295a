"""Signals to the launcher of a job that keeps checkpoints: the ranks save, and none is ended by mistake."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farandole.checkpoint.folder import entries
from ranktest.job import Job, launch_command
from ranktest.processes import tagged, wait_until

SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
import farandole as fd
from farandole.checkpoint import Checkpointer, When
fd.init()
deaf = subprocess.Popen(["sleep", "60"])  # a process the script needs, which any signal would end
if sys.argv[1] == "slow":
    # The last save takes longer than what ranks have without --grace.
    fsync, first = os.fsync, iter([3.0])
    os.fsync = lambda handle: (time.sleep(next(first, 0.0) if Path("started.0").exists() else 0.0), fsync(handle))
checkpointer = Checkpointer("run", {}, when=When() if sys.argv[1] != "deaf" else When(signals=False))
try:
    while not fd.broadcast_object(Path("enough").exists()):  # the same step on both ranks
        time.sleep(0.01)
        checkpointer.step()
        if checkpointer.progress.step == 5:
            Path(f"started.{fd.rank()}").touch()
    checkpointer.close()
finally:
    print("needed", deaf.poll(), flush=True)
    deaf.kill()
"""


@contextmanager
def running(folder: Path, word: str, *options: str) -> Iterator[Job]:
    (folder / "script.py").write_text(SCRIPT)
    # A shell between launcher and script: it handles no signal, and must be there until the script has ended.
    script = ["sh", "-c", f"{sys.executable} script.py {word}; exit $?"]
    command = [*launch_command("farandole", 2, options), *script]
    with Job(command, launcher="farandole", workdir=folder, cwd=folder, env={}) as job:
        assert wait_until(lambda: len(list(folder.glob("started.*"))) == 2, 60.0), job.stderr
        yield job
        assert job.stdout.count("needed None") == 2, job.output()
        assert job.leftovers() == []


def launcher(job: Job) -> int:
    """Of all processes of the job, our own child."""
    parents = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in tagged(job.tag)}
    return next(pid for pid, parent in parents.items() if int(parent) == os.getpid())


def saved(folder: Path) -> list[str]:
    return [entry.kind for entry in entries(folder / "run")]


def test_sigusr1_to_the_launcher_saves_and_the_job_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, "plain") as job:
        os.kill(launcher(job), signal.SIGUSR1)
        assert wait_until(lambda: saved(tmp_path) == [""], 20.0), job.stderr
        (tmp_path / "enough").touch()
        assert job.wait(20)
        assert job.returncode == 0, job.stderr


def test_ranks_that_do_not_handle_sigusr1_are_not_ended_by_it(tmp_path: Path) -> None:
    with running(tmp_path, "deaf") as job:
        os.kill(launcher(job), signal.SIGUSR1)
        (tmp_path / "enough").touch()
        assert job.wait(20)
        assert job.returncode == 0, job.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_told_to_end_has_its_grace_to_save(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "slow", "--grace", "30") as job:
        os.kill(launcher(job), number)
        assert job.wait(40)
        assert job.returncode == 128 + number
        assert "with everything saved in run" in job.stderr
        assert saved(tmp_path) == [""]
