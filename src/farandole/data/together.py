"""All ranks read one file: one parse and one copy of the table for each node.

    agree     every rank asks for the same file in the same way; who finds a usable cache file
    parse     the ranks of a node take turns at the file's blocks and write rows into shared memory
    send      with "broadcast", one node parses and its first rank sends the table to those of the others
    hand out  every rank maps the shared memory copy on write: what it changes stays with it

Below 64 MiB every node parses for itself. A larger file is parsed by one and sent: the table is about half as
large as its text, and many nodes that read one file at once is what shared filesystems are slowest at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import Transport
from farandole.comm.bytes.waiting import Subject, wait_until
from farandole.comm.named.collectives import allgather_object
from farandole.comm.node.routes import note_fallback
from farandole.comm.node.shared import SharedBlock, SharingUnavailable
from farandole.comm.world import current
from farandole.data.cache import CacheFile, Stored
from farandole.data.layout import ReadOptions
from farandole.data.parse import BadRow, prepare
from farandole.data.reading import PlainFile, progress, read
from farandole.data.text import open_text
from farandole.errors import DataError, FarandoleError, MismatchError
from farandole.observe.phases import phase

__all__ = ["read_together"]

BROADCAST_BYTES = 64 << 20
_MESSAGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one rank brings to the meeting."""

    request: str
    node: int
    size: int
    file: tuple[int, int]
    """Inode and time of the source: the same on nodes that share a filesystem."""
    cached: bool
    problem: str | None


def read_together(source: Path, options: ReadOptions, cache: Any, across: str) -> Stored:
    """Collective: every rank calls it."""
    world = current()
    label = f"read_matrix({source.name})"
    with _node_ranks() as node:
        reader = _Reader(source, options, node, label)
        offers = reader.meet(cache, across)
        nodes = {offer.node: offer for offer in reversed(offers)}  # of each node's first rank
        here = nodes[world.node]
        if all(offer.cached for offer in nodes.values()):
            return reader.mapped()
        reader.prepare()
        large = across == "broadcast" or (across == "auto" and here.size > BROADCAST_BYTES)
        if len(nodes) > 1 and large:
            table = reader.from_one_node(min(nodes, key=lambda number: (not nodes[number].cached, number)), nodes)
        else:
            table = reader.on_this_node(here)
        if not here.cached and world.node == min(n for n in nodes if nodes[n].file == here.file):
            reader.keep()
        return table


@contextmanager
def _node_ranks() -> Iterator[Transport]:
    node = current().transport.same_node()
    try:
        yield node
    finally:
        node.free()


class _Reader:
    """One rank's part in reading one file."""

    def __init__(self, source: Path, options: ReadOptions, node: Transport, label: str) -> None:
        self._source = source
        self._options = options
        self._node = node
        self._label = label
        self._place: CacheFile | None = None
        self._shared: Stored | None = None
        """The table in shared memory, which no caller sees."""

    @property
    def _leads(self) -> bool:
        return self._node.rank == 0

    # Agree

    def meet(self, cache: Any, across: str) -> list[_Offer]:
        offers: list[_Offer] = allgather_object(self._offer(cache, across), self._label)
        for rank, offer in enumerate(offers):
            if offer.request != offers[0].request:
                raise MismatchError(
                    f"read_matrix: rank 0 asks for {offers[0].request}, rank {rank} for {offer.request}. "
                    "Call it with the same arguments on every rank, or with together=False."
                )
        for offer in offers:
            if offer.problem is not None:
                raise DataError(offer.problem)
        return offers

    def _offer(self, cache: Any, across: str) -> _Offer:
        request = f"{self._source.name} with {self._options.key()}, across={across!r}"
        node = current().node
        try:
            open_text(self._source)
            self._place = CacheFile.at(self._source, self._options, cache)
        except (DataError, OSError) as error:
            return _Offer(request, node, 0, (0, 0), False, str(error))
        told = self._source.stat()
        cached = self._leads and self._place is not None and self._place.load() is not None
        return _Offer(request, node, told.st_size, (told.st_ino, told.st_mtime_ns), cached, None)

    # Parse

    def prepare(self) -> None:
        """What one rank compiles the others of its node wait for: it is no part of anybody's reading."""
        with phase("compile"):
            self._try(lambda: prepare(self._options.dtype, texts=bool(self._options.columns)))

    def on_this_node(self, offer: _Offer) -> Stored:
        return self.mapped() if offer.cached else self.parsed()

    def mapped(self) -> Stored:
        """From the cache file, which the node's first rank has checked."""
        table = None if self._place is None else self._place.load(verify=False)
        if all(self._node.allgather_object(table is not None)):
            assert table is not None
            return table
        return self.parsed()  # somebody has removed it in between

    def parsed(self) -> Stored:
        try:
            return self._parsed_by_all() if open_text(self._source) == "plain" else self._parsed_by_one()
        except SharingUnavailable as error:
            note_fallback(f"every rank reads {self._source.name} for itself ({error})", speak=self._leads)
            return read(self._source, self._options, speak=self._leads)

    def _parsed_by_all(self) -> Stored:
        node = self._node
        with progress(self._source, speak=current().rank == 0) as bar:
            file = self._try(lambda: PlainFile(self._source, self._options, lambda n: bar.advance(n * node.size)))
            mine = range(node.rank, len(file.blocks), node.size)
            threads = self._threads()
            blocks = [file.blocks[i] for i in mine]
            rows = _dealt(node.allgather_object(file.count(blocks, threads)), len(file.blocks))
            firsts = file.firsts(rows)
            shared, private = self._room(firsts[-1] * file.width)
            found: list[list[Any]] | BadRow
            try:
                found = file.parse(blocks, [firsts[i] for i in mine], shared, threads)
            except BadRow as bad:
                found = bad
            of_all = node.allgather_object(found)
        failed = [f for f in of_all if isinstance(f, BadRow)]
        if failed:
            raise file.error(min(failed, key=lambda bad: bad.offset))
        parts = _dealt(of_all, len(file.blocks))
        self._shared = file.table(shared, parts)
        return Stored(private.reshape(-1, file.width), self._shared.names, self._shared.columns)

    def _parsed_by_one(self) -> Stored:
        """A compressed file has one beginning: the node's first rank reads it."""
        speak = current().rank == 0
        table = self._try(lambda: read(self._source, self._options, speak=speak) if self._leads else None)
        return self._spread(table)

    def _spread(self, table: Stored | None) -> Stored:
        """A table of the node's first rank for all of its ranks."""
        told = None if table is None else (table.values.shape, table.names, table.columns)
        shape, names, columns = self._node.broadcast_object(told, 0)
        shared, private = self._room(int(np.prod(shape)))
        if table is not None:
            np.copyto(shared, table.values.reshape(-1))
        self._node.allgather_object(None)
        self._shared = Stored(shared.reshape(shape), names, columns)
        return Stored(private.reshape(shape), names, columns)

    def _try(self, work: Callable[[], Any]) -> Any:
        """What any rank of the node fails with, all of them do."""
        result = problem = None
        try:
            result = work()
        except FarandoleError as error:
            problem = error
        problems = [p for p in self._node.allgather_object(problem) if p is not None]
        if problems:
            raise problems[0]
        return result

    def _room(self, count: int) -> tuple[Any, Any]:
        """Memory the node's ranks share, flat, and this rank's own view of it, copy on write."""
        dtype = np.dtype(self._options.dtype)
        block = SharedBlock(self._node, count * dtype.itemsize, private=True)
        assert block.private is not None
        return block.view(0, (count,), dtype), np.frombuffer(block.private, dtype, count)

    def _threads(self) -> int:
        """This rank's share of its cores."""
        mine = os.sched_getaffinity(0)
        sharing = sum(bool(mine & theirs) for theirs in self._node.allgather_object(mine))
        return max(1, len(mine) // sharing)

    # Send

    def from_one_node(self, root: int, nodes: dict[int, _Offer]) -> Stored:
        """The table that the node `root` has or makes, on every node."""
        table = problem = None
        try:
            table = self.on_this_node(nodes[root]) if current().node == root else None
        except FarandoleError as error:
            problem = error
        problems = [p for p in allgather_object(problem, self._label) if p is not None]
        if problems:
            raise problems[0]
        return self._sent(table, root)

    def _sent(self, table: Stored | None, root: int) -> Stored:
        leaders = [ranks[0] for ranks in current().layout.nodes]
        source = leaders.index(current().layout.nodes[root][0])
        if self._leads:
            link = current().transport.subset(leaders)
            told = None if table is None else (table.values.shape, table.names, table.columns)
            told = link.broadcast_object(told, source)
        else:
            told = None
        told = self._node.broadcast_object(told, 0)
        shape, names, columns = told
        apart = False  # whether each rank of this node keeps its own
        if table is None:
            try:
                shared, private = self._room(int(np.prod(shape)))
                self._shared = Stored(shared.reshape(shape), names, columns)
                values = private.reshape(shape)
            except SharingUnavailable as error:
                note_fallback(f"every rank keeps {self._source.name} for itself ({error})", speak=self._leads)
                apart, values = True, np.empty(shape, self._options.dtype)
        else:
            values = table.values
        if self._leads:
            content = values if self._shared is None else self._shared.values
            self._broadcast(link, content.reshape(-1).view(np.uint8), source, leaders)
            link.free()
        if apart:
            self._broadcast(self._node, values.reshape(-1).view(np.uint8), 0, list(current().layout.nodes[current().node]))
        self._node.allgather_object(None)
        return Stored(values, names, columns)

    def _broadcast(self, link: Transport, data: Any, root: int, members: list[int]) -> None:
        for at in range(0, data.size, _MESSAGE_BYTES):
            request = link.broadcast(data[at : at + _MESSAGE_BYTES], root)
            wait_until(request.test, Subject(self._label, tuple(members)))

    def keep(self) -> None:
        """Write the cache file, from memory that nobody changes any more."""
        if self._leads and self._place is not None and self._shared is not None:
            self._place.store(self._shared, may_change=False)


def _dealt(of_ranks: list[list[Any]], total: int) -> list[Any]:
    """What ranks made of the blocks they took in turn, in the blocks' order."""
    return [of_ranks[i % len(of_ranks)][i // len(of_ranks)] for i in range(total)]
