"""Lines between the nodes that break when a process dies: one that is killed says nothing, but the system closes its connections.

The first rank of every other node has a TCP connection to rank 0, on which nothing is sent but a farewell. A line that
ends without one is that of a process that is gone; a busy one is never taken for it. Keep-alive tells of hosts that have
vanished. Neighbours on a node see each other's end without this, and `farandole launch` watches every rank itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import threading
from collections.abc import Mapping, Sequence

from farandole.comm.transport import Transport
from farandole.launch.channel import keep_alive

__all__ = ["Lifelines", "open_lifelines"]

CONNECT_S = 1.0
_KEY_BYTES = 32
_FAREWELL = b"."
_SIOCGIFADDR = 0x8915


class Lifelines:
    """This rank's lines, by the rank at the other end."""

    def __init__(self, lines: Mapping[int, socket.socket]) -> None:
        self._lines = dict(lines)
        self._lost: set[int] = set()
        for line in self._lines.values():
            keep_alive(line)
            line.setblocking(False)

    def lost(self) -> set[int]:
        """Ranks that have ended without a farewell so far."""
        for rank, line in list(self._lines.items()):
            with contextlib.suppress(BlockingIOError):
                if not _last_word(line):
                    self._lost.add(rank)
                del self._lines[rank]
                line.close()
        return self._lost

    def say_farewell(self) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send(_FAREWELL)
        self.drop()

    def drop(self) -> None:
        """Close this process's ends: those of a forked child would keep the lines alive."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


def _last_word(line: socket.socket) -> bytes:
    try:
        return line.recv(1)
    except BlockingIOError:
        raise
    except OSError:  # nobody is there, or answers, or can be reached any more
        return b""


def open_lifelines(transport: Transport, first_ranks: Sequence[int]) -> tuple[Lifelines, list[int]]:
    """The lines between rank 0 and the first ranks of other nodes, and those of them that have none. Collective."""
    if transport.rank == 0:
        lines, connected = _serve(transport)
    else:
        addresses, port, key = transport.broadcast_object(None, 0)
        line = _call(addresses, port, key, transport.rank) if transport.rank in first_ranks else None
        lines = {} if line is None else {0: line}
        connected = transport.allgather_object(bool(lines))
    return Lifelines(lines), [rank for rank in first_ranks if not connected[rank]]


def _serve(transport: Transport) -> tuple[dict[int, socket.socket], list[bool]]:
    """Rank 0's ends: who has connected, until everybody says whether it could."""
    lines: dict[int, socket.socket] = {}
    key = secrets.token_bytes(2 * _KEY_BYTES)
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(transport.size)
    answering = threading.Thread(target=_answer, args=(listener, key, lines), daemon=True)
    answering.start()
    transport.broadcast_object((_addresses(), listener.getsockname()[1], key), 0)
    connected = transport.allgather_object(False)
    listener.shutdown(socket.SHUT_RDWR)
    answering.join()
    listener.close()
    return lines, connected


def _answer(listener: socket.socket, key: bytes, lines: dict[int, socket.socket]) -> None:
    with contextlib.suppress(OSError):  # of accept(), once the listener is shut down
        while True:
            line, _ = listener.accept()
            try:
                line.settimeout(CONNECT_S)
                asked = line.recv(_KEY_BYTES + 4)
                if asked[:_KEY_BYTES] != key[:_KEY_BYTES]:
                    raise ConnectionError("not one of ours")
                lines[int.from_bytes(asked[_KEY_BYTES:])] = line
                line.sendall(key[_KEY_BYTES:])
            except OSError:
                line.close()


def _call(addresses: Sequence[str], port: int, key: bytes, rank: int) -> socket.socket | None:
    """This rank's end; None where rank 0 cannot be reached."""
    for address in addresses:
        with contextlib.suppress(OSError):
            line = socket.create_connection((address, port), timeout=CONNECT_S)
            line.sendall(key[:_KEY_BYTES] + rank.to_bytes(4))
            if line.recv(_KEY_BYTES) == key[_KEY_BYTES:]:  # an address may be another host's as well
                return line
            line.close()
    return None


def _addresses() -> list[str]:
    """Those of this host's interfaces; loopback, which reaches nodes that are none, comes last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(found, key=lambda address: address.startswith("127."))
