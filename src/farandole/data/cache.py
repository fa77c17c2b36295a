"""Parsed tables on disk, mapped into memory the next time.

One file holds one table: the values (page-aligned, as they lie in memory), the other columns, and at its end
a description with checksums. It says which source it was made from (path, size, time, inode) and with which
options; whatever does not fit, or is damaged, is not used and made anew. A file is written under another
name, flushed and renamed, so that it is there whole or not at all; a writer holds a lock on its unfinished
file, so that what a killed one has left behind can be told apart and removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farandole.checksum import crc32
from farandole.data.layout import ReadOptions
from farandole.data.parse import cores, on_threads
from farandole.errors import DataError, SettingsError

__all__ = ["FOLDER", "CacheFile", "Entry", "Stored", "clear", "entries", "sync_folder"]

FOLDER = ".farandole-cache"
_SUFFIX = ".matrix"
_PART = ".part"
_MAGIC = b"farandole matrix 1\n"
_ALIGN = mmap.PAGESIZE
_BLOCK = 8 << 20
_TICK_S = 0.02
"""Longer than kernels take from one time of a file to the next."""
_TRAILER = 16 + len(_MAGIC)  # length and checksum of the description, then the mark again

_under_way: dict[Path, threading.Thread] = {}
"""The files this process is writing."""


@dataclass(slots=True)
class Stored:
    """A table as it is stored."""

    values: Any
    names: tuple[str, ...] | None
    columns: list[Any]
    """Those kept apart, in the order of the options."""

    def rows(self, start: int, stop: int) -> Stored:
        """Some of its rows."""
        return Stored(self.values[start:stop], self.names, [column[start:stop] for column in self.columns])


class CacheFile:
    """The place of one source's table, read with given options."""

    def __init__(self, source: Path, options: ReadOptions, folder: Path | None) -> None:
        """`folder` None: beside the source."""
        self.source = source.resolve()
        self.folder = folder if folder is not None else self.source.parent / FOLDER
        told = self.source.stat()
        if 0 <= (age_s := time.time() - told.st_mtime) < _TICK_S:
            time.sleep(_TICK_S - age_s)  # what is written from here on has another time
            told = self.source.stat()
        self.identity = {
            "path": str(self.source),
            "size": told.st_size,
            "mtime_ns": told.st_mtime_ns,
            "inode": told.st_ino,
            "options": json.loads(json.dumps(options.key())),
        }
        known = repr((str(self.source), options.key())).encode()
        digest = hashlib.blake2b(known, digest_size=8).hexdigest()
        self.path = self.folder / f"{source.name}.{digest}{_SUFFIX}"

    @classmethod
    def at(cls, source: Path, options: ReadOptions, cache: Any) -> CacheFile | None:
        """As read_matrix's `cache` says: beside the source (True), in a folder, or nowhere (False)."""
        if cache is False:
            return None
        return cls(source, options, None if cache is True else Path(os.fspath(cache)))

    def load(self, *, verify: bool = True) -> Stored | None:
        """The table, mapped (what is written to it stays with this process); None where it is not to be had."""
        if (writer := _under_way.pop(self.path, None)) is not None:
            writer.join()
        try:
            return _load(self.path, self.identity, verify)
        except (FileNotFoundError, NotADirectoryError):  # writing will say what is wrong with the folder
            return None
        except _Unusable as why:
            if why.worth_saying:
                warnings.warn(f"farandole: {self.path}: {why}; it is made anew", stacklevel=3)
            return None
        except OSError as error:
            self._warn(f"cannot be read: {error.strerror}")
            return None

    def store(self, table: Stored, *, may_change: bool = True) -> None:
        """Keep a table. Its content is written at once where it may change, and made safe in the background."""
        if may_change:
            written = self._write(table, cores())
            if written is not None:
                self._in_background(self._commit, *written)
        else:
            self._in_background(self._write_and_commit, table)

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        # Not a daemon: a program that ends meanwhile waits for it.
        thread = threading.Thread(target=work, args=arguments, name="farandole-data-cache")
        _under_way[self.path] = thread
        thread.start()

    def _write_and_commit(self, table: Stored) -> None:
        written = self._write(table, threads=1)
        if written is not None:
            self._commit(*written)

    def _write(self, table: Stored, threads: int) -> tuple[int, Path] | None:
        """An unfinished file with the table; None, after a warning, where it cannot be written."""
        try:
            self.folder.mkdir(exist_ok=True)
            self._sweep()
            handle, part = self._create()
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror}")
            return None
        try:
            _write(handle, table, self.identity, threads)
        except BaseException as error:
            part.unlink(missing_ok=True)
            os.close(handle)
            if not isinstance(error, OSError):
                raise
            full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            self._warn(f"could not be written: {error.strerror}{full}")
            return None
        return handle, part

    def _create(self) -> tuple[int, Path]:
        """An unfinished file, locked."""
        while True:
            part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}{_PART}")
            handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):  # a filesystem without locks: unfinished files are never swept
                fcntl.flock(handle, fcntl.LOCK_EX)
            if part.exists():
                return handle, part
            os.close(handle)  # another writer has swept it before it was locked

    def _commit(self, handle: int, part: Path) -> None:
        try:
            os.fsync(handle)
            part.rename(self.path)
            sync_folder(self.folder)
        except OSError as error:
            part.unlink(missing_ok=True)
            self._warn(f"could not be finished: {error.strerror}")
        finally:
            os.close(handle)

    def _sweep(self) -> None:
        """Remove what killed writers of this file have left."""
        for part in self.folder.glob(f".{_escaped(self.path.name)}.*{_PART}"):
            _abandoned(part, remove=True)

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"farandole: the cache of {self.source.name} in {self.folder} {why}. The table itself was read; "
            "give another folder with cache=DIR, or cache=False",
            stacklevel=4,
        )


class _Unusable(Exception):
    """A cache file that is stale, damaged or not one of ours."""

    def __init__(self, why: str, *, worth_saying: bool = True) -> None:
        super().__init__(why)
        self.worth_saying = worth_saying


# The file


def _write(handle: int, table: Stored, identity: dict[str, Any], threads: int) -> None:
    os.pwrite(handle, _MAGIC, 0)
    at = _ALIGN
    arrays = []
    for array in (table.values, *table.columns):
        checks = _write_array(handle, array, at, threads)
        arrays.append({"dtype": array.dtype.str, "shape": array.shape, "offset": at, "checks": checks})
        at += -(-array.nbytes // _ALIGN) * _ALIGN
    description = {"source": identity, "names": table.names, "arrays": arrays}
    text = json.dumps(description).encode()
    trailer = len(text).to_bytes(8, "little") + crc32(text).to_bytes(8, "little") + _MAGIC
    _pwrite_all(handle, memoryview(text + trailer), at)


def _write_array(handle: int, array: Any, at: int, threads: int) -> list[int]:
    data = array.reshape(-1).view(np.uint8).data

    def write(start: int) -> int:
        piece = data[start : start + _BLOCK]
        _pwrite_all(handle, piece, at + start)
        return crc32(piece)

    return on_threads(write, range(0, len(data), _BLOCK), threads=threads)


def _pwrite_all(handle: int, data: memoryview, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], at + done)


def _load(path: Path, identity: dict[str, Any], verify: bool) -> Stored:
    with path.open("rb") as file:
        description = _description(file.fileno())
        if description["source"] != identity:
            raise _Unusable("made from another version of the file", worth_saying=False)
        size = os.fstat(file.fileno()).st_size
        memory = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    arrays = [_array(memory, told, verify) for told in description["arrays"]]
    names = description["names"]
    return Stored(arrays[0], None if names is None else tuple(names), [array.copy() for array in arrays[1:]])


def _description(handle: int) -> Any:
    """What a file says about itself, checked."""
    size = os.fstat(handle).st_size
    if size < _ALIGN + _TRAILER or os.pread(handle, len(_MAGIC), 0) != _MAGIC:
        raise _Unusable("not a table of this version of farandole")
    trailer = os.pread(handle, _TRAILER, size - _TRAILER)
    length = int.from_bytes(trailer[:8], "little")
    if trailer[16:] != _MAGIC or length > size - _TRAILER - _ALIGN:
        raise _Unusable("cut off or overwritten")
    text = os.pread(handle, length, size - _TRAILER - length)
    if crc32(text) != int.from_bytes(trailer[8:16], "little"):
        raise _Unusable("damaged (its description does not fit its checksum)")
    return json.loads(text)


def _array(memory: mmap.mmap, told: dict[str, Any], verify: bool) -> Any:
    dtype = np.dtype(told["dtype"])
    count = int(np.prod(told["shape"], dtype=np.int64))
    if told["offset"] + count * dtype.itemsize > len(memory):
        raise _Unusable("cut off or overwritten")
    array = np.frombuffer(memory, dtype, count, told["offset"])
    data = array.view(np.uint8).data
    if verify:
        found = on_threads(
            lambda start: crc32(data[start : start + _BLOCK]), range(0, len(data), _BLOCK), threads=cores()
        )
        if found != told["checks"]:
            raise _Unusable("damaged (its values do not fit their checksums)")
    return array.reshape(told["shape"])


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _abandoned(part: Path, *, remove: bool = False) -> bool:
    """Whether nobody writes an unfinished file any more; it is removed under its lock."""
    try:
        handle = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            part.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _escaped(name: str) -> str:
    """A file's name, for a pattern."""
    return "".join(f"[{c}]" if c in "[]*?" else c for c in name)


# What `farandole data cache` shows and removes


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a cache folder."""

    path: Path
    nbytes: int
    source: str
    state: str
    """current, stale (the source has changed or is gone), damaged or unfinished."""


def entries(folder: Path) -> list[Entry]:
    """The cache files of a folder: of `folder` itself and of the one beside the sources in it."""
    if not folder.is_dir():
        raise SettingsError(f"{folder}: there is no such folder; give the one that holds the data, or the cache")
    return [entry for place in (folder, folder / FOLDER) for entry in _entries(place)]


def _entries(folder: Path) -> Iterator[Entry]:
    """By names that only a cache gives: others keep files that end in .matrix, too."""
    ours = f".{'[0-9a-f]' * 16}{_SUFFIX}"
    for path in sorted(folder.glob(f"*{ours}")):
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it in between
            yield Entry(path, path.stat().st_size, *_state(path))
    for path in sorted(folder.glob(f".*{ours}.*{_PART}")):
        with contextlib.suppress(FileNotFoundError):
            yield Entry(path, path.stat().st_size, "", "unfinished" if _abandoned(path) else "being written")


def _state(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            source = _description(file.fileno())["source"]
    except _Unusable as why:
        return "", str(why)
    except OSError as error:
        return "", f"cannot be read: {error.strerror}"
    try:
        told = Path(source["path"]).stat()
    except OSError:
        return source["path"], "stale"
    same = (told.st_size, told.st_mtime_ns, told.st_ino) == (source["size"], source["mtime_ns"], source["inode"])
    return source["path"], "current" if same else "stale"


def clear(folder: Path, *, everything: bool = True) -> list[Entry]:
    """Remove cache files that nobody is writing; without `everything`, only those of no use. What was removed."""
    keep = {"being written"} if everything else {"being written", "current"}
    gone = [entry for entry in entries(folder) if entry.state not in keep]
    for entry in gone:
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"{entry.path}: cannot be removed: {error.strerror}") from None
    return gone
