"""Lines between the nodes that break when a process dies: one that is killed says nothing, but the system closes its connections.

The first rank of every other node has a TCP connection to rank 0, on which nothing is sent but a farewell. A line that
ends without one is that of a process that is gone; a busy one is never taken for it. Keep-alive tells of hosts that have
vanished. Neighbours on a node see each other's end without this, and `farandole launch` watches every rank itself.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from farandole.comm.bytes.transport import Transport
from farandole.launch.addresses import listen_for, own_addresses
from farandole.launch.link import Link, Reception, connect, ready

__all__ = ["Lifelines", "open_lifelines"]

CONNECT_S = 1.0
_FAREWELL = "farewell"


class Lifelines:
    """This rank's lines, by the rank at the other end."""

    def __init__(self, lines: Mapping[int, Link]) -> None:
        self._lines = dict(lines)
        self._lost: set[int] = set()

    def lost(self) -> set[int]:
        """Ranks that have ended without a farewell so far."""
        for rank, line in list(self._lines.items()):
            try:
                if not line.take():
                    continue
            except (OSError, EOFError):  # nobody is there, or answers, any more
                self._lost.add(rank)
            del self._lines[rank]
            line.close()
        return self._lost

    def say_farewell(self) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.post(_FAREWELL)
        self.drop()

    def drop(self) -> None:
        """Close this process's ends: those of a forked child would keep the lines alive."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


def _say(text: str) -> None:
    print(f"farandole: {text}", file=sys.stderr, flush=True)


def open_lifelines(
    transport: Transport, first_ranks: Sequence[int], say: Callable[[str], object] = _say
) -> tuple[Lifelines, list[int]]:
    """The lines between rank 0 and the first ranks of other nodes, and those of them that have none. Collective.

    `say` is told on rank 0 of others that try to connect.
    """
    takes_part = transport.rank in (0, *first_ranks)
    addresses = transport.allgather_object(own_addresses() if takes_part else [])
    if transport.rank == 0:
        lines, connected = _serve(transport, _listen(addresses), say)
    else:
        places, key = transport.broadcast_object(None, 0)
        line = _call(places, key, transport.rank) if transport.rank in first_ranks else None
        lines = {} if line is None else {0: line}
        connected = transport.allgather_object(bool(lines))
    return Lifelines(lines), [rank for rank in first_ranks if not connected[rank]]


def _listen(addresses: Sequence[Sequence[str]]) -> list[socket.socket]:
    """On what the other nodes reach this one by. Addresses that both have (loopback, containers' bridges) lead nowhere else."""
    others = {address for one in addresses[1:] for address in one} - {*addresses[0]}
    return listen_for(sorted(others) or ["127.0.0.1"], backlog=len(addresses))


def _serve(
    transport: Transport, listeners: Iterable[socket.socket], say: Callable[[str], object]
) -> tuple[dict[int, Link], list[bool]]:
    """Rank 0's ends: who has connected, until everybody says whether it could."""
    lines: dict[int, Link] = {}
    listeners = list(listeners)
    key = secrets.token_bytes(32)
    done, awake = socket.socketpair()
    reception = Reception(listeners, key, say)
    answering = threading.Thread(target=_answer, args=(reception, awake, lines), daemon=True)
    answering.start()
    transport.broadcast_object(([end.getsockname() for end in listeners], key), 0)
    connected = transport.allgather_object(False)
    done.close()
    answering.join()
    for rank in [rank for rank in lines if not connected[rank]]:
        lines.pop(rank).close()
    return lines, connected


def _answer(reception: Reception, awake: socket.socket, lines: dict[int, Link]) -> None:
    """Take down who calls, and tell each that it is."""
    unnamed: list[Link] = []
    while awake not in ready([awake, *reception.watched, *unnamed]):
        unnamed = [line for line in [*unnamed, *reception.accept()] if not _take_down(line, lines)]
    reception.close()
    awake.close()
    for line in unnamed:
        line.close()


def _take_down(line: Link, lines: dict[int, Link]) -> bool:
    """Whether there is no more to hear from this line."""
    try:
        for rank in line.take():
            line.post(None)
            lines[rank] = line
            return True
    except (OSError, EOFError):
        line.close()
        return True
    return False


def _call(places: Sequence[tuple[str, int]], key: bytes, rank: int) -> Link | None:
    """This rank's end; None where rank 0 cannot be reached."""
    with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
        line = stack.enter_context(connect(places, key, CONNECT_S))
        line.send(rank)
        line.recv(CONNECT_S)
        stack.pop_all()
        return line
    return None
