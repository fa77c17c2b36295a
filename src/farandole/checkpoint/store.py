"""Writing into a folder of checkpoints, such that a kill at any moment loses none that was there.

    write       all files into a folder of another name, each flushed to the disk, the manifest last
    commit      flush that folder, rename it, flush the parent: from now on the checkpoint exists
    point       LATEST is replaced
    collect     what `Keep` no longer wants is renamed to an unfinished one, then removed

What a killed job has left unfinished is removed by the next one, which holds the lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farandole.checkpoint.blocks import Damaged
from farandole.checkpoint.folder import (
    ARRAYS,
    LATEST,
    MANIFEST,
    OBJECTS,
    SET_ASIDE,
    STATE,
    UNFINISHED,
    Entry,
    Loaded,
    entries,
    load,
    load_manifest,
)
from farandole.checkpoint.held import Held
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.lock import FolderLock
from farandole.checkpoint.manifest import Manifest, OfAnotherVersion
from farandole.checkpoint.tensorfile import write_arrays, write_bytes
from farandole.comm.bytes.transport import AnyArray
from farandole.data.cache import sync_folder
from farandole.errors import CheckpointError

__all__ = ["Store"]


class Store:
    """A folder that this process alone writes to."""

    def __init__(self, folder: Path, keep: Keep, say: Callable[[str], object]) -> None:
        self.folder = folder.absolute()
        self._keep = keep
        self._say = say
        self._said: set[str] = set()
        self._last_s: float | None = None
        self._closed = False
        self._lock = self._locked()
        try:
            self._sweep()
        except BaseException:
            self._lock.release()
            raise

    @property
    def last_s(self) -> float | None:
        """How long the last save took; None before the first."""
        return self._last_s

    def _locked(self) -> FolderLock:
        try:
            self._make_folder()
            lock = FolderLock(self.folder, self._say)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written to: {error.strerror}") from error
        if not lock.supported:
            self._say(f"{self.folder} is on a file system without locks: take care that no second job writes there")
        return lock

    def _make_folder(self) -> None:
        """What is on the disk by its name must be found after a power cut: so must the folders above."""
        made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            _sync_parent(path)

    def _sweep(self) -> None:
        for entry in entries(self.folder):
            if entry.kind == UNFINISHED:
                try:
                    shutil.rmtree(entry.path)
                except OSError as error:
                    self._say(f"{entry.path} is no longer needed, and could not be removed: {error.strerror}")

    def close(self) -> None:
        self._closed = True
        self._lock.release()

    # Reading

    def newest(self) -> Loaded | None:
        """The newest that is whole; those that are not are named and set aside. None without any."""
        for entry in reversed(self.finished()):
            try:
                return load(entry)
            except OfAnotherVersion as why:
                self._say(f"{entry.path} cannot be used: {why}. It is left alone; the one before is tried")
            except Damaged as why:
                self._say(f"{entry.path} is damaged: {why}. {self._set_aside(entry)}; the one before is tried")
            except OSError as error:
                self._say(f"{entry.path} cannot be read: {error.strerror}. The one before is tried")
        return None

    def _set_aside(self, entry: Entry) -> str:
        aside = entry.within(SET_ASIDE)
        try:
            entry.path.rename(aside.path)
        except OSError as error:
            return f"It cannot be set aside ({error.strerror})"
        return f"It is set aside as {aside.path.name}"

    def finished(self) -> list[Entry]:
        """Those that look whole, oldest first."""
        return [entry for entry in entries(self.folder) if not entry.kind]

    # Writing

    def write(
        self, manifest: Manifest, state: Any, arrays: Mapping[str, AnyArray | Held], objects: bytes | None = None
    ) -> Entry:
        """Save; what was saved before stays, but for what is no longer wanted once this one is safe."""
        if self._closed:
            raise CheckpointError(
                f"{self.folder} may be another job's by now: the checkpointer was closed (fit() does it at its end). Save before, "
                "or make a new Checkpointer and call its restore()"
            )
        began = time.monotonic()
        number = max((entry.number for entry in entries(self.folder)), default=0) + 1
        final = Entry.named(self.folder, number, manifest.step)
        part = final.within(UNFINISHED)
        try:
            self._write(part.path, manifest, state, arrays, objects)
            part.path.rename(final.path)
            sync_folder(self.folder)
        except (CheckpointError, OSError) as error:
            shutil.rmtree(part.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise CheckpointError(self._not_written(final, arrays, error)) from error
            raise
        self._point_to(final)
        self._last_s = time.monotonic() - began
        _tell_launcher()
        self._collect()
        return final

    def _write(
        self, folder: Path, manifest: Manifest, state: Any, arrays: Mapping[str, AnyArray | Held], objects: bytes | None
    ) -> None:
        folder.mkdir()
        files = {
            STATE: write_bytes(folder / STATE, json.dumps(state).encode()),
            ARRAYS: write_arrays(folder / ARRAYS, arrays),
        }
        if objects is not None:
            files[OBJECTS] = write_bytes(folder / OBJECTS, objects, private=True)
        write_bytes(folder / MANIFEST, replace(manifest, files=files).as_bytes())
        sync_folder(folder)

    def _point_to(self, entry: Entry) -> None:
        """For people and programs that want the newest; `newest()` does without."""
        part = self.folder / f"{LATEST}.part"
        try:
            part.unlink(missing_ok=True)
            write_bytes(part, f"{entry.path.name}\n".encode())
            part.replace(self.folder / LATEST)
            sync_folder(self.folder)
        except OSError as error:
            self._say(f"{entry.path} is safe, but {LATEST} could not be made to name it: {error.strerror}")

    def _not_written(self, entry: Entry, arrays: Mapping[str, AnyArray | Held], error: OSError) -> str:
        finished = self.finished()
        kept = f"{finished[-1].path.name} is still there" if finished else "there is none before it"
        room = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = sum(array.nbytes for array in arrays.values())
            free = os.statvfs(self.folder)
            room = f" It needs {needed:,} bytes, {free.f_bavail * free.f_frsize:,} are free: make room, or keep fewer."
        return f"{entry.path} could not be written: {error.strerror}.{room} Of the older ones {kept}"

    def _collect(self) -> None:
        found: dict[int, tuple[Entry, Manifest]] = {}
        for entry in self.finished():
            try:
                found[entry.number] = (entry, load_manifest(entry))
            except (Damaged, OSError) as why:
                self._say_once(f"{entry.path} is not counted among those to keep, and left alone: {why}")
        kept = self._keep.chosen({number: manifest for number, (_, manifest) in found.items()})
        for number, (entry, _) in found.items():
            if number not in kept:
                self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        """Under an unfinished one's name first: what ends half-way must not leave something that looks damaged."""
        gone = entry.within(UNFINISHED)
        try:
            entry.path.rename(gone.path)
            sync_folder(self.folder)
            shutil.rmtree(gone.path)
        except OSError as error:
            self._say(f"{entry.path} could not be removed: {error.strerror}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def _tell_launcher() -> None:
    """That a job which fails from now on has come further than one that has failed before."""
    folder = Path(os.environ.get("FARANDOLE_JOB_DIR", ""))
    with contextlib.suppress(OSError):
        if folder.name and folder.is_dir():
            with (folder / f"rank.{os.environ.get('FARANDOLE_LAUNCH_RANK', 0)}.checkpoints").open("a") as file:
                file.write(f"{time.time():.3f}\n")


def _sync_parent(path: Path) -> None:
    """A folder of somebody else's may be written into and not be opened, or know no fsync."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise
