"""Files as blocks with a checksum each: written past the system's cache, checked when they are read.

Writing, block by block:

    gather      the pieces that make the next block, into one of a few rooms of whole pages
    sum up      each part right after it, while it is in the core's cache
    write       on a thread of its own, straight from the room to the disk (O_DIRECT)

The system's cache would want new memory for every page and a core to copy it there, which training needs more, and
would throw out what it holds of the training's data. File systems that do not take O_DIRECT get ordinary writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self

import numpy as np

from farandole.checksum import crc32
from farandole.comm.bytes.transport import AnyArray

__all__ = ["BLOCK_BYTES", "Damaged", "FileSums", "Piece", "Plain", "check_file", "check_length", "read_checked", "write_pieces"]

BLOCK_BYTES = 4 << 20
_PAGE = mmap.PAGESIZE
_ROOMS = 3
_AT_A_TIME = 256 << 10
"""Bytes that are gathered and then summed up: they are in the core's own cache."""
_MOST_PIECES = 512  # of one preadv; Linux takes 1024
_SUMMING = 2
_MOST_UNDER_WAY = 16


class Damaged(Exception):
    """A file that is not what was written; says how."""


@dataclass(frozen=True, slots=True)
class FileSums:
    """How long a file is, and the CRC-32 of each of its blocks."""

    nbytes: int
    blocks: list[int]


# Writing


class Piece(Protocol):
    """Bytes that are fetched when they are to be written, each once and in order."""

    @property
    def nbytes(self) -> int: ...

    def take(self, start: int, end: int, into: AnyArray, /) -> None:
        """Put some of them there."""
        ...


class Plain:
    """Bytes that stay what they are."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self.nbytes = self._bytes.nbytes

    def take(self, start: int, end: int, into: AnyArray) -> None:
        # NumPy lets other threads have the interpreter meanwhile.
        np.copyto(into, self._bytes[start:end])


def write_pieces(path: Path, pieces: Sequence[Piece], mode: int = 0o644) -> FileSums:
    """Write a new file and make it last."""
    nbytes = sum(piece.nbytes for piece in pieces)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if nbytes >= BLOCK_BYTES:
            with contextlib.suppress(OSError):  # a file system that has none of it
                _go_past_cache(handle, True)
        sums = _write_blocks(handle, pieces)
        os.ftruncate(handle, nbytes)  # the last page was written whole
        os.fsync(handle)
    finally:
        os.close(handle)
    return FileSums(nbytes, sums)


def _go_past_cache(handle: int, wanted: bool) -> None:
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)


def _write_blocks(handle: int, pieces: Sequence[Piece]) -> list[int]:
    sums: list[int] = []
    with _Writer(handle) as writer:
        for number, block in enumerate(_blocks([piece.nbytes for piece in pieces])):
            room = writer.room()
            length, total = _gather(pieces, block, room)
            sums.append(total)
            writer.write(room, length, number * BLOCK_BYTES)
    return sums


class _Writer:
    """Writes blocks on a thread of its own, or at once where none can be started: programs that end start no more."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._free: SimpleQueue[AnyArray] = SimpleQueue()
        self._full: SimpleQueue[tuple[AnyArray, int, int] | None] = SimpleQueue()
        self._error: OSError | None = None
        for _ in range(_ROOMS):
            self._free.put(_room())
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="farandole-checkpoint-write")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    def room(self) -> AnyArray:
        """One to fill; raises what the blocks before have failed with."""
        room = self._free.get()
        if self._error is not None:
            raise self._error
        return room

    def write(self, room: AnyArray, length: int, offset: int) -> None:
        if self._thread is None:
            self._write(room, length, offset)
        else:
            self._full.put((room, length, offset))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._full.put(None)
        if self._thread is not None:
            self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        for room, length, offset in iter(self._full.get, None):
            self._write(room, length, offset)

    def _write(self, room: Any, length: int, offset: int) -> None:
        """Nothing more after an error: room() and the end raise it."""
        try:
            if self._error is None:
                _write_at(self._handle, memoryview(room[: _whole_pages(length)]), offset)
        except OSError as error:
            self._error = error
        finally:
            self._free.put(room)


def _room() -> AnyArray:
    return np.frombuffer(mmap.mmap(-1, _whole_pages(BLOCK_BYTES)), np.uint8)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _gather(pieces: Sequence[Piece], block: Sequence[_Part], room: AnyArray) -> tuple[int, int]:
    """How many bytes it were, and their CRC-32."""
    length = total = 0
    for index, start, end in block:
        for at in range(start, end, _AT_A_TIME):
            part = room[length : length + min(_AT_A_TIME, end - at)]
            pieces[index].take(at, at + len(part), part)
            total = crc32(part, total)
            length += len(part)
    return length, total


def _write_at(handle: int, data: memoryview, offset: int) -> None:
    while data:
        try:
            count = os.pwrite(handle, data, offset)
        except OSError as error:
            past_cache = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT
            if error.errno != errno.EINVAL or not past_cache:
                raise
            _go_past_cache(handle, False)  # it takes O_DIRECT, but not at this place or of this length
            continue
        data, offset = data[count:], offset + count


# Reading


def read_checked(handle: int, places: Sequence[memoryview], sums: FileSums) -> None:
    """Fill `places` from the beginning of a file; `Damaged` where a block is not what was written."""
    blocks = _blocks([len(place) for place in places])
    _read_blocks(handle, ([places[index][start:end] for index, start, end in block] for block in blocks), sums)


def check_file(path: Path, sums: FileSums) -> None:
    """`Damaged` where a file is not what was written."""
    with path.open("rb", buffering=0) as file:
        check_length(file.fileno(), sums)
        lengths = [min(BLOCK_BYTES, sums.nbytes - start) for start in range(0, sums.nbytes, BLOCK_BYTES)]
        _read_blocks(file.fileno(), ([memoryview(bytearray(length))] for length in lengths), sums)


def check_length(handle: int, sums: FileSums) -> None:
    found = os.fstat(handle).st_size
    if found != sums.nbytes:
        raise Damaged(f"has {found:,} bytes instead of {sums.nbytes:,}")
    if len(sums.blocks) != -(-sums.nbytes // BLOCK_BYTES):
        raise Damaged(f"has {len(sums.blocks)} checksums for {sums.nbytes:,} bytes")


def _read_blocks(handle: int, blocks: Iterable[list[memoryview]], sums: FileSums) -> None:
    """One thread reads, in the order of the file, which is what kernels read ahead for; others sum up behind it."""
    with ThreadPoolExecutor(_SUMMING, "farandole-checkpoint-sums") as summing:
        under_way: deque[tuple[int, Future[int]]] = deque()
        for number, block in enumerate(blocks):
            _read_block(handle, number * BLOCK_BYTES, block)
            under_way.append((number, summing.submit(_sum, block)))
            if len(under_way) > _MOST_UNDER_WAY:
                _compare(*under_way.popleft(), sums)
        for one in under_way:
            _compare(*one, sums)


def _read_block(handle: int, offset: int, block: list[memoryview]) -> None:
    for first in range(0, len(block), _MOST_PIECES):
        left = block[first : first + _MOST_PIECES]
        while left:
            count = os.preadv(handle, left, offset)
            if not count:
                raise Damaged("ends too early")
            offset += count
            left = _after(left, count)


def _compare(number: int, found: Future[int], sums: FileSums) -> None:
    if found.result() != sums.blocks[number]:
        start = number * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, sums.nbytes)
        raise Damaged(f"does not fit its checksum between byte {start:,} and {end:,}")


# Both


_Part = tuple[int, int, int]
"""Of which piece, from which of its bytes to which."""


def _blocks(lengths: Sequence[int]) -> Iterator[list[_Part]]:
    """Pieces cut where blocks of the file end, and gathered into blocks."""
    block: list[_Part] = []
    room = BLOCK_BYTES
    for index, length in enumerate(lengths):
        start = 0
        while start < length:
            end = min(start + room, length)
            block.append((index, start, end))
            room -= end - start
            start = end
            if not room:
                yield block
                block, room = [], BLOCK_BYTES
    if block:
        yield block


def _sum(block: Sequence[memoryview]) -> int:
    value = 0
    for part in block:
        value = crc32(part, value)
    return value


def _after(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What is left when some bytes are done."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []
