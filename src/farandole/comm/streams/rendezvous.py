"""How the processes of a node find a file of /dev/shm that has no name, so that nothing is left whoever is killed.

Whoever has the file open binds a socket of the abstract namespace, whose name says which process and descriptor that is; the
system takes such names back when a process ends. Others read the names in /proc/net/unix and open the file through /proc. A name
begins with a keyed hash: only who knows name and secret finds the file. One more socket is the lock under which it is looked for
and made.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from farandole.comm.bytes.room import FOLDER
from farandole.comm.bytes.waiting import pauses
from farandole.errors import SettingsError, StalledError

__all__ = ["Meeting", "keyed", "started"]

LOCKED_S = 20.0


def keyed(secret: bytes, text: str) -> bytes:
    """What only those can compute who know the secret."""
    return hmac.digest(secret, text.encode(), hashlib.sha256)


def started(pid: int) -> int:
    """When a process was started, in ticks since boot; 0 where it is gone or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if words[0] in "ZX" else int(words[19])


class Meeting:
    """The descriptor of a file that all who know name and secret share, for as long as one of them has it open."""

    def __init__(self, name: str, secret: bytes, make: Callable[[int], None], check: Callable[[int], None]) -> None:
        """`make` fills a new file of this process, `check` raises where one that was found is not what it should be."""
        # Nodes of which several are on one host are told apart as elsewhere.
        place = os.environ.get("FARANDOLE_NODE", "")
        self._prefix = f"farandole-stream-{keyed(secret, f'{place}/{name}').hex()[:40]}-"
        self._name = name
        with self._locked():
            found = self._find()
            self.handle = self._create(make) if found is None else found
            try:
                if found is not None:
                    check(found)
                self._socket = self._bind(f"{os.getpid()}-{self.handle}-{os.fstat(self.handle).st_ino}")
            except BaseException:
                os.close(self.handle)
                raise

    def close(self) -> None:
        """Nobody finds the file through this process any more, which still has it open."""
        self._socket.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        end = time.monotonic() + LOCKED_S
        for _ in pauses(patient=True):
            with contextlib.suppress(BlockingIOError):
                lock = self._bind("lock")
                break
            if time.monotonic() > end:
                raise StalledError(f"stream {self._name!r}: another process has been opening it for {LOCKED_S:g} s")
        try:
            yield
        finally:
            lock.close()

    def _bind(self, rest: str) -> socket.socket:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(f"\0{self._prefix}{rest}")
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                raise BlockingIOError from None
            raise
        return bound

    def _find(self) -> int | None:
        for line in Path("/proc/self/net/unix").read_text(errors="replace").splitlines():
            name = line.rpartition("@")[2]
            if name.startswith(self._prefix) and name.count("-") == self._prefix.count("-") + 2:
                pid, handle, number = name.removeprefix(self._prefix).split("-")
                with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
                    found = os.open(f"/proc/{pid}/fd/{handle}", os.O_RDWR | os.O_CLOEXEC)
                    if os.fstat(found).st_ino == int(number):
                        return found
                    os.close(found)
        return None

    def _create(self, make: Callable[[int], None]) -> int:
        try:
            handle = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"stream {self._name!r}: cannot create a file in {FOLDER}: {error.strerror}") from None
        try:
            make(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle
