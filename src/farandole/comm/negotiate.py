"""Operations meet by name: what each rank asks for, and what the coordinator answers.

Ranks may submit operations in any order. The coordinator (the set's first rank) collects requests by
key; once every rank has sent one, it compares them and answers all ranks: go, or an error that names the
ranks and what differs. Every rank carries the answers out in the order they were given. Pure logic: no
communication happens here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Coordinator", "Request", "Verdict"]


class Request(NamedTuple):
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
        self._table: dict[str, dict[int, Request]] = {}
        self._left: dict[int, str] = {}

    def submit(self, rank: int, request: Request) -> Verdict | None:
        """Take a rank's request; the verdict, if it was the last one needed."""
        entry = self._table.setdefault(request.key, {})
        entry[rank] = request
        if self._left:
            del self._table[request.key]
            return self._left_verdict(request.key)
        if len(entry) < len(self._members):
            return None
        del self._table[request.key]
        return self._judge([entry[r] for r in range(len(self._members))])

    def withdraw(self, rank: int, key: str) -> None:
        """A rank has given up waiting for a key."""
        entry = self._table.get(key, {})
        entry.pop(rank, None)
        if not entry:
            self._table.pop(key, None)

    def leave(self, rank: int, reason: str) -> list[Verdict]:
        """A rank will take part in nothing more: everything pending fails."""
        self._left[rank] = reason
        keys = list(self._table)
        self._table.clear()
        return [self._left_verdict(key) for key in keys]

    def gone(self) -> int:
        """How many ranks take part in nothing more."""
        return len(self._left)

    def missing(self, key: str) -> list[int]:
        """World ranks that have not asked for a key that others wait for."""
        entry = self._table.get(key)
        return [] if entry is None else [w for r, w in enumerate(self._members) if r not in entry]

    def _left_verdict(self, key: str) -> Verdict:
        who = ", ".join(f"rank {self._members[r]} {why}" for r, why in sorted(self._left.items()))
        return Verdict(key, f"{key}: {who} and takes part in nothing more", left=True)

    def _judge(self, requests: list[Request]) -> Verdict:
        key = requests[0].key
        error = self._difference(requests)
        if error is not None:
            return Verdict(key, f"{key}: {error}")
        rows = tuple(tuple(shape[0] if shape else 1 for _, shape in r.tensors) for r in requests)
        splits = tuple(r.splits for r in requests if r.splits is not None)
        return Verdict(key, None, rows, splits)

    def _difference(self, requests: list[Request]) -> str | None:
        """What the ranks disagree on, or None."""
        kind = requests[0].kind
        counts = [len(r.tensors) for r in requests]
        if len(set(counts)) > 1:
            return self._tell("the number of arrays", counts)
        for index in range(counts[0]):
            which = f" of array {index}" if counts[0] > 1 else ""
            dtypes = [r.tensors[index][0] for r in requests]
            if len(set(dtypes)) > 1:
                return self._tell(f"dtype{which}", dtypes)
            shapes = [r.tensors[index][1] for r in requests]
            if kind in _SAME_SHAPE and len(set(shapes)) > 1:
                return self._tell(f"shape{which}", shapes) + " " + _ADVICE[kind]
            if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
                return self._tell(f"shape{which} beyond dimension 0", shapes)
        return self._argument_difference(requests)

    def _argument_difference(self, requests: list[Request]) -> str | None:
        names = [tuple(name for name, _ in r.arguments) for r in requests]
        if len(set(names)) > 1:
            return self._tell("arguments", names)
        for position, name in enumerate(names[0]):
            values = [r.arguments[position][1] for r in requests]
            if any(value != values[0] for value in values):
                return self._tell(name, values)
        given = [r.splits is not None for r in requests]
        return self._tell("whether splits are given", given) if len(set(given)) > 1 else None

    def _tell(self, what: str, values: Iterable[Any]) -> str:
        groups: dict[Any, list[int]] = {}
        for rank, value in enumerate(values):
            groups.setdefault(value, []).append(self._members[rank])
        parts = [f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {v}" for v, ranks in groups.items()]
        return f"ranks differ in {what}: {'; '.join(parts)}."


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
