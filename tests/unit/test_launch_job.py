"""How a job ends: a launcher whose workers are threads of this test, and a worker whose launcher is the test."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farandole.launch.channel import Switchboard, call_launcher
from farandole.launch.job import Job
from farandole.launch.jobdir import JOB_DIR
from farandole.launch.link import Link
from farandole.launch.messages import Cleaned, Ended, Hello, Orders, Place, Release, Stop
from farandole.processes.signals import Signals

ORDERS = Orders(command=["true"], variables={}, threads=None, bind="none", tune=False, capture=False, grace_s=1.0)


class Standin:
    """A worker whose command ends at once; what `clean_up` does is up to the test. mpiexec ends with the first one."""

    def __init__(
        self, board: Switchboard, rank: int, clean_up: Callable[[Link], object], end_mpiexec: Callable[[], None]
    ) -> None:
        self.cleaned_at = self.hung_up_at = 0.0
        self._end_mpiexec = end_mpiexec
        self._thread = threading.Thread(target=self._work, args=(board.variables(), rank, clean_up))
        self._thread.start()

    def _work(self, variables: dict[str, str], rank: int, clean_up: Callable[[Link], object]) -> None:
        with call_launcher(variables) as link:
            link.send(Hello(Place(rank, 2, rank, 2, "here"), 1))
            assert isinstance(link.recv(), Orders)
            link.send(Ended(time.time()))
            assert isinstance(link.recv(), Release)
            clean_up(link)
            self.cleaned_at = time.monotonic()  # before it is said: the launcher may hang up at once
            with contextlib.suppress(EOFError, OSError):
                link.send(Cleaned())
                link.recv()
            self.hung_up_at = time.monotonic()
        self._end_mpiexec()

    def join(self) -> None:
        self._thread.join(timeout=10.0)
        assert not self._thread.is_alive()


def run_job(folder: Path, *clean_ups: Callable[[Link], object]) -> list[Standin]:
    board = Switchboard(folder / "launcher")
    sink: Any = None
    with Signals() as signals, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as mpiexec:
        assert mpiexec.stdin is not None
        workers = [Standin(board, rank, clean_up, mpiexec.stdin.close) for rank, clean_up in enumerate(clean_ups)]
        job = Job(
            size=len(workers), orders=ORDERS, board=board, process=mpiexec, sink=sink, signals=signals,
            start_timeout_s=30.0, grace_s=1.0,
        )  # fmt: skip
        job.run()
        job.leave()
    for worker in workers:
        worker.join()
    return workers


def clean(link: Link) -> None:
    pass


def clean_late(link: Link) -> None:
    time.sleep(0.5)


def test_no_worker_leaves_before_all_hosts_are_clean(tmp_path: Path) -> None:
    quick, late = run_job(tmp_path, clean, clean_late)
    assert quick.cleaned_at < late.cleaned_at < quick.hung_up_at


def test_a_worker_that_is_killed_while_it_cleans_up_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    run_job(tmp_path, clean, lambda link: link.close())
    assert time.monotonic() - began < 2.5, "as long as one that never says anything is waited for"


HALF = b"\x00\x00\x10\x00" + bytes(40)


class Stalling(threading.Thread):
    """Two workers: rank 0 sends half a message and no more, then rank 1 does what the test wants; rank 0 goes when told to stop."""

    def __init__(self, board: Switchboard, then: Callable[[Link], object]) -> None:
        super().__init__()
        self._variables, self._then = board.variables(), then
        self.told: list[object] = []

    def run(self) -> None:
        with call_launcher(self._variables) as stalled, call_launcher(self._variables) as other:
            for rank, link in enumerate((stalled, other)):
                link.send(Hello(Place(rank, 2, rank, 2, "here"), 1))
                assert isinstance(link.recv(), Orders)
            os.write(stalled.fileno(), HALF)
            time.sleep(0.3)  # the launcher has begun to read
            self._then(other)
            self.told.append(stalled.recv())


def stalled_job(folder: Path, then: Callable[[Link], object]) -> tuple[Job, list[object]]:
    board = Switchboard(folder / "launcher")
    workers = Stalling(board, then)
    sink: Any = None
    with Signals() as signals, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as mpiexec:
        workers.start()
        job = Job(
            size=2, orders=ORDERS, board=board, process=mpiexec, sink=sink, signals=signals, start_timeout_s=30.0, grace_s=1.0
        )  # fmt: skip
        job.run()
        job.leave()
        workers.join()
    return job, workers.told


def test_half_a_message_hides_no_rank_that_fails(tmp_path: Path) -> None:
    job, told = stalled_job(tmp_path, lambda link: link.send(Ended(time.time(), code=3)))
    assert job.cause is not None
    assert (job.cause.number, job.cause.exit_code) == (1, 3)
    assert [type(order) for order in told] == [Stop]


def test_half_a_message_hides_no_ctrl_c(tmp_path: Path) -> None:
    job, told = stalled_job(tmp_path, lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert job.interrupted_by == signal.SIGINT
    assert told == [Stop(1.0)]


def heard(link: Link, kind: type[Any]) -> None:
    while not isinstance(link.recv(), kind):
        pass


def test_a_worker_stays_until_its_launcher_hangs_up(tmp_path: Path) -> None:
    board = Switchboard(tmp_path / "launcher")
    variables = os.environ | board.variables() | {JOB_DIR: str(tmp_path / "job")}
    with subprocess.Popen([sys.executable, "-m", "farandole.launch.worker"], env=variables) as worker:
        while not (callers := board.accept()):
            time.sleep(0.01)
        (link,) = callers
        with link:
            link.send(ORDERS)
            heard(link, Ended)
            link.send(Release())
            heard(link, Cleaned)
            assert not (tmp_path / "job").exists()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=0.5)
            assert worker.poll() is None
        assert worker.wait(timeout=5.0) == 0
    board.close()
