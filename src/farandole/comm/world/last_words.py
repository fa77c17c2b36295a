"""How a timeline ends: every rank tells rank 0 that its part is complete, and rank 0 waits for that, but not for long.

Ranks of other nodes ask rank 0 for its time before: clocks drift by seconds a day. Rank 0 answers while it waits. Every
wait has its limit, and no rank counts on what another may never do: ranks end at different times, or train on.
"""

from __future__ import annotations

import pickle
import secrets
import time
from typing import Any

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.bytes.waiting import pauses
from farandole.comm.world.clocks import ROUNDS, shortest
from farandole.observe.part import ClockOffset

__all__ = ["LastWords"]

MEET_S = 5.0
_TO_RANK_0, _FROM_RANK_0 = 1, 2
_sent: list[Request] = []
"""What may still be on its way, with its memory."""


class LastWords:
    """What the ranks say to each other as one timeline ends. Collective to make."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Words about a timeline before this one may still come.
        self._name: str = transport.allgather_object(secrets.token_hex(8))[0]

    def ask_time(self) -> ClockOffset | None:
        """How this rank's clock leads to rank 0's; None where that one does not answer in time."""
        end = time.monotonic() + MEET_S
        trips: list[tuple[int, int]] = []  # (round trip, offset)
        for number in range(ROUNDS):
            began_ns = time.monotonic_ns()
            self._send(number, 0, _TO_RANK_0)
            theirs_ns = self._answer(number, end)
            if theirs_ns is None:
                self._transport.keep()
                return None
            ended_ns = time.monotonic_ns()
            trips.append((ended_ns - began_ns, theirs_ns - (began_ns + ended_ns) // 2))
        return shortest(trips)

    def _answer(self, number: int, end: float) -> int | None:
        for _ in pauses():
            found = self._mail(_FROM_RANK_0)
            if found is not None and found[1][0] == number:
                answer: int = found[1][1]
                return answer
            if time.monotonic() > end:
                break
        return None

    def say_complete(self) -> None:
        """This rank's part is complete: the last this rank says of the timeline."""
        self._send(None, 0, _TO_RANK_0)

    def all_complete(self) -> bool:
        """On rank 0: whether every other rank has said so in time. Those who ask for the time meanwhile are told."""
        end = time.monotonic() + MEET_S
        missing = set(range(1, self._transport.size))
        while missing and time.monotonic() < end:
            for _ in pauses():
                if self._hear(missing) or time.monotonic() > end:
                    break
        if missing:
            self._transport.keep()
        return not missing

    def _hear(self, missing: set[int]) -> bool:
        found = self._mail(_TO_RANK_0)
        if found is None:
            return False
        rank, question = found
        if question is None:
            missing.discard(rank)
        else:
            self._send((question, time.monotonic_ns()), rank, _FROM_RANK_0)
        return True

    def _send(self, what: object, dest: int, tag: int) -> None:
        _sent[:] = [request for request in _sent if not request.test()]
        _sent.append(self._transport.send_message(pickle.dumps((self._name, what)), dest, tag))

    def _mail(self, tag: int) -> tuple[int, Any] | None:
        """(sender, what it says) of the next message about this timeline; None where there is none."""
        while (message := self._transport.poll_message(tag)) is not None:
            name, what = pickle.loads(message[1])
            if name == self._name:
                return message[0], what
        return None
