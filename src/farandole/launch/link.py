"""One end of a connection whose messages nobody else can make, change or repeat, and which holds nobody up.

    number      16 random bytes, from each end to the other
    greeting    an empty frame, by which each end proves that it knows the key
    messages    a frame each: length, authentication code, the message pickled

A code is of the frame's content, its place in the order of frames, its direction and both numbers: a frame that is
sent once more, sent back, or taken from another connection has the wrong one. Nothing is unpickled before its code is checked.
What arrives is kept until a frame is whole, so that an end which sends half of one and stalls is waited for by nobody.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from farandole.errors import SettingsError

__all__ = ["SILENCE", "Forged", "Link", "Reception", "connect", "ready", "silence_s"]

PROOF_S = 15.0
"""How long a caller may take to prove that it knows the key."""
_NUMBER_BYTES = 16
_SIZE_BYTES = 4
_HEAD = struct.Struct("<I32s")
_STRANGERS_MOST = 1024
"""Bytes that whoever has not proved itself may announce."""
_CHUNK = 1 << 18
SILENCE = "FARANDOLE_HOST_SILENCE_SECONDS"
SILENCE_S, LEAST_SILENCE_S = 30, 6


def silence_s() -> int:
    """After how long a host that has vanished without a word is given up, by both ends."""
    text = os.environ.get(SILENCE, str(SILENCE_S))
    if not text.isdecimal() or int(text) < LEAST_SILENCE_S:
        raise SettingsError(f"{SILENCE}={text!r}: must be {LEAST_SILENCE_S} or more seconds")
    return int(text)


class Forged(ConnectionError):
    """What arrived is not what the other end has sent, or that end does not know the key."""


class Link:
    """`send()` and `recv()` wait; `post()` and `take()` never do. Errors of all are OSError, or EOFError at the end."""

    def __init__(self, end: socket.socket, key: bytes, *, calls: bool) -> None:
        """`calls`: whether this end has connected to the other, not accepted it."""
        end.setblocking(False)
        if end.family == socket.AF_INET:
            _keep_alive(end)
        self.proved = False
        """Whether the other end knows the key."""
        self._end, self._key, self._calls = end, key, calls
        self._number = secrets.token_bytes(_NUMBER_BYTES)
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._received = 0
        self._incoming, self._outgoing = bytearray(), bytearray(self._number)
        self._arrived: deque[Any] = deque()
        self.flush()

    def fileno(self) -> int:
        return self._end.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end.close()

    # Sending

    @property
    def unsent(self) -> bool:
        """Whether `flush()` has something left to do."""
        return bool(self._outgoing)

    def send(self, message: object) -> None:
        """Return when the system has taken all of it."""
        self.post(message)
        while self._outgoing:
            ready([], [self._end])
            self.flush()

    def post(self, message: object) -> None:
        """What the system does not take now goes out with a later `flush()`."""
        self._post(pickle.dumps(message))
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: self._end.send(self._outgoing)]

    def _post(self, content: bytes) -> None:
        if self._keys is None:
            raise ConnectionError("the other end has not answered yet")
        self._outgoing += _HEAD.pack(len(content), _code(self._keys[0], self._sent, content)) + content
        self._sent += 1

    # Receiving

    def recv(self, timeout_s: float | None = None) -> Any:
        """The next message, waited for."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._arrived:
            self._await_more(until)
        return self._arrived.popleft()

    def prove(self, timeout_s: float) -> None:
        """Wait until both ends know that the other has the key."""
        until = time.monotonic() + timeout_s
        while not self.proved:
            self._await_more(until)

    def take(self) -> list[Any]:
        """The messages that are whole by now."""
        self.read()
        messages = list(self._arrived)
        self._arrived.clear()
        return messages

    def _await_more(self, until: float | None) -> None:
        if not ready([self._end], [], None if until is None else until - time.monotonic()):
            raise TimeoutError("the other end does not answer")
        self.read()

    def read(self) -> None:
        """Keep what has arrived, for `recv()` or `take()`."""
        with contextlib.suppress(BlockingIOError):
            data = self._end.recv(_CHUNK)
            if not data and not self._arrived:
                raise EOFError
            self._incoming += data
        self._look_for_number()
        while self._keys is not None and self._take_frame(self._keys[1]):
            pass

    def _look_for_number(self) -> None:
        """With the other end's number there are keys for this connection, and something to greet it with."""
        if self._keys is None and len(self._incoming) >= _NUMBER_BYTES:
            number = bytes(self._incoming[:_NUMBER_BYTES])
            del self._incoming[:_NUMBER_BYTES]
            both = self._number + number if self._calls else number + self._number
            caller, called = (hmac.digest(self._key, way + both, "sha256") for way in (b"caller", b"called"))
            self._keys = (caller, called) if self._calls else (called, caller)
            self._post(b"")
            self.flush()

    def _take_frame(self, key: bytes) -> bool:
        size = int.from_bytes(self._incoming[:_SIZE_BYTES], "little")
        if not self.proved and size > _STRANGERS_MOST:
            raise Forged("it does not speak as ranks do")
        if len(self._incoming) < _HEAD.size + size:
            return False
        _, code = _HEAD.unpack_from(self._incoming)
        content = bytes(self._incoming[_HEAD.size : _HEAD.size + size])
        del self._incoming[: _HEAD.size + size]
        if not hmac.compare_digest(code, _code(key, self._received, content)):
            raise Forged("a message was forged or sent twice" if self.proved else "it does not have this job's key")
        self._received += 1
        if self.proved:
            self._arrived.append(pickle.loads(content))
        self.proved = True
        return True


def ready(reading: Iterable[Any], writing: Iterable[Any] = (), within_s: float | None = None) -> list[Any]:
    """Those that have something to read, or room."""
    with selectors.PollSelector() as selector:
        for one in reading:
            selector.register(one, selectors.EVENT_READ)
        for one in writing:
            selector.register(one, selectors.EVENT_WRITE)
        return [key.fileobj for key, _ in selector.select(within_s)]


def _code(key: bytes, count: int, content: bytes) -> bytes:
    return hmac.digest(key, count.to_bytes(8, "little") + content, "sha256")


def connect(addresses: Sequence[tuple[str, int]], key: bytes, timeout_s: float) -> Link:
    """To the first that answers and knows the key: an address may be another host's as well."""
    problems = []
    for host, port in addresses:
        try:
            link = Link(socket.create_connection((host, port), timeout=timeout_s), key, calls=True)
            try:
                link.prove(timeout_s)
            except BaseException:
                link.close()
                raise
        except (OSError, EOFError) as error:
            problems.append(f"{host}:{port}: {error or 'it hung up'}")
        else:
            return link
    raise ConnectionError("; ".join(problems))


class Reception:
    """Where others call in. Watch `watched`; when any is ready, `accept()` returns who has proved itself since."""

    def __init__(self, listeners: Iterable[socket.socket], key: bytes, say: Callable[[str], object]) -> None:
        """`say` is told of everybody that is turned away."""
        self._listeners = list(listeners)
        self._key = key
        self._say = say
        self._callers: dict[Link, tuple[str, float]] = {}
        self._told: set[str] = set()

    @property
    def watched(self) -> list[socket.socket | Link]:
        return [*self._listeners, *self._callers]

    def accept(self) -> list[Link]:
        """To be called now and then: a caller that is silent is turned away after a while."""
        for listener in self._listeners:
            with contextlib.suppress(BlockingIOError):
                self._welcome(*listener.accept())
        proved = [link for link in list(self._callers) if self._proves(link)]
        for link in proved:
            del self._callers[link]
        return proved

    def close(self) -> None:
        for end in self.watched:
            end.close()
        self._listeners, self._callers = [], {}

    def _welcome(self, caller: socket.socket, address: Any) -> None:
        where = address[0] if caller.family == socket.AF_INET else "this machine"
        try:
            self._callers[Link(caller, self._key, calls=False)] = where, time.monotonic() + PROOF_S
        except OSError:  # it has gone already
            caller.close()

    def _proves(self, link: Link) -> bool:
        where, until = self._callers[link]
        try:
            link.read()
            if not link.proved and time.monotonic() > until:
                raise Forged(f"it has not shown this job's key within {PROOF_S:g} s")
        except (OSError, EOFError) as error:
            del self._callers[link]
            link.close()
            self._tell(f"a connection from {where} was turned away: {error or 'it hung up before it had shown a key'}")
            return False
        return link.proved

    def _tell(self, text: str) -> None:
        """Once each: something may try again and again."""
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def _keep_alive(end: socket.socket) -> None:
    """Probes go out while nobody speaks; the last option is for what was said and never acknowledged."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, silence_s() // 3),
        (socket.TCP_KEEPINTVL, silence_s() // 6),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, silence_s() * 1000),
    ):
        end.setsockopt(socket.IPPROTO_TCP, option, value)
