"""Letters from the ranks of a set to its coordinator, and the coordinator's verdicts.

A rank announces an operation, withdraws it, asks the coordinator to forget it, or leaves. The coordinator (the set's
first rank) sends its verdicts to all ranks. Nothing waits here: the driver (driver.py) exchanges messages, one
thread at a time.
"""

from __future__ import annotations

import marshal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.named.negotiate import JOIN, Coordinator, OperationRequest, Verdict

__all__ = [
    "ANNOUNCE",
    "FORGET",
    "LEAVE",
    "WITHDRAW",
    "CoordinatorMailbox",
    "Mailbox",
    "MemberMailbox",
    "letters_from",
    "message_of",
    "open_mailbox",
    "verdicts_from",
]

ANNOUNCE, WITHDRAW, FORGET, LEAVE = range(4)
_TO_COORDINATOR, _FROM_COORDINATOR = 1, 2

# Messages hold plain tuples, strings and numbers only: marshal takes a third of pickle's time for them, and a small
# operation waits for four of these conversions. Every Python since 3.4 reads this version.
_FORMAT = 4

Letter = tuple[int, Any]
"""(what, content): a request to announce, a key to withdraw, a (key, number) to forget, a reason to leave."""


def message_of(values: Iterable[tuple[Any, ...]]) -> bytes:
    """Letters, or verdicts."""
    return marshal.dumps([_plain(value) for value in values], _FORMAT)


def _plain(value: Any) -> Any:
    """Requests within it as tuples."""
    return tuple([_plain(v) if isinstance(v, (OperationRequest, Verdict)) else v for v in value])


def letters_from(message: bytes) -> list[Letter]:
    return [(what, OperationRequest(*content) if what == ANNOUNCE else content) for what, content in marshal.loads(message)]


def verdicts_from(message: bytes) -> list[Verdict]:
    found = [Verdict(*fields) for fields in marshal.loads(message)]
    return [v if v.stand_in is None else v._replace(stand_in=OperationRequest(*v.stand_in)) for v in found]


class Mailbox(ABC):
    """One rank's letters, and the verdicts it received. Any thread may call `write`, only the driver the rest."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._outbox: deque[Letter] = deque()
        self._sends: list[Request] = []
        self.inbox: deque[list[Verdict]] = deque()
        """One list for each message of the coordinator: what comes together is fused on every rank alike."""
        self.sent_at = 0.0
        """When letters were last sent, by the monotonic clock."""
        self.coordinator_left = False
        """No verdicts follow."""

    def write(self, what: int, content: Any) -> None:
        """The letter goes with the next message."""
        self._outbox.append((what, content))

    def send(self) -> None:
        """Send the letters written so far."""
        if self._sends:
            self._sends = [request for request in self._sends if not request.test()]
        if self._outbox:
            self.sent_at = time.monotonic()
            self._deliver([self._outbox.popleft() for _ in range(len(self._outbox))])

    def ended(self) -> bool:
        """Whether the coordinator has left, and all letters are gone."""
        return self.coordinator_left and not self._outbox and not self._sends

    @abstractmethod
    def exchange(self) -> None:
        """Send what was written, receive what has come."""

    @abstractmethod
    def flush(self) -> None:
        """Send everything, and receive nothing."""

    @abstractmethod
    def others_left(self) -> bool:
        """Whether the farewells this rank waits for before its own have come."""

    @abstractmethod
    def everyone_left(self) -> bool:
        """Whether all farewells have come, this rank's included."""

    @abstractmethod
    def missing(self, key: str) -> list[int] | None:
        """World ranks that have not announced an operation; None where this rank cannot know."""

    @abstractmethod
    def _deliver(self, letters: list[Letter]) -> None: ...

    def _post(self, message: bytes, dest: int, tag: int) -> None:
        self._sends.append(self._transport.send_message(message, dest, tag))


class MemberMailbox(Mailbox):
    """Of a rank that is not the coordinator."""

    def exchange(self) -> None:
        self.send()
        while (message := self._transport.poll_message(_FROM_COORDINATOR)) is not None:
            self.inbox.append(verdicts_from(message[1]))

    def flush(self) -> None:
        self.send()

    def others_left(self) -> bool:
        return True

    def everyone_left(self) -> bool:
        return self.ended()

    def missing(self, key: str) -> list[int] | None:
        return None

    def _deliver(self, letters: list[Letter]) -> None:
        self._post(message_of(letters), 0, _TO_COORDINATOR)


class CoordinatorMailbox(Mailbox):
    """Of the coordinator, which also receives the others' letters and answers them."""

    def __init__(self, transport: Transport, members: tuple[int, ...]) -> None:
        super().__init__(transport)
        self._members = members
        self._coordinator = Coordinator(members)
        self._verdicts: list[Verdict] = []

    def exchange(self) -> None:
        self._receive()  # first: what others have taken back is not paired any more
        self.send()
        self._send_verdicts()

    def flush(self) -> None:
        self.send()
        self._send_verdicts()

    def others_left(self) -> bool:
        return self._coordinator.gone() == self._transport.size - 1

    def everyone_left(self) -> bool:
        return self._coordinator.gone() == self._transport.size

    def missing(self, key: str) -> list[int] | None:
        return self._coordinator.missing(key) or None

    def _receive(self) -> None:
        while (message := self._transport.poll_message(_TO_COORDINATOR)) is not None:
            source, data = message
            self._answer(source, letters_from(data))

    def _deliver(self, letters: list[Letter]) -> None:
        self._answer(self._transport.rank, letters)

    def _answer(self, rank: int, letters: list[Letter]) -> None:
        for what, content in letters:
            if what == ANNOUNCE and content.kind == JOIN:
                self._verdicts += self._coordinator.join(rank, content)
            elif what == ANNOUNCE:
                verdict = self._coordinator.submit(rank, content)
                if verdict is not None:
                    self._verdicts.append(verdict)
            elif what == WITHDRAW:
                self._coordinator.withdraw(rank, content)
            elif what == FORGET:
                self._forget(rank, *content)
            else:
                self._leave(rank, content)

    def _forget(self, rank: int, key: str, number: int) -> None:
        if self._coordinator.withdraw(rank, key):
            self._verdicts.append(Verdict(key, forgotten=(rank, number)))

    def _leave(self, rank: int, reason: str) -> None:
        self._verdicts += self._coordinator.leave(rank, reason)
        if rank == self._transport.rank:  # nobody will answer later requests
            self._verdicts.append(Verdict("", f"rank {self._members[rank]} {reason}", left=True))

    def _send_verdicts(self) -> None:
        if self._verdicts and not self.coordinator_left:
            message = message_of(self._verdicts)
            for peer in range(1, self._transport.size):
                self._post(message, peer, _FROM_COORDINATOR)
            self.inbox.append(self._verdicts)
            self._verdicts = []


def open_mailbox(transport: Transport, members: tuple[int, ...]) -> Mailbox:
    """The set's first rank is the coordinator."""
    return CoordinatorMailbox(transport, members) if transport.rank == 0 else MemberMailbox(transport)
