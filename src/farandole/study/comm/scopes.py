"""Which ranks communicate matters more than how many, so that there are up to three scopes.

    node     the ranks of one node, the one that has most of them
    across   one rank of each node
    all      all ranks, where they are neither
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.comm.gradients.cutting import DIRECT_BYTES
from farandole.comm.named.lane import NATIVE_BYTES
from farandole.comm.node.algorithms import AlgorithmTable
from farandole.study.comm.ways import GRADIENT, NAMED

__all__ = ["known_cuts", "scopes"]


def scopes(nodes: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """Which ranks communicate, by scope; those of one rank, and a second name for the same ranks, are left out."""
    largest = max(nodes, key=lambda ranks: len(ranks))
    named = {
        "node": list(largest),
        "across": [ranks[0] for ranks in nodes],
        "all": sorted(rank for ranks in nodes for rank in ranks),
    }
    kept: dict[str, list[int]] = {}
    for name, ranks in named.items():
        if len(ranks) > 1 and ranks not in kept.values():
            kept[name] = ranks
    return kept


def known_cuts(ranks_of_nodes: Sequence[int]) -> dict[tuple[str, str], list[float]]:
    """The sizes after which the engine reduces in another way, by (collective, way), for ranks placed like this."""
    table = AlgorithmTable.from_environment()
    if len(ranks_of_nodes) == 1:
        node = _limits(table.node)
        gradient, named = [*node, DIRECT_BYTES, *_limits(table.result)], node
    else:
        # Each local rank carries its slice.
        named = [limit * min(ranks_of_nodes) for limit in _limits(table.cross)]
        gradient = [DIRECT_BYTES, *named]
    # Up to NATIVE_BYTES what meets by name is left to MPI.
    named = [NATIVE_BYTES, *(cut for cut in named if cut > NATIVE_BYTES)]
    return {("allreduce", GRADIENT): sorted(gradient), ("allreduce", NAMED): named}


def _limits(rows: Sequence[tuple[float, str]]) -> list[float]:
    return [limit for limit, _ in rows if limit != float("inf")]
