"""Gradients follow a plan that all ranks agree on once.

The plan lists every parameter's gradient and cuts them into pieces, in the order in which backward makes
them. A large gradient is reduced where it lies, in pieces of its own; small ones are packed into buckets.
In a step nothing is negotiated:

    ready     a gradient is complete; when a piece is, the neighbours may read it
    reduce    the team's threads reduce the pieces in the plan's order while backward goes on
    finish    the training thread helps with what is left, and waits until nobody reads its memory

For every gradient the ranks count on how many of them it exists: what no rank has made stays absent. On one
node each rank notes this in shared memory before it posts a piece; otherwise the counts are one more piece.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Transport
from farandole.comm.bytes.waiting import mark_internal_thread, note_caller, shown_when_slow
from farandole.comm.gradients.retiring import retire_after
from farandole.comm.gradients.team import Statistics, Team
from farandole.comm.named.join import Announcement
from farandole.comm.named.process_sets import SetRuntime
from farandole.comm.node.arithmetic import LEAST_BYTES, Reduction, is_compiled, load, prepare
from farandole.comm.node.layout import node_cores
from farandole.comm.node.routes import note_fallback
from farandole.comm.node.shared import ResultWindow, SharedBlock, SharingUnavailable
from farandole.comm.node.spans import communication_track
from farandole.comm.node.two_level import TwoLevel
from farandole.errors import EngineStopped
from farandole.observe import timeline

__all__ = ["SPARSE", "Entry", "GradientPlan", "aligned"]

# What a rank without a gradient for the plan, but with a sparse one, adds to a gradient's count.
SPARSE = 1 << 16

DIRECT_BYTES = 1 << 20
BUCKET_BYTES = 4 << 20
# A part of a large gradient. Between nodes one is on the wire while the next is combined; within a node there is no
# wire, and each costs some calls.
PIECE_BYTES = 32 << 20
WIRE_BYTES = 4 << 20
ABANDON_S = 5.0
CACHE_LINE = 64


class Entry(NamedTuple):
    """One gradient, as it travels."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = ""
    """Whatever else must agree, e.g. strides."""
    group: int = -1
    """Entries of one group (>= 0) share a bucket, whatever its size."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(slots=True)
class _Piece:
    """What is reduced at once: part of one gradient, or a bucket of several."""

    entries: list[int]
    buffer: AnyArray | None = None
    """A bucket's memory; None where the gradient's own is used."""
    start: int = 0
    stop: int = 0
    waiting: int = 0
    array: AnyArray | None = None
    """What is reduced."""
    shared: AnyArray | None = None
    """Where the result goes, in the node's window; None leaves it in `array`."""


class GradientPlan:
    """The gradients of one optimizer. Collective to make: every rank of the set makes it."""

    def __init__(
        self,
        runtime: SetRuntime,
        label: str,
        entries: Sequence[Entry],
        *,
        how: Reduction,
        staged: bool,
        team: Team,
        bucket_bytes: int = BUCKET_BYTES,
        in_place: bool = False,
    ) -> None:
        """`entries` in the order in which backward makes them; `staged` packs even large ones.

        `in_place` leaves the results of large ones where the gradients were, instead of in the node's window.
        """
        self.label = label
        self.entries = list(entries)
        self.how = how
        self.team = team
        self.statistics = Statistics(label=label, ranks=runtime.transport.size)
        self._members = runtime.members
        self.engine = runtime.engine
        self._set = runtime.label
        self._steps_done = runtime.steps_done
        self._retired = runtime.plans.retired
        self._pieces: list[_Piece] = []
        self._places: list[list[int]] = [[] for _ in entries]
        self._views: list[AnyArray | None] = [None] * len(entries)
        self._part_bytes = PIECE_BYTES if runtime.nodes == 1 else WIRE_BYTES
        self._cut(staged, bucket_bytes)
        self._transport = runtime.transport.duplicate()
        self._present = np.zeros(max(len(entries), 1), np.int32)
        self._two_level = TwoLevel(
            self._transport, [*self._slot_bytes(), self._present.nbytes], runtime.members
        )
        self._node_presence: AnyArray | None = None
        self._counting: int | None = None
        problem = self._open_presence()
        self._window: ResultWindow | None = None
        self._results: dict[int, AnyArray] = {}
        self._window_changed: dict[int, bool] = {}
        problem = problem if in_place else self._open_window() or problem
        for reason in filter(None, self._transport.allgather_object(problem)):
            note_fallback(reason, speak=self._transport.rank == 0)
        self._load_compiled()
        self._sequence = 0
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._work_done = threading.Condition(self._lock)
        self._busy = 0
        # Threads that have to share a core with the training thread only push each other out of its cache.
        node = self._two_level.node
        spare_core = node_cores(node) > node.size and len(os.sched_getaffinity(0)) > 1
        self._one_at_a_time = self._two_level.on_one_node and not spare_core
        self.in_step = False
        """Whether gradients are on their way."""
        self._filling = False
        self._announcement = Announcement(runtime.engine, label)
        self._broken = ""
        """Why there can be no more steps."""
        self._begin()
        self._error: BaseException | None = None
        self._closed = False
        self._owned: weakref.finalize[Any, Any] | None = None
        self._threads = [self._thread(i) for i in range(team.threads if runtime.transport.size > 1 else 0)]

    # The pieces

    def _cut(self, staged: bool, bucket_bytes: int) -> None:
        bucket: list[int] = []
        held = 0
        for index, entry in enumerate(self.entries):
            nbytes = entry.elements * _dtype(entry).itemsize
            alone = not staged and entry.group < 0 and nbytes >= DIRECT_BYTES
            full = entry.group < 0 and held + nbytes > bucket_bytes
            own = alone or (entry.group < 0 and nbytes > self._part_bytes)
            if bucket and (own or full or not self._alike(bucket[-1], index)):
                self._add_bucket(bucket)
                bucket, held = [], 0
            if alone:
                self._add_direct(index, nbytes)
            elif own:
                self._add_staged(index, nbytes)
            else:
                bucket.append(index)
                held += nbytes
        if bucket:
            self._add_bucket(bucket)

    def _alike(self, last: int, new: int) -> bool:
        """Whether two entries may share a bucket."""
        a, b = self.entries[last], self.entries[new]
        return a.dtype == b.dtype and a.group == b.group

    def _add_bucket(self, indices: list[int]) -> None:
        counts = [self.entries[i].elements for i in indices]
        buffer = aligned(sum(counts), _dtype(self.entries[indices[0]]))
        at = 0
        for index, count in zip(indices, counts):
            self._views[index] = buffer[at : at + count]
            self._places[index].append(len(self._pieces))
            at += count
        self._pieces.append(_Piece(list(indices), buffer=buffer, array=buffer, stop=buffer.size))

    def _add_direct(self, index: int, nbytes: int) -> None:
        entry = self.entries[index]
        parts = -(-nbytes // self._part_bytes)
        step = -(-entry.elements // parts)
        for start in range(0, entry.elements, step):
            self._places[index].append(len(self._pieces))
            self._pieces.append(_Piece([index], start=start, stop=min(start + step, entry.elements)))

    def _add_staged(self, index: int, nbytes: int) -> None:
        """A large gradient that is packed, in parts as well."""
        buffer = np.zeros(self.entries[index].elements, _dtype(self.entries[index]))
        self._views[index] = buffer
        step = -(-buffer.size // -(-nbytes // self._part_bytes))
        for start in range(0, buffer.size, step):
            part = buffer[start : start + step]
            self._places[index].append(len(self._pieces))
            self._pieces.append(_Piece([index], buffer=part, array=part, stop=part.size))

    def _slot_bytes(self) -> list[int]:
        def size(piece: _Piece) -> int:
            if piece.buffer is not None:
                return piece.buffer.nbytes
            return (piece.stop - piece.start) * _dtype(self.entries[piece.entries[0]]).itemsize

        return [size(piece) for piece in self._pieces if piece.entries]

    def _open_presence(self) -> str:
        """Ranks count in memory they share, or in one more piece; why there is no room for it."""
        problem = ""
        if self._two_level.on_one_node:
            shape = (2, self._transport.size, self._present.size)  # two steps may overlap
            try:
                block = SharedBlock(self._two_level.node, 4 * math.prod(shape))
                self._node_presence = block.view(0, shape, np.int32)
            except SharingUnavailable as error:
                problem = f"gradients are counted over MPI ({error})"
        if self._node_presence is None:
            self._counting = len(self._pieces)
            self._pieces.append(_Piece([], array=self._present))
        return problem

    def _open_window(self) -> str:
        """Results of the largest gradients go to memory the node's ranks share, where there is room for it; why there is none."""
        sizes = {i: entry.elements * _dtype(entry).itemsize for i, entry in enumerate(self.entries)}
        goes, neighbours = self._two_level.table.for_result, self._two_level.node.size
        direct = [
            i for i, view in enumerate(self._views) if view is None and goes(sizes[i], neighbours) == "window"
        ]
        if self._two_level.kind != "direct" or not direct:
            return ""
        try:
            self._window = ResultWindow(self._two_level.node, [sizes[i] for i in direct])
        except SharingUnavailable as error:
            return f"no window for results ({error})"
        for position, index in enumerate(direct):
            dtype = _dtype(self.entries[index])
            self._results[index] = self._window.private(position).view(dtype)
            shared = self._window.shared(position).view(dtype)
            for place in self._places[index]:
                piece = self._pieces[place]
                piece.shared = shared[piece.start : piece.stop]
        return ""

    def _load_compiled(self) -> None:
        """Compile now, if it must be, and not in the first step."""
        sizes = {_dtype(self.entries[piece.entries[0]]): 0 for piece in self._pieces if piece.entries}
        for piece in self._pieces:
            if piece.entries:
                dtype = _dtype(self.entries[piece.entries[0]])
                sizes[dtype] = max(sizes[dtype], (piece.stop - piece.start) * dtype.itemsize)
        large = [dtype for dtype, nbytes in sizes.items() if nbytes >= LEAST_BYTES and is_compiled(dtype, self.how)]
        if large and self._two_level.kind != "alone":
            _, problem = load()
            if problem:
                note_fallback(problem, speak=False)
            for dtype in large:
                prepare(dtype)

    # A step

    def result(self, index: int) -> AnyArray | None:
        """Where a large gradient's result is read, flat; None where it is left in place.

        It may be changed in place (the rank then gets pages of its own), at the price of copying them.
        """
        return self._results.get(index)

    def result_was_changed(self, index: int) -> bool:
        """Whether this rank had changed the previous result in place."""
        return self._window_changed.get(index, False)

    def buffer(self, index: int) -> AnyArray | None:
        """Where a packed gradient goes, flat; None for one that is reduced where it lies."""
        return self._views[index]

    def ready(self, index: int, array: AnyArray | None, *, present: int = 1) -> None:
        """A gradient is complete: in its buffer, or in `array` (flat), which is reduced in place.

        `present`: what it adds to the count that finish() returns.
        """
        self._enter_step()
        if self._node_presence is None:
            self._present[index] = present
        else:
            self._node_presence[self._sequence & 1, self._transport.rank, index] = present
        for place in self._places[index]:
            piece = self._pieces[place]
            if array is not None and piece.buffer is None:
                piece.array = array[piece.start : piece.stop]
            piece.waiting -= 1
            if piece.waiting == 0:
                self._post(place)

    def _enter_step(self) -> None:
        if self._broken:
            raise EngineStopped(f"{self._broken}: start the job again, from its last checkpoint")
        self.in_step = True
        if self.engine.joined:
            self.tell_joined()

    def tell_joined(self) -> None:
        """Let ranks that have joined know which step this rank is in, once."""
        with self._lock:
            if not self.in_step or self._filling:
                return
            sequence = self._sequence
        self._announcement.make(sequence)

    def step_with_zeros(self, sequence: int) -> None:
        """Take part in a step with zeros, unless this rank has taken part in it with gradients."""
        if sequence != self._sequence:
            return
        self._filling = True
        try:
            for index, entry in enumerate(self.entries):
                view = self._views[index]
                if view is not None:
                    view[:] = 0
                zeros = np.zeros(entry.elements, _dtype(entry)) if view is None else None
                self.ready(index, zeros, present=0)
            self.finish()
        finally:
            self._filling = False

    def finish(self) -> AnyArray:
        """Wait for every gradient; returns on how many ranks each exists (as `present` was given)."""
        start_ns = time.monotonic_ns()
        note_caller()
        self._enter_step()
        try:
            if self._counting is not None:
                self._post(self._counting)
            while self._take_and_reduce():
                pass
            self._join(len(self._pieces))
            self._two_level.released(self._sequence, self._key, len(self._pieces))
            if self._window is not None:
                self._window_changed = dict(zip(self._results, self._window.refresh()))
        except BaseException:
            self._abandon()
            raise
        counts = self._counts()
        end_ns = time.monotonic_ns()
        if timeline.active():
            timeline.span(_training_track(), "WAIT_FOR_GRADIENTS", start_ns, end_ns, {"step": self._sequence})
        self.statistics.step(exposed_s=(end_ns - start_ns) * 1e-9)
        self._say_statistics()
        self._end_step()
        return counts

    @property
    def first(self) -> list[int]:
        """The gradients of the first piece, which finish_early() waits for."""
        return list(self._pieces[0].entries)

    def finish_early(self, enough: Callable[[], bool]) -> bool:
        """Reduce the first piece alone; where that is `enough`, which all ranks find alike, the step ends with it."""
        start_ns = time.monotonic_ns()
        try:
            self._take_and_reduce()
            self._join(1)
            if not enough():
                return False
            self._two_level.released(self._sequence, self._key, 1)
            self._two_level.skip_rest(self._sequence)
        except BaseException:
            self._abandon()
            raise
        self.statistics.step(exposed_s=(time.monotonic_ns() - start_ns) * 1e-9)
        self._end_step()
        return True

    def _counts(self) -> AnyArray:
        if self._node_presence is None:
            return self._present.copy()
        counts: AnyArray = self._node_presence[self._sequence & 1].sum(axis=0, dtype=np.int32)
        return counts

    def _abandon(self) -> None:
        """The step did not happen: the next one takes its number, where messages of this one cannot be taken for its own."""
        with self._lock:
            self._next = len(self._pieces)
            idle = self._work_done.wait_for(lambda: self._busy == 0, timeout=ABANDON_S)
            self._error = None
        failed = f"step {self._sequence} of {self.label} has failed"
        if not idle:
            self._broken = f"{failed}, and a thread of its team is still in it"
        elif self._transport.size > 1 and not self._two_level.on_one_node:
            self._broken = f"{failed}, and its messages are still between the nodes"
        self._two_level.take_back(self._sequence)
        self._sequence -= 1
        self._begin()

    def _end_step(self) -> None:
        # Others may still wait for data of it. None of them is further behind: each step needs all ranks.
        self._steps_done[self.label] = self._key
        self._announcement.take_back(self._sequence)
        self._begin()

    @property
    def _key(self) -> str:
        return f"{self._set}gradients.{self.label}#{self._sequence}"

    def _begin(self) -> None:
        with self._lock:
            self._sequence += 1
            self.in_step = False
            self._next = 0
            self._reduced = 0
            self._posted = [False] * len(self._pieces)
            self._unposted = len(self._pieces)
            for piece in self._pieces:
                piece.waiting = len(piece.entries)
                if piece.buffer is None and piece.entries:
                    # Backward's next gradient can then take the memory of this one.
                    piece.array = None

    def _post(self, place: int) -> None:
        array = self._pieces[place].array
        assert array is not None
        self._two_level.post(place, self._sequence, array, array)
        with self._lock:
            self._posted[place] = True
            self._unposted -= 1
            # The training thread comes for the last piece itself.
            if place == self._next and (self._unposted or not self._one_at_a_time):
                self._work_came.notify()

    def _take(self) -> int | None:
        """The next piece to reduce, in the plan's order."""
        if self._busy and self._one_at_a_time:
            return None
        if self._next < len(self._pieces) and self._posted[self._next]:
            self._next += 1
            self._busy += 1
            return self._next - 1
        return None

    def _take_and_reduce(self) -> bool:
        with self._lock:
            place = self._take()
        if place is None:
            return False
        try:
            self._reduce_piece(place)
        except BaseException:
            self._end_piece(reduced=False)
            raise
        self._end_piece(reduced=True)
        return True

    def _end_piece(self, *, reduced: bool, error: BaseException | None = None) -> None:
        """A piece that was taken is done, or not; an `error` is for the training thread to raise."""
        with self._lock:
            self._busy -= 1
            if reduced:
                self._reduced += 1
            else:
                self._next = len(self._pieces)  # the step has failed: nobody is to wait for its other pieces
                self._error = error
            self._work_done.notify()

    def _reduce_piece(self, place: int) -> None:
        array = self._pieces[place].array
        assert array is not None
        start_ns = time.monotonic_ns()
        how = Reduction("sum") if place == self._counting else self.how
        shared = self._pieces[place].shared
        result = array if shared is None else shared
        self._two_level.finish(
            place, self._sequence, array, result, how, self._key, shared=shared is not None
        )
        end_ns = time.monotonic_ns()
        if timeline.active():
            names = [self.entries[i].name for i in self._pieces[place].entries[:8]] or ["presence"]
            arguments = {"tensors": ", ".join(names), "bytes": array.nbytes, "step": self._sequence}
            timeline.span(communication_track(), "ALLREDUCE", start_ns, end_ns, arguments)
        self.statistics.reduced(array.nbytes, (end_ns - start_ns) * 1e-9)

    def _join(self, count: int) -> None:
        """Wait until `count` pieces are reduced: the team's threads have taken those that are not."""
        with self._lock:
            if self._reduced >= count:
                return
        subject = self._two_level.waiting_for_posts(self._sequence, self._key, count)
        with self._lock, shown_when_slow(subject) as look:
            while self._reduced < count and self._error is None:
                self._work_done.wait(timeout=0.2)
                look()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    # The team's threads

    def _thread(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=f"farandole-team-{number}", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        mark_internal_thread()
        while True:
            with self._lock:
                while (place := self._take()) is None and not self._closed:
                    self._work_came.wait()
            if place is None:
                return
            try:
                self._reduce_piece(place)
            except BaseException as error:
                self._end_piece(reduced=False, error=error)
            else:
                self._end_piece(reduced=True)

    def _say_statistics(self) -> None:
        every = self.team.stats_every
        if every and self.statistics.steps % every == 0 and self._transport.rank == 0:
            print(self.statistics.line(), flush=True)
            self.statistics.reset()

    def describe(self) -> dict[str, Any]:
        sizes, counts = self._slot_bytes(), 0 if self._counting is None else self._present.nbytes
        return {
            "label": self.label,
            "exchange": self._two_level.kind,
            "collective": self._two_level.collective(max(sizes, default=0)),
            "bytes_per_step": sum(sizes) + counts,
            "messages_per_step": len(self._pieces),
            "window": "shared" if self._window is not None else "none",
            "pieces": sum(bool(piece.entries) for piece in self._pieces),
            "threads": len(self._threads),
        }

    # The end

    def belong_to(self, owner: object) -> None:
        """Retire soon after the owner is gone."""
        self._owned = retire_after(owner, self)

    @property
    def retired(self) -> bool:
        return self._closed

    def retire(self) -> None:
        """Let the threads end and the window go, on this rank alone; the communicators go when every rank has (agreement.py)."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._work_came.notify_all()
        if self._owned is not None:
            self._owned.detach()
        for thread in self._threads:
            thread.join(timeout=1.0)
        if self._window is not None:
            self._window.close()
        if not (self._broken or self.in_step or any(thread.is_alive() for thread in self._threads)):
            self._retired[self.label] = self._communicators()

    def _communicators(self) -> list[Transport]:
        found = (self._two_level.node, self._two_level.cross, self._transport)
        return [one for one in found if one is not None]


def _training_track() -> str:
    """Graphs call back from threads of their framework, whose spans need not nest with those of the training thread."""
    return "training" if threading.current_thread() is threading.main_thread() else "training (called back)"


def aligned(count: int, dtype: np.dtype[Any]) -> AnyArray:
    """Zeros from a cache line on: frameworks take such memory as it is, and copy other memory."""
    memory = np.zeros(count * dtype.itemsize + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + count * dtype.itemsize].view(dtype)


def _dtype(entry: Entry) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if entry.dtype == "bfloat16" else np.dtype(entry.dtype)
