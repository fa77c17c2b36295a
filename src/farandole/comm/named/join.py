"""Joining: a rank that has run out of data lets the others go on.

It adds zeros to their allreduces and gradients, until all have joined. A gradient's plan negotiates nothing, so
ranks that have not joined announce the steps they are in while somebody has; whoever has joined then takes
part in the step, from its own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from farandole.comm.named.lane import Lane
from farandole.comm.named.negotiate import JOIN, OperationRequest, Verdict
from farandole.comm.named.operations import Allreduce
from farandole.comm.node.arithmetic import Op, bfloat16
from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.comm.named.engine import Engine
    from farandole.comm.named.pending import Handle, Operation
    from farandole.comm.named.process_sets import SetRuntime

__all__ = ["Announcement", "StandIns", "join"]


class Plan(Protocol):
    """What this room sees of a plan of gradients."""

    label: str
    engine: Engine

    @property
    def in_step(self) -> bool: ...

    def step_with_zeros(self, sequence: int) -> None: ...


class _GradientStep:
    """Says that this rank is in a step of a plan, to ranks that have joined."""

    def __init__(self, label: str, sequence: int) -> None:
        self.request = OperationRequest(f"gradients.{label}#{sequence}", "gradients", ())

    def run(self, verdict: Verdict) -> None:
        return None


class Announcement:
    """Of the step of a plan this rank is in."""

    def __init__(self, engine: Engine, label: str) -> None:
        self._engine = engine
        self._label = label
        self._lock = threading.Lock()
        self._made = 0
        self._over = 0
        self._handle: Handle | None = None

    def make(self, sequence: int) -> None:
        """Once for each step, whoever asks."""
        with self._lock:
            if self._made == sequence:
                return
            self._made = sequence
        handle = self._engine.submit(_GradientStep(self._label, sequence), background=True)
        with self._lock:
            over = self._over >= sequence
            self._handle = None if over else handle
        if over:
            self._engine.drop(handle)

    def take_back(self, sequence: int) -> None:
        """The step is over: a rank that had finished it before it heard of a join has not announced it, and never will."""
        with self._lock:
            self._over = sequence
            handle, self._handle = self._handle, None
        if handle is not None:
            self._engine.drop(handle)


class StandIns:
    """What a rank that has joined does in the others' operations."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._steps: list[str] = []

    def make(self, request: OperationRequest) -> Operation:
        if request.kind == "allreduce":
            return self._allreduce(request)
        return _StandIn(request, self._steps)

    def _allreduce(self, request: OperationRequest) -> Operation:
        zeros = [np.zeros(shape, bfloat16 if dtype == "bfloat16" else dtype) for dtype, shape in request.tensors]
        how: dict[str, Any] = dict(request.arguments)
        name = request.key.removeprefix("allreduce.")
        op, scales = Op[how["op"]], (how["prescale_factor"], how["postscale_factor"])
        return Allreduce(self._lane, name, zeros, zeros, op, *scales)

    def take_steps(self) -> list[str]:
        """Steps of plans to take part in, as `label#sequence`."""
        steps = self._steps[:]
        del self._steps[: len(steps)]
        return steps


class _StandIn:
    """A barrier, which needs nothing; or a step of gradients, which is noted down."""

    def __init__(self, request: OperationRequest, steps: list[str]) -> None:
        self.request = request
        self._steps = steps

    def run(self, verdict: Verdict) -> None:
        if self.request.kind == "gradients":
            self._steps.append(self.request.key.removeprefix("gradients."))


class _Join:
    """The end of this rank's own operations, until everybody's."""

    def __init__(self, runtime: SetRuntime) -> None:
        self._runtime = runtime
        self.request = OperationRequest(JOIN, JOIN, (), tuple(sorted(runtime.counters.items())))

    def run(self, verdict: Verdict) -> int:
        # Ranks have submitted different numbers of operations without a name: the next ones must meet again.
        self._runtime.counters.update(verdict.counters)
        return verdict.rows[0][0]


def join(runtime: SetRuntime, plans: Iterable[Plan]) -> int:
    """Take part in others' allreduces and gradients with zeros until all have joined; the last to do so."""
    # Every set numbers its plans for itself: labels of two sets may be the same.
    mine = {plan.label: plan for plan in plans if plan.engine is runtime.engine}
    unfinished = [label for label, plan in mine.items() if plan.in_step]
    if unfinished:
        raise SettingsError(f"join() with gradients of {unfinished[0]} on their way: call step() first")

    def take_part() -> None:
        for step in runtime.stand_ins.take_steps():
            label, _, sequence = step.rpartition("#")
            if label not in mine:
                raise SettingsError(
                    f"join(): others are in step {sequence} of {label}, whose optimizer this rank has dropped. "
                    "Keep optimizers until every rank has joined."
                )
            mine[label].step_with_zeros(int(sequence))

    engine = runtime.engine
    last: int = engine.wait(engine.submit(_Join(runtime), background=False), take_part)
    return last
