"""Ranks agree on what they are about to reduce, or learn in what they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from farandole.comm.collectives import allgather_object
from farandole.comm.plan import Entry, agree
from farandole.comm.process_sets import ProcessSet
from farandole.errors import PlanMismatchError

__all__ = ["agree_on_gradients"]


def agree_on_gradients(process_set: ProcessSet, name: str, way: str, entries: Sequence[Entry]) -> None:
    """Raise on every rank where the ranks' models or settings (`way`, in words) differ. Collective."""
    listed = list(entries)
    digest = hashlib.blake2b(repr((way, listed)).encode(), digest_size=16).hexdigest()
    if len(set(allgather_object(digest, name, process_set))) == 1:
        return
    members = process_set.runtime().members
    of_all = allgather_object((way, listed), f"{name}.entries", process_set)
    for rank, (theirs, _) in zip(members, of_all):
        if theirs != of_all[0][0]:
            raise PlanMismatchError(
                f"the optimizers differ: rank {members[0]} has {of_all[0][0]}; rank {rank} has {theirs}. "
                "Give DistributedOptimizer the same arguments on every rank."
            )
    agree([rows for _, rows in of_all], members)
