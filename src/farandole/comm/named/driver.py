"""Who makes a set's operations progress: whoever waits, and a thread while asynchronous ones are under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from farandole.comm.bytes.waiting import SLOW_S, SlowWait, mark_internal_thread, pauses
from farandole.comm.named.letters import Mailbox
from farandole.comm.named.negotiate import Verdict

__all__ = ["BackgroundThread", "Driver"]

# Asynchronous operations that follow one another this closely are announced together, and so fused.
GATHER_S = 1e-3


class Driver:
    """Exchanges messages and carries out verdicts, on one thread at a time."""

    def __init__(self, mailbox: Mailbox, carry_out: Callable[[list[Verdict]], None]) -> None:
        self._mailbox = mailbox
        self._carry_out = carry_out
        self._turn = threading.Lock()

    def advance(self) -> bool:
        """One round of progress; False where another thread is at it, or this one, further out."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self._mailbox.exchange()
            inbox = self._mailbox.inbox
            while inbox:
                self._carry_out(inbox.popleft())
        finally:
            self._turn.release()
        return True

    def announce(self) -> None:
        """Send what was submitted, unless something was sent just now; whoever advances does the rest."""
        if time.monotonic() - self._mailbox.sent_at > GATHER_S and self._turn.acquire(blocking=False):
            try:
                self._mailbox.send()
            finally:
                self._turn.release()

    def stop(self) -> None:
        """No thread uses the transport any more."""
        self._turn.acquire()


class SlowHandle(Protocol):
    """What is under way for long."""

    slow: SlowWait | None


class Pending(Protocol):
    """What a background thread looks after."""

    changed: threading.Condition
    asynchronous: int
    closed: str | None

    def show_slow(self, older_than_s: float) -> Sequence[SlowHandle]:
        """Let the watchdog see what takes long; all of it."""
        ...


def _always() -> bool:
    return True


class BackgroundThread:
    """Drives asynchronous operations; sleeps while there are none."""

    def __init__(
        self,
        pending: Pending,
        advance: Callable[[], bool],
        give_up: Callable[[Any, BaseException], object],
        name: str = "farandole-engine",
        patient: Callable[[], bool] = _always,
    ) -> None:
        """`patient`: whether it waits for ranks that are late, and not for data on its way."""
        self._pending = pending
        self._advance = advance
        self._give_up = give_up
        self._name = name
        self._patient = patient
        self._checked_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once; whoever calls holds the lock of the pending operations."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """After the set was closed: whether the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _work(self) -> None:
        mark_internal_thread()
        while True:
            with self._pending.changed:
                while self._pending.asynchronous == 0 and self._pending.closed is None:
                    self._pending.changed.wait()
                if self._pending.closed is not None:
                    return
            self._drive()

    def _drive(self) -> None:
        """Until no asynchronous operation is left, or there is another reason to wait."""
        patient = self._patient()
        for _ in pauses(patient):
            self._advance()
            if self._pending.asynchronous == 0 or self._pending.closed is not None or self._patient() != patient:
                return
            self._check_slow()

    def _check_slow(self) -> None:
        """Let the watchdog see asynchronous operations that take long, and end those it gives up."""
        now = time.monotonic()
        if now - self._checked_at < SLOW_S / 2:
            return
        self._checked_at = now
        for handle in self._pending.show_slow(SLOW_S):
            if handle.slow is not None and handle.slow.error is not None:
                self._give_up(handle, handle.slow.error)
