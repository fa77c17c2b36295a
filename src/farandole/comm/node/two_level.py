"""The two-level reduction: shared memory within a node, MPI between nodes.

For each array, every rank goes through these phases:

    post      the array is complete; neighbours may read it
    combine   each carrier (a local rank) combines its slice of all the node's arrays, in rank order
    cross     carriers with the same slice combine their parts over the nodes, in node order, so that
              each link carries every value once
    publish   the slice is final; neighbours may read it
    gather    the other slices are read from the neighbours that made them
    release   neighbours may change what they posted

`WithinNode` does what neighbours do for each other, `BetweenNodes` the cross phase. The order of summation depends on
the ranks' layout only. A rank alone on its node has only the cross phase; where neighbours cannot read each other's
memory, every rank counts as a node of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Transport
from farandole.comm.bytes.waiting import Subject
from farandole.comm.node.algorithms import AlgorithmTable
from farandole.comm.node.arithmetic import Reduction, kernels_for
from farandole.comm.node.between_nodes import BetweenNodes
from farandole.comm.node.exchange import RELEASED
from farandole.comm.node.layout import Layout
from farandole.comm.node.marks import Marks
from farandole.comm.node.routes import Routes
from farandole.comm.node.within_node import WithinNode
from farandole.comm.node.work import Work

__all__ = ["TwoLevel"]


class TwoLevel:
    """Reduces arrays of the ranks of one transport, in numbered slots. Collective to make."""

    def __init__(
        self, transport: Transport, slot_bytes: list[int], members: Sequence[int], *, all_came: bool = False
    ) -> None:
        """`members` are the world ranks of the transport's ranks, for messages; `all_came` as for `Marks`."""
        self.table = AlgorithmTable.from_environment()
        self._routes = routes = Routes(transport, slot_bytes)
        self._layout = routes.layout
        self._exchange = exchange = routes.exchange
        self.node, self.cross = routes.node, routes.cross
        self.kind, self.bounded, self.on_one_node = routes.kind, routes.bounded, routes.on_one_node
        board = None if exchange is None else exchange.board
        self._marks = Marks(board, members, [members[rank] for rank in routes.neighbours], all_came=all_came)
        self._within, self._between = None, None
        if exchange is not None:
            self._within = WithinNode(exchange, self._marks, self._layout.carriers, final=self.on_one_node)
        if self.cross is not None:
            self._between = BetweenNodes(self.cross, self._marks, self.table, len(slot_bytes))

    def collective(self, nbytes: int) -> str | None:
        """The algorithm for arrays of this size: within a node, between nodes, or both; alike on all ranks. None for one rank."""
        if self.kind == "alone":
            return None
        nodes, ways = len(self._layout.nodes), self._routes.within
        within = f"{self.table.for_node(nbytes) if nodes == 1 else 'sliced'} {ways}" if ways else ""
        between = "" if nodes == 1 else self.table.for_cross(-(-nbytes // self._layout.carriers), nodes)
        return f"two-level: {within}, {between}" if within and between else within or between

    def free(self) -> None:
        self._routes.free()

    # The phases

    def post(self, slot: int, sequence: int, source: AnyArray, result: AnyArray) -> None:
        """Let neighbours read `source`; flat contiguous arrays, `result` may be `source`."""
        if self._exchange is not None:
            self._exchange.post(slot, sequence, source, result)

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
        work = Work(slot, sequence, source, result, how, key)
        if self._within is None:
            self._without_neighbours(work)
        else:
            self._with_neighbours(self._within, work, shared)

    def _without_neighbours(self, work: Work) -> None:
        here, between = _levels(self._layout, work.source.dtype, work.how)
        if here.scales:
            kernels, dtype = kernels_for(work.source.dtype), work.source.dtype
            kernels.finish(here, work.source.astype(kernels.accumulator(dtype)), work.result)
        elif work.result is not work.source:
            np.copyto(work.result, work.source)
        if self._between is not None:
            self._between.reduce(work, work.result, between)

    def _with_neighbours(self, within: WithinNode, work: Work, shared: bool) -> None:
        flat = self.on_one_node and self.table.for_node(work.source.nbytes) == "flat"
        if self.on_one_node and not flat and within.at_once(work, shared):
            return
        within.wait_posted(work)
        if flat and not shared:
            within.flat(work)
            return
        here, between = _levels(self._layout, work.source.dtype, work.how)
        mine = within.combine_slice(work, here)
        if self._between is not None:
            self._between.reduce(work, mine, between)
        within.hand_out(work, shared)

    def wait_released(self, slot: int, sequence: int, key: str) -> None:
        """Return when no neighbour reads this rank's arrays any more."""
        self._marks.wait(RELEASED, slot, sequence, key)

    def released(self, sequence: int, key: str, slots: int) -> None:
        """The same for the first `slots` slots at once."""
        self._marks.wait_for_all(RELEASED, sequence, slots, key)

    def waiting_for_posts(self, sequence: int, key: str, slots: int) -> Subject:
        """What a thread waits for while others reduce the first `slots` slots."""
        return self._marks.posts(sequence, slots, key)

    def take_back(self, sequence: int) -> None:
        """Undo this rank's part of a sequence that came to nothing, so that it can be done again."""
        self._marks.take_back(sequence)
        if self._between is not None:
            self._between.take_back(sequence)

    def skip_rest(self, sequence: int) -> None:
        """No rank has anything for the slots of this sequence that are left."""
        if self._between is not None:
            self._between.skip_rest(sequence)


def _levels(layout: Layout, dtype: np.dtype[Any], how: Reduction) -> tuple[Reduction, Reduction]:
    """What to do within a node, and between nodes: 16-bit sums are scaled before they are stored, and may overflow."""
    wider = kernels_for(dtype).accumulator(dtype) != dtype
    early = how.combine == "sum" and wider and any(len(ranks) > 1 for ranks in layout.nodes)
    return (how, how.unscaled()) if early or len(layout.nodes) == 1 else (how.unscaled(), how)
