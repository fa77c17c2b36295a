"""The line between launcher and workers: sockets with a shared key, local where all ranks are."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, TypeAlias

from farandole.errors import SettingsError

__all__ = ["ADDRESS", "KEY", "SILENCE", "Link", "Switchboard", "call_launcher", "keep_alive", "silence_s"]

Link: TypeAlias = "Connection[Any, Any]"

ADDRESS = "FARANDOLE_LAUNCHER_ADDRESS"
KEY = "FARANDOLE_LAUNCHER_KEY"
_BACKLOG = 4096
_CONNECT_S = 15.0
SILENCE = "FARANDOLE_HOST_SILENCE_SECONDS"
SILENCE_S, LEAST_SILENCE_S = 30, 6


def silence_s() -> int:
    """After how long a host that has vanished without a word is given up, by both ends."""
    text = os.environ.get(SILENCE, str(SILENCE_S))
    if not text.isdecimal() or int(text) < LEAST_SILENCE_S:
        raise SettingsError(f"{SILENCE}={text!r}: must be {LEAST_SILENCE_S} or more seconds")
    return int(text)


def keep_alive(end: socket.socket) -> None:
    """Probes go out while nobody speaks; the last option is for what was said and never acknowledged."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, silence_s() // 3),
        (socket.TCP_KEEPINTVL, silence_s() // 6),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, silence_s() * 1000),
    ):
        end.setsockopt(socket.IPPROTO_TCP, option, value)


class Switchboard:
    """Where workers call in. Watch `watched`; when either is ready, `accept()` returns who has proved itself."""

    def __init__(self, socket_path: Path, remote_hosts: Iterable[str] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._proved: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self._awake, self._wake = socket.socketpair()
        hosts = list(remote_hosts)
        silence_s()  # a bad one is said before anything starts
        self._listener = socket.socket(socket.AF_INET if hosts else socket.AF_UNIX)
        self._listener.bind(("", 0) if hosts else str(socket_path))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._address = self._reachable_as(hosts) if hosts else f"unix {socket_path}"

    @property
    def watched(self) -> list[socket.socket]:
        return [self._listener, self._awake]

    def variables(self) -> dict[str, str]:
        """What a worker needs in its environment to call."""
        return {ADDRESS: self._address, KEY: self._key.hex()}

    def accept(self) -> list[Link]:
        """New callers are asked for the key in a thread of their own: one that is silent holds nobody up."""
        with contextlib.suppress(BlockingIOError):
            caller, _ = self._listener.accept()
            threading.Thread(target=self._ask_for_key, args=(caller,), daemon=True).start()
        proved = []
        with contextlib.suppress(queue.Empty):
            while True:
                proved.append(self._proved.get_nowait())
                self._awake.recv(1)
        return proved

    def close(self) -> None:
        for end in (self._listener, self._awake, self._wake):
            end.close()

    def _ask_for_key(self, caller: socket.socket) -> None:
        caller.setblocking(True)
        link = _link(caller)
        try:
            deliver_challenge(link, self._key)
            answer_challenge(link, self._key)
        except (OSError, EOFError, AuthenticationError):
            link.close()
            return
        self._proved.put(link)
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def _reachable_as(self, hosts: list[str]) -> str:
        """This host's addresses as seen from the others, found by asking the kernel for its routes."""
        port = self._listener.getsockname()[1]
        return " ".join(["tcp", *dict.fromkeys(f"{_own_address(host)}:{port}" for host in hosts)])


def call_launcher(environment: Mapping[str, str]) -> Link:
    """Connect to the launcher that started this worker; OSError where none answers."""
    kind, *addresses = environment[ADDRESS].split(" ")
    link = _link(_connect_unix(" ".join(addresses)) if kind == "unix" else _connect_tcp(addresses))
    try:
        answer_challenge(link, bytes.fromhex(environment[KEY]))
        deliver_challenge(link, bytes.fromhex(environment[KEY]))
    except (EOFError, AuthenticationError) as error:
        raise ConnectionError(f"the launcher did not recognise this worker: {error}") from error
    return link


def _link(end: socket.socket) -> Link:
    if end.family == socket.AF_INET:
        keep_alive(end)
    return Connection(end.detach())


def _connect_unix(path: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    return end


def _connect_tcp(addresses: list[str]) -> socket.socket:
    problems = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            end = socket.create_connection((host, int(port)), timeout=_CONNECT_S / len(addresses))
        except OSError as error:
            problems.append(f"{address}: {error}")
            continue
        end.settimeout(None)
        return end
    raise ConnectionError(f"{os.uname().nodename} cannot reach the launcher ({'; '.join(problems)})")


def _own_address(host: str) -> str:
    """The address of the interface through which `host` is reached; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()
