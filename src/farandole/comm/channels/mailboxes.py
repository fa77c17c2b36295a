"""Letters between the ranks of a node: for each pair of them a ring of bytes in shared memory, and some words for what they do together.

A letter is there whole or not at all: its writer moves the ring's head once every byte is written. It stays when its
writer ends, until it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from farandole.comm.bytes.transport import Transport
from farandole.comm.node.fences import fence
from farandole.comm.node.shared import SharedBlock

__all__ = ["Mailboxes"]

MOST_BYTES, LEAST_BYTES, ALL_BYTES = 64 << 10, 8 << 10, 4 << 20
"""Of one ring, and of all of a node."""
_WORD = 8
PAIR_WORDS = 8


class Mailboxes:
    """The rings of a node. Collective: every rank of it makes them."""

    def __init__(self, node: Transport) -> None:
        self._me, self._size = node.rank, node.size
        self._room = max(LEAST_BYTES, min(MOST_BYTES, ALL_BYTES // node.size**2 // 4096 * 4096))
        words = (2 + PAIR_WORDS) * node.size**2
        self._block = SharedBlock(node, _WORD * words + node.size**2 * self._room)
        # Bytes written and read so far, by reader and writer; each word has one rank that writes it.
        self._words: memoryview = self._block.view(0, (words,), np.int64).data
        self._bytes: memoryview = self._block.view(_WORD * words, (node.size**2 * self._room,), np.uint8).data
        self._read = [0] * node.size

    def pair(self, reader: int, writer: int) -> memoryview:
        """Words of two ranks, which both read and write."""
        at = 2 * self._size**2 + PAIR_WORDS * (reader * self._size + writer)
        return self._words[at : at + PAIR_WORDS]

    def put(self, reader: int, letter: bytes) -> bool:
        """Whether there was room for it."""
        ring = reader * self._size + self._me
        written, needed = self._words[ring], _WORD + -(-len(letter) // _WORD) * _WORD
        if written + needed - self._words[self._size**2 + ring] > self._room:
            return False
        self._copy_in(ring, written, len(letter).to_bytes(_WORD, "little"))
        self._copy_in(ring, written + _WORD, letter)
        fence()
        self._words[ring] = written + needed
        return True

    def take(self) -> Iterator[tuple[int, bytes]]:
        """What has come, with its writer."""
        mine = self._me * self._size
        written = self._words[mine : mine + self._size].tolist()
        if written == self._read:
            return
        fence()
        for writer, end in enumerate(written):
            while self._read[writer] < end:
                yield writer, self._next(mine + writer, writer)

    def _next(self, ring: int, writer: int) -> bytes:
        at = self._read[writer]
        size = int.from_bytes(self._copy_out(ring, at, _WORD), "little")
        letter = self._copy_out(ring, at + _WORD, size)
        self._read[writer] = at + _WORD + -(-size // _WORD) * _WORD
        fence()
        self._words[self._size**2 + ring] = self._read[writer]
        return letter

    def _copy_in(self, ring: int, at: int, data: bytes) -> None:
        start = at % self._room
        first = min(len(data), self._room - start)
        base = ring * self._room
        self._bytes[base + start : base + start + first] = data[:first]
        self._bytes[base : base + len(data) - first] = data[first:]

    def _copy_out(self, ring: int, at: int, size: int) -> bytes:
        start = at % self._room
        first = min(size, self._room - start)
        base = ring * self._room
        return bytes(self._bytes[base + start : base + start + first]) + bytes(self._bytes[base : base + size - first])
