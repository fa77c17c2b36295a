"""A running job, seen from the launcher: it takes what workers tell, and decides when to end them all."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from farandole.launch.channel import Switchboard
from farandole.launch.command import GRACE_S
from farandole.launch.link import Forged, Link, ready, silence_s
from farandole.launch.messages import (
    Cleaned,
    Ended,
    Hello,
    Joined,
    Orders,
    Output,
    PassOn,
    Release,
    Started,
    Stop,
)
from farandole.launch.output import OutputSink, Terminal
from farandole.launch.ranks import Rank, first_cause, may_be_consequence
from farandole.processes.signals import Signals
from farandole.processes.tree import end

__all__ = ["Job"]

_TICK_S = 0.25
_CAUSE_S = 2.0
"""How long a rank that failed because of another waits for that other's report."""
_STARTER_S = 0.2
"""How long a starter that was killed may take to be seen as such, once its workers are gone."""
_JOIN_S = 2.0
"""How long a rank may start MPI when another has ended without."""
_INSIST_S = 2.0
"""How long after their grace ranks may still be there."""
_GIVE_UP_S = 5.0
_LEAVE_S = 3.0
_LAST_OUTPUT_S = 1.0
"""How long a terminal that takes nothing is waited for when the job was interrupted."""
_KEPT_BYTES = 1 << 16
_SHOWN_LINES = 20
_UNREACHABLE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})


class Job:
    """`run()` returns when every rank has ended; `cause`, `problem`, `interrupted_by` and `ranks` say how."""

    def __init__(
        self, *, size: int, orders: Orders, board: Switchboard, process: subprocess.Popen[bytes],
        sink: OutputSink, signals: Signals, start_timeout_s: float, grace_s: float,
    ) -> None:  # fmt: skip
        self.ranks: dict[int, Rank] = {}
        self.problem = ""
        """Why the job ended where no rank is to blame, with what mpiexec had to say; empty otherwise."""
        self.silent_hosts: set[str] = set()
        """Those that no longer answer."""
        self.interrupted_by = 0
        """The signal that ended it; 0 for none."""
        self.ranks_ns: tuple[int, int] | None = None
        """When, on the monotonic clock, the first rank was started and the last had ended; None where none was."""
        self._size = size
        self._orders = orders
        self._board = board
        self._process = process
        self._sink = sink
        self._signals = signals
        self._links: dict[Link, Rank | None] = {}
        self._start_timeout_s = start_timeout_s
        self._started_at = time.monotonic()
        self._starter = "the worker" if process.stdout is None else "mpiexec"
        self._starter_said = b""
        self._interrupt_grace_s = grace_s
        self._grace_s = GRACE_S
        self._failed_at: float | None = None
        self._stopped_at: float | None = None
        self._insisted = False

    @property
    def cause(self) -> Rank | None:
        return first_cause(self.ranks.values())

    def run(self) -> None:
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
        while not self._over():
            for one in ready(self._watched(), self._writing(), _TICK_S):
                self._take(one)
            for link in self._board.accept():
                self._links[link] = None
                self._take_messages(link)
            self._flush()
            self._decide(time.monotonic())
        if self.ranks_ns is not None:
            self.ranks_ns = self.ranks_ns[0], time.monotonic_ns()

    def leave(self) -> None:
        """Let workers clean up and go, then mpiexec; whoever does not is killed."""
        self._board.close()
        self._order_all(Release())
        self._wait_for_clean_hosts(_LEAVE_S)
        for link in self._links:
            link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        end(self._process, _INSIST_S)  # with what it reaches other hosts by, which would outlive it

    def finish_output(self) -> None:
        """Wait until whoever reads the output has taken all of it; for a moment only where the job was interrupted."""
        with contextlib.suppress(BrokenPipeError):
            self._sink.close()
            until = time.monotonic() + _LAST_OUTPUT_S
            while isinstance(self._sink, Terminal) and (waiting := self._sink.waiting):
                if self._signals.received and time.monotonic() > until:
                    break
                if self._signals.awake in ready([self._signals.awake], waiting, _TICK_S):
                    self._signals.calm()
                self._heed_signals()
                self._sink.pump()

    # Taking

    def _watched(self) -> list[Any]:
        watched: list[Any] = [*self._board.watched, self._signals.awake]
        if not self._output_full() or self._stopped_at is not None:
            watched += self._links
        return watched if self._process.stdout is None else [*watched, self._process.stdout]

    def _writing(self) -> list[int]:
        return self._sink.waiting if isinstance(self._sink, Terminal) else []

    def _output_full(self) -> bool:
        return isinstance(self._sink, Terminal) and self._sink.full

    def _take(self, ready: Any) -> None:
        if ready in self._links:
            self._take_messages(ready)
        elif isinstance(ready, int):
            self._pump()
        elif ready is self._signals.awake:
            self._signals.calm()
        elif ready is self._process.stdout:
            self._take_starter_output()

    def _take_starter_output(self) -> None:
        pipe = self._process.stdout
        data = os.read(pipe.fileno(), _KEPT_BYTES) if pipe is not None else b""
        self._starter_said = (self._starter_said + data)[-_KEPT_BYTES:]
        if pipe is not None and not data:
            self._process.stdout = None
            pipe.close()

    def _take_messages(self, link: Link) -> None:
        try:
            messages = link.take()
        except (OSError, EOFError) as error:
            self._lose(link, error)
            return
        for message in messages:
            rank = self._links[link]
            if rank is None:
                self._welcome(link, message)
            else:
                self._note(rank, message)

    def _welcome(self, link: Link, hello: Hello) -> None:
        rank = Rank(link=link, place=hello.place, worker_pid=hello.worker_pid)
        self._links[link] = self.ranks[rank.number] = rank
        if rank.place.size != self._size:
            this, other = f"rank {rank.number} of {rank.place.size}", f"one of {self._size}"
            self._fail(f"{self._starter} has started {this} instead of {other}: it is of an unknown make")
        if self.ranks_ns is None:
            self.ranks_ns = time.monotonic_ns(), 0
        self._send(rank, self._orders)
        if self._stopped_at is not None:
            self._send(rank, Stop(0.0))

    def _note(self, rank: Rank, message: object) -> None:
        if isinstance(message, Output):
            self._write(rank, message)
        elif isinstance(message, Started):
            rank.started = message
        elif isinstance(message, Joined):
            rank.joined_at = time.monotonic()
        elif isinstance(message, Ended):
            self._note_end(rank, message)

    def _pump(self) -> None:
        if isinstance(self._sink, Terminal):
            with self._output_errors():
                self._sink.pump()

    def _write(self, rank: Rank, output: Output) -> None:
        if self._stopped_at is not None and self._output_full():
            return  # nobody reads it, and the job has to end
        with self._output_errors():
            self._sink.write(rank.number, output.stream, output.data)

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._interrupt(signal.SIGPIPE)
        except OSError as error:
            self._fail(f"the ranks' output cannot be written: {error}")

    def _note_end(self, rank: Rank, ended: Ended) -> None:
        rank.ended = ended
        if rank.failed and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _lose(self, link: Link, error: OSError | EOFError) -> None:
        """A worker that goes without a word was killed, and its command with it, or its host is out of reach."""
        rank = self._links.pop(link)
        link.close()
        if rank is not None and rank.ended is None:
            # A killed mpiexec takes its workers along, and they may be seen to go first.
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self._process.wait(timeout=_STARTER_S) < 0:
                    self._check_start(time.monotonic())
            stopped = self._stopped_at is not None
            self._note_end(rank, Ended(time.time(), code=1, problem=self._how_lost(rank, error), stopped=stopped))

    def _how_lost(self, rank: Rank, error: OSError | EOFError) -> str:
        if isinstance(error, Forged):
            return f"the connection to its worker was given up: {error}"
        if not isinstance(error, OSError) or error.errno not in _UNREACHABLE:
            return "the connection to its worker was lost (killed, or its host is gone)"
        host = rank.place.host
        self.silent_hosts.add(host)
        there = _named(sorted(other.number for other in self.ranks.values() if other.place.host == host))
        return f"host {host} ({there}) has not answered for {silence_s()} s: it is down, or cut off from the launcher"

    # Deciding

    def _decide(self, now: float) -> None:
        self._heed_signals()
        if self._stopped_at is None:
            self._check_start(now)
            self._check_joining(now)
            if self._failed_at is not None and self._cause_is_known(now - self._failed_at):
                self._stop()
        elif now - self._stopped_at > self._grace_s + _INSIST_S:
            self._insist()

    def _heed_signals(self) -> None:
        while self._signals.to_pass_on:
            self._order_all(PassOn(self._signals.to_pass_on.pop(0)))
        if self._signals.received and not self.interrupted_by:
            self._interrupt(self._signals.received[0])
        if len(self._signals.received) > 1:
            self._insist()
            self._signals.stop_noting()

    def _check_start(self, now: float) -> None:
        missing = sorted(set(range(self._size)) - set(self.ranks))
        code = self._process.poll()
        if code is not None and not self._all_ended() and self._failed_at is None:
            self._fail(f"{self._starter} ended with code {code} before {_named(missing) or 'the ranks did'}")
        elif missing and now - self._started_at > self._start_timeout_s:
            self._fail(f"{_named(missing)} did not start within {self._start_timeout_s:g} s")

    def _check_joining(self, now: float) -> None:
        """MPI's start waits for every rank: for one that has ended without joining it would wait for ever."""
        running = [rank for rank in self.ranks.values() if rank.ended is None]
        waiting = [rank for rank in running if rank.joined_before(now - _JOIN_S)]
        never = [(rank, rank.ended) for rank in self.ranks.values() if rank.ended and rank.joined_at is None]
        for rank, ended in never[:1] if waiting else []:
            reason = f"exited before it joined MPI, where rank {waiting[0].number} waits for it"
            self._note_end(rank, ended._replace(unfinished=reason))

    def _cause_is_known(self, failed_for_s: float) -> bool:
        cause = self.cause
        return cause is not None and (not may_be_consequence(cause) or failed_for_s > _CAUSE_S)

    def _all_ended(self) -> bool:
        return len(self.ranks) == self._size and all(rank.ended for rank in self.ranks.values())

    def _over(self) -> bool:
        if self._stopped_at is None:
            return self._all_ended()
        gave_up = time.monotonic() - self._stopped_at > self._grace_s + _GIVE_UP_S
        return gave_up or all(rank.ended for rank in self.ranks.values())

    # Ending

    def _interrupt(self, number: int) -> None:
        self.interrupted_by = self.interrupted_by or number
        self._stop(self._interrupt_grace_s)

    def _fail(self, problem: str) -> None:
        if not self.problem:
            while self._process.stdout is not None and ready([self._process.stdout], [], 0.0):
                self._take_starter_output()
            said = self._starter_said.decode(errors="replace").strip().splitlines()
            self.problem = "\n  ".join([problem, *said[-_SHOWN_LINES:]])
        self._stop()

    def _stop(self, grace_s: float = GRACE_S) -> None:
        if self._stopped_at is None:
            self._stopped_at, self._grace_s = time.monotonic(), grace_s
            self._order_all(Stop(grace_s))

    def _insist(self) -> None:
        if not self._insisted:
            self._insisted = True
            self._order_all(Stop(0.0))

    def _order_all(self, order: Stop | PassOn | Release) -> None:
        for rank in self.ranks.values():
            self._send(rank, order)

    def _send(self, rank: Rank, order: Orders | Stop | PassOn | Release) -> None:
        # A worker that is gone shows at the next read.
        with contextlib.suppress(OSError):
            rank.link.post(order)

    def _flush(self) -> None:
        for link in [link for link in self._links if link.unsent]:
            with contextlib.suppress(OSError):
                link.flush()

    def _wait_for_clean_hosts(self, seconds: float) -> None:
        """Until every worker that is left has cleaned up; what they say meanwhile nobody waits for."""
        cleaning = {link for link, rank in self._links.items() if rank is not None}
        until = time.monotonic() + seconds
        while cleaning and (left_s := until - time.monotonic()) > 0:
            cleaning -= {link for link in ready(cleaning, [], left_s) if _says_last_word(link)}


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}" if ranks else ""


def _says_last_word(link: Link) -> bool:
    """Take what a worker says: whether it has cleaned up, or is gone."""
    try:
        return any(isinstance(message, Cleaned) for message in link.take())
    except (OSError, EOFError):
        return True
