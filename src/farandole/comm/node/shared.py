"""Memory that the ranks of a node share.

A block is a file of /dev/shm that one rank makes and the others map. It has no name, so that nothing is left behind whatever
happens to the ranks; only where they cannot open each other's files through /proc it has one, until all have mapped it.

A `ResultWindow` is mapped twice: shared, where ranks write their slices of a result, and privately
(copy on write), where the framework reads it in place. Whoever changes what it reads changes a page of its
own; such pages are found in /proc/self/pagemap, where there were page faults at all, and dropped before the next result is read.
"""

from __future__ import annotations

import mmap
import os
import resource
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from farandole.comm.bytes.room import FOLDER, MORE_ROOM, shown
from farandole.comm.bytes.transport import AnyArray, Transport
from farandole.comm.node import fences

__all__ = ["FOLDER", "ResultWindow", "SharedBlock", "SharingUnavailable"]

PREFIX = "farandole-"

Made = tuple[tuple[Path, tuple[int, int]] | None, str | None]
"""A file to map, and which it is; or what went wrong."""


class SharingUnavailable(Exception):
    """The node's ranks cannot share memory; the message says why. Raised on all of them."""


class SharedBlock:
    """`nbytes` of zeroed memory mapped by every rank of `node`. Collective: every rank makes it."""

    def __init__(self, node: Transport, nbytes: int, *, private: bool = False) -> None:
        """`private` maps it a second time, copy on write."""
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        self.private: mmap.mmap | None = None
        self._wants_private = private
        mapped, problems = self._share(node, self._make_nameless)
        if problems:  # ranks in PID namespaces of their own, or a /proc that hides processes
            mapped, problems = self._share(node, self._make_named)
        if problems or mapped is None:
            raise SharingUnavailable(problems[0])
        self._memory = mapped

    def _share(self, node: Transport, make: Callable[[ExitStack], Made]) -> tuple[mmap.mmap | None, list[str]]:
        """This rank's mapping of a file that rank 0 makes, and what went wrong on any rank."""
        with ExitStack() as until_all_have_it:
            made = make(until_all_have_it) if node.rank == 0 else None
            place, problem = node.broadcast_object(made, 0)
            mapped = None
            if place is not None:
                mapped, problem = self._map(*place)
            return mapped, [p for p in node.allgather_object(problem) if p is not None]

    def _make_nameless(self, until_all_have_it: ExitStack) -> Made:
        """A file without a name, which neighbours open through /proc: a rank may be killed at any moment and leaves nothing."""
        try:
            handle = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            return None, f"cannot create a file in {FOLDER}: {error.strerror}"
        until_all_have_it.callback(os.close, handle)
        return self._reserved(handle, Path(f"/proc/{os.getpid()}/fd/{handle}"))

    def _make_named(self, until_all_have_it: ExitStack) -> Made:
        path = FOLDER / f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError as error:
            return None, f"cannot create a file in {FOLDER}: {error.strerror}"
        until_all_have_it.callback(path.unlink, missing_ok=True)
        until_all_have_it.callback(os.close, handle)
        return self._reserved(handle, path)

    def _reserved(self, handle: int, path: Path) -> Made:
        try:
            os.posix_fallocate(handle, 0, self.nbytes)
        except OSError as error:
            return None, f"{FOLDER} has no room for {shown(self.nbytes)}: {error.strerror}; {MORE_ROOM}"
        return (path, _identity(handle)), None

    def _map(self, path: Path, identity: tuple[int, int]) -> tuple[mmap.mmap | None, str | None]:
        if fences.missing():
            return None, fences.missing()
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError as error:
            return None, f"cannot open a neighbour's {path}: {error.strerror}"
        try:
            if _identity(handle) != identity:  # the same process number, of another process
                return None, f"a neighbour's {path} is another file here"
            if self._wants_private:
                access = mmap.PROT_READ | mmap.PROT_WRITE
                self.private = mmap.mmap(handle, self.nbytes, mmap.MAP_PRIVATE, access)
            return mmap.mmap(handle, self.nbytes), None
        except OSError as error:
            return None, f"cannot map {shown(self.nbytes)} of {FOLDER}: {error.strerror}"
        finally:
            os.close(handle)

    def view(self, offset: int, shape: tuple[int, ...], dtype: object) -> AnyArray:
        """An array over part of the block."""
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, kind, count, offset).reshape(shape)


def _identity(handle: int) -> tuple[int, int]:
    """Device and number of an open file."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


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
        self._faults = -1
        """Of the process, when its pages were looked at last."""

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
        # A page becomes the rank's own in a page fault: where there was none since, there is no need to look at every page.
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if faults == self._faults:
            return [False] * len(self._sizes)
        self._faults = faults
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
