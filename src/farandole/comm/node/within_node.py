"""The reduction of the arrays that the ranks of a node have posted, each rank a slice.

There are three ways. As one compiled call (`at_once`), which the ranks enter when they come and leave where a neighbour is late;
every rank all of a small array (`flat`); or a slice each (`combine_slice`), which then goes on to other nodes or to the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.bytes.waiting import spins
from farandole.comm.node.arithmetic import (
    Reduction,
    combine,
    goes_at_once,
    goes_compiled,
    load,
    scratch_for,
    sum_slices,
)
from farandole.comm.node.exchange import POSTED, REDUCED, RELEASED, DirectExchange, Exchange
from farandole.comm.node.marks import Marks
from farandole.comm.node.spans import phase
from farandole.comm.node.work import Work, cut, share
from farandole.observe import timeline

__all__ = ["WithinNode"]

# Slices of at least this size are written past the cache: it would not hold them until they are read.
STREAM_BYTES = 4 << 20


class WithinNode:
    """Reduces arrays of the ranks of one node, of which the first `carriers` make a slice each."""

    def __init__(self, exchange: Exchange, marks: Marks, carriers: int, *, final: bool) -> None:
        """`final`: there are no other nodes, whose arrays would have to be added."""
        self._exchange = exchange
        self._direct = exchange if isinstance(exchange, DirectExchange) else None
        self._board = exchange.board
        self._marks = marks
        self._carriers = carriers
        self._final = final

    def at_once(self, work: Work, shared: bool) -> bool:
        """All phases as one compiled call; False where that cannot be."""
        step = share(work.source.size, self._carriers)
        # Other results that are large are written past the cache.
        fits = shared or work.result is work.source or step * work.source.itemsize < STREAM_BYTES
        if not fits or self._direct is None or not goes_at_once(work.source, work.how):
            return False
        # A compiled call does not tell its wait from its work: where that is to be shown, the wait comes first.
        marked = None if timeline.active() else self._reduce_posted(self._direct, work, step, shared)
        while marked is None:
            self.wait_posted(work)
            with phase("NODE_REDUCE"):
                marked = self._reduce_posted(self._direct, work, step, shared)
        if marked == REDUCED:
            self._gather(work)
        return True

    def _reduce_posted(self, direct: DirectExchange, work: Work, step: int, shared: bool) -> int | None:
        """Reduce what all neighbours have posted, as far as they come in time.

        Each rank makes a slice of `step` elements. Returns the word of the board that this rank has marked last:
        `RELEASED` (done), `REDUCED` or none.
        """
        functions, board, scratch = load()[0], self._board, scratch_for(work.source.dtype, compiled=True)
        marked, failed = functions.reduce_posted(
            board.words, work.slot, board.rank, work.sequence, direct.others, step, work.result,
            *scratch, *work.how.factors, spins(), shared,
        )  # fmt: skip
        if failed >= 0:
            raise direct.why_unreadable(work.slot, failed)
        return None if marked == functions.NOTHING else int(marked)

    def wait_posted(self, work: Work) -> None:
        """Wait until all neighbours have posted."""
        with phase("WAIT_FOR_DATA"):
            self._marks.wait(POSTED, work.slot, work.sequence, work.key)

    def flat(self, work: Work) -> None:
        """All of the array on every rank."""
        total = np.empty_like(work.result)
        self._combine(work, 0, total, work.how, stream=True)
        self._board.mark(RELEASED, work.slot, work.sequence)
        # `result` may be `source`, which neighbours may still be reading.
        self._marks.wait(RELEASED, work.slot, work.sequence, work.key)
        np.copyto(work.result, total)

    def combine_slice(self, work: Work, how: Reduction) -> AnyArray:
        """This rank's slice of the result; empty on ranks that make none."""
        start, stop = cut(work.source.size, self._carriers, self._board.rank)
        mine = work.result[start:stop]
        if stop > start:
            with phase("NODE_REDUCE"):
                self._combine(work, start, mine, how, stream=work.result is not work.source)
        return mine

    def hand_out(self, work: Work, shared: bool) -> None:
        """Let neighbours read this rank's slice, and read theirs; with `shared`, all of them are there already."""
        if shared:
            self._board.mark(RELEASED, work.slot, work.sequence)
            return
        start, stop = cut(work.source.size, self._carriers, self._board.rank)
        width = work.source.itemsize
        self._exchange.publish(work.slot, work.sequence, work.result, start * width, stop * width)
        self._gather(work)

    def _gather(self, work: Work) -> None:
        """Read the slices that neighbours have made."""
        self._marks.wait(REDUCED, work.slot, work.sequence, work.key)
        result = work.result
        with phase("NODE_GATHER"):
            for local in range(self._carriers):
                start, stop = cut(result.size, self._carriers, local)
                if local != self._board.rank and stop > start:
                    self._exchange.read_result(work.slot, local, start * result.itemsize, result[start:stop])
        self._board.mark(RELEASED, work.slot, work.sequence)

    def _combine(self, work: Work, start: int, out: AnyArray, how: Reduction, *, stream: bool) -> None:
        """out = the node's arrays from element `start` on, combined in rank order; `stream` writes past the cache if it is large."""
        source = work.source
        if self._direct is not None and goes_compiled(source.nbytes, source.dtype, how):
            stream = stream and self._final and out.nbytes >= STREAM_BYTES
            addresses = self._direct.addresses(work.slot) + start * source.itemsize
            failed = sum_slices(self._direct.others, addresses, out, how, stream=stream)
            if failed is not None:
                raise self._direct.why_unreadable(work.slot, failed)
        else:
            combine(how, self._board.size, partial(self._parts, work, start), out)

    def _parts(self, work: Work, origin: int, start: int, stop: int, reads: AnyArray) -> Iterator[AnyArray]:
        """Elements of every rank's array, in rank order; `start` and `stop` count from `origin`."""
        at, size = origin + start, stop - start
        for local in range(self._board.size):
            if local == self._board.rank:
                yield work.source[at : at + size]
            else:
                yield self._exchange.read_source(work.slot, local, at * work.source.itemsize, reads[local & 1, :size])
