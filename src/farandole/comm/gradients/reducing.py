"""One piece of a plan after the other: posted to the neighbours, and reduced, on whatever thread."""

from __future__ import annotations

import time

from farandole.comm.gradients.pieces import Pieces
from farandole.comm.gradients.team import Statistics
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.node.spans import communication_track
from farandole.comm.node.two_level import TwoLevel
from farandole.observe import timeline

__all__ = ["PieceReducer"]


class PieceReducer:
    """Of the pieces of one plan, in one step after the other."""

    def __init__(self, two_level: TwoLevel, pieces: Pieces, how: Reduction, statistics: Statistics) -> None:
        self._two_level = two_level
        self._pieces = pieces
        self._how = how
        self._statistics = statistics
        self.step = 0
        self.key = ""
        """What a wait for this step is called."""

    def begin(self, step: int, key: str) -> None:
        """A step begins."""
        self.step, self.key = step, key
        self._pieces.begin()

    def post(self, place: int) -> None:
        """A piece is complete: neighbours may read it."""
        array = self._pieces[place].array
        assert array is not None
        self._two_level.post(place, self.step, array, array)

    def reduce(self, place: int) -> None:
        """A piece that was posted."""
        piece = self._pieces[place]
        array = piece.array
        assert array is not None
        start_ns = time.monotonic_ns()
        result, shared = (array, False) if piece.result is None else (piece.result, True)
        self._two_level.finish(place, self.step, array, result, self._how, self.key, shared=shared)
        end_ns = time.monotonic_ns()
        if timeline.active():
            arguments = {"tensors": self._pieces.names(place), "bytes": array.nbytes, "step": self.step}
            timeline.span(communication_track(), "ALLREDUCE", start_ns, end_ns, arguments)
        self._statistics.reduced(array.nbytes, (end_ns - start_ns) * 1e-9)
