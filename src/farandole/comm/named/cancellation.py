"""Operations that this rank ends before the coordinator has answered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from farandole.comm.bytes.waiting import pauses
from farandole.comm.named.letters import FORGET, WITHDRAW, Mailbox
from farandole.comm.named.pending import Handle, PendingOperations
from farandole.errors import MismatchError

__all__ = ["Cancellation"]

# How long a rank that gives an operation up asks whether it is under way already: the coordinator may be elsewhere.
FORGET_S = 0.5


class Cancellation:
    """Ends operations with an error, or because nobody needs them any more."""

    def __init__(
        self,
        pending: PendingOperations,
        mailbox: Mailbox,
        advance: Callable[[], bool],
        on_cancelled: Callable[[str], None],
    ) -> None:
        self._pending = pending
        self._mailbox = mailbox
        self._advance = advance
        self._on_cancelled = on_cancelled
        self._numbers = itertools.count(1)

    def drop(self, handle: Handle) -> None:
        """Withdraw it: nobody needs it any more."""
        if self._pending.end(handle):
            self._mailbox.write(WITHDRAW, handle.key)
            self._advance()

    def give_up(self, handle: Handle, error: BaseException) -> None:
        """End it with an error, unless the others have begun it by now: then it takes place, here too."""
        if isinstance(error, MismatchError):
            if not handle.done:
                self._ask_to_forget(handle, error)
            if handle.error is not None:
                self._on_cancelled(handle.key)
        elif self._pending.end(handle, error=error):
            self._mailbox.write(WITHDRAW, handle.key)
        self._advance()

    def _ask_to_forget(self, handle: Handle, error: BaseException) -> None:
        """Until the answer comes: either that, or that the others have begun it."""
        number = next(self._numbers)
        handle.forgetting = (number, error)
        self._mailbox.write(FORGET, (handle.key, number))
        end = time.monotonic() + FORGET_S
        for _ in pauses():
            self._advance()
            if handle.done or time.monotonic() > end:
                break
        self._pending.end(handle, error=error)
