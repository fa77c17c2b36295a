"""Saving while training goes on, on a thread of its own.

    now         arrays that may change at any moment are copied before `start()` returns
    held        those whose owner promises to wait are read from where they are; `settle()` ends that, and copies the rest
    write       on the thread
    collect     `finish()` waits for the end and raises what went wrong

Held arrays are copied on the thread before they are written, unless the last save was read long before its owner came
back: a copy costs the training more than anything else a save does. Copies are kept for the next save: to touch new
memory costs more than to copy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from farandole.checkpoint.held import Held
from farandole.checkpoint.tree import Flat
from farandole.comm.bytes.transport import AnyArray

__all__ = ["Background"]

Write = Callable[[Mapping[str, AnyArray | Held]], object]
_AHEAD = 1.25
"""How much longer than reading took before the owner must have stayed away for the next save to do without a copy."""


class Background:
    """At most one save at a time."""

    def __init__(self) -> None:
        self._copies: dict[str, AnyArray] = {}
        self._held: dict[str, Held] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._began = 0.0
        self._away_s: float | None = None
        """How long the owner of held arrays did without changing them; None until it comes back."""
        self._read_s: float | None = None

    def start(self, flat: Flat, write: Write) -> None:
        """Copy what has to be copied now, and call `write` with everything."""
        self.finish()
        in_place = self._reads_in_time()
        lent = {name: unchanged for name, unchanged in flat.held.items() if flat.arrays[name].flags.c_contiguous}
        self._copies = {name: copy for name, copy in self._copies.items() if name in flat.arrays}
        self._held = {name: self._lend(name, flat.arrays[name], unchanged) for name, unchanged in lent.items()}
        # A framework that hands out its own memory may want it back: only what is lent is still referred to.
        sources = {name: self._held.get(name) or self._copied(name, array) for name, array in flat.arrays.items()}
        self._began, self._away_s, self._read_s = time.monotonic(), None, None
        # Not a daemon: a program that ends waits for its last checkpoint.
        self._thread = threading.Thread(target=self._run, args=(sources, write, in_place), name="farandole-checkpoint")
        self._thread.start()

    def settle(self) -> None:
        """Return once the arrays that are held may be changed."""
        if self._away_s is None:
            self._away_s = time.monotonic() - self._began
        for held in self._held.values():
            held.give_back()

    def is_done(self) -> bool:
        """Whether finish() would not have to wait."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the save under way; raise what it failed with."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _reads_in_time(self) -> bool:
        """Whether the last save would have needed no copy, with a margin."""
        return self._read_s is not None and self._away_s is not None and _AHEAD * self._read_s < self._away_s

    def _lend(self, name: str, array: AnyArray, unchanged: Callable[[], bool]) -> Held:
        return Held(name, array, unchanged, lambda: self._room(name, array.shape, array.dtype))

    def _copied(self, name: str, array: AnyArray) -> AnyArray:
        copy = self._room(name, array.shape, array.dtype)
        np.copyto(copy, array)
        return copy

    def _room(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
        kept = self._copies.get(name)
        if kept is None or kept.shape != shape or kept.dtype != dtype:
            kept = self._copies[name] = np.empty(shape, dtype)
        return kept

    def _run(self, sources: Mapping[str, AnyArray | Held], write: Write, in_place: bool) -> None:
        try:
            for held in () if in_place else self._held.values():
                held.give_back()
            began = time.monotonic()
            write(sources)
            self._read_s = max((held.taken_at or 0.0 for held in self._held.values()), default=began) - began
        except Exception as error:  # raised again by finish(), on the thread that asked for the save
            self._error = error
        finally:
            for held in self._held.values():
                held.drop()
