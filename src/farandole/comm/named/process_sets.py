"""Groups of ranks with collectives of their own, which never wait for one another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from farandole.comm.bytes.transport import Transport
from farandole.comm.named.engine import Engine
from farandole.comm.named.join import StandIns
from farandole.comm.named.lane import Lane
from farandole.comm.named.operations import run_batch
from farandole.errors import NotInitializedError, SettingsError

__all__ = ["MakingPlans", "ProcessSet", "Remains", "SetRuntime", "global_process_set"]


@dataclass(slots=True)
class MakingPlans:
    """Which plans of gradients this rank has begun to make, and which it has made or given up, by name."""

    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    retired: dict[str, list[Transport]] = field(default_factory=dict)
    """By label, the communicators of plans that this rank needs no more."""


class Remains(NamedTuple):
    """What is left of a set that was closed."""

    engine: Engine
    communicators: list[Transport]
    """In the same order on every rank."""

    def free(self) -> None:
        """Give them back, once every rank has closed the set and its last message was received. Collective over the set."""
        if self.engine.settled():
            for communicator in self.communicators:
                communicator.free()


class SetRuntime:
    """A set's communicators and engine, on a rank that belongs to it. Collective over the set to make."""

    def __init__(
        self,
        transport: Transport,
        members: tuple[int, ...],
        label: str,
        fusion_bytes: int,
        nodes: int,
        world_size: int,
    ) -> None:
        """`nodes` is on how many of them the members are."""
        self.transport = transport
        self.nodes = nodes
        self.members = members
        self.label = label
        self.fusion_bytes = fusion_bytes
        self.lane = Lane(transport, members, label, fusion_bytes)
        self._control = transport.duplicate()
        self.stand_ins = StandIns(self.lane)
        self.counters: dict[str, int] = {}
        """Operations without a name so far, of each kind."""
        on_cancelled = partial(_take_back, self.counters)
        self.engine = Engine(self._control, members, run_batch, label, on_cancelled, self.stand_ins.make, world_size)
        self.plans = MakingPlans()
        self.steps_done: dict[str, str] = {}
        """The last step of gradients this rank has done its part of, by the plan's label."""

    def next_name(self, kind: str) -> str:
        """Operations without a name are numbered, in the order in which a rank submits them."""
        count = self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"noname.{count}"

    @contextmanager
    def naming(self, kind: str, name: str | None) -> Iterator[str]:
        """`name`, or the next number; an operation that cannot be made, on this rank alone, leaves it to the next one."""
        label = name or self.next_name(kind)
        try:
            yield label
        except BaseException:
            if not name:
                _take_back(self.counters, f"{kind}.{label}")
            raise

    def next_plan(self) -> str:
        """A name for the plan of an optimizer, by the order in which a rank wraps them."""
        return f"plan.{self.next_name('plan').rsplit('.', 1)[1]}"

    def free_plans(self, labels: Iterable[str]) -> None:
        """Give back what all ranks have retired: no rank is in a step of it any more. Collective."""
        for label in sorted(labels):
            self.steps_done.pop(label, None)
            for communicator in self.plans.retired.pop(label, ()):
                communicator.free()

    def local(self, rank: int) -> int:
        """A world rank's number within the set."""
        if rank not in self.members:
            raise SettingsError(f"root_rank={rank} is not in the process set {list(self.members)}")
        return self.members.index(rank)

    def close(self, reason: str) -> None:
        """Take part in nothing more, on this rank alone."""
        self.engine.close(reason)

    def close_together(self, reason: str) -> None:
        """Close and give the communicators back. Collective over the set."""
        self.engine.close_together(reason)
        self.remains().free()

    def remains(self) -> Remains:
        """After it was closed."""
        of_plans = [one for label in sorted(self.plans.retired) for one in self.plans.retired[label]]
        return Remains(self.engine, [*of_plans, *self.lane.communicators(), self._control])


def _take_back(counters: dict[str, int], key: str) -> None:
    """The number of an operation that no other rank has counted, so that later ones meet again."""
    found = re.fullmatch(r"(\w+)\.noname\.(\d+)(\.size)?", key)
    if found is not None:
        kind = found[1] + ("_object" if found[3] else "")
        if counters.get(kind) == int(found[2]):
            counters[kind] -= 1


class ProcessSet:
    """Some of the world's ranks, given by number or by an mpi4py communicator."""

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self._runtime: SetRuntime | None = None
        self._world_rank: int | None = None
        self.ranks: list[int] | None = None
        self._comm: Any = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self._comm = ranks_or_comm
        else:
            self.ranks = _checked(ranks_or_comm)

    def ranks_of(self, world_rank: int) -> list[int] | None:
        """The ranks as this rank knows them; None off a communicator. Collective over a communicator."""
        if self._comm is None:
            return self.ranks
        return sorted(self._comm.allgather(world_rank)) if self._comm else None

    def size(self) -> int | None:
        """Number of ranks; None before the set is registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's number within the set; None outside it or before it is registered."""
        if self.process_set_id is None or self.ranks is None or self._world_rank not in self.ranks:
            return None
        return self.ranks.index(self._world_rank)

    def included(self) -> bool | None:
        return None if self.process_set_id is None else self.rank() is not None

    def runtime(self) -> SetRuntime:
        """The set's engine; an error that says why there is none."""
        if self._runtime is not None:
            return self._runtime
        if self.process_set_id is None:
            raise NotInitializedError(
                f"{self} is not registered: call farandole.init() first, then add_process_set(...)"
            )
        raise SettingsError(f"[rank {self._world_rank}] {self} does not include this rank")

    def attach(self, set_id: int, ranks: Sequence[int], rank: int, runtime: SetRuntime | None) -> None:
        """Make it usable."""
        self.process_set_id = set_id
        self.ranks = list(ranks)
        self._world_rank = rank
        self._runtime = runtime

    def detach(self) -> None:
        self.process_set_id = None
        self._runtime = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


def _checked(ranks: Sequence[int]) -> list[int]:
    found = sorted(int(rank) for rank in ranks)
    if not found or len(set(found)) != len(found) or found[0] < 0:
        raise SettingsError(f"ProcessSet({list(ranks)}): give one or more different ranks, from 0 up")
    return found


global_process_set = ProcessSet([0])
