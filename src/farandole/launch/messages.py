"""What launcher and workers say to each other.

    worker                     launcher
    Hello(place)         ->
                         <-    Orders
    Started(pid)         ->
    Output(stream, data) ->    any number of times
    Joined()             ->    the command has begun to start MPI
    Ended(...)           ->
                         <-    Stop at any moment: end the command, at once or with time to finish
                         <-    Release: all ranks have ended, clean up
    Cleaned()            ->
                               hangs up once all have cleaned up: whoever leaves first may have mpiexec kill the others

A worker that loses its launcher ends its command; a launcher that loses a worker ends the job.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Cleaned",
    "Ended",
    "Hello",
    "Joined",
    "Orders",
    "Output",
    "PassOn",
    "Place",
    "RankException",
    "Release",
    "Started",
    "Stop",
]


class Place(NamedTuple):
    """Where a rank is: in the job and on its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str


class Hello(NamedTuple):
    place: Place
    worker_pid: int


class Orders(NamedTuple):
    """What a worker runs, and how."""

    command: list[str]
    variables: dict[str, str]
    threads: int | None
    bind: str
    tune: bool
    capture: bool
    grace_s: float
    """What the command gets between SIGTERM and SIGKILL when a batch system ends the worker."""


class Started(NamedTuple):
    pid: int
    threads: int
    allocator: str


class Output(NamedTuple):
    stream: str
    data: bytes


class Joined(NamedTuple):
    pass


class RankException(NamedTuple):
    """An exception that ended a rank's script."""

    type: str
    message: str
    consequence: bool
    """It was raised because another rank had failed."""


class Ended(NamedTuple):
    """How a rank's command ended."""

    failed_at: float
    """Seconds since the epoch: when the exception was raised, otherwise when the process ended."""
    code: int = 0
    signal: int = 0
    unfinished: str = ""
    """Why an exit code of 0 is not a success; empty where it is."""
    problem: str = ""
    """Why the command could not be started or watched; empty where it could."""
    stopped: bool = False
    """The worker ended the command on the launcher's order."""
    left_at: float = 0.0
    """Seconds since the epoch: when it had ended its work in order; 0 if it had not."""
    exception: RankException | None = None
    stderr_tail: str = ""
    checkpoints: int = 0
    """How many it has written, elastic commits included."""

    @property
    def failed(self) -> bool:
        return bool(self.code or self.signal or self.unfinished or self.problem)


class Stop(NamedTuple):
    """End the command: SIGTERM, and SIGKILL when it still runs `grace_s` later."""

    grace_s: float


class PassOn(NamedTuple):
    """Send a signal to whatever handles it."""

    signal: int


class Release(NamedTuple):
    pass


class Cleaned(NamedTuple):
    """Nothing of the job is left on the worker's host but workers."""
