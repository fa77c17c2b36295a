"""The two-level reduction: shared memory within a node, MPI between nodes.

For each array, every rank goes through these phases:

    post      the array is complete; neighbours may read it
    combine   each carrier (a local rank) combines its slice of all the node's arrays, in rank order
    cross     carriers with the same slice combine their parts over the nodes, in node order, so that
              each link carries every value once
    publish   the slice is final; neighbours may read it
    gather    the other slices are read from the neighbours that made them
    release   neighbours may change what they posted

The order of summation depends on the ranks' layout only. A rank alone on its node has only the cross
phase; where neighbours cannot read each other's memory, every rank counts as a node of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Request, Transport
from farandole.comm.bytes.waiting import Subject, all_arrived, wait_until
from farandole.comm.node.algorithms import AlgorithmTable
from farandole.comm.node.exchange import POSTED, REDUCED, RELEASED, DirectExchange, Exchange, open_exchange
from farandole.comm.node.floats import (
    Scratch,
    goes_at_once,
    goes_compiled,
    reduce_posted,
    sum_arrays,
    sum_slices,
)
from farandole.comm.node.kernels import Kernels, Reduction, kernels_for
from farandole.observe import timeline

__all__ = ["Layout", "TwoLevel", "communication_track", "fallbacks", "node_cores", "note_fallback", "phase"]

CHUNK_BYTES = 512 * 1024
# Slices begin at multiples of this many elements, so that vector loads stay aligned.
ALIGN = 64
# Slices of at least this size are written past the cache: it would not hold them until they are read.
STREAM_BYTES = 4 << 20


_fallbacks: list[str] = []


def note_fallback(reason: str, *, speak: bool) -> None:
    """Keep, and say once, why arrays travel in a slower way than they could."""
    if reason not in _fallbacks:
        _fallbacks.append(reason)
        if speak:
            warnings.warn(f"farandole: within a node arrays travel in a slower way: {reason}", stacklevel=4)


def fallbacks() -> list[str]:
    """The slower ways taken so far, and why."""
    return list(_fallbacks)


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


def communication_track() -> str:
    """The timeline's track of this thread's communication."""
    name = threading.current_thread().name
    return f"communication {name.rsplit('-', 1)[1]}" if name.startswith("farandole-team") else "communication"


_NOT_SHOWN = contextlib.nullcontext()


def phase(name: str, track: str = "") -> contextlib.AbstractContextManager[None]:
    """Show a phase on the timeline, where there is one: on this thread's track of communication, or another."""
    return _shown(name, track or communication_track()) if timeline.active() else _NOT_SHOWN


@contextlib.contextmanager
def _shown(name: str, track: str) -> Iterator[None]:
    start_ns = time.monotonic_ns()
    try:
        yield
    finally:
        timeline.span(track, name, start_ns, time.monotonic_ns())


def share(count: int, parts: int) -> int:
    """The elements of each of `parts`, aligned; the last may have fewer."""
    return -(-count // (parts * ALIGN)) * ALIGN


def bounds(count: int, parts: int) -> list[int]:
    """Even cuts of `count` elements into `parts`, aligned."""
    step = share(count, parts)
    return [min(part * step, count) for part in range(parts + 1)]


class _Work(NamedTuple):
    """One array on its way through the phases."""

    slot: int
    sequence: int
    source: AnyArray
    result: AnyArray
    how: Reduction
    key: str


class TwoLevel:
    """Reduces arrays of the ranks of one transport, in numbered slots. Collective to make."""

    def __init__(
        self, transport: Transport, slot_bytes: list[int], members: Sequence[int], *, all_came: bool = False
    ) -> None:
        """`members` are the world ranks of the transport's ranks, for messages.

        `all_came`: every rank has come before any of them posts, so that no wait is for one that has not.
        """
        self.transport = transport
        self.members = tuple(members)
        self._all_came = all_came
        self.table = AlgorithmTable.from_environment()
        self._scratch = threading.local()
        self._slots = len(slot_bytes)
        self._turn = self._slots
        self.node = node = transport.same_node()
        layout = Layout.gather(transport, node)
        exchange, self.fallback = (None, "") if node.size == 1 else open_exchange(node, slot_bytes)
        kind = "alone" if node.size == 1 else "none" if exchange is None else exchange.kind
        kinds, reasons = zip(*transport.allgather_object((kind, self.fallback)))
        for reason in filter(None, reasons):
            note_fallback(reason, speak=transport.rank == 0)
        if "none" in kinds:
            exchange, layout = None, Layout(tuple((rank,) for rank in range(transport.size)))
        self.bounded = "window" in kinds and "none" not in kinds
        """Whether any node has room only for arrays of the size given; alike on all ranks."""
        self._within = "" if "none" in kinds else "+".join(sorted({*kinds} - {"alone"}))
        self.exchange: Exchange | None = exchange
        self.layout = layout
        self.node_index, self.local_rank = layout.place(transport.rank)
        self.cross = self._make_cross()

    def _make_cross(self) -> Transport | None:
        if len(self.layout.nodes) == 1 or self.local_rank >= self.layout.carriers:
            return None
        return self.transport.subset([ranks[self.local_rank] for ranks in self.layout.nodes])

    @property
    def kind(self) -> str:
        """How arrays travel: `direct`, `window`, `mpi`, or `alone`."""
        if self.transport.size == 1:
            return "alone"
        return "mpi" if self.exchange is None else self.exchange.kind

    def collective(self, nbytes: int) -> str | None:
        """The algorithm for arrays of this size: within a node, between nodes, or both; alike on all ranks. None for one rank."""
        if self.transport.size == 1:
            return None
        nodes, carriers = len(self.layout.nodes), self.layout.carriers
        within = f"{self.table.for_node(nbytes) if nodes == 1 else 'sliced'} {self._within}" if self._within else ""
        between = "" if nodes == 1 else self.table.for_cross(-(-nbytes // carriers), nodes)
        return f"two-level: {within}, {between}" if within and between else within or between

    @property
    def on_one_node(self) -> bool:
        """Whether all ranks are neighbours that can read each other's memory."""
        return self.exchange is not None and len(self.layout.nodes) == 1

    def free(self) -> None:
        self.node.free()
        if self.cross is not None:
            self.cross.free()

    # The phases

    def post(self, slot: int, sequence: int, source: AnyArray, result: AnyArray) -> None:
        """Let neighbours read `source`; flat contiguous arrays, `result` may be `source`."""
        if self.exchange is not None:
            self.exchange.post(slot, sequence, source, result)

    def finish(
        self,
        slot: int,
        sequence: int,
        source: AnyArray,
        result: AnyArray,
        how: Reduction,
        key: str,
        *,
        shared: bool = False,
    ) -> None:
        """All phases after `post`, except waiting for neighbours to release.

        With `shared`, `result` is the same memory on all ranks of the node: there is nothing to gather, and
        it is complete when all neighbours have released.
        """
        if self.transport.size == 1:
            if how.scales or result is not source:
                kernels = kernels_for(source.dtype)
                kernels.finish(how, source.astype(kernels.accumulator(source.dtype)), result)
        elif self.exchange is None:
            here, between = self._levels(source.dtype, how)
            if here.scales:
                kernels = kernels_for(source.dtype)
                kernels.finish(here, source.astype(kernels.accumulator(source.dtype)), result)
            else:
                np.copyto(result, source)
            self._cross(slot, sequence, result, between, key)
        else:
            self._on_node(self.exchange, _Work(slot, sequence, source, result, how, key), shared)

    def _levels(self, dtype: np.dtype[Any], how: Reduction) -> tuple[Reduction, Reduction]:
        """What to do within a node, and between nodes: 16-bit sums are scaled before they are stored, and may overflow."""
        wider = kernels_for(dtype).accumulator(dtype) != dtype
        early = how.combine == "sum" and wider and any(len(ranks) > 1 for ranks in self.layout.nodes)
        return (how, how.unscaled()) if early or len(self.layout.nodes) == 1 else (how.unscaled(), how)

    def _on_node(self, exchange: Exchange, work: _Work, shared: bool) -> None:
        if self._at_once(exchange, work, shared):
            return
        with phase("WAIT_FOR_DATA"):
            self._await(POSTED, work.slot, work.sequence, work.key)
        if self.on_one_node and not shared and self.table.for_node(work.source.nbytes) == "flat":
            self._flat(exchange, work)
        else:
            self._sliced(exchange, work, shared)

    def _at_once(self, exchange: Exchange, work: _Work, shared: bool) -> bool:
        """A node's reduction as one compiled call; False where that cannot be."""
        slot, sequence, source, result, how, key = work
        carriers = self.layout.carriers
        step = share(source.size, carriers)
        # Other results that are large are written past the cache.
        fits = shared or result is source or step * source.itemsize < STREAM_BYTES
        if not fits or not self.on_one_node or not isinstance(exchange, DirectExchange):
            return False
        if not goes_at_once(source, how) or self.table.for_node(source.nbytes) == "flat":
            return False
        scratch = self._compiled_scratch(source.dtype)

        def reduce() -> int | None:
            return reduce_posted(exchange, slot, sequence, result, step, scratch, how, shared=shared)

        # A compiled call does not tell its wait from its work: where that is to be shown, the wait comes first.
        marked = None if timeline.active() else reduce()
        while marked is None:
            with phase("WAIT_FOR_DATA"):
                self._await(POSTED, slot, sequence, key)
            with phase("NODE_REDUCE"):
                marked = reduce()
        if marked == REDUCED:
            self._gather(exchange, slot, sequence, result, bounds(source.size, carriers), key)
        return True

    def wait_released(self, slot: int, sequence: int, key: str) -> None:
        """Return when no neighbour reads this rank's arrays any more."""
        if self.exchange is not None:
            self._await(RELEASED, slot, sequence, key)

    def take_back(self, sequence: int) -> None:
        """Undo this rank's part of a sequence that came to nothing, so that it can be done again."""
        if self.exchange is not None:
            self.exchange.board.take_back(sequence)
        self._turn = sequence * self._slots

    def skip_rest(self, sequence: int) -> None:
        """No rank has anything for the slots of this sequence that are left."""
        self._turn = (sequence + 1) * self._slots

    def released(self, sequence: int, key: str, slots: int) -> None:
        """The same for the first `slots` slots at once."""
        if self.exchange is not None:
            board = self.exchange.board
            if not board.all_reached(RELEASED, sequence, slots):
                wait_until(lambda: board.all_reached(RELEASED, sequence, slots), self._subject(key))

    def waiting_for_posts(self, sequence: int, key: str, slots: int) -> Subject:
        """What a thread waits for while others reduce the first `slots` slots."""

        def late() -> list[int] | None:
            of_slots = [self._late(POSTED, slot, sequence) or [] for slot in range(slots)]
            return sorted(set().union(*of_slots)) or None

        return self._subject(key, late)

    def _await(self, word: int, slot: int, sequence: int, key: str) -> None:
        assert self.exchange is not None
        board = self.exchange.board
        if board.reached(word, slot, sequence):
            return
        subject = self._subject(key, lambda: self._late(word, slot, sequence))
        wait_until(lambda: board.reached(word, slot, sequence), subject)

    def _subject(self, key: str, late: Callable[[], list[int] | None] = lambda: None) -> Subject:
        return Subject(key, self.members, all_arrived if self._all_came else late)

    def _late(self, word: int, slot: int, sequence: int) -> list[int] | None:
        """World ranks of this node that have not come to `sequence`; None where all have: others may be late."""
        if self.exchange is None:
            return None
        node = self.layout.nodes[self.node_index]
        return [self.members[node[local]] for local in self.exchange.board.late(word, slot, sequence)] or None

    def _flat(self, exchange: Exchange, work: _Work) -> None:
        slot, sequence, source, result, how, key = work
        total = np.empty_like(result)
        self._combine(exchange, slot, source, total, 0, source.size, how)
        exchange.board.mark(RELEASED, slot, sequence)
        # `result` may be `source`, which neighbours may still be reading.
        self._await(RELEASED, slot, sequence, key)
        np.copyto(result, total)

    def _sliced(self, exchange: Exchange, work: _Work, shared: bool) -> None:
        slot, sequence, source, result, how, key = work
        cuts = bounds(source.size, self.layout.carriers)
        if self.local_rank < self.layout.carriers:
            start, stop = cuts[self.local_rank], cuts[self.local_rank + 1]
            here, between = self._levels(source.dtype, how)
            with phase("NODE_REDUCE"):
                self._combine(exchange, slot, source, result, start, stop, here)
            if self.cross is not None:
                self._cross(slot, sequence, result[start:stop], between, key)
            width = source.itemsize
            if not shared:
                exchange.publish(slot, sequence, result, start * width, stop * width)
        if shared:
            exchange.board.mark(RELEASED, slot, sequence)
            return
        if self.local_rank >= self.layout.carriers:
            exchange.board.mark(REDUCED, slot, sequence)
        self._gather(exchange, slot, sequence, result, cuts, key)

    def _gather(
        self, exchange: Exchange, slot: int, sequence: int, result: AnyArray, cuts: list[int], key: str
    ) -> None:
        """Read the slices that neighbours have made."""
        self._await(REDUCED, slot, sequence, key)
        with phase("NODE_GATHER"):
            for local in range(self.layout.carriers):
                start, stop = cuts[local], cuts[local + 1]
                if local != self.local_rank and stop > start:
                    exchange.read_result(slot, local, start * result.itemsize, result[start:stop])
        exchange.board.mark(RELEASED, slot, sequence)

    def _combine(
        self,
        exchange: Exchange,
        slot: int,
        source: AnyArray,
        result: AnyArray,
        start: int,
        stop: int,
        how: Reduction,
    ) -> None:
        """result[start:stop] = the node's arrays combined in rank order, chunk by chunk (in the cache)."""
        if isinstance(exchange, DirectExchange) and goes_compiled(source.nbytes, source.dtype, how):
            stream = result is not source and self.cross is None and stop - start >= STREAM_BYTES // source.itemsize
            self._sum_compiled(exchange, slot, source, result, start, stop, how, stream)
            return
        kernels = kernels_for(source.dtype)
        step = CHUNK_BYTES // source.itemsize
        neighbours = exchange.board.size
        total, *reads = self._chunks(source.dtype, kernels.accumulator(source.dtype))
        for at in range(start, stop, step):
            end = min(at + step, stop)
            span, part = end - at, total[: end - at]
            arrays = (
                source[at:end]
                if local == self.local_rank
                else exchange.read_source(slot, local, at * source.itemsize, reads[local & 1][:span])
                for local in range(neighbours)
            )
            _combine_chunk(kernels, how, arrays, neighbours, part, result[at:end])

    def _sum_compiled(
        self,
        exchange: DirectExchange,
        slot: int,
        source: AnyArray,
        result: AnyArray,
        start: int,
        stop: int,
        how: Reduction,
        stream: bool,
    ) -> None:
        """The same in one call, for float sums."""
        addresses = exchange.addresses(slot) + start * source.itemsize
        scratch = self._compiled_scratch(source.dtype)
        failed = sum_slices(exchange.others, addresses, result[start:stop], scratch, how, stream=stream)
        if failed is not None:
            raise exchange.why_unreadable(slot, failed)

    def _compiled_scratch(self, dtype: np.dtype[Any]) -> Scratch:
        cache: dict[Any, Scratch] = self._scratch.__dict__
        key = ("compiled", dtype)
        if key not in cache:
            cache[key] = Scratch.make(dtype)
        return cache[key]

    def _chunks(self, dtype: np.dtype[Any], accumulator: np.dtype[Any]) -> list[AnyArray]:
        """Buffers of this thread's, kept: for a sum, and two for what is read."""
        cache: dict[Any, list[AnyArray]] = self._scratch.__dict__
        if dtype not in cache:
            count = CHUNK_BYTES // dtype.itemsize
            cache[dtype] = [np.empty(count, kind) for kind in (accumulator, dtype, dtype)]
        return cache[dtype]

    # Between nodes

    def _cross(self, slot: int, sequence: int, part: AnyArray, how: Reduction, key: str) -> None:
        """part = all nodes' parts combined in node order, then scaled; in place."""
        cross = self.cross
        assert cross is not None
        algorithm = self.table.for_cross(part.nbytes, cross.size)
        with phase("MPI_ALLREDUCE"):
            if self._cross_native(cross, algorithm == "mpi", slot, sequence, part, how, key):
                return
            if algorithm == "exchange":
                self._cross_exchange(cross, slot, part, how, key)
            else:
                self._cross_scatter(cross, slot, part, how, key)

    def _cross_native(
        self,
        cross: Transport,
        wanted: bool,
        slot: int,
        sequence: int,
        part: AnyArray,
        how: Reduction,
        key: str,
    ) -> bool:
        """MPI's own reduction. It matches calls by their order, so threads take turns, slot by slot."""
        turn = sequence * self._slots + slot
        wait_until(lambda: self._turn >= turn, self._subject(key))
        out = np.empty_like(part) if wanted else part
        request = cross.allreduce_native(part, out, how.combine) if wanted else None
        self._turn = turn + 1
        if request is None:
            return False
        self._complete([request], key)
        kernels_for(part.dtype).finish(how, out, part)
        return True

    def _cross_exchange(self, cross: Transport, slot: int, part: AnyArray, how: Reduction, key: str) -> None:
        others = [peer for peer in range(cross.size) if peer != cross.rank]
        arrays = {peer: np.empty_like(part) for peer in others}
        requests = [cross.receive(arrays[peer], peer, slot) for peer in others]
        mine = part.copy()
        requests += [cross.send(mine, peer, slot) for peer in others]
        self._complete(requests, key)
        arrays[cross.rank] = mine
        self._combine_parts([arrays[peer] for peer in range(cross.size)], part, how)

    def _cross_scatter(self, cross: Transport, slot: int, part: AnyArray, how: Reduction, key: str) -> None:
        me, cuts = cross.rank, bounds(part.size, cross.size)
        shares = [part[cuts[peer] : cuts[peer + 1]] for peer in range(cross.size)]
        others = [peer for peer in range(cross.size) if peer != me]
        arrays = {peer: np.empty_like(shares[me]) for peer in others}
        requests = [cross.receive(arrays[peer], peer, slot) for peer in others]
        requests += [cross.send(shares[peer], peer, slot) for peer in others]
        self._complete(requests, key)
        arrays[me] = shares[me]
        self._combine_parts([arrays[peer] for peer in range(cross.size)], shares[me], how)
        requests = [cross.receive(shares[peer], peer, slot) for peer in others]
        requests += [cross.send(shares[me], peer, slot) for peer in others]
        self._complete(requests, key)

    def _combine_parts(self, arrays: list[AnyArray], out: AnyArray, how: Reduction) -> None:
        if goes_compiled(out.nbytes, out.dtype, how):
            sum_arrays(arrays, out, self._compiled_scratch(out.dtype), how)
            return
        kernels = kernels_for(out.dtype)
        step = CHUNK_BYTES // out.itemsize
        total = self._chunks(out.dtype, kernels.accumulator(out.dtype))[0]
        for at in range(0, out.size, step):
            end = min(at + step, out.size)
            part = total[: end - at]
            _combine_chunk(kernels, how, (a[at:end] for a in arrays), len(arrays), part, out[at:end])

    def _complete(self, requests: list[Request], key: str) -> None:
        def done() -> bool:
            return all(request.test() for request in requests)

        wait_until(done, self._subject(key))


def _combine_chunk(
    kernels: Kernels, how: Reduction, arrays: Iterable[AnyArray], count: int, total: AnyArray, out: AnyArray
) -> None:
    """out = the arrays combined, first to last, and scaled; `total` is scratch."""
    stream = iter(arrays)
    so_far = next(stream)
    for number, array in enumerate(stream, start=2):
        if number == count:
            kernels.last(how, so_far, array, total, out)
        elif number == 2:
            kernels.first(how.combine, so_far, array, total)
        else:
            kernels.add(how.combine, total, array)
        so_far = total
