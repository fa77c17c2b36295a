"""The harness tells the truth: what failed, what hung, what was left behind."""

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranktest import RanksFailed, run_ranks
from ranktest.batch import run_function
from ranktest.job import Job
from ranktest.marker import AsShipped, RankSpec
from ranktest.processes import TAG, tagged

WITH_STANDIN = {"PYTHONPATH": str(Path(__file__).parent / "standin")}

BATCH = """
import os, time
import pytest
from ranktest import rank_test

@rank_test(n=[1, 2])
def test_passes(fd):
    assert 0 <= fd.rank() < fd.size()

@rank_test(n=2)
@pytest.mark.parametrize("wrong_rank", [0, 5])
def test_fails_on_one_rank(fd, wrong_rank):
    assert fd.rank() != wrong_rank

@rank_test(n=2)
def test_fails_while_its_peer_waits(fd):
    assert fd.rank() + 40 == 40
    fd.barrier()

@rank_test(n=2, timeout=5.0)
def test_hangs(fd):
    if fd.rank() == 1:
        time.sleep(60)

@rank_test(n=2)
def test_ends_the_job(fd):
    os._exit(3)

@rank_test(n=2)
def test_leaves_nothing_of_the_others(fd):
    assert fd.size() == 2
"""

LEAKS = """
import os, threading, time

def test_thread():
    threading.Thread(target=time.sleep, args=(3,), name="forgotten", daemon=True).start()

def test_files():
    global kept
    kept = [open("/dev/zero") for _ in range(9)]

def test_variable():
    os.environ["LEFT_BEHIND"] = "1"

def test_directory():
    os.chdir("/")

def test_clean():
    assert os.getcwd() != "/"
"""


def pytest_on(source: str, directory: Path) -> str:
    """What pytest prints about a test file of this source."""
    (directory / "test_inner.py").write_text(source)
    options = [
        "-p",
        "ranktest.plugin",
        "-p",
        "ranktest.leaks",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--rootdir=.",
    ]
    command = [sys.executable, "-m", "pytest", *options, "test_inner.py"]
    with Job(command, launcher="mpiexec", workdir=directory, cwd=directory, env=WITH_STANDIN) as job:
        assert job.wait(150), job.output()
        assert job.leftovers() == []
        return job.stdout


@pytest.fixture(scope="module")
def batch_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pytest_on(BATCH, tmp_path_factory.mktemp("batch"))


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_passes[n1]", "PASSED"),
        ("test_passes[n2]", "PASSED"),
        ("test_fails_on_one_rank[0-n2]", "FAILED"),
        ("test_fails_on_one_rank[5-n2]", "PASSED"),
        ("test_fails_while_its_peer_waits[n2]", "FAILED"),
        ("test_hangs[n2]", "FAILED"),
        ("test_ends_the_job[n2]", "FAILED"),
        ("test_leaves_nothing_of_the_others[n2]", "PASSED"),
    ],
)
def test_each_function_of_a_batch_has_its_own_outcome(batch_report: str, name: str, outcome: str) -> None:
    assert f"{outcome} test_inner.py::{name}" in batch_report


def test_a_failure_shows_the_rank_the_traceback_and_the_values(batch_report: str) -> None:
    assert "test_fails_while_its_peer_waits[n2] on 2 ranks failed on rank 1" in batch_report
    assert "assert fd.rank() + 40 == 40" in batch_report
    assert "assert (1 + 40) == 40" in batch_report


def test_a_hang_shows_where_each_rank_was(batch_report: str) -> None:
    report = batch_report.split("test_hangs[n2] on 2 ranks hung")[1]
    assert "rank 0: had finished it" in report
    assert "rank 1: was in it" in report
    assert "in test_hangs" in report


def test_a_function_that_ends_the_job_is_named(batch_report: str) -> None:
    assert "test_ends_the_job[n2] on 2 ranks ended the job with exit code 3" in batch_report


def test_ranks_that_cannot_start_fail_every_function_of_the_batch(tmp_path: Path) -> None:
    report = pytest_on(BATCH.replace("n=2", 'n=2, door="keras"'), tmp_path)
    assert report.count("2 ranks could not start") >= 5
    assert "No module named 'farandole.keras'" in report


def test_leaks_fail_the_test_that_made_them(tmp_path: Path) -> None:
    report = pytest_on(LEAKS, tmp_path)
    for leak in (
        "thread forgotten",
        "open file /dev/zero",
        "variable LEFT_BEHIND",
        "working directory /, was",
    ):
        assert leak in report
    assert "PASSED test_inner.py::test_clean" in report
    assert "4 errors" in report


def greets(fd: Any, greeting: str) -> tuple[str, int]:
    return greeting, fd.rank()


def test_one_function_on_ranks(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(3, greets, "hello", env=WITH_STANDIN) == [["hello", rank] for rank in range(3)]


def test_a_function_that_ranks_cannot_import_is_refused(ranks: Callable[..., list[Any]]) -> None:
    with pytest.raises(ValueError, match="top of the test file"):
        ranks(1, lambda fd: None)


def test_a_script_hands_back_results_and_output() -> None:
    script = """
        import os, sys
        os.write(1, f"to stdout {sys.argv[1:]}\\n".encode())
        result({"rank": int(os.environ["PMI_RANK"])})
    """
    run = run_ranks(2, script, args=["--epochs", "3"])
    assert run.results == [{"rank": 0}, {"rank": 1}]
    assert run.stdout.count("to stdout ['--epochs', '3']") == 2


def test_an_unexpected_exit_code_shows_what_the_ranks_said() -> None:
    script = "import sys; sys.exit('out of cheese')"
    with pytest.raises(RanksFailed, match=r"(?s)exit code 1, expected 0.*out of cheese"):
        run_ranks(1, script)
    assert run_ranks(1, script, expect=1).returncode == 1


def test_a_rank_without_a_result_is_named() -> None:
    run = run_ranks(2, "import os\nif os.environ['PMI_RANK'] == '0': result(1)")
    with pytest.raises(RanksFailed, match=r"ranks \[1\] of 2 gave no result"):
        _ = run.results


def test_a_script_that_hangs_is_killed_with_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = uuid.uuid4().hex
    monkeypatch.setenv(TAG, tag)
    script = "import subprocess; subprocess.run(['sleep', '60'], start_new_session=True)"
    with pytest.raises(RanksFailed, match=r"did not end within 1 s"):
        run_ranks(2, script, timeout=1)
    assert tagged(tag) == []


def test_a_process_left_behind_is_found_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = uuid.uuid4().hex
    monkeypatch.setenv(TAG, tag)
    script = """
        import subprocess
        subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    """
    with pytest.raises(RanksFailed, match=r"left behind: process \d+: sleep 60"):
        run_ranks(1, script)
    assert tagged(tag) == []


def test_shared_memory_left_behind_is_found_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not /dev/shm: tests that run at the same time would find it there as well, and remove it.
    monkeypatch.setattr("ranktest.segments.SHM", tmp_path)
    segment = tmp_path / f"farandole-{uuid.uuid4().hex}"
    with pytest.raises(RanksFailed, match=f"left behind: shared memory {segment}"):
        run_ranks(1, f"open({str(segment)!r}, 'w').close()")
    assert not segment.exists()


def test_shared_memory_that_another_job_uses_is_left_alone() -> None:
    segment = Path("/dev/shm") / f"farandole-{uuid.uuid4().hex}"
    other = subprocess.Popen(["bash", "-c", f"sleep 0.3; exec 3>{segment}; sleep 60"], start_new_session=True)
    try:
        run_ranks(1, f"import os, time\nwhile not os.path.exists({str(segment)!r}): time.sleep(0.01)")
        assert segment.exists()
    finally:
        other.kill()
        other.wait()
        segment.unlink(missing_ok=True)


def test_farandole_launch_starts_ranks_too() -> None:
    run = run_ranks(2, "import os; result(int(os.environ['PMI_SIZE']))", launcher="farandole")
    assert run.results == [2, 2]


def made_faster(fd: Any) -> list[bool]:
    import gc
    import os

    return [gc.get_threshold() != (700, 10, 10), any(type(finder).__name__ == "Delay" for finder in sys.meta_path), "XLA_FLAGS" in os.environ]


@pytest.mark.parametrize("n", [2, AsShipped(2)])
def test_ranks_as_shipped_are_not_made_faster(n: int) -> None:
    place = RankSpec(body=made_faster, door="numpy", env={}, timeout_s=30.0).place(n)
    found = run_function(n, made_faster, env=dict(place.env))
    assert found == [[not isinstance(n, AsShipped)] * 3] * 2
