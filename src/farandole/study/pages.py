"""Which part of a file the kernel holds in memory, and how to make it forget."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

__all__ = ["forget_pages", "held_share"]


def forget_pages(paths: Iterable[Path]) -> str | None:
    """Drop the files' pages from the page cache. Why that could not be, or None."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)  # a page that is not on the disk yet cannot be dropped
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
        share = held_share(path)
        if share > 0.05:
            return f"{share:.0%} of {path.name} stays in memory: its filesystem or another process keeps it there"
    return None


def held_share(path: Path) -> float:
    """How much of a file is in the page cache."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    text = np.frombuffer(mapped, np.uint8)
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    asked = libc.mincore(ctypes.c_void_p(text.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
    if asked != 0:
        raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return float((pages & 1).mean())
