"""This host's addresses: which there are, and which of them others come in by."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

__all__ = ["listen_for", "own_addresses"]

_SIOCGIFADDR = 0x8915


def listen_for(hosts: Iterable[str], backlog: int) -> list[socket.socket]:
    """A listener on every address that one of `hosts` reaches this one by, and on no other; they do not block.

    Where the route to one is not known, on all addresses this host has.
    """
    towards = [_own_address_towards(host) for host in hosts]
    addresses = own_addresses() if None in towards else list(dict.fromkeys(filter(None, towards)))
    listeners = [socket.create_server((address, 0), backlog=backlog) for address in addresses]
    for listener in listeners:
        listener.setblocking(False)
    return listeners


def own_addresses() -> list[str]:
    """Those of this host's interfaces; loopback, which reaches nodes that are none, comes last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(found, key=lambda address: address.startswith("127."))


def _own_address_towards(host: str) -> str | None:
    """The address of the interface through which `host` is reached; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return None
