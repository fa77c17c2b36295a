"""The daemons of a cluster, from their start to their end, and the jobs in between."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farandole.processes.tree import die_with_parent
from ranktest import RanksFailed, RanksResult, run_ranks
from ranktest.processes import TAG, kill_tagged, wait_until
from slurmtest.configuration import NODES, write_configuration
from slurmtest.packages import program

__all__ = ["NODES", "Cluster", "ClusterFailed"]

START_S = 60.0
ANSWER_S = 30.0  # a command asks for 10 s before it gives up
END_S = 5.0
LOG_CHARACTERS = 2000
# Slurm 22.05 once took a request of MPICH's MPI_Init for two, and ranks got each other's addresses cut in the middle;
# it did not in the next 460 jobs. Nothing of ours has begun by then: such a job is started a second time.
MISREAD = "mpi/pmi2: invalid client request"


class ClusterFailed(AssertionError):
    """A daemon did not start."""


class Cluster:
    """munged, slurmctld and a slurmd for each node. Leaving the context ends them and whatever they run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tag = ".".join(filter(None, [os.environ.get(TAG), f"slurm-{uuid.uuid4().hex}"]))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        """What Slurm's commands need to find this cluster."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def srun(self, ranks: int, script: str, *options: str, mpi: str = "pmi2", **how: Any) -> RanksResult:
        """`ranks` ranks of a script, spread over both nodes; `how` as for `run_ranks`."""
        words = [program("srun"), f"--mpi={mpi}", *spread(ranks), *options]
        try:
            run = run_ranks(ranks, script, within=in_place_of_mpiexec(words), env=self.environment, **how)
        except RanksFailed as failure:
            if MISREAD not in str(failure):
                raise
        else:
            if MISREAD not in run.stderr:  # a test may expect the job to fail
                return run
        return run_ranks(ranks, script, within=in_place_of_mpiexec(words), env=self.environment, **how)

    def alone(self, ranks: int, script: str, **how: Any) -> RanksResult:
        """A script typed in an allocation for `ranks` ranks, without srun before it."""
        words = [program("salloc"), "--quiet", *spread(ranks)]
        return run_ranks(1, script, within=in_place_of_mpiexec(words), env=self.environment, **how)

    def launch(self, ranks: int, script: str, **how: Any) -> RanksResult:
        """`farandole launch` typed in an allocation for `ranks` ranks, spread over both nodes."""
        words = [program("salloc"), "--quiet", *spread(ranks)]
        return run_ranks(
            ranks, script, launcher="farandole", within=lambda command: [*words, *command],
            env=self.environment, **how,
        )  # fmt: skip

    def stop(self) -> None:
        """End the daemons, newest first, then every process that came from one of them."""
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(END_S)
        kill_tagged(self._tag)
        for daemon in self._daemons.values():
            daemon.wait()

    def _start(self) -> None:
        configuration = write_configuration(self._folder)
        files = [f"--{kind}-file={self._folder}/munged.{kind}" for kind in ("pid", "seed", "log")]
        key, munge_socket = self._folder / "munge.key", self._folder / "munge.socket"
        self._run("munged", "--foreground", f"--key-file={key}", f"--socket={munge_socket}", *files)
        self._wait_for("munged's socket", munge_socket.exists)
        self._run("slurmctld", "-D", "-f", str(configuration))
        for node in NODES:
            self._run("slurmd", "-D", "-f", str(configuration), "-N", node, name=node)
        self._wait_for("both nodes to be idle", lambda: self._idle_nodes() == len(NODES))

    def _run(self, command: str, *options: str, name: str = "") -> None:
        name = name or command
        with self._log(name).open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                [program(command), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._folder, env=os.environ | self.environment | {TAG: self._tag},
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def _wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        def settled() -> bool:
            return bool(self._ended()) or happened()

        if not wait_until(settled, START_S, every_s=0.1) or self._ended():
            raise ClusterFailed(f"waited for {what}; ended: {self._ended() or 'none'}{self._logs()}")

    def _idle_nodes(self) -> int:
        words = [program("sinfo"), "--noheader", "--Node", "--format=%t"]
        answer = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, timeout=ANSWER_S
        )
        return answer.stdout.split().count("idle")

    def _ended(self) -> list[str]:
        return [name for name, daemon in self._daemons.items() if daemon.poll() is not None]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.out"

    def _logs(self) -> str:
        texts = {name: self._log(name).read_text(errors="replace") for name in self._daemons}
        return "".join(f"\n--- {name}\n{text[-LOG_CHARACTERS:].rstrip()}" for name, text in texts.items())


def spread(ranks: int) -> list[str]:
    """The same number of ranks on every node."""
    return [f"--nodes={len(NODES)}", f"--ntasks-per-node={ranks // len(NODES)}"]


def in_place_of_mpiexec(words: Sequence[str]) -> Callable[[Sequence[str]], list[str]]:
    """The same script behind `words`."""
    return lambda command: [*words, *command[list(command).index(sys.executable) :]]
