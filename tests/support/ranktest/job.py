"""One launch of ranks: started with a tag, watched, ended whole, and searched for what it left behind."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from onrank import AS_SHIPPED, RESULTS_DIR
from ranktest.library import mpiexec_command
from ranktest.processes import TAG, describe, kill_tagged, tagged, wait_until
from ranktest.segments import LIBRARIES, OURS, abandoned, remove, segments

__all__ = ["Job", "Launcher", "RanksFailed", "RanksHang", "launch_command"]

Launcher = Literal["mpiexec", "farandole"]

SUPPORT = Path(__file__).resolve().parent.parent
LAUNCHER_VARIABLES = ("FARANDOLE_", "HOROVOD_", "PMI", "MPI_", "OMPI_", "PRTE_", "SLURM_", "HYDRA_")
LINGER_S = 2.0
SETTLE_S = 1.0
ANOTHER_S = 2.0
TAIL_CHARACTERS = 6000


class RanksFailed(AssertionError):
    """Ranks did not do what the test expected of them."""


class RanksHang(RanksFailed):
    """The job did not end in its time. `living`: the command lines of its processes then."""

    def __init__(self, message: str, living: Sequence[str]) -> None:
        super().__init__(message)
        self.living = list(living)


def launch_command(launcher: Launcher, ranks: int, options: Sequence[str] = ()) -> list[str]:
    """The words that start `ranks` ranks; the command to run follows them."""
    if launcher == "farandole":
        return [sys.executable, "-m", "farandole", "launch", "-n", str(ranks), *options, "--"]
    return mpiexec_command(ranks, options)


class Job:
    """A tree of processes that share a tag. Leaving the context ends every one of them."""

    def __init__(
        self, command: Sequence[str], *, launcher: Launcher, workdir: Path, cwd: Path, env: Mapping[str, str]
    ) -> None:
        self.command = list(command)
        self.workdir = workdir
        # A job within a job is part of it: a test may start pytest, which starts ranks.
        self.tag = ".".join(filter(None, [os.environ.get(TAG), uuid.uuid4().hex]))
        self.killed = False
        self.seconds = 0.0
        self._launcher = launcher
        self._cwd = cwd
        self._env = _environment(launcher, self.tag, workdir, env)

    def __enter__(self) -> Self:
        self._segments_before = segments([OURS, *LIBRARIES])
        self._started = time.monotonic()
        # Files, not pipes: a survivor that holds a pipe open would hold the test up as well.
        with self._output("stdout").open("wb") as stdout, self._output("stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                cwd=self._cwd, env=self._env, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def stdout(self) -> str:
        return self._output("stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._output("stderr").read_text(errors="replace")

    def wait(self, timeout_s: float) -> bool:
        """Wait for the launcher to end; False if it did not."""
        ended = wait_until(lambda: self.returncode is not None, timeout_s)
        self.seconds = time.monotonic() - self._started
        return ended

    def living(self) -> list[str]:
        """The job's processes that have not ended, in words."""
        return [describe(pid) for pid in tagged(self.tag)]

    def kill(self) -> None:
        """End every process of the job; nothing happens if all have ended."""
        if self._process.poll() is None or tagged(self.tag):
            self.killed = True
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        kill_tagged(self.tag)

    def leftovers(self, linger_s: float = LINGER_S) -> list[str]:
        """Processes and shared-memory files that outlived the job by `linger_s`, in words; they are removed."""
        wait_until(lambda: not tagged(self.tag), linger_s)
        survivors = [f"process {process}" for process in self.living()]
        kill_tagged(self.tag)
        return survivors + [f"shared memory {path}" for path in sorted(self._clear_segments())]

    def output(self) -> str:
        """Both streams, for a failure message."""
        streams = {"stdout": self.stdout, "stderr": self.stderr}
        return "".join(
            f"\n--- {name}\n{text[-TAIL_CHARACTERS:].rstrip()}" for name, text in streams.items() if text
        )

    def _clear_segments(self) -> set[Path]:
        """Remove what is left, and name what should not be.

        Plain mpiexec may leave the library's own files when a rank dies, our launcher may not; a job that was killed
        whole had no chance to clean up.
        """
        settle_s = 0.0 if self.killed else SETTLE_S
        left = abandoned(self._segments_before, [OURS, *LIBRARIES], settle_s)
        ours = left if self._launcher == "farandole" else {path for path in left if path.match(OURS)}
        if self.killed or not ours:
            remove(left)
            return set()
        # Another run of tests may be about to clear them away after a job of its own.
        wait_until(lambda: not any(path.exists() for path in ours), SETTLE_S + ANOTHER_S)
        ours = {path for path in ours if path.exists()}
        remove(left)
        return ours

    def _output(self, name: str) -> Path:
        return self.workdir / name


def _environment(launcher: Launcher, tag: str, workdir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without another launcher's traces, so that tests run alike inside an allocation."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    if AS_SHIPPED not in extra:
        if launcher == "mpiexec":  # our own launcher sets the threads itself
            env.setdefault("OMP_NUM_THREADS", "1")
        # Programs that run once: most of JAX's time would be LLVM's, on code that is fast already.
        env.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    env |= extra
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT), env.get("PYTHONPATH", "")]))
    return env | {TAG: tag, RESULTS_DIR: str(workdir)}
