"""Starting and ending.

`init()` starts MPI, checks that the launcher and MPI agree on the number of ranks, and registers the
process sets. `shutdown()` ends our part and leaves MPI alone, so that `init()` works again. An exception
that nobody catches ends every rank: a rank that died must not leave the others waiting.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from farandole.comm.bytes import mpi
from farandole.comm.bytes.transport import Transport
from farandole.comm.current import enter, leave, world_or_none
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.world import launched
from farandole.comm.world.checks import check_world_size
from farandole.comm.world.recording import end_timeline, record_what_is_asked
from farandole.comm.world.state import World, say
from farandole.comm.world.uncaught import watch_for_uncaught
from farandole.errors import SettingsError
from farandole.observe import process

__all__ = ["init", "shutdown"]

_closed: list[World] = []
"""Worlds that have ended, whose communicators are still to be given back."""
_lock = threading.RLock()
_hooks_installed = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start. Collective: every rank calls it; a second call does nothing.

    `comm`: None (all ranks), a list of ranks, or an mpi4py communicator. `process_sets`: a list of
    ProcessSet or lists of ranks to register, or "dynamic", which needs nothing here.
    """
    with _lock:
        if world_or_none() is not None:
            return
        transport = _transport(comm)
        if comm is None:
            check_world_size(transport.size, os.environ, mpi.describe().get("problem", ""))
        world = World(transport)
        try:
            _free_closed(transport)
            _register_all(world, [] if process_sets in (None, "dynamic") else process_sets)
        except BaseException:
            world.close("could not start")
            _closed.append(world)
            raise
        enter(world)
        process.set_local_rank(world.local_rank)
        world.watchdog.start()
        _install_hooks()
        launched.tell_up(world.rank)
        record_what_is_asked()


def _free_closed(transport: Transport) -> None:
    """Free the worlds of before, of which all ranks are here. Collective."""
    asked = [name for names in transport.allgather_object([world.name for world in _closed]) for name in names]
    for world in [world for world in _closed if asked.count(world.name) == world.size]:
        _closed.remove(world)
        world.free()


def _register_all(world: World, process_sets: Sequence[Any]) -> None:
    global_process_set.ranks = list(range(world.size))
    world.register(global_process_set)
    for item in process_sets:
        world.register(item if isinstance(item, ProcessSet) else ProcessSet(item))


def _transport(comm: Any) -> Transport:
    if comm is None:
        return mpi.world()
    if hasattr(comm, "Get_rank"):
        return mpi.from_communicator(comm)
    return mpi.some_ranks(lambda rank, size: _some_ranks(sorted(int(r) for r in comm), rank, size))


def _some_ranks(ranks: list[int], rank: int, size: int) -> list[int]:
    """The ranks given to init(), which this one must be among."""
    check_world_size(size, os.environ, mpi.describe().get("problem", ""))
    if not ranks or ranks[0] < 0 or ranks[-1] >= size or len(set(ranks)) < len(ranks):
        raise SettingsError(f"init(comm={ranks}): give different ranks; MPI has ranks 0 to {size - 1}")
    if rank not in ranks:
        raise SettingsError(f"init(comm={ranks}): rank {rank} is not in it and must not call init()")
    return ranks


def shutdown() -> None:
    """End farandole on this rank; MPI itself goes on, and init() may be called again."""
    _leave("has called shutdown()")


def _leave(reason: str, *, exits: bool = False) -> None:
    with _lock:
        world = leave()
        if world is None:
            return
        world.close(reason)  # first: others may wait for this rank
        _closed.append(world)
        launched.tell(world.rank, "down", "")
        try:
            end_timeline(world, exits=exits)
        except Exception as error:  # the work itself has come to its end
            say(str(error))


def _install_hooks() -> None:
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_forget)
    watch_for_uncaught(lambda: None if (world := world_or_none()) is None else world.transport)


def _forget() -> None:
    """A forked child (a DataLoader worker) is no rank."""
    world = leave()
    if world is not None:
        world.lines.drop()
        for process_set in world.sets.values():
            process_set.detach()


def _at_exit() -> None:
    _leave("has exited", exits=True)
