"""What a plan of the host's is made of, from the communicator up. All ranks of the set make it together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import Transport
from farandole.comm.gradients.cutting import Cut, cut, part_bytes
from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.pieces import Pieces
from farandole.comm.gradients.queue import PieceQueue
from farandole.comm.gradients.reducing import PieceReducer
from farandole.comm.gradients.results import Results
from farandole.comm.gradients.rows import open_rows
from farandole.comm.gradients.team import Statistics
from farandole.comm.named.process_sets import SetRuntime
from farandole.comm.node.arithmetic import LEAST_BYTES, Reduction, is_compiled, load, prepare
from farandole.comm.node.layout import node_cores
from farandole.comm.node.routes import note_fallback
from farandole.comm.node.two_level import TwoLevel

__all__ = ["HostParts"]


class HostParts:
    """Of one plan. Collective to make."""

    def __init__(
        self, runtime: SetRuntime, entries: Sequence[Entry], settings: PlanSettings, statistics: Statistics
    ) -> None:
        cuts = cut(
            entries,
            staged=settings.staged,
            bucket_bytes=settings.bucket_bytes,
            part_bytes=part_bytes(runtime.nodes),
        )
        self._cuts = cuts
        self.transport = runtime.transport.duplicate()
        self.two_level = TwoLevel(self.transport, [one.nbytes for one in cuts] or [0], runtime.members)
        self.rows, problem = open_rows(
            self.transport,
            self.two_level.node,
            len(entries),
            shared=self.two_level.on_one_node,
            at_once=settings.at_once,
        )
        self.results = Results(self.two_level.node, {} if settings.in_place else self._for_window(entries))
        self._note_fallbacks(self.results.problem or problem)
        _compile(cuts, settings.how, alone=self.two_level.kind == "alone")
        self.pieces = Pieces(entries, cuts, self.results)
        self.reducer = PieceReducer(self.two_level, self.pieces, settings.how, statistics)
        self.queue = self._open_queue(settings.team.threads if runtime.transport.size > 1 else 0)

    def _for_window(self, entries: Sequence[Entry]) -> dict[int, tuple[int, np.dtype[Any]]]:
        """Results of the largest gradients go to memory the node's ranks share."""
        if self.two_level.kind != "direct":
            return {}
        goes, neighbours = self.two_level.table.for_result, self.two_level.node.size
        direct = {one.entries[0]: entries[one.entries[0]] for one in self._cuts if not one.packed}
        return {i: (e.nbytes, e.numpy_dtype) for i, e in direct.items() if goes(e.nbytes, neighbours) == "window"}

    def _note_fallbacks(self, problem: str) -> None:
        for reason in filter(None, self.transport.allgather_object(problem)):
            note_fallback(reason, speak=self.transport.rank == 0)

    def _open_queue(self, threads: int) -> PieceQueue:
        node = self.two_level.node
        spare_core = node_cores(node) > node.size and len(os.sched_getaffinity(0)) > 1
        one_at_a_time = self.two_level.on_one_node and not spare_core
        return PieceQueue(len(self._cuts), self.reducer.reduce, threads, one_at_a_time=one_at_a_time)

    def describe(self) -> dict[str, Any]:
        sizes = [one.nbytes for one in self._cuts]
        return {
            "exchange": self.two_level.kind,
            "collective": self.two_level.collective(max(sizes, default=0)),
            "bytes_per_step": sum(sizes) + self.rows.sent_bytes,
            "messages_per_step": len(sizes) + (self.rows.sent_bytes > 0),
            "window": self.results.kind,
            "pieces": len(sizes),
            "threads": self.queue.threads,
        }

    def communicators(self) -> list[Transport]:
        found = (self.two_level.node, self.two_level.cross, self.transport)
        return [one for one in found if one is not None]


def _compile(cuts: Sequence[Cut], how: Reduction, *, alone: bool) -> None:
    """Now, if it must be, and not in the first step."""
    large = {one.dtype: None for one in cuts if one.nbytes >= LEAST_BYTES and is_compiled(one.dtype, how)}
    if large and not alone:
        _, problem = load()
        if problem:
            note_fallback(problem, speak=False)
        for dtype in large:
            prepare(dtype)
