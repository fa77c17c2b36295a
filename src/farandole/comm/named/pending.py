"""The operations one rank has under way in one process set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from farandole.comm.bytes.waiting import SlowWait, Subject, all_arrived, slow_waits
from farandole.comm.named.negotiate import OperationRequest, Verdict
from farandole.errors import EngineStopped, FarandoleError, SettingsError

__all__ = ["Handle", "Operation", "PendingOperations"]


class Operation(Protocol):
    """Something every rank of a set does together."""

    request: OperationRequest

    def run(self, verdict: Verdict) -> Any:
        """Carry it out; every rank is here or coming."""
        ...


class Handle:
    """An operation under way."""

    __slots__ = ("background", "done", "error", "forgetting", "moving", "operation", "slow", "started", "started_ns", "value")

    def __init__(self, operation: Operation, background: bool) -> None:
        self.operation = operation
        self.background = background
        self.started = time.monotonic()
        self.started_ns = time.monotonic_ns()
        self.slow: SlowWait | None = None
        self.moving = False
        """Every rank has announced it: it is being carried out."""
        self.forgetting: tuple[int, BaseException] | None = None
        """Once the coordinator was asked to forget it: the number of that letter, and the error to end with."""
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def key(self) -> str:
        return self.operation.request.key

    def timeline_arguments(self) -> dict[str, object] | None:
        """Mark asynchronous operations: no thread need wait while one is under way."""
        return {"async": True} if self.background else None


class PendingOperations:
    """Handles by key, until the set is closed. Whoever calls `add` or `close` holds the lock."""

    def __init__(
        self, members: tuple[int, ...], label: str, prefix: str, missing: Callable[[str], list[int] | None]
    ) -> None:
        """`prefix` begins error messages. `missing(key)` gives the world ranks that are late, None where unknown."""
        self._members = members
        self._label = label
        self._prefix = prefix
        self._missing = missing
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """Notified of asynchronous operations, and when the set is closed."""
        self.asynchronous = 0
        self.closed: str | None = None
        """Why no operation can be submitted any more."""
        self._closed_error: type[FarandoleError] = EngineStopped
        self._handles: dict[str, Handle] = {}

    def add(self, handle: Handle) -> None:
        key = handle.key
        if self.closed is not None:
            raise self.closed_error(key)
        if key in self._handles:
            raise SettingsError(
                f"{key} is already under way on this rank. Wait for it with synchronize(), "
                "or give the second one another name."
            )
        self._handles[key] = handle
        if handle.background:
            self.asynchronous += 1
            self.changed.notify()

    def get(self, key: str) -> Handle | None:
        return self._handles.get(key)

    def keys(self) -> list[str]:
        """As the watchdog knows them."""
        with self.lock:
            return [self._label + key for key in self._handles]

    def end(self, handle: Handle, *, value: Any = None, error: BaseException | None = None) -> bool:
        """Give it its value or error; False if it had ended already."""
        with self.lock:
            if self._handles.get(handle.key) is not handle:
                return False
            del self._handles[handle.key]
            self.asynchronous -= handle.background
            if handle.slow is not None:
                slow_waits.leave(handle.slow)
        handle.value, handle.error = value, error
        handle.done = True
        return True

    def end_with(self, handle: Handle, error: type[FarandoleError], text: str) -> None:
        self.end(handle, error=error(self._prefix + text))

    def close(self, why: str, error: type[FarandoleError] = EngineStopped) -> None:
        """Submitting raises `error` from now on; the first reason stays."""
        if self.closed is None:
            self.closed, self._closed_error = why, error
        self.changed.notify()

    def closed_error(self, key: str) -> FarandoleError:
        return self._closed_error(f"{self._prefix}{key}: {self.closed}")

    def end_all(self) -> None:
        """After close(): end whatever is left with its error."""
        for handle in list(self._handles.values()):
            self.end(handle, error=self.closed_error(handle.key))

    def show_slow(self, older_than_s: float) -> list[Handle]:
        """Let the watchdog see the asynchronous operations that take long."""
        now = time.monotonic()
        with self.lock:
            slow = [h for h in self._handles.values() if h.background and now - h.started > older_than_s]
            for handle in slow:
                if handle.slow is None:
                    handle.slow = slow_waits.enter(self.subject(handle), handle.started, None)
        return slow

    def subject(self, handle: Handle) -> Subject:
        """What a wait for it is for."""
        return Subject(
            self._label + handle.key,
            self._members,
            lambda: all_arrived() if handle.moving else self._missing(handle.key),
        )
