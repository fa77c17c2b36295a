"""Saving while training goes on: first copy, then write, on a thread of its own.

    now         arrays that may change at any moment are copied before `start()` returns
    held        those whose owner promises to wait are copied on the thread; `settle()` is that wait
    write       on the thread, from the copies
    collect     `finish()` waits for the end and raises what went wrong

Copies are kept for the next save: to touch new memory costs more than to copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from farandole.checkpoint.tree import Flat
from farandole.comm.transport import AnyArray
from farandole.errors import CheckpointError

__all__ = ["Background"]

Write = Callable[[Mapping[str, AnyArray]], object]


class Background:
    """At most one save at a time."""

    def __init__(self) -> None:
        self._copies: dict[str, AnyArray] = {}
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._error: Exception | None = None

    def start(self, flat: Flat, write: Write) -> None:
        """Copy, and call `write` with the copies."""
        self.finish()
        self._copies = {name: self._room(name, array) for name, array in flat.arrays.items()}
        self._copy(flat, [name for name in flat.arrays if name not in flat.held])
        # A framework that hands out its own memory may want it back.
        flat = flat._replace(arrays={name: flat.arrays[name] for name in flat.held})
        self._copied.clear()
        # Not a daemon: a program that ends waits for its last checkpoint.
        self._thread = threading.Thread(target=self._run, args=(flat, write), name="farandole-checkpoint")
        self._thread.start()

    def settle(self) -> None:
        """Return once the arrays that are held may be changed."""
        self._copied.wait()

    def finish(self) -> None:
        """Wait for the save under way; raise what it failed with."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _room(self, name: str, array: AnyArray) -> AnyArray:
        kept = self._copies.get(name)
        fits = kept is not None and kept.shape == array.shape and kept.dtype == array.dtype
        return kept if fits and kept is not None else np.empty(array.shape, array.dtype)

    def _copy(self, flat: Flat, names: list[str]) -> None:
        for name in names:
            np.copyto(self._copies[name], flat.arrays[name])

    def _run(self, flat: Flat, write: Write) -> None:
        try:
            self._copy_held(flat)
            write(self._copies)
        except Exception as error:  # raised again by finish(), on the thread that asked for the save
            self._error = error
        finally:
            self._copied.set()

    def _copy_held(self, flat: Flat) -> None:
        self._copy(flat, list(flat.held))
        changed = [name for name, unchanged in flat.held.items() if not unchanged()]
        self._copied.set()
        if changed:
            raise CheckpointError(
                f"{changed[0]} ({len(changed)} arrays) was changed between async_save() and the optimizer's step, while it "
                "was being copied: nothing was saved. Call wait() before you change it, or use save()"
            )

