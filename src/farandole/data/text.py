"""Files as blocks of whole lines: mapped where they lie, or decompressed as they are read.

A block is (text, start, stop): it begins at the start of a line and ends with a line feed. A last line
without one becomes a block of its own, with the line feed it lacks.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from farandole.errors import DataError

__all__ = ["Block", "GzipText", "MappedText", "open_text"]

BLOCK_BYTES = 4 << 20
_HEAD_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


class Block(NamedTuple):
    text: Any
    start: int
    stop: int
    offset: int
    """Where `text` begins in the (decompressed) file."""

    @property
    def size(self) -> int:
        return self.stop - self.start


class MappedText:
    """A file as it lies on disk."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(0, 2)
            self.size = file.tell()
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if self.size else None
        if self._map is not None:
            self._map.madvise(mmap.MADV_SEQUENTIAL)

    def head(self) -> bytes:
        """The file's beginning, with at least one line that says something."""
        if self._map is None:
            return b""
        stop = min(_HEAD_BYTES, self.size)
        while not _has_line(self._map[:stop]) and stop < self.size:
            stop = min(2 * stop, self.size)
        return self._map[:stop]

    def blocks(self, first: int) -> list[Block]:
        """All lines from `first` on."""
        if self._map is None:
            return []
        text = np.frombuffer(self._map, np.uint8)
        end = self._map.rfind(b"\n", first) + 1
        blocks, at = [], first
        while at < end:
            stop = self._map.find(b"\n", min(at + BLOCK_BYTES, end) - 1) + 1
            blocks.append(Block(text, at, stop, 0))
            at = stop
        at = max(end, first)
        if at < self.size:
            blocks.append(_closed(self._map[at:], at))
        return blocks

    def line_number(self, offset: int) -> int:
        """The number of the line at `offset`, from 1."""
        assert self._map is not None
        step = _READ_BYTES
        return 1 + sum(self._map[at : min(at + step, offset)].count(b"\n") for at in range(0, offset, step))


class GzipText:
    """A gzip file (of one or several members), read from its beginning to its end."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        """`advance` is told of compressed bytes as they are read."""
        self._path = path
        self._advance = advance
        self.read = 0
        """Compressed bytes read so far."""

    def chunks(self) -> Iterator[bytes]:
        """The file's content, piece by piece."""
        inflate = zlib.decompressobj(wbits=31)
        with self._path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                self.read += len(data)
                self._advance(len(data))
                while data:
                    if inflate.eof:
                        data = data.lstrip(b"\0")  # padding after a member
                        inflate = zlib.decompressobj(wbits=31) if data else inflate
                        continue
                    try:
                        piece = inflate.decompress(data, _READ_BYTES)
                    except zlib.error as error:
                        raise DataError(f"{self._path}: damaged gzip file ({error})") from None
                    data = inflate.unused_data or inflate.unconsumed_tail
                    if piece:
                        yield piece
        if not inflate.eof:
            raise DataError(f"{self._path}: the gzip file is cut off after {self.read} bytes; copy it again")

    def lines(self) -> Iterator[tuple[bytes, int]]:
        """(whole lines, where they begin), of about a block each; the last may lack its line feed."""
        held: list[bytes] = []
        size = offset = 0
        for piece in self.chunks():
            held.append(piece)
            size += len(piece)
            if size >= BLOCK_BYTES and b"\n" in piece:
                joined = b"".join(held)
                if not offset and not _has_line(joined):
                    continue
                cut = joined.rfind(b"\n") + 1
                yield joined[:cut], offset
                offset += cut
                held, size = [joined[cut:]], len(joined) - cut
        rest = b"".join(held)
        if rest:
            yield rest, offset


def open_text(path: Path) -> str:
    """"gzip" or "plain", by content; an error where the file cannot be read."""
    try:
        if path.is_dir():
            raise DataError(f"{path}: this is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: this is a pipe or a device; write what comes from it to a file first")
        with path.open("rb") as file:
            return "gzip" if file.read(2) == _GZIP else "plain"
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def as_block(data: bytes, offset: int, start: int = 0) -> Block:
    """Lines held in memory, from `start` on, with the line feed the last may lack."""
    if not data.endswith(b"\n"):
        return _closed(data, offset, start)
    return Block(np.frombuffer(data, np.uint8), start, len(data), offset)


def _closed(data: bytes, offset: int, start: int = 0) -> Block:
    text = np.frombuffer(data + b"\n", np.uint8)
    return Block(text, start, len(text), offset)


def _has_line(head: bytes) -> bool:
    """Whether a whole line that says something is there."""
    stripped = head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    return b"\n" in stripped
