"""What somebody owns is retired soon after its owner is gone, on a thread that does nothing else.

An owner's end may come in a garbage collection, which may interrupt any thread, with any lock in its hands: there, it is only
noted, which takes no lock.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from typing import Any, Protocol

__all__ = ["retire_after"]


class Retiring(Protocol):
    def retire(self) -> None: ...


_ownerless: queue.SimpleQueue[Retiring] = queue.SimpleQueue()
"""Its put() may interrupt anything, itself included."""


def retire_after(owner: object, owned: Retiring) -> weakref.finalize[Any, Any]:
    """Retire it when the owner is gone, unless what this gives is detached before."""
    _start()
    noted = weakref.finalize(owner, _ownerless.put, owned)
    noted.atexit = False
    return noted


@functools.cache
def _start() -> None:
    threading.Thread(target=_retire, name="farandole-retiring", daemon=True).start()


def _retire() -> None:
    while True:
        _ownerless.get().retire()


os.register_at_fork(after_in_child=_start.cache_clear)
