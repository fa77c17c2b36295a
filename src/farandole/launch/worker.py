"""One rank's worker: starts the command, passes its output on, says how it ended, and leaves nothing behind.

It lives between mpiexec and the command, and does what it does on the launcher's orders (see messages.py).
It leaves with exit code 0 whatever happened: how a job ends is the launcher's to say, not mpiexec's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from farandole.launch.binding import cores_for
from farandole.launch.channel import ADDRESS, KEY, call_launcher
from farandole.launch.command import GRACE_S, Command
from farandole.launch.environment import ALLOCATOR_VARIABLES, rank_environment, rank_threads
from farandole.launch.jobdir import JOB_DIR, LAUNCH_RANK, JobDir
from farandole.launch.link import Link
from farandole.launch.messages import (
    Cleaned,
    Ended,
    Hello,
    Joined,
    Orders,
    Output,
    PassOn,
    Place,
    Release,
    Started,
    Stop,
)
from farandole.launch.place import find_place
from farandole.launch.pmi import PmiRelay
from farandole.launch.segments import mapped_segments, remove_abandoned
from farandole.processes.tree import NEVER, adopt_orphans, descendants

__all__ = ["main"]

_TICK_S = 0.05
_NEIGHBOURS_S = 1.0
_HANG_UP_S = 10.0
_CHUNK = 65536
_PIPE_BYTES = 1 << 20
_TAIL_BYTES = 8192
_FIRST_SAMPLE_S, _LONGEST_SAMPLE_S = 0.05, 60.0


def main() -> None:
    environment = dict(os.environ)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A batch system may send it to every process of the job.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    place = find_place(environment)
    try:
        link = call_launcher(environment)
        link.send(Hello(place, os.getpid()))
        orders = link.recv()
    except (OSError, EOFError) as error:
        JobDir(Path(environment[JOB_DIR])).remove()
        # A launcher that runs shows what mpiexec prints; one that was killed has closed the pipe.
        with contextlib.suppress(BrokenPipeError):
            print(f"rank {place.rank} on {place.host} cannot reach its launcher: {error}", flush=True)
        return
    Worker(link, place, orders, environment).run()


class Worker:
    """A loop over the command's output, the launcher's orders, MPI's line to mpiexec, and time."""

    def __init__(self, link: Link, place: Place, orders: Orders, environment: Mapping[str, str]) -> None:
        self._link = link
        self._place = place
        self._orders = orders
        self._jobdir = JobDir(Path(environment[JOB_DIR]))
        self._environment = {name: value for name, value in environment.items() if name not in (ADDRESS, KEY)}
        self._relay = PmiRelay(environment)
        self._selector = selectors.DefaultSelector()
        self._command: Command | None = None
        self._tail = b""
        self._segments: set[str] = set()
        self._reported = self._released = self._stopped = self._signalled = False
        self._sample_at, self._sample_after_s = NEVER, _FIRST_SAMPLE_S

    def run(self) -> None:
        self._jobdir.ensure()
        self._watch_signals()
        self._watch(self._link, self._take_orders)
        self._start()
        self._take_orders()  # which may have come with the first
        while not self._finished():
            for key, _ in self._selector.select(self._patience_s()):
                key.data()
            self._advance()
        self._clean_up()
        self._wait_for_the_others()

    # Starting

    def _start(self) -> None:
        asked = self._orders.threads
        threads = rank_threads(asked, self._place.local_size, self._environment)
        added = rank_environment(threads, self._orders.tune, self._environment, asked=asked is not None)
        added |= self._orders.variables
        added |= {LAUNCH_RANK: str(self._place.rank)}
        added |= self._relay.hand_over()
        cores = cores_for(self._orders.bind, self._place.local_rank, self._place.local_size, threads)
        try:
            self._command = Command(
                self._orders.command, environment=self._environment | added, cores=cores,
                reads=self._place.size == 1, capture=self._orders.capture,
            )  # fmt: skip
        except OSError as error:
            self._report_problem(error)
            return
        self._relay.handed_over()
        self._watch_command(self._command)
        tuned = all(name in added for name in ALLOCATOR_VARIABLES)
        self._send(Started(self._command.pid, threads, "environment" if tuned else "off"))
        self._sample_at = time.monotonic() + self._sample_after_s

    def _report_problem(self, error: OSError) -> None:
        problem = f"cannot start {self._orders.command[0]!r}: {error.strerror}"
        code = 127 if isinstance(error, FileNotFoundError) else 126
        self._reported = True
        self._send(Ended(time.time(), code=code, problem=problem))

    # Watching

    def _watch(self, what: Any, then: Callable[[], object]) -> None:
        self._selector.register(what, selectors.EVENT_READ, then)

    def _watch_command(self, command: Command) -> None:
        for stream, pipe in command.pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._watch(pipe, partial(self._take_output, stream, pipe))
        for end in self._relay.sockets:
            self._watch(end, partial(self._pass_on, end))

    def _watch_signals(self) -> None:
        """SIGCHLD wakes the loop; SIGTERM and SIGHUP, from mpiexec or a batch system, end the command."""
        awake, wake = socket.socketpair()
        awake.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        self._watch(awake, partial(awake.recv, _CHUNK))

    def _note_signal(self, *_: object) -> None:
        self._signalled = True

    def _take_orders(self) -> None:
        try:
            orders = self._link.take()
        except (OSError, EOFError):
            self._lose_launcher()
            return
        for order in orders:
            self._follow(order)

    def _follow(self, order: object) -> None:
        if isinstance(order, Stop):
            self._stop(order.grace_s)
        if isinstance(order, PassOn) and self._command is not None:
            self._command.pass_on(order.signal)
        if isinstance(order, Release):
            self._released = True
            self._stop()

    def _take_output(self, stream: str, pipe: IO[bytes]) -> int:
        """Pass on what there is; how many bytes."""
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
            return 0
        if stream == "stderr":
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._send(Output(stream, data))
        return len(data)

    def _pass_on(self, end: socket.socket) -> None:
        joined = self._relay.joined
        if not self._relay.pass_on(end):
            self._selector.unregister(end)
        if self._relay.joined and not joined:
            self._send(Joined())
        if self._relay.abort_code is not None and self._command is not None:
            # It now waits for mpiexec to kill it.
            self._command.end(grace_s=0.0)
        # MPI makes its shared memory while it starts, after one of these messages.
        self._sample_after_s = _FIRST_SAMPLE_S
        self._sample_at = min(self._sample_at, time.monotonic() + _FIRST_SAMPLE_S)

    # Advancing

    def _patience_s(self) -> float | None:
        """How long the loop may sleep."""
        appointments = [self._sample_at]
        if self._command is not None:
            appointments.append(self._command.ending.kill_at)
        if self._released:
            appointments.append(time.monotonic() + _TICK_S)
        first = min(appointments)
        return None if first == NEVER else max(0.0, first - time.monotonic())

    def _advance(self) -> None:
        if self._command is None:
            return
        if self._signalled:
            self._signalled = False
            self._command.end(self._orders.grace_s)
        self._command.ending.tick()
        code = self._command.poll()
        if code is not None and not self._reported:
            self._report(self._command, code)
        elif code is None and time.monotonic() >= self._sample_at:
            self._sample(self._command)

    def _sample(self, command: Command) -> None:
        """Note the shared memory in use, so that it can be removed should the command be killed."""
        new = mapped_segments([command.pid, *descendants(command.pid)]) - self._segments
        if new:
            self._segments |= new
            self._jobdir.add_sampled(self._place.rank, new)
        self._sample_at = time.monotonic() + self._sample_after_s
        self._sample_after_s = min(2 * self._sample_after_s, _LONGEST_SAMPLE_S)

    def _report(self, command: Command, code: int) -> None:
        self._reported = True
        self._sample_at = NEVER
        for stream, pipe in command.pipes.items():
            self._drain(stream, pipe)
        self._segments |= self._jobdir.segments()
        self._send(self._ended(code))

    def _drain(self, stream: str, pipe: IO[bytes]) -> None:
        """The command's last words; something it started may go on talking for ever."""
        taken = 0
        while not pipe.closed and taken < _PIPE_BYTES and (size := self._take_output(stream, pipe)):
            taken += size

    def _ended(self, code: int) -> Ended:
        raised = self._jobdir.exception(self._place.rank)
        if self._relay.abort_code is not None:
            code = self._relay.abort_code
        return Ended(
            code=max(0, code),
            signal=max(0, -code),
            unfinished=self._unfinished() if code == 0 else "",
            stopped=self._stopped,
            failed_at=raised[1] if raised else time.time(),
            left_at=self._jobdir.left_at(self._place.rank),
            exception=raised[0] if raised else None,
            stderr_tail=self._tail.decode(errors="replace"),
            checkpoints=self._jobdir.checkpoints(self._place.rank),
        )

    def _unfinished(self) -> str:
        if self._relay.abort_code is not None:
            return "called MPI_Abort"
        if self._jobdir.was_up(self._place.rank):
            left = self._jobdir.left_at(self._place.rank)
            return "" if left else "exited without ending its work (os._exit?)"
        return "exited without leaving MPI (os._exit?)" if self._relay.joined and not self._relay.left else ""

    # Ending

    def _send(self, message: tuple[object, ...]) -> None:
        try:
            self._link.send(message)
        except OSError:
            self._lose_launcher()

    def _lose_launcher(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._link)
        self._released = True
        self._stop()

    def _stop(self, grace_s: float = GRACE_S) -> None:
        self._stopped = True
        if self._command is not None:
            if not self._reported:
                self._sample(self._command)
            self._command.end(grace_s)

    def _finished(self) -> bool:
        return self._released and self._reported and (self._command is None or self._command.gone())

    def _clean_up(self) -> None:
        segments = self._segments | self._jobdir.segments()
        # Another rank's worker may have noted none of them: do not leave before that rank has ended.
        until = time.monotonic() + _NEIGHBOURS_S
        while segments := {path for path in segments if Path(path).exists()}:
            if not remove_abandoned(segments) and time.monotonic() >= until:
                break
            time.sleep(_TICK_S)
        self._jobdir.remove()

    def _wait_for_the_others(self) -> None:
        """mpiexec may kill all that is left of the job, on every host, once the first of its processes has gone."""
        until = time.monotonic() + _HANG_UP_S
        with contextlib.suppress(OSError, EOFError):
            self._link.send(Cleaned())
            while True:
                self._link.recv(until - time.monotonic())


if __name__ == "__main__":
    main()
