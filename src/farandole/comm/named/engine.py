"""The engine of one process set: named operations, from submission to result.

A submitted operation is announced to the set's coordinator; once all ranks have announced it, the
coordinator's verdict lets every rank carry it out, all in the same order. Whoever waits drives this
itself, so that a blocking call needs no other thread; a background thread drives it while asynchronous
operations are under way, and sleeps otherwise. Nothing is polled while nothing is pending.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from farandole.comm.bytes.transport import Request as Sent
from farandole.comm.bytes.transport import Transport
from farandole.comm.bytes.waiting import (
    SLOW_S,
    Blocked,
    Subject,
    blocked,
    help_out,
    nobody,
    note_caller,
    pauses,
    wait_until,
)
from farandole.comm.named.negotiate import (
    JOIN,
    Coordinator,
    Request,
    Verdict,
    letters_from,
    message_of,
    verdicts_from,
)
from farandole.errors import (
    EngineStopped,
    FarandoleError,
    MismatchError,
    RankFailedError,
    SettingsError,
    StalledError,
)
from farandole.observe import timeline

__all__ = ["Engine", "Handle", "Operation"]

# Asynchronous operations that follow one another this closely are announced together, and so fused.
GATHER_S = 1e-3

# How long a rank that gives an operation up asks whether it is under way already: the coordinator may be elsewhere.
FORGET_S = 0.5

END_S = 1.0

_TO_COORDINATOR, _FROM_COORDINATOR = 1, 2
_ANNOUNCE, _WITHDRAW, _FORGET, _LEAVE = range(4)


class Operation(Protocol):
    """Something every rank of a set does together."""

    request: Request

    def run(self, verdict: Verdict) -> Any:
        """Carry it out; every rank is here or coming."""
        ...


class Handle:
    """An operation under way."""

    __slots__ = ("background", "done", "error", "forgetting", "moving", "operation", "slow", "started", "started_ns", "value")

    def __init__(self, operation: Operation, background: bool) -> None:
        self.operation = operation
        self.background = background
        self.started = time.monotonic()
        self.started_ns = time.monotonic_ns()
        self.slow: Blocked | None = None
        self.moving = False
        """Every rank has come: it is being carried out."""
        self.forgetting: tuple[int, BaseException] | None = None
        """Once the coordinator was asked to forget it: under which number, and why."""
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def key(self) -> str:
        return self.operation.request.key

    def shown(self) -> dict[str, object] | None:
        """What a timeline says of it: nobody need wait for it while it is under way."""
        return {"async": True} if self.background else None


class Engine:
    """Named operations of one process set."""

    def __init__(
        self,
        transport: Transport,
        members: tuple[int, ...],
        run_batch: Callable[[list[tuple[Operation, Verdict]]], list[Any]],
        label: str,
        crossed: Callable[[str], None],
        stand_in: Callable[[Request], Operation],
        world_size: int,
    ) -> None:
        """`run_batch` carries out operations whose verdicts came together (it may fuse them).

        `crossed` hears the keys of operations that never took place, because the peers were in others.
        `stand_in` makes the part in the others' operations of a rank that has joined.
        """
        self._transport = transport
        self._members = members
        self._label = label
        self._prefix = f"[rank {members[transport.rank]}/{world_size}] "
        self._run_batch = run_batch
        self._crossed = crossed
        self._stand_in = stand_in
        self.joined: frozenset[int] = frozenset()
        """Ranks of the set that have joined, and others have not."""
        self.on_join: Callable[[], None] | None = None
        """Called, by whoever drives, when others have joined."""
        self._coordinator = Coordinator(members) if transport.rank == 0 else None
        self._lock = threading.Lock()
        self._drive = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._pending: dict[str, Handle] = {}
        self._outbox: list[tuple[int, Any]] = []
        # One list for each message of the coordinator: what comes together is fused on every rank alike.
        self._inbox: list[list[Verdict]] = []
        self._verdicts: list[Verdict] = []
        self._sent: list[Sent] = []
        self._closed: str | None = None
        self._closed_by: type[FarandoleError] = EngineStopped
        self._leaving = False
        self._whole = True  # whether every operation that was begun was carried out
        self._asynchronous = 0
        self._last_word = False
        self._announced = 0.0
        self._looked = 0.0
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count(1)

    # What callers use

    def submit(self, operation: Operation, *, background: bool) -> Handle:
        """Announce an operation; with `background`, progress does not depend on the caller."""
        note_caller()
        handle = Handle(operation, background)
        with self._lock:
            if self._closed is not None:
                raise self._closed_error(handle.key)
            if handle.key in self._pending:
                raise SettingsError(
                    f"{handle.key} is already under way on this rank. Wait for it with synchronize(), "
                    "or give the second one another name."
                )
            self._pending[handle.key] = handle
            self._outbox.append((_ANNOUNCE, operation.request))
            if background:
                self._start_thread()
                self._asynchronous += 1
                self._wake.notify()
        if background:
            self._announce()
        return handle

    def poll(self, handle: Handle) -> bool:
        if not handle.done:
            self.advance()
        return handle.done

    def wait(self, handle: Handle, meanwhile: Callable[[], None] | None = None) -> Any:
        """The operation's value; raises its error. `meanwhile` is called between looks at it."""

        def done() -> bool:
            finished = self.poll(handle)
            if meanwhile is not None:
                meanwhile()
            return finished

        try:
            wait_until(done, self._subject(handle), patient=True)
        except BaseException as error:
            self._give_up(handle, error)
            if handle.error is not None or not isinstance(error, MismatchError):
                raise
        if handle.error is not None:
            raise handle.error
        return handle.value

    def drop(self, handle: Handle) -> None:
        """Nobody needs an operation any more."""
        if self._end(handle):
            with self._lock:
                self._outbox.append((_WITHDRAW, handle.key))
            self.advance()

    def pending_keys(self) -> list[str]:
        with self._lock:
            return [self._label + key for key in self._pending]

    def close(self, reason: str) -> None:
        """Take part in nothing more, and tell the others why."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
            if self._closed is None:
                self._closed = f"farandole is shut down on this rank, which {reason}"
            self._outbox.append((_LEAVE, reason))
            pending = list(self._pending.values())
            self._wake.notify()
        self.advance()
        for handle in pending:
            self._end(handle, error=self._closed_error(handle.key))

    def close_together(self, reason: str) -> None:
        """Close on all ranks at once, leaving no message behind: the transport may be freed. Collective."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = f"every rank {reason}"
            self._leaving = True
            self._wake.notify()
        subject = Subject(f"{self._label}closing", self._members)
        if self._coordinator is not None:
            coordinator = self._coordinator
            wait_until(lambda: self._advanced(coordinator.gone() == self._transport.size - 1), subject)
        with self._lock:
            self._outbox.append((_LEAVE, reason))
        wait_until(lambda: self._advanced(self._last_word and not self._outbox and not self._sent), subject)
        if self._thread is not None:
            self._thread.join()
        self._drive.acquire()  # nobody touches the transport any more

    def everyone_left(self) -> bool:
        """After close(): whether the others' farewells have come."""
        self.advance()
        if self._coordinator is not None:
            return self._coordinator.gone() == self._transport.size
        return self._last_word and not self._outbox and not self._sent

    def settled(self) -> bool:
        """After everyone_left(): whether nobody uses the transport any more, and no data can still come."""
        if self._thread is not None:
            self._thread.join(timeout=END_S)
        return self._whole and (self._thread is None or not self._thread.is_alive())

    def _advanced(self, done: bool) -> bool:
        self.advance()
        return done

    # The driver

    def _start_thread(self) -> None:
        if self._thread is None and self._transport.any_thread:
            self._thread = threading.Thread(target=self._background, name="farandole-engine", daemon=True)
            self._thread.start()

    def _background(self) -> None:
        help_out()
        while True:
            with self._wake:
                while self._asynchronous == 0 and self._closed is None:
                    self._wake.wait()
                if self._closed is not None:
                    return
            self._drive_asynchronous()

    def _drive_asynchronous(self) -> None:
        for _ in pauses(patient=True):
            self.advance()
            if self._asynchronous == 0 or self._closed is not None:
                return
            self._show_slow()

    def _show_slow(self) -> None:
        """Let the watchdog see asynchronous operations that take long, and end those it gives up."""
        now = time.monotonic()
        if now - self._looked < SLOW_S / 2:
            return
        self._looked = now
        with self._lock:
            slow = [h for h in self._pending.values() if h.background and now - h.started > SLOW_S]
            for handle in slow:
                if handle.slow is None:
                    handle.slow = blocked.enter(self._subject(handle), handle.started, None)
        for handle in slow:
            if handle.slow is not None and handle.slow.error is not None:
                self._give_up(handle, handle.slow.error)

    def _announce(self) -> None:
        """Send what was submitted; what follows from it is left to the thread, or to whoever waits."""
        if time.monotonic() - self._announced > GATHER_S and self._drive.acquire(blocking=False):
            try:
                self._send_outbox()
            finally:
                self._drive.release()

    def advance(self) -> bool:
        """One round of progress; False where another thread is at it, or this one, further out."""
        if not self._drive.acquire(blocking=False):
            return False
        try:
            if self._coordinator is not None:
                self._receive_requests(self._coordinator)  # first: what others have taken back is not paired any more
                self._send_outbox()
                self._give_verdicts()
            else:
                self._send_outbox()
                self._receive_verdicts()
            while self._inbox:
                self._carry_out(self._inbox.pop(0))
        finally:
            self._drive.release()
        return True

    def _send_outbox(self) -> None:
        if self._sent:
            self._sent = [request for request in self._sent if not request.test()]
        if not self._outbox:
            return
        self._announced = time.monotonic()
        with self._lock:
            letters, self._outbox = self._outbox, []
        if self._coordinator is not None:
            self._answer(self._coordinator, self._transport.rank, letters)
        else:
            self._post(message_of(letters), 0, _TO_COORDINATOR)

    def _post(self, message: bytes, dest: int, tag: int) -> None:
        self._sent.append(self._transport.send_message(message, dest, tag))

    def _receive_requests(self, coordinator: Coordinator) -> None:
        while (message := self._transport.poll_message(_TO_COORDINATOR)) is not None:
            source, data = message
            self._answer(coordinator, source, letters_from(data, _ANNOUNCE))

    def _answer(self, coordinator: Coordinator, rank: int, letters: list[tuple[int, Any]]) -> None:
        for what, content in letters:
            if what == _ANNOUNCE and content.kind == JOIN:
                self._verdicts += coordinator.join(rank, content)
            elif what == _ANNOUNCE:
                verdict = coordinator.submit(rank, content)
                if verdict is not None:
                    self._verdicts.append(verdict)
            elif what == _WITHDRAW:
                coordinator.withdraw(rank, content)
            elif what == _FORGET:
                key, number = content
                if coordinator.withdraw(rank, key):
                    self._verdicts.append(Verdict(key, forgotten=(rank, number)))
            else:
                self._verdicts += coordinator.leave(rank, content)
                if rank == self._transport.rank:
                    # The coordinator itself goes: nobody will answer later requests.
                    self._verdicts.append(Verdict("", f"rank {self._members[rank]} {content}", left=True))

    def _give_verdicts(self) -> None:
        if self._verdicts and not self._last_word:  # nobody listens for more than that
            message = message_of(self._verdicts)
            for peer in range(1, self._transport.size):
                self._post(message, peer, _FROM_COORDINATOR)
            self._inbox.append(self._verdicts)
            self._verdicts = []

    def _receive_verdicts(self) -> None:
        while (message := self._transport.poll_message(_FROM_COORDINATOR)) is not None:
            self._inbox.append(verdicts_from(message[1]))

    def _carry_out(self, verdicts: list[Verdict]) -> None:
        batch: list[tuple[Handle, Verdict]] = []
        for verdict in verdicts:
            handle = self._pending.get(verdict.key)
            if verdict.key == "" and verdict.left:
                self._coordinator_left(verdict)
            elif verdict.joined is not None:
                self._others_joined(verdict.joined)
            elif verdict.forgotten is not None:
                self._forgotten(handle, verdict.forgotten)
            elif handle is None and verdict.stand_in is not None:
                batch.append((Handle(self._stand_in(verdict.stand_in), background=False), verdict))
            elif handle is None:
                continue
            elif verdict.error is not None:
                kind = RankFailedError if verdict.left else MismatchError
                self._end(handle, error=kind(self._prefix + verdict.error))
            else:
                batch.append((handle, verdict))
        if batch:
            self._run(batch)

    def _run(self, batch: list[tuple[Handle, Verdict]]) -> None:
        start_ns = time.monotonic_ns()
        for handle, _ in batch:
            handle.moving = True
        if timeline.active():
            timeline.cycle_start(start_ns)
            for handle, _ in batch:
                kind = handle.operation.request.kind.upper()
                timeline.span(handle.key, f"NEGOTIATE_{kind}", handle.started_ns, start_ns, handle.shown())
        try:
            values = self._run_batch([(handle.operation, verdict) for handle, verdict in batch])
        except BaseException as error:
            self._whole = False
            for handle, _ in batch:
                self._end(handle, error=error)
            if isinstance(error, StalledError):
                self._stop_half_way(batch[0][0].key)
            if not isinstance(error, Exception):
                raise
            return
        end_ns = time.monotonic_ns()
        for (handle, _), value in zip(batch, values):
            self._end(handle, value=value)
            if timeline.active():
                kind = handle.operation.request.kind.upper()
                timeline.span(handle.key, kind, start_ns, end_ns, handle.shown())

    def _stop_half_way(self, key: str) -> None:
        """Data of an operation that was given up may still come, and nothing tells it from that of the next one."""
        self.close(f"has given up {key} half-way: start the job again, or shutdown() and init() on every rank")
        self._send_outbox()
        if self._coordinator is not None:
            self._give_verdicts()

    def _end(self, handle: Handle, *, value: Any = None, error: BaseException | None = None) -> bool:
        """False where it had ended already."""
        with self._lock:
            if self._pending.get(handle.key) is not handle:
                return False
            del self._pending[handle.key]
            self._asynchronous -= handle.background
            if handle.slow is not None:
                blocked.leave(handle.slow)
        handle.value, handle.error = value, error
        handle.done = True
        return True

    def _give_up(self, handle: Handle, error: BaseException) -> None:
        """End it with an error, unless the others have begun it by now: then it takes place, here too."""
        if isinstance(error, MismatchError):
            if not handle.done:
                self._ask_to_forget(handle, error)
            if handle.error is not None:
                self._crossed(handle.key)
        elif self._end(handle, error=error):
            with self._lock:
                self._outbox.append((_WITHDRAW, handle.key))
        self.advance()

    def _ask_to_forget(self, handle: Handle, error: BaseException) -> None:
        """Until the answer comes, which is either that, or that the others have begun it."""
        number = next(self._numbers)
        handle.forgetting = (number, error)
        with self._lock:
            self._outbox.append((_FORGET, (handle.key, number)))
        end = time.monotonic() + FORGET_S
        for _ in pauses():
            self.advance()
            if handle.done or time.monotonic() > end:
                break
        self._end(handle, error=error)

    def _forgotten(self, handle: Handle | None, request: tuple[int, int]) -> None:
        """`request`: of which rank, and its number. A later handle may have the same key."""
        if handle is not None and handle.forgetting is not None:
            number, error = handle.forgetting
            if request == (self._transport.rank, number):
                self._end(handle, error=error)

    def _coordinator_left(self, verdict: Verdict) -> None:
        self._last_word = True
        with self._lock:
            if self._closed is None:
                self._closed = f"{verdict.error} and takes part in nothing more"
                self._closed_by = RankFailedError
            self._wake.notify()
        for handle in list(self._pending.values()):
            self._end(handle, error=self._closed_error(handle.key))

    def _others_joined(self, joined: tuple[int, ...]) -> None:
        self.joined = frozenset(joined)
        if joined and self._transport.rank not in joined and self.on_join is not None:
            self.on_join()

    def _closed_error(self, key: str) -> FarandoleError:
        return self._closed_by(f"{self._prefix}{key}: {self._closed}")

    def _subject(self, handle: Handle) -> Subject:
        return Subject(self._label + handle.key, self._members, lambda: self._missing(handle))

    def _missing(self, handle: Handle) -> list[int] | None:
        if handle.moving:
            return nobody()
        return None if self._coordinator is None else self._coordinator.missing(handle.key) or None
