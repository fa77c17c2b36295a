"""Who and where this rank is, process sets, and what the run stands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.comm.bytes import mpi
from farandole.comm.current import current, world_or_none
from farandole.comm.named.process_sets import ProcessSet
from farandole.comm.node.routes import fallbacks
from farandole.errors import MismatchError, SettingsError

__all__ = [
    "add_process_set", "cross_rank", "cross_size", "describe", "get_process_set", "is_homogeneous", "is_initialized", "local_rank",
    "local_size", "rank", "remove_process_set", "size",
]  # fmt: skip


def is_initialized() -> bool:
    return world_or_none() is not None


def rank() -> int:
    """This process's number, from 0."""
    return current().rank


def size() -> int:
    """Number of ranks."""
    return current().size


def local_rank() -> int:
    """This process's number on its node."""
    return current().local_rank


def local_size() -> int:
    """Number of ranks on this node."""
    return current().local_size


def cross_rank() -> int:
    """This node's number among the nodes that have a rank with this local rank."""
    world = current()
    return [n for n in world.layout.nodes if len(n) > world.local_rank].index(world.layout.nodes[world.node])


def cross_size() -> int:
    """Number of nodes that have a rank with this local rank."""
    world = current()
    return len([n for n in world.layout.nodes if len(n) > world.local_rank])


def is_homogeneous() -> bool:
    """Whether every node has the same number of ranks."""
    return len({len(ranks) for ranks in current().layout.nodes}) == 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set at any time. Collective over the world, in the same order on all ranks."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    current().register(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; False where it cannot be. Collective over the world."""
    world = current()
    set_id = process_set.process_set_id
    registered = set_id and world.sets.get(set_id) is process_set
    asked = world.transport.allgather_object(set_id if registered else None)
    if any(theirs != asked[0] for theirs in asked):
        raise MismatchError(
            f"[rank {world.rank}/{world.size}] remove_process_set: the ranks give different sets, by rank: {asked}"
        )
    if not set_id or not registered:
        return False
    if process_set.included():
        process_set.runtime().close_together("has removed the process set")
    process_set.detach()
    del world.sets[set_id]
    return True


def get_process_set(set_id: int) -> ProcessSet:
    sets = current().sets
    if set_id not in sets:
        raise SettingsError(f"no process set {set_id}; registered: {sorted(sets)}")
    return sets[set_id]


def describe() -> dict[str, Any]:
    """What this run stands on: MPI, layout, allocator, how arrays travel, every fallback taken."""
    world = current()
    return {
        "mpi": mpi.describe(),
        "rank": world.rank,
        "size": world.size,
        "nodes": [len(ranks) for ranks in world.layout.nodes],
        "fallbacks": fallbacks(),
        **world.record,
    }
