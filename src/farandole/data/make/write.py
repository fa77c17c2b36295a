"""Sheets to files: blocks are made by all cores, written in order, and appear all at once.

Each file is written under a temporary name in its folder. Only when all are complete and on the disk do they
get their names: a full disk, Ctrl-C or a crash leaves nothing that looks like data.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from farandole.data.cache import sync_folder
from farandole.data.make.sheet import Sheet, stream
from farandole.errors import DataError

__all__ = ["Written", "write_sheets"]

_BLOCKS_AHEAD = 2  # a thread; bounds the memory
_PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A file as it came to be."""

    name: str
    bytes: int
    sha256: str


def write_sheets(
    sheets: Sequence[Sheet], folder: Path, seed: int, *, threads: int | None = None,
    advance: Callable[[int], None], replacing: Callable[[], None],
) -> list[Written]:  # fmt: skip
    """Write every sheet into `folder`, all or none; `replacing` is called before the first name changes hands.

    The bytes do not depend on `threads`.
    """
    _sweep(sheets, folder)
    _check_space(sheets, folder)
    temporary = [folder / f"{_prefix(sheet)}{os.getpid()}.{secrets.token_hex(4)}{_PARTIAL}" for sheet in sheets]
    try:
        written = _write_all(sheets, temporary, seed, threads or len(os.sched_getaffinity(0)), advance)
        replacing()
        for sheet, path in zip(sheets, temporary):
            path.replace(folder / sheet.name)
        sync_folder(folder)
    except OSError as error:
        raise DataError(_explain(error, folder)) from error
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    return written


def _prefix(sheet: Sheet) -> str:
    return f".{sheet.name}.{socket.gethostname()}."


def _sweep(sheets: Sequence[Sheet], folder: Path) -> None:
    """Remove what runs of this machine left that were killed and could not."""
    for sheet in sheets:
        for path in folder.glob(f"{_prefix(sheet)}*{_PARTIAL}"):
            owner = path.name.removeprefix(_prefix(sheet)).split(".")[0]
            if owner.isdigit() and not Path("/proc", owner).exists():
                path.unlink(missing_ok=True)


def _write_all(
    sheets: Sequence[Sheet], paths: Sequence[Path], seed: int, threads: int, advance: Callable[[int], None]
) -> list[Written]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="farandole-make")
    try:
        return [
            _write(sheet.name, path, _blocks(sheet, (seed, 2, number), pool, threads), advance)
            for number, (sheet, path) in enumerate(zip(sheets, paths))
        ]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _blocks(
    sheet: Sheet, key: tuple[int, ...], pool: ThreadPoolExecutor, threads: int
) -> Iterator[memoryview]:
    """The header and every block, in order; a few are made ahead."""
    if sheet.header:
        yield memoryview(sheet.header)
    waiting: deque[Future[memoryview]] = deque()
    for index, rows in enumerate(sheet.blocks()):
        if len(waiting) == _BLOCKS_AHEAD * threads:
            yield waiting.popleft().result()
        waiting.append(pool.submit(sheet.render, rows, stream(*key, index)))
    while waiting:
        yield waiting.popleft().result()


def _write(
    name: str, path: Path, blocks: Iterator[memoryview], advance: Callable[[int], None]
) -> Written:
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
            size += len(block)
            advance(len(block))
        file.flush()
        os.fsync(file.fileno())
    return Written(name=name, bytes=size, sha256=digest.hexdigest())


def _check_space(sheets: Sequence[Sheet], folder: Path) -> None:
    needed, free = sum(sheet.about_bytes for sheet in sheets), shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder} has {free / 1e6:,.0f} MB free, the files need about {needed / 1e6:,.0f} MB. "
            "Choose another --out, a smaller --preset, or fewer --rows."
        )


def _explain(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{folder} is full: nothing was written. Make room, or choose another --out."
    return f"{folder} cannot be written: {error.strerror}. Nothing was left behind. Choose another --out."
