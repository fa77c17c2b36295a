"""The launcher itself is told to end, or is killed: all ranks end, and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ranktest.job import SUPPORT, Job, launch_command
from ranktest.processes import tagged, wait_until

SOON_S = 20.0
"""On a busy machine; ranks that nobody ends sleep for a minute."""

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import farandole
farandole.init()
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: Path(sys.argv[1], f"told.{farandole.rank()}").touch())
Path(sys.argv[1], f"part.{farandole.rank()}").write_text(str(os.getpid()))
Path(sys.argv[1], f"part.{farandole.rank()}").rename(Path(sys.argv[1], f"started.{farandole.rank()}"))
time.sleep(60)
"""


@contextmanager
def running(
    tmp_path: Path, ranks: int = 2, words: Sequence[str] = (), options: Sequence[str] = ()
) -> Iterator[Job]:
    """A job whose ranks have all started; it has to leave no process, segment or directory behind."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [*launch_command("farandole", ranks, options), sys.executable, str(script), str(tmp_path), *words]
    with TemporaryDirectory(prefix="fd") as tmpdir:
        with Job(
            command, launcher="farandole", workdir=tmp_path, cwd=tmp_path, env={"TMPDIR": tmpdir}
        ) as job:
            assert wait_until(lambda: len(list(tmp_path.glob("started.*"))) == ranks, 60.0), job.stderr
            yield job
            assert job.leftovers(SOON_S) == []
            # One process of Open MPI, killed, cannot remove the directories that mpiexec would.
            assert [path for path in Path(tmpdir).iterdir() if not path.match("ompi.*")] == []


def launcher(job: Job) -> int:
    """Of all processes of the job, our own child."""
    (pid,) = [pid for pid in tagged(job.tag) if parent(pid) == os.getpid()]
    return pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ended(job: Job, within_s: float) -> int | None:
    began = time.monotonic()
    assert job.wait(within_s), f"still running after {time.monotonic() - began:.1f} s"
    return job.returncode


@pytest.mark.parametrize(
    ("ranks", "number"), [(1, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM), (2, signal.SIGHUP)]
)
def test_a_signal_ends_all(tmp_path: Path, ranks: int, number: signal.Signals) -> None:
    with running(tmp_path, ranks) as job:
        os.kill(launcher(job), number)
        assert ended(job, SOON_S) == 128 + number
        assert f"farandole: {number.name}: all ranks were ended" in job.stderr
        assert "Traceback" not in job.stderr


def test_ranks_that_do_not_listen_are_killed_after_a_while(tmp_path: Path) -> None:
    with running(tmp_path, words=["stubborn"]) as job:
        os.kill(launcher(job), signal.SIGINT)
        assert ended(job, SOON_S) == 130


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with running(tmp_path, words=["stubborn"], options=["--grace", "60"]) as job:
        os.kill(launcher(job), signal.SIGINT)
        # Two signals that come before the first was seen are one.
        assert wait_until(lambda: len(list(tmp_path.glob("told.*"))) == 2, SOON_S)
        os.kill(launcher(job), signal.SIGINT)
        assert ended(job, SOON_S) == 130


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_launcher_leaves_nothing(tmp_path: Path, ranks: int) -> None:
    with running(tmp_path, ranks) as job:
        os.kill(launcher(job), signal.SIGKILL)
        assert ended(job, SOON_S) == -signal.SIGKILL


def test_a_stopped_rank_is_ended_as_well(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        for pid in [int(path.read_text()) for path in tmp_path.glob("started.*")]:
            os.kill(pid, signal.SIGSTOP)
        os.kill(launcher(job), signal.SIGTERM)
        assert ended(job, SOON_S) == 143


TALKING = """
import os, sys, time
from pathlib import Path
from onrank import rank_number
if rank_number() == 0:
    for _ in range(1000):
        print("x" * 999, flush=True)
    Path("all.said").write_text(str(os.getpid()))
elif "fail" in sys.argv:
    while not Path("all.said").exists():
        time.sleep(0.01)
    sys.exit(3)
time.sleep(60)
"""


@contextmanager
def unread(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher whose output nobody reads, once a rank has written more than a pipe takes."""
    script = tmp_path / "script.py"
    script.write_text(TALKING)
    command = [*launch_command("farandole", 2), sys.executable, str(script), *words]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        try:
            assert wait_until((tmp_path / "all.said").exists, SOON_S), "the launcher takes no more output"
            yield launcher
        finally:
            launcher.kill()


def test_a_terminal_that_takes_nothing_hides_no_ctrl_c(tmp_path: Path) -> None:
    with unread(tmp_path) as launcher:
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(SOON_S) == 130
        assert launcher.stderr is not None and b"SIGINT: all ranks were ended" in launcher.stderr.read()


def test_a_terminal_that_takes_nothing_hides_no_rank_that_fails_and_loses_no_line(tmp_path: Path) -> None:
    with unread(tmp_path, "fail") as launcher:
        other = int((tmp_path / "all.said").read_text())
        assert wait_until(lambda: not Path(f"/proc/{other}").exists(), SOON_S)
        said, told = launcher.communicate(timeout=SOON_S)
        assert launcher.returncode == 3
        assert said == (b"[0] " + b"x" * 999 + b"\n") * 1000
        assert b"rank 1 failed: exit code 3" in told
