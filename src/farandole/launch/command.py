"""A rank's command as a child process, with all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO

from farandole.processes.tree import (
    Ending,
    descendants,
    die_with_parent,
    handles,
    reap_orphans,
    send,
    terminate_descendants,
)

__all__ = ["GRACE_S", "Command"]

GRACE_S = 2.0
"""What a command gets between SIGTERM and SIGKILL."""


class Command:
    """Started on creation; OSError where it cannot be. `ending.tick()` must be called now and then."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        cores: set[int],
        reads: bool,
        capture: bool,
    ) -> None:
        """`cores` may be empty for any; `reads` leaves it our standard input, `capture` takes its output."""
        pipe = subprocess.PIPE if capture else None
        self.ending = Ending(lambda: self.poll() is not None, lambda: descendants(os.getpid()), GRACE_S)
        # MPI libraries talk to mpiexec over inherited descriptors: none may be closed.
        self._child = subprocess.Popen(
            words, stdin=None if reads else subprocess.DEVNULL, stdout=pipe, stderr=pipe,
            env=environment, close_fds=False, preexec_fn=partial(_prepare, os.getpid(), cores),
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def pipes(self) -> dict[str, IO[bytes]]:
        """The streams that are captured, by name."""
        pipes = {"stdout": self._child.stdout, "stderr": self._child.stderr}
        return {name: pipe for name, pipe in pipes.items() if pipe is not None}

    def poll(self) -> int | None:
        """As Popen's: None while it runs, -N for signal N."""
        reap_orphans(self.pid)
        return self._child.poll()

    def gone(self) -> bool:
        """True once neither it nor anything it started is left."""
        return self.poll() is not None and not descendants(os.getpid())

    def end(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM, SIGKILL after a while. An earlier appointment stands."""
        if not self.ending.begun:
            terminate_descendants(os.getpid())
        self.ending.begin(grace_s)

    def pass_on(self, number: int) -> None:
        """Signal those of its processes that handle it: others would be ended by it."""
        send((pid for pid in descendants(os.getpid()) if handles(pid, number)), number)


def _prepare(worker: int, cores: set[int]) -> None:
    """In the child, before the command takes its place."""
    die_with_parent()
    if os.getppid() != worker:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if cores:
        os.sched_setaffinity(0, cores)
