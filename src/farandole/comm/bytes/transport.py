"""The interface the engine moves bytes through, and its one-rank form.

MPI is the first implementation (mpi.py). All buffers are contiguous arrays seen as bytes; arithmetic is
never the transport's business, except for `allreduce_native`, which hands small arrays of ordinary types
to the library's own tuned reduction. Every call that waits does so politely (waiting.py): it neither
spins on a core for long nor blocks inside the library, so that a late peer can be named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["AnyArray", "LocalTransport", "Request", "Transport"]

AnyArray = npt.NDArray[Any]


class Request(Protocol):
    """Something under way."""

    def test(self) -> bool:
        """True once it is complete."""
        ...


class Transport(Protocol):
    """A group of ranks that can exchange bytes."""

    rank: int
    size: int
    any_thread: bool
    """Whether threads other than the main one may call."""
    at_once: bool
    """Whether several of them may at the same time."""

    def duplicate(self) -> Transport:
        """The same ranks, with traffic of their own. Collective."""
        ...

    def subset(self, ranks: Sequence[int]) -> Transport:
        """Some of these ranks, numbered as in this group. Collective over `ranks` only."""
        ...

    def same_node(self) -> Transport:
        """The ranks that share this rank's memory. Collective."""
        ...

    def keep(self) -> None:
        """Messages may still come that nobody waits for: free() is to leave it, or another group could take them for its own."""
        ...

    def free(self) -> None:
        """Give the group's resources back."""
        ...

    def send(self, data: AnyArray, dest: int, tag: int) -> Request: ...

    def receive(self, data: AnyArray, source: int, tag: int) -> Request: ...

    def send_message(self, data: bytes, dest: int, tag: int) -> Request: ...

    def poll_message(self, tag: int) -> tuple[int, bytes] | None:
        """(source, data) of a message that has come, or None."""
        ...

    def allgather_object(self, value: Any) -> list[Any]: ...

    def broadcast_object(self, value: Any, root: int) -> Any: ...

    def broadcast(self, data: AnyArray, root: int) -> Request: ...

    def allgather(self, data: AnyArray, out: AnyArray, counts: Sequence[int]) -> Request:
        """Concatenate every rank's bytes; `counts` are in bytes."""
        ...

    def gather(self, data: AnyArray, out: AnyArray | None, counts: Sequence[int], root: int) -> Request: ...

    def alltoall(
        self, data: AnyArray, out: AnyArray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Request: ...

    def allreduce_native(self, data: AnyArray, out: AnyArray, op: str) -> Request | None:
        """The library's own reduction, or None where it has none for this type or operation."""
        ...

    def abort(self, code: int) -> None:
        """End every rank of the job at once."""
        ...


class Done:
    """A request that needed no waiting."""

    def test(self) -> bool:
        return True


class LocalTransport:
    """One rank alone: everything is a copy or nothing at all."""

    rank = 0
    size = 1
    any_thread = True
    at_once = True

    def __init__(self) -> None:
        self._mail: list[tuple[int, bytes]] = []

    def duplicate(self) -> Transport:
        return LocalTransport()

    def subset(self, ranks: Sequence[int]) -> Transport:
        return LocalTransport()

    def same_node(self) -> Transport:
        return LocalTransport()

    def keep(self) -> None:
        pass

    def free(self) -> None:
        self._mail.clear()

    def send(self, data: AnyArray, dest: int, tag: int) -> Request:
        raise ValueError(f"one rank has no peer to send to (dest={dest})")

    def receive(self, data: AnyArray, source: int, tag: int) -> Request:
        raise ValueError(f"one rank has no peer to receive from (source={source})")

    def send_message(self, data: bytes, dest: int, tag: int) -> Request:
        self._mail.append((tag, data))
        return Done()

    def poll_message(self, tag: int) -> tuple[int, bytes] | None:
        for index, (found, data) in enumerate(self._mail):
            if found == tag:
                del self._mail[index]
                return 0, data
        return None

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any, root: int) -> Any:
        return value

    def broadcast(self, data: AnyArray, root: int) -> Request:
        return Done()

    def allgather(self, data: AnyArray, out: AnyArray, counts: Sequence[int]) -> Request:
        return _copied(data, out)

    def gather(self, data: AnyArray, out: AnyArray | None, counts: Sequence[int], root: int) -> Request:
        return Done() if out is None else _copied(data, out)

    def alltoall(
        self, data: AnyArray, out: AnyArray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Request:
        return _copied(data, out)

    def allreduce_native(self, data: AnyArray, out: AnyArray, op: str) -> Request | None:
        return _copied(data, out)

    def abort(self, code: int) -> None:
        raise SystemExit(code)


def _copied(data: AnyArray, out: AnyArray) -> Request:
    np.copyto(out, data)
    return Done()
