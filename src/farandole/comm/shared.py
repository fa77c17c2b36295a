"""Memory that the ranks of a node share.

A block is a file in /dev/shm that one rank makes, the others map, and that is unlinked as soon as all
have mapped it: whatever happens to the ranks afterwards, nothing is left behind.

A `ResultWindow` is mapped twice: shared, where ranks write their slices of a result, and privately
(copy on write), where the framework reads it in place. Whoever changes what it reads changes a page of its
own; such pages are found in /proc/self/pagemap and dropped before the next result is read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import secrets
from pathlib import Path

import numpy as np

from farandole.comm.transport import AnyArray, Transport

__all__ = ["ResultWindow", "SharedBlock", "SharingUnavailable", "fence"]

FOLDER = Path("/dev/shm")
PREFIX = "farandole-"

_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64")
_MEMBARRIER = {"aarch64": 283, "ppc64le": 365, "riscv64": 283}.get(platform.machine())
_libc = ctypes.CDLL(None, use_errno=True)


class SharingUnavailable(Exception):
    """The node's ranks cannot share memory; the message says why. Raised on all of them."""


def fence() -> None:
    """Order memory accesses between ranks. x86 keeps stores and loads in order by itself."""
    if not _STORES_IN_ORDER and _MEMBARRIER is not None:
        _libc.syscall(_MEMBARRIER, 1, 0, 0)


class SharedBlock:
    """`nbytes` of zeroed memory mapped by every rank of `node`. Collective: every rank makes it."""

    def __init__(self, node: Transport, nbytes: int, *, private: bool = False) -> None:
        """`private` maps it a second time, copy on write."""
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        self.private: mmap.mmap | None = None
        self._wants_private = private
        if not _STORES_IN_ORDER and _MEMBARRIER is None:
            raise SharingUnavailable(f"no memory barrier known for {platform.machine()}")
        made, problem = self._make() if node.rank == 0 else (None, None)
        try:
            mapped, problems = self._map_together(node, made, problem)
        finally:
            if made is not None:
                made.unlink(missing_ok=True)
        if problems or mapped is None:
            raise SharingUnavailable(problems[0])
        self._memory = mapped

    def _map_together(
        self, node: Transport, made: Path | None, problem: str | None
    ) -> tuple[mmap.mmap | None, list[str]]:
        """This rank's mapping, and what went wrong on any rank."""
        path, problem = node.broadcast_object((made, problem), 0)
        mapped = None
        if problem is None:
            mapped, problem = self._map(path)
        return mapped, [p for p in node.allgather_object(problem) if p is not None]

    def _make(self) -> tuple[Path | None, str | None]:
        path = FOLDER / f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            return None, f"cannot create a file in {FOLDER}: {error.strerror}"
        try:
            os.posix_fallocate(handle, 0, self.nbytes)
        except OSError as error:
            path.unlink()
            return None, f"{FOLDER} has no room for {self.nbytes >> 20} MiB: {error.strerror}"
        finally:
            os.close(handle)
        return path, None

    def _map(self, path: Path) -> tuple[mmap.mmap | None, str | None]:
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError as error:
            return None, f"cannot open a neighbour's {path}: {error.strerror}"
        try:
            if self._wants_private:
                access = mmap.PROT_READ | mmap.PROT_WRITE
                self.private = mmap.mmap(handle, self.nbytes, mmap.MAP_PRIVATE, access)
            return mmap.mmap(handle, self.nbytes), None
        except OSError as error:
            return None, f"cannot map {self.nbytes >> 20} MiB of {FOLDER}: {error.strerror}"
        finally:
            os.close(handle)

    def view(self, offset: int, shape: tuple[int, ...], dtype: object) -> AnyArray:
        """An array over part of the block."""
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, kind, count, offset).reshape(shape)


def _open_pagemap() -> int | None:
    """What tells a rank's own pages from shared ones; None where the system does not show it."""
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class ResultWindow:
    """Arrays whose results all ranks of a node write and read. Collective to make."""

    def __init__(self, node: Transport, sizes: list[int]) -> None:
        """`sizes` in bytes; each array begins on a page of its own."""
        pages = [-(-size // mmap.PAGESIZE) for size in sizes]
        self._first = [0, *np.cumsum(pages).tolist()]
        self._sizes = sizes
        block = SharedBlock(node, self._first[-1] * mmap.PAGESIZE, private=True)
        assert block.private is not None
        self._shared = block.view(0, (block.nbytes,), np.uint8)
        self._memory = block.private
        self._private = np.frombuffer(self._memory, np.uint8)
        self._pagemap = _open_pagemap()

    def shared(self, index: int) -> AnyArray:
        """An array as bytes, to write."""
        return self._part(self._shared, index)

    def private(self, index: int) -> AnyArray:
        """The same array as bytes, to read; what is written stays with this rank."""
        return self._part(self._private, index)

    def _part(self, memory: AnyArray, index: int) -> AnyArray:
        start = self._first[index] * mmap.PAGESIZE
        return memory[start : start + self._sizes[index]]

    def refresh(self) -> list[bool]:
        """Drop this rank's own versions of pages; for each array, whether there were any."""
        changed = self._own_pages()
        found = [bool(changed[a:b].any()) for a, b in zip(self._first, self._first[1:])]
        for index, own in enumerate(found):
            if own:
                first, last = self._first[index], self._first[index + 1]
                self._memory.madvise(
                    mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
                )
        return found

    def _own_pages(self) -> AnyArray:
        """Which pages are present and neither file-backed nor shared; all, where nobody can tell."""
        count = self._first[-1]
        if self._pagemap is None:
            return np.ones(count, np.bool_)
        address = self._private.ctypes.data // mmap.PAGESIZE
        words = np.frombuffer(os.pread(self._pagemap, 8 * count, 8 * address), np.uint64)
        present, backed = words >> np.uint64(63), (words >> np.uint64(61)) & np.uint64(1)
        swapped = (words >> np.uint64(62)) & np.uint64(1)
        own: AnyArray = ((present | swapped) == 1) & (backed == 0)
        return own

    def close(self) -> None:
        if self._pagemap is not None:
            os.close(self._pagemap)
            self._pagemap = None
