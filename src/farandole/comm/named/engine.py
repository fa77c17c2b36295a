"""The engine of one process set: named operations, from submission to result.

A submitted operation is announced to the set's coordinator; once all ranks have announced it, the
coordinator's verdict lets every rank carry it out, all in the same order. Whoever waits drives this
itself, so that a blocking call needs no other thread; a background thread drives it while asynchronous
operations are under way, and sleeps otherwise. Nothing is polled while nothing is pending.

    pending.py       the operations under way on this rank
    letters.py       messages to and from the coordinator (negotiate.py decides what it answers)
    executor.py      verdicts become operations that run, in one order
    driver.py        whoever makes progress: a waiting thread, or the background thread
    cancellation.py  operations that end before they were answered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.comm.bytes.transport import Transport
from farandole.comm.bytes.waiting import Subject, note_caller, wait_until
from farandole.comm.named.cancellation import Cancellation
from farandole.comm.named.driver import BackgroundThread, Driver
from farandole.comm.named.executor import Batch, Executor
from farandole.comm.named.letters import ANNOUNCE, LEAVE, open_mailbox
from farandole.comm.named.negotiate import OperationRequest
from farandole.comm.named.pending import Handle, Operation, PendingOperations
from farandole.errors import MismatchError

__all__ = ["Engine"]

END_S = 1.0


class Engine:
    """Named operations of one process set."""

    def __init__(
        self,
        transport: Transport,
        members: tuple[int, ...],
        run_batch: Callable[[Batch], list[Any]],
        label: str,
        on_cancelled: Callable[[str], None],
        stand_in: Callable[[OperationRequest], Operation],
        world_size: int,
    ) -> None:
        """`run_batch` carries out operations whose verdicts came together (it may fuse them).

        `on_cancelled` hears the keys of operations that never took place, because the peers were in others.
        `stand_in` makes the part in the others' operations of a rank that has joined.
        """
        self._transport = transport
        self._members = members
        self._label = label
        self.joined: frozenset[int] = frozenset()
        """Ranks of the set that have joined, and others have not."""
        self.on_join: Callable[[], None] | None = None
        """Called, by whoever drives, when others have joined."""
        self._leaving = False
        self._mailbox = open_mailbox(transport, members)
        prefix = f"[rank {members[transport.rank]}/{world_size}] "
        self._pending = PendingOperations(members, label, prefix, self._mailbox.missing)
        self._executor = Executor(
            transport.rank, self._pending, self._mailbox, run_batch, stand_in, self._others_joined, self.close
        )
        self._driver = Driver(self._mailbox, self._executor.carry_out)
        self.advance = self._driver.advance
        """One round of progress, by whoever calls it."""
        self._cancellation = Cancellation(self._pending, self._mailbox, self.advance, on_cancelled)
        self._background = BackgroundThread(self._pending, self.advance, self._cancellation.give_up)

    def submit(self, operation: Operation, *, background: bool) -> Handle:
        """Announce an operation; with `background`, progress does not depend on the caller."""
        note_caller()
        handle = Handle(operation, background)
        with self._pending.lock:
            self._pending.add(handle)
            self._mailbox.write(ANNOUNCE, operation.request)
            if background and self._transport.any_thread:
                self._background.start()
        if background:
            self._driver.announce()
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
            wait_until(done, self._pending.subject(handle), patient=True)
        except BaseException as error:
            self._cancellation.give_up(handle, error)
            if handle.error is not None or not isinstance(error, MismatchError):
                raise
        if handle.error is not None:
            raise handle.error
        return handle.value

    def drop(self, handle: Handle) -> None:
        """Nobody needs an operation any more."""
        self._cancellation.drop(handle)

    def pending_keys(self) -> list[str]:
        return self._pending.keys()

    def close(self, reason: str) -> None:
        """Take part in nothing more, and tell the others why."""
        with self._pending.lock:
            if self._leaving:
                return
            self._leaving = True
            self._pending.close(f"farandole is shut down on this rank, which {reason}")
            self._mailbox.write(LEAVE, reason)
        self.advance()
        self._pending.end_all()

    def close_together(self, reason: str) -> None:
        """Close on all ranks at once, leaving no message behind: the transport may be freed. Collective."""
        with self._pending.lock:
            if self._pending.closed is not None:
                return
            self._pending.close(f"every rank {reason}")
            self._leaving = True
        subject = Subject(f"{self._label}closing", self._members)
        wait_until(lambda: self._after_advance(self._mailbox.others_left), subject)
        self._mailbox.write(LEAVE, reason)
        wait_until(lambda: self._after_advance(self._mailbox.ended), subject)
        self._background.join()
        self._driver.stop()

    def everyone_left(self) -> bool:
        """After close(): whether the others' farewells have come."""
        return self._after_advance(self._mailbox.everyone_left)

    def settled(self) -> bool:
        """After everyone_left(): whether nobody uses the transport any more, and no data can still come."""
        return self._background.join(END_S) and self._executor.whole

    def _after_advance(self, condition: Callable[[], bool]) -> bool:
        self.advance()
        return condition()

    def _others_joined(self, joined: tuple[int, ...]) -> None:
        self.joined = frozenset(joined)
        if joined and self._transport.rank not in joined and self.on_join is not None:
            self.on_join()
