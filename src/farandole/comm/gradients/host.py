"""A plan for gradients in host memory: cut into pieces, which the node's ranks and MPI reduce while backward goes on.

    ready     a gradient is complete; when a piece is, the neighbours may read it
    reduce    the team's threads reduce the pieces in the plan's order while backward goes on
    finish    the training thread helps with what is left, and waits until nobody reads its memory

What each rank has is in its row (rows.py): what no rank has made stays absent.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.bytes.waiting import Subject, note_caller, wait_until
from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.parts import HostParts
from farandole.comm.gradients.retiring import retire_after
from farandole.comm.gradients.status import Kind, State, Status, check_alike
from farandole.comm.gradients.team import Statistics
from farandole.comm.named.join import Announcement
from farandole.comm.named.process_sets import SetRuntime
from farandole.errors import EngineStopped
from farandole.observe import timeline

__all__ = ["HostPlan"]

ABANDON_S = 5.0


class HostPlan:
    """Of one optimizer. Collective to make: every rank of the set makes it."""

    def __init__(self, runtime: SetRuntime, label: str, entries: Sequence[Entry], settings: PlanSettings) -> None:
        """`entries` in the order in which backward makes them."""
        self.label = label
        self.engine = runtime.engine
        self.statistics = Statistics(label=label, ranks=runtime.transport.size)
        self._runtime = runtime
        self._stats_every = settings.team.stats_every
        self._parts = HostParts(runtime, entries, settings, self.statistics)
        # What every gradient needs, at hand.
        self._rows, self._pieces = self._parts.rows, self._parts.pieces
        self._reducer, self._queue = self._parts.reducer, self._parts.queue
        self._announcement = Announcement(runtime.engine, label)
        self._state = State.TRAINING
        self._broken = ""
        """Why there can be no more steps."""
        self._retired = False
        self._lock = threading.Lock()
        self._owned: weakref.finalize[Any, Any] | None = None
        self._begin(1)

    def buffer(self, index: int) -> AnyArray | None:
        return self._pieces.buffers[index]

    def result(self, index: int) -> AnyArray | None:
        return self._parts.results.private(index)

    def changed(self, index: int) -> bool:
        return self._parts.results.changed(index)

    def describe(self) -> dict[str, Any]:
        return {"label": self.label, **self._parts.describe()}

    # A step

    def _begin(self, step: int) -> None:
        self._step = step
        self._key = f"{self._runtime.label}gradients.{self.label}#{step}"
        """What a wait for this step is called."""
        self._running: int | None = None
        """The step, once this rank is in it."""
        self._reducer.begin(step, self._key)
        self._queue.begin()

    @property
    def in_step(self) -> bool:
        return self._running is not None

    def _enter(self) -> None:
        if self._running is None:
            if self._broken:
                raise EngineStopped(f"{self._broken}: start the job again, from its last checkpoint")
            self._rows.enter(self._step, self._state)
            self._running = self._step
        if self.engine.joined:
            self.tell_joined()

    def ready(self, index: int, array: AnyArray | None, kind: Kind = Kind.DENSE) -> None:
        if self._running is None or self.engine.joined:
            self._enter()
        self._rows.note(index, kind)
        for place in self._pieces.fill(index, array):
            self._reducer.post(place)
            self._queue.post(place)

    def finish(self) -> Status:
        start_ns = time.monotonic_ns()
        note_caller()
        self._enter()
        try:
            self._rows.complete()
            self._reduce_rest()
            status = self._rows.status()
        except BaseException:
            self._abandon()
            raise
        self._end(start_ns)
        check_alike(status, self._parts.transport.rank, self._runtime.members)
        return status

    def end_step(self, state: State) -> None:
        self._state = state
        try:
            if self.in_step:
                self._rows.say(state)
            self._enter()
            if state is State.ENDED and self._rows.early and self._have_all_ended():
                return
            for index, zeros in self._pieces.missing():
                self.ready(index, zeros, Kind.ABSENT)
            self.finish()
        finally:
            self._state = State.TRAINING

    def _have_all_ended(self) -> bool:
        """The step then ends here: no rank has posted anything."""
        start_ns = time.monotonic_ns()
        try:
            wait_until(self._rows.entered, self._subject())
            if any(state != State.ENDED for state in self._rows.status().states):
                return False
        except BaseException:
            self._abandon()
            raise
        self._parts.two_level.skip_rest(self._step)
        self._end(start_ns)
        return True

    def _reduce_rest(self) -> None:
        two_level, count = self._parts.two_level, len(self._pieces)
        while self._queue.reduce_next():
            pass
        self._queue.wait(lambda: two_level.waiting_for_posts(self._step, self._key, count))
        two_level.released(self._step, self._key, count)
        if not self._rows.known():
            wait_until(self._rows.known, self._subject())
        self._parts.results.refresh()

    def _subject(self) -> Subject:
        """What this rank waits for while others have to enter the step."""
        members = self._runtime.members
        return Subject(self._key, members, lambda: [members[number] for number in self._rows.late() or ()] or None)

    def _end(self, start_ns: int) -> None:
        """The step is over; this thread has waited for it since `start_ns`."""
        end_ns = time.monotonic_ns()
        if timeline.active():
            timeline.span(_training_track(), "WAIT_FOR_GRADIENTS", start_ns, end_ns, {"step": self._step})
        self.statistics.step(exposed_s=(end_ns - start_ns) * 1e-9)
        if self._stats_every and self.statistics.steps % self._stats_every == 0 and self._parts.transport.rank == 0:
            print(self.statistics.line(), flush=True)
            self.statistics.reset()
        # Others may still wait for data of it. None of them is further behind: each step needs all ranks.
        self._runtime.steps_done[self.label] = self._key
        self._announcement.take_back(self._step)
        self._begin(self._step + 1)

    def _abandon(self) -> None:
        """The step did not happen: the next one takes its number, where messages of this one cannot be taken for its own."""
        failed, two_level = f"step {self._step} of {self.label} has failed", self._parts.two_level
        if not self._queue.give_up(ABANDON_S):
            self._broken = f"{failed}, and a thread of its team is still in it"
        elif self._parts.transport.size > 1 and not two_level.on_one_node:
            self._broken = f"{failed}, and its messages are still between the nodes"
        two_level.take_back(self._step)
        self._rows.take_back()
        self._begin(self._step)

    # Ranks that have joined

    def tell_joined(self) -> None:
        step = self._running
        if step is not None and self._state is not State.JOINED:
            self._announcement.make(step)

    def step_with_zeros(self, sequence: int) -> None:
        if sequence == self._step:
            self.end_step(State.JOINED)

    # The end

    def belong_to(self, owner: object) -> None:
        self._owned = retire_after(owner, self)

    @property
    def retired(self) -> bool:
        return self._retired

    def retire(self) -> None:
        """Let the threads end and the window go, on this rank alone; the communicators go when every rank has (agreement.py)."""
        with self._lock:
            if self._retired:
                return
            self._retired = True
        if self._owned is not None:
            self._owned.detach()
        ended = self._queue.close()
        self._parts.results.close()
        if ended and not (self._broken or self.in_step):
            self._runtime.plans.retired[self.label] = self._parts.communicators()


def _training_track() -> str:
    """Graphs call back from threads of their framework, whose spans need not nest with those of the training thread."""
    return "training" if threading.current_thread() is threading.main_thread() else "training (called back)"
