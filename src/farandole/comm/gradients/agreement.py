"""Ranks agree on what they are about to reduce, or learn in what they differ; and on the order in which plans are made."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from farandole.comm.bytes.waiting import Subject, wait_until
from farandole.comm.gradients.interface import Entry
from farandole.comm.named.collectives import allgather_object
from farandole.comm.named.process_sets import ProcessSet
from farandole.errors import PlanMismatchError

__all__ = ["agree", "agree_on_gradients", "making"]

_NUMBER = re.compile(r"_\d+(?=[/_]|$)")
_lock = threading.Lock()


def agree_on_gradients(process_set: ProcessSet, name: str, way: str, entries: Sequence[Entry]) -> None:
    """Raise on every rank where the ranks' models or settings (`way`, in words) differ. Collective."""
    digest = _digest(way, entries)
    _check_alike(allgather_object(digest, name, process_set), process_set, name, way, entries)


@contextmanager
def making(process_set: ProcessSet, name: str, way: str, entries: Sequence[Entry]) -> Iterator[None]:
    """Agree, and make a plan inside. Collective, on any thread.

    Plans have communicators, which all ranks must make in one order. Names meet in any order: threads that train a model
    each may begin in another one on every rank. The set's first rank says which ones it has begun before; they come first.
    What is left of plans that no rank needs any more is given back: a library has some thousand communicators.
    """
    runtime = process_set.runtime()
    plans = runtime.plans
    try:
        with _lock:
            before = tuple(plans.begun)
            plans.begun.add(name)
        mine = (_digest(way, entries), before, set(plans.retired))
        digests, begun, retired = zip(*allgather_object(mine, name, process_set))
        wait_until(lambda: plans.ended.issuperset(begun[0]), Subject(name, runtime.members))
        runtime.free_plans(set.intersection(*retired))
        with _lock:
            plans.ended.intersection_update(begun[0])  # all that anybody may still have to wait for
        _check_alike(digests, process_set, name, way, entries)
        yield
    finally:
        with _lock:
            plans.begun.discard(name)
            plans.ended.add(name)


def _digest(way: str, entries: Sequence[Entry]) -> str:
    return hashlib.blake2b(repr((way, list(entries))).encode(), digest_size=16).hexdigest()


def _check_alike(digests: Sequence[Any], process_set: ProcessSet, name: str, way: str, entries: Sequence[Entry]) -> None:
    if len(set(digests)) == 1:
        return
    members = process_set.runtime().members
    of_all = allgather_object((way, list(entries)), f"{name}.entries", process_set)
    for rank, (theirs, _) in zip(members, of_all):
        if theirs != of_all[0][0]:
            raise PlanMismatchError(
                f"the optimizers differ: rank {members[0]} has {of_all[0][0]}; rank {rank} has {theirs}. "
                "Give DistributedOptimizer the same arguments, and FARANDOLE_FUSION_THRESHOLD the same value, on every rank."
            )
    agree([rows for _, rows in of_all], members)


def agree(of_all: Sequence[Sequence[Entry]], members: Sequence[int]) -> None:
    """Raise on every rank when the ranks' lists differ, naming the first difference."""
    for rank, theirs in zip(members, of_all):
        first = of_all[0]
        if [_unnumbered(entry) for entry in theirs] == [_unnumbered(entry) for entry in first]:
            continue
        if len(theirs) != len(first):
            raise PlanMismatchError(
                f"the models differ: rank {members[0]} has {len(first)} parameters, rank {rank} has {len(theirs)}"
                f"{_extra(first, theirs)}. Build the same model on every rank."
            )
        index = next(i for i, (a, b) in enumerate(zip(first, theirs)) if _unnumbered(a) != _unnumbered(b))
        raise PlanMismatchError(
            f"the models differ in parameter {index}: rank {members[0]} has {_tell(first[index])}, "
            f"rank {rank} has {_tell(theirs[index])}. Build the same model on every rank."
        )


def _unnumbered(entry: Entry) -> Entry:
    """Keras numbers the layers of a process (`dense_3/kernel`): a rank may have built another model before."""
    return entry._replace(name=_NUMBER.sub("", entry.name)) if "/" in entry.name else entry


def _tell(entry: Entry) -> str:
    return f"{entry.name!r} {entry.dtype} {entry.shape}{' ' + entry.layout if entry.layout else ''}"


def _extra(a: Sequence[Entry], b: Sequence[Entry]) -> str:
    odd = {e.name for e in a} ^ {e.name for e in b}
    return f" ({sorted(odd)[0]!r} is not on both)" if odd else ""
