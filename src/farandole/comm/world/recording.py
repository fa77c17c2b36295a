"""The timeline of all ranks: started, ended, and merged by rank 0."""

from __future__ import annotations

import socket
from pathlib import Path

from farandole.comm.current import current
from farandole.comm.world.clocks import compare_clocks
from farandole.comm.world.last_words import LastWords
from farandole.comm.world.launched import is_launched
from farandole.comm.world.state import World, say
from farandole.errors import SettingsError
from farandole.observe import process, timeline
from farandole.observe.phases import tell_start

__all__ = ["end_timeline", "record_what_is_asked", "start_timeline", "stop_timeline"]

_recorded: tuple[Path, LastWords] | None = None
"""The timeline that is being recorded."""
_start_told = False
"""Whether the start of this process has been told: it is no part of what a second init() begins."""


def start_timeline(file_path: str | Path, mark_cycles: bool = False) -> None:
    """Record every rank's communication into `file_path`, in Chrome's trace format. Collective."""
    _record(file_path, mark_cycles=mark_cycles)


def record_what_is_asked() -> None:
    """The timeline that the environment asks for has this process' start, too. Collective."""
    global _start_told
    began_ns, _start_told = None if _start_told else process.began_ns(), True
    path = timeline.path_from_environment()
    if path is not None:
        _record(path, origin_ns=began_ns)
    if began_ns is not None:
        tell_start(began_ns)


def _record(file_path: str | Path, *, mark_cycles: bool = False, origin_ns: int | None = None) -> None:
    global _recorded
    world = current()
    if timeline.taken():
        other = f", to {_recorded[0]}" if _recorded else ""
        raise SettingsError(f"a timeline is being written already{other}; stop_timeline() first")
    if world.rank == 0:
        timeline.discard_parts(Path(file_path))
    words = LastWords(world.transport)
    timeline.start(
        file_path, rank=world.rank, size=world.size, host=socket.gethostname(),
        clock=compare_clocks(world.transport, world.layout), mark_cycles=mark_cycles, origin_ns=origin_ns,
    )  # fmt: skip
    _recorded = Path(file_path), words


def stop_timeline() -> None:
    """Stop recording; rank 0 merges all ranks' parts into one file. Collective."""
    if _recorded is not None:
        end_timeline(current())


def end_timeline(world: World, *, exits: bool = False) -> None:
    """A launcher merges what ranks that exit have left: neither their time nor their energy is spent on it."""
    global _recorded
    if _recorded is None:
        return
    (path, words), _recorded = _recorded, None
    timeline.stop(words.ask_time() if world.node > 0 else None)
    if world.rank > 0:
        words.say_complete()
        return
    together = words.all_complete()
    if is_launched() and exits and path == timeline.path_from_environment():
        return
    # After a crash the launcher merges what there is, once every rank has ended.
    if together or not is_launched():
        timeline.merge_parts(path, keep_parts=not together)
        if not together:
            say(
                f"timeline {path}: other ranks still record, and what they do from now on is not in it. "
                f"When all have ended: farandole timeline merge {path}"
            )
