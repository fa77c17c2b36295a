"""One job at a time writes into a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from farandole.errors import CheckpointError

__all__ = ["NAME", "FolderLock"]

NAME = "LOCK"
_PATIENCE_S = 2.0
"""How long the processes of a job that was just killed may take to be gone."""
_RESTART_PATIENCE_S = 120.0
"""The same where a host was lost with them: network file systems hold its locks for a lease, of 90 s as a rule."""
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Held until `release()` or the end of the process, however it ends."""

    def __init__(self, folder: Path, say: Callable[[str], object]) -> None:
        self._say = say
        self.supported = True
        """Whether this file system has locks; where not, nothing keeps a second job away."""
        self._path = folder / NAME
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire()
        except BaseException:
            os.close(self._handle)
            raise
        _held.add(self)

    def _acquire(self) -> None:
        began, patience_s = time.monotonic(), _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.supported = False
                    return
                if time.monotonic() > began + patience_s:
                    patience_s = self._more_patience(patience_s, error)
                time.sleep(0.05)
            else:
                break
        self._note_holder()

    def _more_patience(self, patience_s: float, error: OSError) -> float:
        """Of a job that was started again, which may have lost the host that holds the lock."""
        restarted = os.environ.get("FARANDOLE_RESTART", "0") != "0"
        if not restarted or patience_s >= _RESTART_PATIENCE_S:
            raise CheckpointError(
                f"{self._holder()} writes checkpoints to {self._path.parent} already. Give each job a folder of its own, or "
                "end that one"
            ) from error
        self._say(f"{self._path} is held by {self._holder()}: waits up to {_RESTART_PATIENCE_S:.0f} s for it to be gone")
        return _RESTART_PATIENCE_S

    def _note_holder(self) -> None:
        # The lock holds without the note, for which a full disk has no room.
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)

    def _holder(self) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(os.pread(self._handle, 4096, 0))
            return f"another job (host {holder['host']}, pid {holder['pid']})"
        return "another job"

    def release(self) -> None:
        _held.discard(self)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _release_in_child() -> None:
    """A forked process (a DataLoader's worker) must not hold the lock of a parent that was killed."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
