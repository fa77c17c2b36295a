"""What ranks run on: the threads each computes with, the cores there are for them, and who else has used these."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farandole.launch.environment import cgroup_cores, rank_threads, thread_variables
from farandole.observe.machine_time import MachineTime

__all__ = ["Machines", "find_machines", "framework_threads", "machine_use", "threads_set"]


@contextlib.contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Frameworks loaded meanwhile compute with so many threads, torch until the end; 0 leaves it to the launcher."""
    if not threads:
        yield
        return
    before, of_torch = dict(os.environ), _set_torch(threads)
    os.environ |= thread_variables(threads)
    try:
        yield
    finally:
        for name in thread_variables(threads):
            del os.environ[name]
        os.environ |= before
        _set_torch(of_torch or rank_threads(None, 1, before))


def _set_torch(threads: int) -> int:
    """As it was before; 0 where torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    before = int(torch.get_num_threads()) if torch else 0
    if torch:
        torch.set_num_threads(threads)
    return before


def framework_threads(framework: str) -> int:
    """Those one operation of the loaded framework is shared out to, on this rank."""
    if framework == "torch":
        import torch

        return int(torch.get_num_threads())
    if framework == "tensorflow":
        import tensorflow as tf

        told = int(tf.config.threading.get_intra_op_parallelism_threads())
        return told or _from_environment("TF_NUM_INTRAOP_THREADS")
    return _from_environment("PJRT_NPROC", "NPROC")  # XLA's CPU client tells nobody, and goes by these


def _from_environment(*names: str) -> int:
    """As the frameworks read them; without one they take every core."""
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal() and int(text) > 0), len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """What the ranks run on."""

    nodes: int
    cores: int
    """Of all nodes, those that the ranks may use."""
    threads: Sequence[int]
    """Of each rank."""
    crowded: str | None
    """What to say where ranks have more threads than cores."""


class _Rank(NamedTuple):
    node: int
    threads: int
    cores: frozenset[int]
    most: int


def find_machines(framework: str) -> Machines:
    """Collective: every rank calls it, once the framework is loaded."""
    from farandole.comm.named.collectives import allgather_object
    from farandole.comm.world import current

    mine = _Rank(current().node, framework_threads(framework), frozenset(os.sched_getaffinity(0)), cgroup_cores())
    ranks: list[_Rank] = allgather_object(mine)
    nodes = [[rank for rank in ranks if rank.node == node] for node in sorted({rank.node for rank in ranks})]
    cores = [min(len(frozenset[int]().union(*(rank.cores for rank in node))), node[0].most) for node in nodes]
    crowded = (_crowded(node, of_node) for node, of_node in zip(nodes, cores))
    return Machines(
        nodes=len(nodes), cores=sum(cores), threads=[rank.threads for rank in ranks], crowded=next(filter(None, crowded), None)
    )


def _crowded(ranks: Sequence[_Rank], cores: int) -> str | None:
    threads = sum(rank.threads for rank in ranks)
    if threads <= cores:
        return None
    where = f"{cores} core{'s' * (cores > 1)} of a node"
    return f"oversubscribed: {len(ranks)} rank{'s' * (len(ranks) > 1)} with {threads} threads in all on {where}"


def machine_use(watch: MachineTime) -> dict[str, float | None]:
    """What others took of the node that lost most to them, as its first rank has seen. Collective: every rank calls it."""
    from farandole.comm.named.collectives import allgather_object
    from farandole.comm.world import current, local_rank

    node = current().node
    own_s = sum(spent_s for there, spent_s in allgather_object((node, watch.own_s())) if there == node)
    seen = (watch.others_share(own_s), watch.steal_share()) if local_rank() == 0 else None
    nodes: list[tuple[float | None, float | None]] = [found for found in allgather_object(seen) if found is not None]
    others, steal = max(nodes, key=lambda found: sum(share or 0.0 for share in found))
    return {"others_share": others, "steal_share": steal}
