"""The reduction of one slice over the nodes, by the ranks that carry it: in node order, or by MPI itself."""

from __future__ import annotations

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Request, Transport
from farandole.comm.bytes.waiting import wait_until
from farandole.comm.node.algorithms import AlgorithmTable
from farandole.comm.node.arithmetic import Reduction, combine_arrays, kernels_for
from farandole.comm.node.marks import Marks
from farandole.comm.node.spans import phase
from farandole.comm.node.work import Work, cut

__all__ = ["BetweenNodes"]


class BetweenNodes:
    """Reduces the parts of the ranks of `cross`, one of each node, in place."""

    def __init__(self, cross: Transport, marks: Marks, table: AlgorithmTable, slots: int) -> None:
        self._cross = cross
        self._others = [peer for peer in range(cross.size) if peer != cross.rank]
        self._marks = marks
        self._table = table
        self._slots = slots
        self._turn = slots
        """Which slot of which sequence may call MPI's own reduction."""

    def reduce(self, work: Work, part: AnyArray, how: Reduction) -> None:
        """part = all nodes' parts combined in node order, then scaled."""
        algorithm = self._table.for_cross(part.nbytes, self._cross.size)
        with phase("MPI_ALLREDUCE"):
            if self._native(work, part, how, wanted=algorithm == "mpi"):
                return
            if algorithm == "exchange":
                self._exchange(work, part, how)
            else:
                self._scatter(work, part, how)

    def take_back(self, sequence: int) -> None:
        """This sequence will be done again."""
        self._turn = sequence * self._slots

    def skip_rest(self, sequence: int) -> None:
        """No rank has anything for the slots of this sequence that are left."""
        self._turn = (sequence + 1) * self._slots

    def _native(self, work: Work, part: AnyArray, how: Reduction, *, wanted: bool) -> bool:
        """MPI's own reduction. It matches calls by their order, so threads take turns, slot by slot."""
        turn = work.sequence * self._slots + work.slot
        wait_until(lambda: self._turn >= turn, self._marks.subject(work.key))
        out = np.empty_like(part) if wanted else part
        request = self._cross.allreduce_native(part, out, how.combine) if wanted else None
        self._turn = turn + 1
        if request is None:
            return False
        self._complete([request], work.key)
        kernels_for(part.dtype).finish(how, out, part)
        return True

    def _exchange(self, work: Work, part: AnyArray, how: Reduction) -> None:
        """Every node gets all parts."""
        me, size = self._cross.rank, self._cross.size
        parts = [part.copy() if peer == me else np.empty_like(part) for peer in range(size)]
        self._swap(work, [parts[me]] * size, parts)
        combine_arrays(how, parts, part)

    def _scatter(self, work: Work, part: AnyArray, how: Reduction) -> None:
        """Every node gets its share of all parts, and sends the result to all."""
        me, size = self._cross.rank, self._cross.size
        shares = [part[slice(*cut(part.size, size, peer))] for peer in range(size)]
        parts = [shares[me] if peer == me else np.empty_like(shares[me]) for peer in range(size)]
        self._swap(work, shares, parts)
        combine_arrays(how, parts, shares[me])
        self._swap(work, [shares[me]] * size, shares)

    def _swap(self, work: Work, to_send: list[AnyArray], to_receive: list[AnyArray]) -> None:
        """Send each other rank its array, and receive one from each."""
        requests = [self._cross.receive(to_receive[peer], peer, work.slot) for peer in self._others]
        requests += [self._cross.send(to_send[peer], peer, work.slot) for peer in self._others]
        self._complete(requests, work.key)

    def _complete(self, requests: list[Request], key: str) -> None:
        wait_until(lambda: all(request.test() for request in requests), self._marks.subject(key))
