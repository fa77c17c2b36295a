"""How watchdogs talk to each other and to the user, and how they end waits."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.bytes.waiting import slow_waits
from farandole.errors import FarandoleError, MismatchError, RankFailedError, StalledError

__all__ = ["DEADLOCK", "FROM_RANK0", "HEARD", "LEFT", "REPORT", "STALLED", "TO_RANK0", "UNANSWERED_S", "Messages", "print_line"]

# How long an answer may take: rank 0's, or that of a wait that was told to end.
UNANSWERED_S = 5.0
# One look lets the library handle one packet, and those of other communicators stand in the same queue.
_PROBES = 100
TO_RANK0, FROM_RANK0 = 1, 2
REPORT, HEARD, LEFT, DEADLOCK, STALLED = "report", "heard", "left", "deadlock", "stalled"
_ERRORS: dict[str, type[FarandoleError]] = {
    LEFT: RankFailedError,
    DEADLOCK: MismatchError,
    STALLED: StalledError,
}


class Messages:
    """This rank's messages to and from other watchdogs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sends: list[Request] = []
        self.prefix = f"[rank {transport.rank}/{transport.size}] "

    def send(self, value: object, dest: int, tag: int) -> None:
        self._sends = [request for request in self._sends if not request.test()]
        self._sends.append(self._transport.send_message(pickle.dumps(value), dest, tag))

    def receive(self, tag: int) -> Iterator[tuple[int, Any]]:
        """What has come, with its sender; a rank that does nothing else must probe often to receive it."""
        probes = 0
        while probes < _PROBES:
            message = self._transport.poll_message(tag)
            probes = probes + 1 if message is None else 0
            if message is not None:
                yield message[0], pickle.loads(message[1])

    def end_waits(self, verdict: str, key: str, text: str) -> None:
        """End this rank's waits for `key` with the error of the verdict."""
        slow_waits.fail(key, _ERRORS[verdict](self.prefix + text))

    def abort(self, text: str) -> None:
        """End the job: a wait is inside a library call that cannot be interrupted."""
        print_line(f"{text}: ending the job")
        self._transport.abort(1)


def print_line(text: str) -> None:
    print(f"farandole: {text}\n", end="", file=sys.stderr, flush=True)  # in one write: ranks' lines must not mix
