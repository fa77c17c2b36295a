"""PMI, the line over which MPICH's and Intel's libraries talk to mpiexec, listened in on.

The worker keeps mpiexec's end and hands the rank one of its own, passing every byte on. So it knows what
neither exit codes nor mpiexec tell: whether a rank has joined MPI, and whether it has left it in order. An
abort (MPI_Abort) is not passed on: mpiexec would kill the workers, without warning, before they have cleaned
up. The launcher ends the job instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping

__all__ = ["PmiRelay"]

_VARIABLE = "PMI_FD"
_CHUNK = 65536
_EXIT_CODE = re.compile(rb"exitcode=(\d+)")


class PmiRelay:
    """Between a rank and mpiexec; inactive where mpiexec speaks something else."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.joined = False
        self.left = False
        self.abort_code: int | None = None
        self._line = b""
        self._server: socket.socket | None = None
        self._rank: socket.socket | None = None
        self._handed_over: socket.socket | None = None
        if environment.get(_VARIABLE, "").isdecimal():
            self._server = socket.socket(fileno=int(environment[_VARIABLE]))
            self._rank, self._handed_over = socket.socketpair()

    @property
    def sockets(self) -> list[socket.socket]:
        """What to watch for bytes to pass on."""
        return [end for end in (self._server, self._rank) if end is not None]

    def hand_over(self) -> dict[str, str]:
        """Make the rank's end inheritable; the variables that tell the rank of it."""
        if self._handed_over is None:
            return {}
        os.set_inheritable(self._handed_over.fileno(), True)
        if self._server is not None:
            os.set_inheritable(self._server.fileno(), False)
        return {_VARIABLE: str(self._handed_over.fileno())}

    def handed_over(self) -> None:
        """Close this process's copy, so that the rank's end closes with the rank."""
        if self._handed_over is not None:
            self._handed_over.close()

    def pass_on(self, source: socket.socket) -> bool:
        """Move what has arrived to the other side; False once `source` is closed."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = source.recv(_CHUNK)
        if not data:
            return False
        other = self._rank if source is self._server else self._server
        if source is self._rank:
            self._listen(data)
        if other is not None and self.abort_code is None:
            with contextlib.suppress(ConnectionError):
                other.sendall(data)
        return True

    def _listen(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_CHUNK:]
        for line in lines:
            self.joined |= line.startswith(b"cmd=init")
            self.left |= line.startswith(b"cmd=finalize")
            if line.startswith(b"cmd=abort"):
                found = _EXIT_CODE.search(line)
                self.abort_code = int(found[1]) if found else 1
