"""Operations meet by name: what each rank asks for, and what the coordinator answers.

Ranks may submit operations in any order. The coordinator (the set's first rank) collects requests by
key; once every rank has sent one, it compares them and answers all ranks: go, or an error that names the
ranks and what differs. Every rank carries the answers out in the order they were given. A rank that has joined
sends nothing more; the answers tell it in what to stand in, with zeros. Pure logic: no communication happens here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["JOIN", "Coordinator", "OperationRequest", "Verdict"]


class OperationRequest(NamedTuple):
    """What one rank wants to do under a key."""

    key: str
    kind: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """(dtype, shape) of each array."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """What must be equal on all ranks: op, scale factors, root."""
    splits: tuple[int, ...] | None = None
    """alltoall: rows for each rank."""


class Verdict(NamedTuple):
    """The coordinator's answer to one key."""

    key: str
    error: str | None = None
    rows: tuple[tuple[int, ...], ...] = ()
    """Rows (size of dimension 0) of each array, for each rank."""
    splits: tuple[tuple[int, ...], ...] = ()
    left: bool = False
    """The error is that a rank has left."""
    joined: tuple[int, ...] | None = None
    """For a key of "": who has joined by now."""
    stand_in: OperationRequest | None = None
    """What ranks that have joined are to take part in."""
    counters: tuple[tuple[str, int], ...] = ()
    """With the last join: how many operations without a name there have been, of each kind."""
    forgotten: tuple[int, int] | None = None
    """For one rank alone: its request under this key, by its number, will not be answered."""


JOIN = "join"
_WITH_JOINED = {"allreduce", "barrier", "gradients"}
_SAME_SHAPE = {"allreduce", "broadcast", "reducescatter"}
_ADVICE = {
    "allreduce": "Every rank must pass the same shape.",
    "broadcast": "Every rank must pass an array of the root's shape.",
    "reducescatter": "Every rank must pass the same shape.",
}


class Coordinator:
    """Collects the requests of the ranks of one set."""

    def __init__(self, members: tuple[int, ...]) -> None:
        """`members` are world ranks, for messages."""
        self._members = members
        self._table: dict[str, dict[int, OperationRequest]] = {}
        self._left: dict[int, str] = {}
        self._joined: dict[int, OperationRequest] = {}

    def submit(self, rank: int, request: OperationRequest) -> Verdict | None:
        """Take a rank's request; the verdict, if it was the last one needed."""
        entry = self._table.setdefault(request.key, {})
        entry[rank] = request
        if self._left:
            del self._table[request.key]
            return self._left_verdict(request.key)
        return self._take(request.key) if self._complete(entry) else None

    def join(self, rank: int, request: OperationRequest) -> list[Verdict]:
        """A rank takes part in nothing of its own until all have joined; what waited only for it can go."""
        if self._left:
            return [self._left_verdict(request.key)]
        self._joined[rank] = request
        if len(self._joined) < len(self._members):
            ready = [key for key, entry in self._table.items() if self._complete(entry)]
            return [self._notice(), *map(self._take, ready)]
        last = self._members[rank]
        counters: dict[str, int] = {}
        for of_rank in self._joined.values():
            for kind, count in of_rank.arguments:
                counters[kind] = max(counters.get(kind, 0), count)
        self._joined.clear()
        return [self._notice(), Verdict(JOIN, rows=((last,),), counters=tuple(sorted(counters.items())))]

    def _notice(self) -> Verdict:
        return Verdict("", joined=tuple(self._joined))

    def _complete(self, entry: dict[int, OperationRequest]) -> bool:
        return len(entry.keys() | self._joined.keys()) == len(self._members)

    def _take(self, key: str) -> Verdict:
        """The verdict on a key that everybody has come to."""
        entry = self._table.pop(key)
        ranks = sorted(entry)
        return self._judge([entry[rank] for rank in ranks], [self._members[rank] for rank in ranks])

    def withdraw(self, rank: int, key: str) -> bool:
        """A rank has given up waiting for a key. False where it has been answered already."""
        if key == JOIN:
            return self._joined.pop(rank, None) is not None
        entry = self._table.get(key, {})
        waited = entry.pop(rank, None) is not None
        if not entry:
            self._table.pop(key, None)
        return waited

    def leave(self, rank: int, reason: str) -> list[Verdict]:
        """A rank will take part in nothing more: everything pending fails."""
        self._left[rank] = reason
        keys = [*self._table, *([JOIN] if self._joined else [])]
        self._table.clear()
        self._joined.clear()
        return [self._left_verdict(key) for key in keys]

    def gone(self) -> int:
        """How many ranks take part in nothing more."""
        return len(self._left)

    def missing(self, key: str) -> list[int]:
        """World ranks that have not asked for a key that others wait for."""
        entry = self._joined if key == JOIN else self._table.get(key, {})
        there = entry.keys() | self._joined.keys()
        return [w for r, w in enumerate(self._members) if r not in there] if entry else []

    def _left_verdict(self, key: str) -> Verdict:
        who = ", ".join(f"rank {self._members[r]} {why}" for r, why in sorted(self._left.items()))
        return Verdict(key, f"{key}: {who} and takes part in nothing more", left=True)

    def _judge(self, requests: list[OperationRequest], members: list[int]) -> Verdict:
        first = requests[0]
        error = _difference(requests, members) or self._impossible_with_joined(first)
        if error is not None:
            return Verdict(first.key, f"{first.key}: {error}")
        rows = tuple(tuple(shape[0] if shape else 1 for _, shape in r.tensors) for r in requests)
        splits = tuple(r.splits for r in requests if r.splits is not None)
        return Verdict(first.key, None, rows, splits, stand_in=first if self._joined else None)

    def _impossible_with_joined(self, request: OperationRequest) -> str | None:
        if not self._joined or (request.kind in _WITH_JOINED and ("op", "ADASUM") not in request.arguments):
            return None
        joined = [self._members[rank] for rank in sorted(self._joined)]
        return (
            f"{_ranks(joined)} {'has' if len(joined) == 1 else 'have'} joined and can only add zeros to an allreduce. "
            "Call join() on every rank first."
        )


def _difference(requests: list[OperationRequest], members: list[int]) -> str | None:
    """What the ranks disagree on, or None."""
    if requests.count(requests[0]) == len(requests):  # nearly always: compared without a line of Python
        return None
    kind = requests[0].kind
    counts = [len(r.tensors) for r in requests]
    if len(set(counts)) > 1:
        return _tell("the number of arrays", counts, members)
    for index in range(counts[0]):
        which = f" of array {index}" if counts[0] > 1 else ""
        dtypes = [r.tensors[index][0] for r in requests]
        if len(set(dtypes)) > 1:
            return _tell(f"dtype{which}", dtypes, members)
        shapes = [r.tensors[index][1] for r in requests]
        if kind in _SAME_SHAPE and len(set(shapes)) > 1:
            return _tell(f"shape{which}", shapes, members) + " " + _ADVICE[kind]
        if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
            return _tell(f"shape{which} beyond dimension 0", shapes, members)
    return _argument_difference(requests, members)


def _argument_difference(requests: list[OperationRequest], members: list[int]) -> str | None:
    names = [tuple(name for name, _ in r.arguments) for r in requests]
    if len(set(names)) > 1:
        return _tell("arguments", names, members)
    for position, name in enumerate(names[0]):
        values = [r.arguments[position][1] for r in requests]
        if any(value != values[0] for value in values):
            return _tell(name, values, members)
    given = [r.splits is not None for r in requests]
    return _tell("whether splits are given", given, members) if len(set(given)) > 1 else None


def _tell(what: str, values: Iterable[Any], members: list[int]) -> str:
    groups: dict[Any, list[int]] = {}
    for member, value in zip(members, values):
        groups.setdefault(value, []).append(member)
    parts = [f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {v}" for v, ranks in groups.items()]
    return f"ranks differ in {what}: {'; '.join(parts)}."


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
