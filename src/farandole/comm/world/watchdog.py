"""The watchdog: a thread that names late ranks and ends hopeless waits.

Each rank's watchdog looks at its slow waits (waiting.py) twice a second. While it has any, it reports
them to rank 0 (rank0_link.py), whose watchdog sees them all and decides (arbiter.py):

    left        a rank that others wait for has exited      -> the waits end with RankFailedError
                (not one that had done its part: what it sent is on its way)
    deadlock    ranks wait for each other in different operations (a training step here, an allreduce
                there)                                      -> the waits end with MismatchError
    stalled     a wait is older than the warning time       -> a warning names who is here and who is not
                and older than the abort time, if set       -> the waits end with StalledError

While rank 0 does not answer, each rank ends its own waits that are older than the abort time. A neighbour on the same
node that has died is seen directly, one on another node by the end of its line (lifelines.py). An idle watchdog costs two
short look-ups a second.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farandole.comm.bytes.transport import Transport
from farandole.comm.bytes.waiting import SlowWait, Subject, count_callers, slow_waits
from farandole.comm.node.neighbours import alive, death_of, know_neighbours
from farandole.comm.world.arbiter import Arbiter
from farandole.comm.world.lifelines import Lifelines
from farandole.comm.world.rank0_link import Rank0Link
from farandole.comm.world.reports import Farewell, Report, ReportedWait, describe_death
from farandole.comm.world.stall_settings import StallSettings
from farandole.comm.world.watchdog_messages import LEFT, UNANSWERED_S, Messages, print_line
from farandole.errors import RankFailedError, StalledError

__all__ = ["Watchdog"]

TICK_S = 0.5


class Watchdog:
    """The watchdog of one rank. Collective to make (it has a communicator of its own)."""

    def __init__(
        self,
        transport: Transport,
        neighbours: dict[int, int],
        lines: Lifelines,
        pending_keys: Callable[[], list[str]],
        done_keys: Callable[[], list[str]],
        settings: StallSettings,
    ) -> None:
        """`neighbours` are the process numbers of the node's other ranks, by world rank."""
        self._transport = transport
        self._neighbours = neighbours
        self._lines = lines
        know_neighbours(neighbours)
        self._pending_keys, self._done_keys = pending_keys, done_keys
        self._settings = settings
        self._faults: set[str] = set()
        self._warned = False
        self._stop = threading.Event()
        self._messages = Messages(transport)
        self._part: Arbiter | Rank0Link
        if transport.rank == 0:
            self._part = Arbiter(self._messages, transport.size, settings, self._stop)
        else:
            self._part = Rank0Link(self._messages, settings)
        self._thread = threading.Thread(target=self._watch, name="farandole-watchdog", daemon=True)

    def start(self) -> None:
        if self._transport.size > 1:
            self._thread.start()

    def stop(self, reason: str) -> None:
        """Tell the others that this rank takes part in nothing more."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * TICK_S)
        self._lines.say_farewell()
        if self._transport.size > 1:
            self._part.say_farewell(Farewell(reason, self._report()))

    def everyone_left(self) -> bool:
        """After stop(): whether the others' farewells have come."""
        return self._part.everyone_left()

    def free(self) -> None:
        """After everyone_left(), on every rank. Collective."""
        if not self._thread.is_alive():
            self._transport.free()

    # The thread

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._surviving_faults():
                self.check()

    def check(self) -> None:
        """One look at this rank's slow waits."""
        report = self._report()
        if report.waits:
            with self._surviving_faults():
                self._check_deaths(report)
                self._check_stuck()
        if not self._transport.any_thread:
            self._warn_alone(report)
        elif isinstance(self._part, Rank0Link):
            with self._surviving_faults():
                self._part.exchange(report)
            self._part.check_rank0_silent(report)
        else:
            with self._surviving_faults():
                self._part.receive()
            self._part.decide(self._report(), self._dead_elsewhere())

    @contextmanager
    def _surviving_faults(self) -> Iterator[None]:
        """A fault of the watchdog ends only what is inside: without a watchdog, ranks would wait for ever."""
        try:
            yield
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            if fault not in self._faults:
                self._faults.add(fault)
                prefix = self._messages.prefix
                print_line(f"{prefix}the watchdog goes on after a fault of its own:\n{traceback.format_exc()}")

    def _report(self) -> Report:
        # Of the waits of one thread, the innermost.
        innermost = {wait.thread or id(wait): wait for wait in slow_waits.entries()}.values()
        waits = tuple(self._reported(wait) for wait in innermost)
        keys = frozenset(self._pending_keys()) | {wait.key for wait in waits}
        return Report(waits, keys, frozenset(self._done_keys()), count_callers())

    def _reported(self, wait: SlowWait) -> ReportedWait:
        subject, waited_s = wait.subject, time.monotonic() - wait.since
        return ReportedWait(subject.key, waited_s, subject.members, self._late_ranks(subject), wait.thread is not None)

    def _late_ranks(self, subject: Subject) -> tuple[int, ...] | None:
        """None where it cannot be known."""
        late = None
        with self._surviving_faults():
            late = subject.missing()
        return None if late is None else tuple(late)

    def _dead_elsewhere(self) -> set[int]:
        """Ranks of other nodes that have died."""
        dead: set[int] = set()
        with self._surviving_faults():
            dead |= self._lines.lost()
        return dead

    # What each rank sees itself

    def _check_deaths(self, report: Report) -> None:
        """End waits for neighbours, and for ranks of other nodes, that have died."""
        for rank, pid in self._neighbours.items():
            concerned = [wait.key for wait in report.waits if rank in wait.members]
            if concerned and not alive(pid):
                for key in concerned:
                    slow_waits.fail(key, death_of(pid))
        dead = self._dead_elsewhere()
        for wait in report.waits:
            if concerned_by := dead.intersection(wait.members):
                self._messages.end_waits(LEFT, wait.key, describe_death(wait, concerned_by))

    def _check_stuck(self) -> None:
        """End the job if a wait does not end although it was told to: it is inside a library call."""
        for wait in slow_waits.entries():
            failed = isinstance(wait.error, RankFailedError | StalledError)
            if failed and time.monotonic() - wait.failed_at > UNANSWERED_S:
                self._messages.abort(f"{self._messages.prefix}{wait.error}; cannot leave {wait.subject.key}")

    def _warn_alone(self, report: Report) -> None:
        """Below MPI_THREAD_SERIALIZED the watchdogs cannot talk: each says what it sees."""
        for wait in report.waits:
            if self._settings.warn_s and wait.waited_s >= self._settings.warn_s and not self._warned:
                self._warned = True
                late = ", ".join(map(str, wait.missing or ())) or "unknown"
                print_line(f"{self._messages.prefix}{wait.key} has waited {wait.waited_s:.0f} s; missing ranks: {late}")
