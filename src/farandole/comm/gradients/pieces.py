"""The pieces of a plan in memory: where gradients are packed, what is reduced, and where its result goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.gradients.cutting import Cut
from farandole.comm.gradients.interface import Entry, aligned
from farandole.comm.gradients.results import Results

__all__ = ["Piece", "Pieces"]


@dataclass(slots=True)
class Piece:
    """What is reduced at once."""

    cut: Cut
    buffer: AnyArray | None
    """A bucket's memory; None where the gradient's own is used."""
    result: AnyArray | None
    """Where the result goes, in the node's window; None leaves it in `array`."""
    array: AnyArray | None = None
    """What is reduced."""
    waiting: int = 0
    """Gradients that are not complete yet."""


class Pieces:
    """All of a plan's, in its order."""

    def __init__(self, entries: Sequence[Entry], cuts: Sequence[Cut], results: Results) -> None:
        self._entries = entries
        self.buffers: list[AnyArray | None] = [None] * len(entries)
        """Where each packed gradient goes, flat."""
        self._places: list[list[int]] = [[] for _ in entries]
        self._filled = bytearray(len(entries))
        self._list = [self._piece(place, one, results) for place, one in enumerate(cuts)]

    def __getitem__(self, place: int) -> Piece:
        return self._list[place]

    def __len__(self) -> int:
        return len(self._list)

    def _piece(self, place: int, cut: Cut, results: Results) -> Piece:
        for index in cut.entries:
            self._places[index].append(place)
        if cut.packed:
            return Piece(cut, self._memory(cut), None)
        shared = results.shared(cut.entries[0])
        return Piece(cut, None, None if shared is None else shared[cut.start : cut.stop])

    def _memory(self, cut: Cut) -> AnyArray:
        """Of a bucket, or a part of that of one gradient."""
        counts = [self._entries[index].elements for index in cut.entries]
        memory = self.buffers[cut.entries[0]]
        if memory is None:
            memory, at = aligned(sum(counts), cut.dtype), 0
            for index, count in zip(cut.entries, counts):
                self.buffers[index] = memory[at : at + count]
                at += count
        return memory[cut.start : cut.stop]

    def names(self, place: int) -> str:
        """Of gradients of a piece, for people."""
        return ", ".join(self._entries[index].name for index in self._list[place].cut.entries[:8])

    def begin(self) -> None:
        """A step begins: no gradient is complete."""
        self._filled = bytearray(len(self._entries))
        for piece in self._list:
            piece.waiting = len(piece.cut.entries)
            # Backward's next gradient can then take the memory of one that was reduced in place.
            piece.array = piece.buffer

    def fill(self, index: int, array: AnyArray | None) -> Sequence[int]:
        """A gradient is complete; places of pieces that now are."""
        self._filled[index] = True
        complete = self._places[index]
        for place in complete:
            piece = self._list[place]
            if array is not None and piece.buffer is None:
                piece.array = array[piece.cut.start : piece.cut.stop]
            piece.waiting -= 1
            if piece.waiting:  # a bucket, which is all that this gradient is in
                return ()
        return complete

    def missing(self) -> Iterator[tuple[int, AnyArray | None]]:
        """Gradients that are not complete, with zeros for them: in their buffers, or in memory of their own."""
        for index, entry in enumerate(self._entries):
            if not self._filled[index]:
                buffer = self.buffers[index]
                if buffer is not None:
                    buffer[:] = 0
                yield index, np.zeros(entry.elements, entry.numpy_dtype) if buffer is None else None
