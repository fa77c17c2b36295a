"""How gradients are cut into pieces, each of which is reduced at once: by sizes and types alone, alike on every rank.

A large gradient is reduced where it lies, in pieces of its own; small ones that follow one another are packed into a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.comm.gradients.interface import Entry

__all__ = ["DIRECT_BYTES", "PIECE_BYTES", "WIRE_BYTES", "Cut", "cut", "part_bytes"]

DIRECT_BYTES = 1 << 20
# A part of a large gradient. Between nodes one is on the wire while the next is combined; within a node there is no
# wire, and each costs some calls.
PIECE_BYTES = 32 << 20
WIRE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """One piece: a bucket of whole gradients, or a part of one."""

    entries: tuple[int, ...]
    start: int
    stop: int
    """Elements, of the bucket or the gradient."""
    dtype: np.dtype[Any]
    packed: bool
    """Whether gradients are copied into memory of the plan's."""

    @property
    def nbytes(self) -> int:
        return (self.stop - self.start) * self.dtype.itemsize


def part_bytes(nodes: int) -> int:
    """The most that a part of a large gradient may have."""
    return PIECE_BYTES if nodes == 1 else WIRE_BYTES


def cut(entries: Sequence[Entry], *, staged: bool, bucket_bytes: int, part_bytes: int) -> list[Cut]:
    """All pieces, in the order of `entries`; `staged` packs even large gradients."""
    return list(_cuts(entries, staged, bucket_bytes, part_bytes))


def _cuts(entries: Sequence[Entry], staged: bool, bucket_bytes: int, part_bytes: int) -> Iterator[Cut]:
    bucket: list[int] = []
    held = 0
    for index, entry in enumerate(entries):
        direct = not staged and entry.group < 0 and entry.nbytes >= DIRECT_BYTES
        own = direct or (entry.group < 0 and entry.nbytes > part_bytes)
        full = entry.group < 0 and held + entry.nbytes > bucket_bytes
        if bucket and (own or full or not _alike(entries[bucket[-1]], entry)):
            yield _bucket(entries, bucket)
            bucket, held = [], 0
        if own:
            yield from _parts(index, entry, part_bytes, packed=not direct)
        else:
            bucket.append(index)
            held += entry.nbytes
    if bucket:
        yield _bucket(entries, bucket)


def _alike(a: Entry, b: Entry) -> bool:
    """Whether two gradients may share a bucket."""
    return a.dtype == b.dtype and a.group == b.group


def _bucket(entries: Sequence[Entry], indices: list[int]) -> Cut:
    count = sum(entries[i].elements for i in indices)
    return Cut(tuple(indices), 0, count, entries[indices[0]].numpy_dtype, packed=True)


def _parts(index: int, entry: Entry, part_bytes: int, *, packed: bool) -> Iterator[Cut]:
    step = -(-entry.elements // -(-entry.nbytes // part_bytes))
    for start in range(0, entry.elements, step):
        yield Cut((index,), start, min(start + step, entry.elements), entry.numpy_dtype, packed)
