"""Waiting for what neighbours mark on their board, and who is late meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.comm.bytes.waiting import Subject, all_arrived, wait_until
from farandole.comm.node.exchange import POSTED, Board

__all__ = ["Marks"]


class Marks:
    """The marks of a node's ranks. Without a board there are none to wait for."""

    def __init__(
        self, board: Board | None, members: Sequence[int], neighbours: Sequence[int], *, all_came: bool
    ) -> None:
        """World ranks of all who take part, and of those on this node.

        `all_came`: every rank has come before any of them posts, so that no wait is for one that has not.
        """
        self._board = board
        self._members = tuple(members)
        self._neighbours = tuple(neighbours)
        self._all_came = all_came

    def wait(self, word: int, slot: int, sequence: int, key: str) -> None:
        """Return when all neighbours have come to `sequence` in this slot."""
        board = self._board
        if board is None or board.reached(word, slot, sequence):
            return
        subject = self.subject(key, lambda: self._late(word, slot, sequence))
        wait_until(lambda: board.reached(word, slot, sequence), subject)

    def wait_for_all(self, word: int, sequence: int, slots: int, key: str) -> None:
        """The same for the first `slots` slots at once."""
        board = self._board
        if board is not None and not board.all_reached(word, sequence, slots):
            wait_until(lambda: board.all_reached(word, sequence, slots), self.subject(key))

    def posts(self, sequence: int, slots: int, key: str) -> Subject:
        """What a thread waits for while others reduce the first `slots` slots."""

        def late() -> list[int] | None:
            of_slots = [self._late(POSTED, slot, sequence) or [] for slot in range(slots)]
            return sorted(set().union(*of_slots)) or None

        return self.subject(key, late)

    def subject(self, key: str, late: Callable[[], list[int] | None] = lambda: None) -> Subject:
        """What a wait is for, and what it knows of late ranks."""
        return Subject(key, self._members, all_arrived if self._all_came else late)

    def take_back(self, sequence: int) -> None:
        """Undo this rank's marks of a sequence that came to nothing, so that it can be done again."""
        if self._board is not None:
            self._board.take_back(sequence)

    def _late(self, word: int, slot: int, sequence: int) -> list[int] | None:
        """World ranks of this node that have not come to `sequence`; None where all have: others may be late."""
        if self._board is None:
            return None
        return [self._neighbours[local] for local in self._board.late(word, slot, sequence)] or None
