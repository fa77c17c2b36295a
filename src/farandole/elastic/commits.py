"""Commits on disk: the last two states of an elastic run, each whole or not at all.

    run0.00000007.commit
        farandole commit 1          this line
        ...                         the state, pickled
        length, checksum            8 and 32 bytes
        farandole commit 1          the line again: what lacks it was cut off

A commit is written under another name, made safe on the disk, and renamed; only then is the one before the
last removed. They are made for the next start of the same script, not for keeping: pickle runs what it reads.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cloudpickle

from farandole.data.cache import sync_folder
from farandole.errors import CommitError

__all__ = ["FOLDER_VARIABLE", "Commit", "Commits", "clear", "count"]

FOLDER_VARIABLE = "FARANDOLE_COMMIT_DIR"
"""Where commits go; unset, they stay in memory."""

_MARK = b"farandole commit 1\n"
_NAME = re.compile(r"run(\d+)\.(\d{8})\.commit")
_PART = "run*.part"
_DIGEST_BYTES = 32
_TRAILER_BYTES = 8 + _DIGEST_BYTES + len(_MARK)


class Commit(NamedTuple):
    number: int
    ranks: int
    """How many had made it."""
    values: Any


class Commits:
    """Those of one elastic run. One process writes at a time: rank 0."""

    def __init__(self, folder: Path, run: int = 0) -> None:
        """`run`: the how-manieth elastic function of its script."""
        self.folder = folder
        self._run = run
        self._last_good: int | None = None

    def newest(self, say: Callable[[str], object]) -> Commit | None:
        """The newest that is whole; `say` is told of those that are not. None without any."""
        for number in reversed(self._numbers()):
            try:
                content = _read(self._path(number))
            except _Damaged as why:
                say(f"{self._path(number)} is {why}; the commit before it is used")
                continue
            self._last_good = number
            return Commit(number, content["ranks"], content["values"])
        return None

    def write(self, values: Any, ranks: int) -> int:
        """Keep a state, and of the older ones the last good; its number."""
        number = max(self._numbers(), default=0) + 1
        part = self.folder / f"run{self._run}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                _write(file, {"ranks": ranks, "values": values})
            part.rename(self._path(number))
            sync_folder(self.folder)
        except OSError as error:
            raise CommitError(self._not_written(number, part, error)) from error
        self._remove_all_but({number, self._last_good})
        self._last_good = number
        return number

    def _not_written(self, number: int, part: Path, error: OSError) -> str:
        # A disk that is full has to have room again for whatever the user does about it.
        part.unlink(missing_ok=True)
        kept = f"commit {self._last_good} is still there" if self._last_good else "there is none before it"
        return (
            f"commit {number} could not be written to {self.folder}: {error.strerror}; {kept}. Make room, or "
            "give another folder: farandole launch --commit-dir DIR"
        )

    def _remove_all_but(self, kept: set[int | None]) -> None:
        for number in self._numbers():
            if number not in kept:
                self._path(number).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        return sorted(number for run, number in _found(self.folder) if run == self._run)

    def _path(self, number: int) -> Path:
        return self.folder / f"run{self._run}.{number:08d}.commit"


def count(folder: Path) -> int:
    """How many commits the runs of a script have made in a folder."""
    newest: dict[int, int] = {}
    for run, number in _found(folder):
        newest[run] = max(number, newest.get(run, 0))
    return sum(newest.values())


def clear(folder: Path) -> None:
    """Remove all commits, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    ours = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) or path.match(_PART)]
    for path in ours:
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _found(folder: Path) -> list[tuple[int, int]]:
    """The commits of a folder: run and number."""
    if not folder.is_dir():
        return []
    names = [_NAME.fullmatch(path.name) for path in folder.iterdir()]
    return [(int(name[1]), int(name[2])) for name in names if name]


class _Damaged(Exception):
    """A commit that is not what was written."""


class _Summed:
    """A file that sums up what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._size = 0

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._size += memoryview(data).nbytes
        return self._file.write(data)

    def trailer(self) -> bytes:
        return self._size.to_bytes(8, "little") + self._digest.digest() + _MARK


def _write(file: BinaryIO, content: dict[str, Any]) -> None:
    file.write(_MARK)
    summed = _Summed(file)
    cloudpickle.dump(content, summed, protocol=5)
    file.write(summed.trailer())
    file.flush()
    os.fsync(file.fileno())


def _read(path: Path) -> dict[str, Any]:
    data = memoryview(path.read_bytes())
    if data[: len(_MARK)] != _MARK:
        raise _Damaged("cut off, or no commit of this version of farandole")
    body, trailer = data[len(_MARK) : -_TRAILER_BYTES], bytes(data[-_TRAILER_BYTES:])
    if not trailer.endswith(_MARK) or int.from_bytes(trailer[:8], "little") != len(body):
        raise _Damaged("cut off")
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != trailer[8 : 8 + _DIGEST_BYTES]:
        raise _Damaged("damaged (its content does not fit its checksum)")
    try:
        content: dict[str, Any] = pickle.loads(body)
    except Exception as error:  # whatever the script's own classes may raise
        raise CommitError(
            f"{path} is whole, but {Path(sys.argv[0]).name} cannot read it back: {error!r}. Has the script "
            f"changed? Remove {path.parent} to start from the beginning"
        ) from error
    return content
