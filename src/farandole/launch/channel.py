"""The line between launcher and workers: local where all ranks are, and none but those who have the job's key get in."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from farandole.launch.addresses import listen_for
from farandole.launch.link import Link, Reception, connect, silence_s

__all__ = ["ADDRESS", "KEY", "Switchboard", "call_launcher"]

ADDRESS = "FARANDOLE_LAUNCHER_ADDRESS"
KEY = "FARANDOLE_LAUNCHER_KEY"
_BACKLOG = 4096
_CONNECT_S = 15.0


class Switchboard(Reception):
    """Where workers call in."""

    def __init__(self, socket_path: Path, remote_hosts: Iterable[str] = (), say: Callable[[str], object] = print) -> None:
        silence_s()  # a bad one is said before anything starts
        hosts = list(remote_hosts)
        listeners = listen_for(hosts, _BACKLOG) if hosts else [_local_listener(socket_path)]
        super().__init__(listeners, secrets.token_bytes(32), say)
        places = [end.getsockname() for end in listeners]
        self._address = " ".join(["tcp", *(f"{host}:{port}" for host, port in places)]) if hosts else f"unix {socket_path}"

    def variables(self) -> dict[str, str]:
        """What a worker needs in its environment to call."""
        return {ADDRESS: self._address, KEY: self._key.hex()}


def call_launcher(environment: Mapping[str, str]) -> Link:
    """Connect to the launcher that started this worker; OSError where none answers."""
    kind, *addresses = environment[ADDRESS].split(" ")
    key = bytes.fromhex(environment[KEY])
    if kind == "unix":
        return _call_here(" ".join(addresses), key)
    places = [(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)]
    try:
        return connect(places, key, _CONNECT_S / len(places))
    except ConnectionError as error:
        raise ConnectionError(f"{os.uname().nodename} cannot reach the launcher ({error})") from error


def _local_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _call_here(path: str, key: bytes) -> Link:
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    link = Link(end, key, calls=True)
    try:
        link.prove(_CONNECT_S)
    except EOFError as error:
        raise ConnectionError("the launcher did not recognise this worker") from error
    return link
