"""A message, as its two ends know it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Request
from farandole.comm.bytes.waiting import SlowWait

__all__ = ["Announcement", "Expected", "Received", "Transfer", "shown"]


class Announcement(NamedTuple):
    """A message's announcement to its receiver."""

    number: int
    """Different from those of the sender's other messages."""
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: bytes | None
    address: int
    mark: int
    differentiable: bool


class Received(NamedTuple):
    """What has come."""

    array: AnyArray
    number: int
    differentiable: bool
    """Whether the sender waits for the array's gradient."""


class Expected(NamedTuple):
    """What a receiver expects, as far as it does; and where it wants it."""

    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    out: AnyArray | None = None

    def fits(self, note: Announcement) -> bool:
        return self.dtype in (None, note.dtype) and self.shape in (None, note.shape)

    def __str__(self) -> str:
        return shown(self.dtype, self.shape)


def shown(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> str:
    return f"{'any type' if dtype is None else dtype.name} of shape {'any' if shape is None else shape}"


@dataclass(slots=True, eq=False)
class Transfer:
    """A message at one of its ends."""

    kind: str
    """SEND or RECEIVE."""
    peer: int
    key: str
    background: bool
    number: int = 0
    array: AnyArray | None = None
    mark: AnyArray | None = None
    detached: bool = False
    """Nobody holds it: the rank waits for it when it shuts down."""
    expected: Expected = field(default_factory=Expected)
    note: Announcement | None = None
    request: Request | None = None
    started: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.monotonic_ns)
    matched_ns: int = 0
    slow: SlowWait | None = None
    done: bool = False
    value: Any = None
    error: BaseException | None = None
