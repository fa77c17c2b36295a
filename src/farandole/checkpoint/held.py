"""Arrays on loan: a save reads them from where they are, until their owner wants to change them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.errors import CheckpointError

__all__ = ["Held"]


class Held:
    """One array. One thread takes its bytes, in order; any thread may end the loan, of which the rest is then a copy."""

    def __init__(self, name: str, array: AnyArray, unchanged: Callable[[], bool], room: Callable[[], AnyArray]) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.taken_at: float | None = None
        """When its last byte was taken."""
        self._name = name
        self._bytes: Any = array.reshape(-1).view(np.uint8)
        self._unchanged: Callable[[], bool] | None = unchanged
        """None when the loan has ended."""
        self._room = room
        self._taken = 0
        self._changed = False
        self._lock = threading.Lock()

    def take(self, start: int, end: int, into: AnyArray) -> None:
        """Put some of its bytes there. CheckpointError where it was changed while it was on loan."""
        with self._lock:
            np.copyto(into, self._bytes[start:end])
            self._taken = end
            if end == self.nbytes:
                self._end()
                self._bytes, self.taken_at = None, time.monotonic()
            if self._changed:
                raise CheckpointError(
                    f"{self._name} was changed between async_save() and the optimizer's step, while it was being saved: "
                    "nothing was saved. Call wait() before you change it, or use save()"
                )

    def give_back(self) -> None:
        """Return when its owner may change it; what was not taken yet is copied."""
        with self._lock:
            if self._unchanged is not None:
                copy: Any = self._room().reshape(-1).view(np.uint8)
                np.copyto(copy[self._taken :], self._bytes[self._taken :])
                self._bytes = copy
                self._end()

    def drop(self) -> None:
        """Nobody will take more of it."""
        with self._lock:
            self._bytes = self._unchanged = None

    def _end(self) -> None:
        if self._unchanged is not None:
            self._changed = not self._unchanged()
            self._unchanged = None
