"""Which rank is on which node, and how many cores a node's ranks may use."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from farandole.comm.bytes.transport import Transport

__all__ = ["Layout", "node_cores"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which rank is where."""

    nodes: tuple[tuple[int, ...], ...]
    """Ranks of each node, nodes in the order of their first rank."""

    @property
    def carriers(self) -> int:
        """Local ranks that combine and carry a slice: as many as the smallest node has."""
        return min(len(ranks) for ranks in self.nodes)

    def place(self, rank: int) -> tuple[int, int]:
        """(node, local rank) of a rank."""
        for node, ranks in enumerate(self.nodes):
            if rank in ranks:
                return node, ranks.index(rank)
        raise ValueError(f"rank {rank} is on no node of {self.nodes}")

    @classmethod
    def gather(cls, transport: Transport, node: Transport) -> Layout:
        """Collective: every rank of the transport calls it."""
        leader = node.broadcast_object(transport.rank, 0)
        leaders = transport.allgather_object(leader)
        return cls(tuple(tuple(np.flatnonzero(np.array(leaders) == n).tolist()) for n in sorted(set(leaders))))


def node_cores(node: Transport) -> int:
    """Cores the node's ranks may use, each of them or all together. Collective."""
    cores: set[int] = set().union(*node.allgather_object(os.sched_getaffinity(0)))
    return len(cores)
