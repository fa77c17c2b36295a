"""How the ranks' rows (status.py) come together: in memory that the ranks of a node share, or by MPI's own reduction.

Shared rows cost nothing but the writing of them: a rank writes before it posts a piece, and who has reduced all pieces has seen
what all ranks wrote before. There are rows for two steps, because steps may overlap.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.gradients.status import Kind, State, Status
from farandole.comm.node.fences import fence
from farandole.comm.node.shared import SharedBlock, SharingUnavailable

__all__ = ["Rows", "open_rows"]

CACHE_LINE = 64


class Rows(Protocol):
    """This rank's row of the current step, and then those of all."""

    sent_bytes: int
    """In a step, as a message."""
    early: bool
    """Whether it can be known, before anything is reduced, which ranks have ended."""

    def enter(self, step: int, state: State) -> None:
        """A step begins."""
        ...

    def say(self, state: State) -> None:
        """The state is another one by now."""
        ...

    def note(self, index: int, kind: Kind) -> None:
        """What this rank has of a gradient."""
        ...

    def complete(self) -> None:
        """There is nothing more to say in this step."""
        ...

    def entered(self) -> bool:
        """Whether every rank is in the step, so that it is known who has ended."""
        ...

    def known(self) -> bool:
        """Whether all rows are here, once all pieces are reduced."""
        ...

    def late(self) -> list[int] | None:
        """Ranks that are not in the step, by number; None where this rank cannot know."""
        ...

    def status(self) -> Status: ...

    def take_back(self) -> None:
        """The step came to nothing."""
        ...


def open_rows(
    transport: Transport, node: Transport, entries: int, *, shared: bool, at_once: bool
) -> tuple[Rows, str]:
    """`shared`: all ranks are on this node. Also why they do not share rows where they could. Collective."""
    # Without gradients nothing would order the rows.
    if not shared or not entries:
        return _SentRows(transport, entries, at_once), ""
    try:
        return _SharedRows(node, entries), ""
    except SharingUnavailable as error:
        return _SentRows(transport, entries, at_once), f"gradients are counted over MPI ({error})"


class _SharedRows:
    """In memory of the node, with a word for each rank: which step it is in."""

    sent_bytes = 0
    early = True

    def __init__(self, node: Transport, entries: int) -> None:
        self._rank, self._size, self._width = node.rank, node.size, node.size + entries
        words, row = (-(-n // CACHE_LINE) * CACHE_LINE for n in (8 * node.size, self._width))
        block = SharedBlock(node, words + 2 * node.size * row)
        self._rows = block.view(words, (2, node.size, row), np.uint8)
        # Python's own view is several times faster for single words.
        self._steps: memoryview = block.view(0, (node.size,), np.int64).data
        self._own: list[memoryview] = [self._rows[parity, self._rank].data for parity in range(2)]
        self._mine = self._own[0]
        self._step = 0

    def enter(self, step: int, state: State) -> None:
        self._step, self._mine = step, self._own[step & 1]
        self._mine[self._rank] = state
        fence()
        self._steps[self._rank] = step

    def say(self, state: State) -> None:
        self._mine[self._rank] = state

    def note(self, index: int, kind: Kind) -> None:
        self._mine[self._size + index] = kind

    def complete(self) -> None:
        """Nothing to do: neighbours read it where it is."""

    def entered(self) -> bool:
        there = min(self._steps.tolist()) >= self._step
        if there:
            fence()
        return there

    def known(self) -> bool:
        """Who has reduced the last piece has seen all that was written before it was posted."""
        return True

    def late(self) -> list[int] | None:
        return [number for number, step in enumerate(self._steps) if step < self._step] or None

    def status(self) -> Status:
        said: list[int] = np.maximum.reduce(self._rows[self._step & 1]).tolist()
        return Status(self._step, said[: self._size], said[self._size : self._width])

    def take_back(self) -> None:
        self._steps[self._rank] = self._step - 1


class _SentRows:
    """As one small message of each rank."""

    def __init__(self, transport: Transport, entries: int, at_once: bool) -> None:
        """`at_once`: rows are sent as a step begins, with states alone, because no gradient is ever absent."""
        self._transport = transport
        self._rank, self._size = transport.rank, transport.size
        self._row = np.zeros(transport.size + entries, np.uint8)
        self._said = np.full_like(self._row, Kind.DENSE)
        self._mine: memoryview = self._row.data
        self._sent = transport.size if at_once else self._row.size
        self._request: Request | None = None
        self._step = 0
        self.early = at_once
        self.sent_bytes = self._sent

    def enter(self, step: int, state: State) -> None:
        self._step = step
        self._mine[self._rank] = state
        if self.early:
            self._send()

    def say(self, state: State) -> None:
        self._mine[self._rank] = state

    def note(self, index: int, kind: Kind) -> None:
        self._mine[self._size + index] = kind

    def complete(self) -> None:
        if not self.early:
            self._send()

    def _send(self) -> None:
        self._request = self._transport.allreduce_native(self._row[: self._sent], self._said[: self._sent], "max")

    def entered(self) -> bool:
        return self.known()

    def known(self) -> bool:
        assert self._request is not None, "every library has a maximum of bytes"
        return self._request.test()

    def late(self) -> list[int] | None:
        return None

    def status(self) -> Status:
        said: list[int] = self._said.tolist()
        return Status(self._step, said[: self._size], said[self._size :])

    def take_back(self) -> None:
        """There are no more steps after one that failed between nodes."""
