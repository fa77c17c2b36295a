"""A rank's command as a child process, with all that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO

from farandole.launch.processes import (
    descendants,
    die_with_parent,
    handles,
    reap_orphans,
    signal_descendants,
    terminate_descendants,
)

__all__ = ["GRACE_S", "NEVER", "Command"]

GRACE_S = 2.0
"""What a command gets between SIGTERM and SIGKILL."""
NEVER = float("inf")
_KILL_AGAIN_S = 0.5


class Command:
    """Started on creation; OSError where it cannot be. `tick()` must be called now and then."""

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
        self.kill_at = NEVER
        """When, on the monotonic clock, what is left of it will be killed."""
        self._rest_told = False
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
        if self.kill_at == NEVER:
            terminate_descendants(os.getpid())
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)

    def pass_on(self, number: int) -> None:
        """Signal those of its processes that handle it: others would be ended by it."""
        for pid in descendants(os.getpid()):
            if handles(pid, number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def tick(self) -> None:
        """Keep the appointment, and end what the command has left behind."""
        now = time.monotonic()
        if self.kill_at != NEVER and not self._rest_told and self.poll() is not None:
            self._rest_told = True
            signal_descendants(os.getpid(), signal.SIGTERM)
            self.kill_at = min(self.kill_at, now + GRACE_S)
        if now >= self.kill_at:
            # A process may have been started while its parent was being killed.
            left = signal_descendants(os.getpid(), signal.SIGKILL)
            self.kill_at = now + _KILL_AGAIN_S if left else NEVER


def _prepare(worker: int, cores: set[int]) -> None:
    """In the child, before the command takes its place."""
    die_with_parent()
    if os.getppid() != worker:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if cores:
        os.sched_setaffinity(0, cores)
