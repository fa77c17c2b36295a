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
from pathlib import Path

from farandole.errors import CheckpointError

__all__ = ["NAME", "FolderLock"]

NAME = "LOCK"
_PATIENCE_S = 2.0
"""How long the processes of a job that was just killed may take to be gone."""
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Held until `release()` or the end of the process, however it ends."""

    def __init__(self, folder: Path) -> None:
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
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.supported = False
                    return
                if time.monotonic() > until:
                    raise CheckpointError(self._refusal()) from error
                time.sleep(0.05)
            else:
                break
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)

    def _refusal(self) -> str:
        who = "another job"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(os.pread(self._handle, 4096, 0))
            who = f"another job (host {holder['host']}, pid {holder['pid']})"
        return f"{who} writes checkpoints to {self._path.parent} already. Give each job a folder of its own, or end that one"

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
