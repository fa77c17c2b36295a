"""What the timeline shows of communication: phases, on the track of the thread that they are in."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from farandole.observe import timeline

__all__ = ["communication_track", "phase"]

_NOT_SHOWN = contextlib.nullcontext()


def communication_track() -> str:
    """The timeline's track of this thread's communication."""
    name = threading.current_thread().name
    return f"communication {name.rsplit('-', 1)[1]}" if name.startswith("farandole-team") else "communication"


def phase(name: str, track: str = "") -> contextlib.AbstractContextManager[None]:
    """Show a phase on the timeline, where there is one: on this thread's track of communication, or another."""
    return _shown(name, track or communication_track()) if timeline.active() else _NOT_SHOWN


@contextlib.contextmanager
def _shown(name: str, track: str) -> Iterator[None]:
    start_ns = time.monotonic_ns()
    try:
        yield
    finally:
        timeline.span(track, name, start_ns, time.monotonic_ns())
