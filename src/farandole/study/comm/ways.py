"""The ways to do a collective: farandole's, and the same by hand with MPI.

Every rank of a group hands in its number from 1 on, in every element, so that each way's result is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import farandole
from farandole.comm.bytes import mpi
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.opening import make_plan
from farandole.comm.gradients.team import Team, threads_allowed
from farandole.comm.named.process_sets import ProcessSet
from farandole.comm.node.arithmetic import Reduction

__all__ = ["DTYPE", "GRADIENT", "MPI", "NAMED", "Group", "Way", "elements", "ways"]

DTYPE = np.dtype(np.float32)
GRADIENT, NAMED, MPI = "gradient", "by name", "MPI"
_LABEL = "bench"


@dataclass(kw_only=True, slots=True)
class Group:
    """Ranks that do a collective together, as farandole and as MPI know them."""

    process_set: ProcessSet
    comm: Any
    """mpi4py's communicator of the same ranks in the same order."""

    @property
    def rank(self) -> int:
        return int(self.comm.Get_rank())

    @property
    def size(self) -> int:
        return int(self.comm.Get_size())


@dataclass(kw_only=True, slots=True)
class Way:
    name: str
    call: Callable[[], AnyArray]
    expected: AnyArray | float
    close: Callable[[], object] = lambda: None
    """Collective, as making it was."""

    def right(self) -> bool:
        return bool((self.call() == self.expected).all())


def elements(collective: str, nbytes: int, ranks: int) -> int:
    """Of the whole array: what is gathered or scattered is divided evenly among the ranks."""
    count = nbytes // DTYPE.itemsize
    return count if collective in ("allreduce", "broadcast") else -(-count // ranks) * ranks


def ways(collective: str, count: int, group: Group) -> list[Way]:
    """Collective: every rank of the group calls it."""
    make = {
        "allreduce": _allreduce,
        "broadcast": _broadcast,
        "allgather": _allgather,
        "reducescatter": _reducescatter,
    }
    return make[collective](count, group)


def _mine(count: int, group: Group) -> AnyArray:
    return np.full(count, group.rank + 1, DTYPE)


def _allreduce(count: int, group: Group) -> list[Way]:
    source, kept = _mine(count, group), np.empty(count, DTYPE)
    total = group.size * (group.size + 1) / 2

    def named() -> AnyArray:
        return farandole.allreduce(source, name=_LABEL, op=farandole.Sum, process_set=group.process_set)

    def by_hand() -> AnyArray:
        group.comm.Allreduce(source, kept)
        return kept

    return [
        _gradient(count, group),
        Way(name=NAMED, call=named, expected=total),
        Way(name=MPI, call=by_hand, expected=total),
    ]


def _gradient(count: int, group: Group) -> Way:
    """As DistributedOptimizer reduces one parameter's gradient, with nothing to hide it behind."""
    size, runtime = group.size, group.process_set.runtime()
    plan = make_plan(
        runtime, _LABEL, [Entry("gradient", DTYPE.name, (count,))],
        PlanSettings(how=Reduction("sum", 1.0, size), team=Team(threads=threads_allowed(1, mpi.thread_level()))),
    )  # fmt: skip
    array = plan.buffer(0)
    if array is None:
        array = np.empty(count, DTYPE)
    array[:] = group.rank + 1
    result = plan.result(0)

    def call() -> AnyArray:
        plan.ready(0, array)
        plan.finish()
        return array if result is None else result

    def close() -> None:
        plan.retire()
        runtime.free_plans([_LABEL])

    # Averaged in place: from the second call on every rank hands in the average.
    return Way(name=GRADIENT, call=call, expected=(size + 1) / 2, close=close)


def _broadcast(count: int, group: Group) -> list[Way]:
    ours, theirs = _mine(count, group), _mine(count, group)
    assert group.process_set.ranks is not None
    root = group.process_set.ranks[0]

    def by_hand() -> AnyArray:
        group.comm.Bcast(theirs)
        return theirs

    def named() -> AnyArray:
        return farandole.broadcast_(ours, root, name=_LABEL, process_set=group.process_set)

    return [Way(name=NAMED, call=named, expected=1.0), Way(name=MPI, call=by_hand, expected=1.0)]


def _allgather(count: int, group: Group) -> list[Way]:
    part, kept = _mine(count // group.size, group), np.empty(count, DTYPE)
    expected = np.repeat(np.arange(1, group.size + 1, dtype=DTYPE), part.size)

    def named() -> AnyArray:
        return farandole.allgather(part, name=_LABEL, process_set=group.process_set)

    def by_hand() -> AnyArray:
        group.comm.Allgather(part, kept)
        return kept

    return [Way(name=NAMED, call=named, expected=expected), Way(name=MPI, call=by_hand, expected=expected)]


def _reducescatter(count: int, group: Group) -> list[Way]:
    source, kept = _mine(count, group), np.empty(count // group.size, DTYPE)
    total = group.size * (group.size + 1) / 2

    def named() -> AnyArray:
        return farandole.reducescatter(source, name=_LABEL, op=farandole.Sum, process_set=group.process_set)

    def by_hand() -> AnyArray:
        group.comm.Reduce_scatter_block(source, kept)
        return kept

    return [Way(name=NAMED, call=named, expected=total), Way(name=MPI, call=by_hand, expected=total)]
