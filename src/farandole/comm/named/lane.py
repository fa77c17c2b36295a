"""The way of one process set's data: its communicator and its two-level reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Request, Transport
from farandole.comm.bytes.waiting import Subject, all_arrived, wait_until
from farandole.comm.node.arithmetic import Reduction, kernels_for
from farandole.comm.node.spans import phase
from farandole.comm.node.two_level import TwoLevel

__all__ = ["NATIVE_BYTES", "Lane"]

# Up to here MPI's own reduction is quicker than going through shared memory.
NATIVE_BYTES = 256 * 1024
# Narrow integers are averaged in a wider type, so many at a time: a window of the least size has room for them.
_WIDE_ELEMENTS = 1 << 21


class Lane:
    """Where one process set's operations move their data."""

    def __init__(
        self, transport: Transport, members: tuple[int, ...], label: str, fusion_bytes: int
    ) -> None:
        """`label` tells the set's operations from those of others, for the watchdog."""
        self.transport = transport
        self.members = members
        self.fusion_bytes = fusion_bytes
        self._label = label
        self._two_level: TwoLevel | None = None
        self._room = 0
        self._sequence = 0
        # Making it blocks in the library: where one thread at a time may be there, those of two sets would keep each
        # other out, each on another rank. Now all ranks are here, and it is never made again.
        self._made_once = not transport.at_once
        if self._made_once:
            self.two_level(0)

    def complete(self, request: Request, key: str, shown_as: str) -> None:
        """Wait for a request of the operation `key`, within which a timeline shows it."""
        with phase(shown_as, key):
            wait_until(request.test, Subject(self._label + key, self.members, all_arrived))

    def two_level(self, nbytes: int) -> TwoLevel:
        """The reduction with room for an array of this size. Collective where it must grow."""
        fits = self._two_level is not None and (
            self._made_once or not self._two_level.bounded or nbytes <= self._room
        )
        if not fits:
            if self._two_level is not None:
                self._two_level.free()
            self._room = 1 << max(24, (nbytes - 1).bit_length())
            self._two_level = TwoLevel(self.transport, [self._room], self.members, all_came=True)
            self._sequence = 0
        assert self._two_level is not None
        return self._two_level

    def reduce(self, source: AnyArray, result: AnyArray, how: Reduction, key: str) -> None:
        """result = source combined over the ranks; flat contiguous arrays, possibly the same."""
        if source.size == 0:
            return
        wider = how.widened(source.dtype)
        if wider != source.dtype:
            self._reduce_wide(source, result, how, key, wider)
            return
        if source.nbytes <= NATIVE_BYTES and self._reduce_native(source, result, how, key):
            return
        two_level = self.two_level(source.nbytes)
        if not two_level.bounded or source.nbytes <= self._room:
            self._reduce_part(two_level, source, result, how, key)
            return
        room = self._room // source.itemsize
        for start in range(0, source.size, room):
            part = source[start : start + room]
            into = part if result is source else result[start : start + room]
            self._reduce_part(two_level, part, into, how, key)

    def _reduce_wide(
        self, source: AnyArray, result: AnyArray, how: Reduction, key: str, wider: np.dtype[Any]
    ) -> None:
        for start in range(0, source.size, _WIDE_ELEMENTS):
            part = slice(start, start + _WIDE_ELEMENTS)
            wide = source[part].astype(wider)
            self.reduce(wide, wide, how, key)
            np.copyto(result[part], wide, casting="unsafe")

    def _reduce_part(
        self, two_level: TwoLevel, source: AnyArray, result: AnyArray, how: Reduction, key: str
    ) -> None:
        self._sequence += 1
        two_level.post(0, self._sequence, source, result)
        two_level.finish(0, self._sequence, source, result, how, self._label + key)
        two_level.wait_released(0, self._sequence, self._label + key)

    def _reduce_native(self, source: AnyArray, result: AnyArray, how: Reduction, key: str) -> bool:
        if not self._order_is_free(source.dtype, how.combine):
            return False
        direct = not how.scales and not np.may_share_memory(source, result)
        total = result if direct else np.empty_like(source)
        request = self.transport.allreduce_native(source, total, how.combine)
        if request is None:
            return False
        self.complete(request, key, "MPI_ALLREDUCE")
        if not direct:
            kernels_for(source.dtype).finish(how, total, result)
        return True

    def _order_is_free(self, dtype: np.dtype[Any], combine: str) -> bool:
        """Whether the library may combine in any order, however operations were fused, with the same bits.

        Floats round by the order of their sum, and MPI's minimum of NaN and a number depends on who asks.
        """
        return dtype.kind in "iu" or (self.transport.size <= 2 and combine in ("sum", "product"))

    def communicators(self) -> list[Transport]:
        """Its own, in the same order on every rank."""
        made = [] if self._two_level is None else [self._two_level.node, self._two_level.cross]
        return [one for one in (*made, self.transport) if one is not None]
