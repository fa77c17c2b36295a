"""Keras on torch: gradients are reduced while backward goes on, by the PyTorch door.

Keras leaves gradients in the variables and hands them to the optimizer after backward. Until two steps have
shown that a training step does just that (one backward pass, the gradients as it left them) nothing is reduced
before the optimizer is called; from then on every gradient is, as soon as it is complete.

A backward pass that no step follows (a GAN's generator makes gradients of its critic, too) hands over gradients that
nobody wants. The next pass notices: all ranks reduce what was handed over, drop it, and reduce nothing early any more. Where some
drop a step's gradients and others do not, all raise: the last gradient is not handed over before the step, so that all know by then.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.comm.gradients.buffers import BufferSettings
from farandole.comm.gradients.status import State
from farandole.errors import SettingsError
from farandole.launch.environment import given_threads
from farandole.torch import kernels
from farandole.torch.gradients import GradientReducer, ReducerSettings

__all__ = ["KEEPS_ABSENT", "make_reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = True
"""A variable without a gradient is reduced as well: another rank may have one."""

_STEPS_TO_TRUST = 2


class _Watched(GradientReducer):
    """Counts backward passes, and hands gradients over early only where that is safe."""

    def __init__(
        self,
        label: str,
        parameters: Sequence[tuple[str, torch.Tensor]],
        settings: ReducerSettings,
        name: str,
        drop: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        """`drop`: called where gradients were handed over that no step has followed."""
        self.early = False
        self._drop = drop
        self._seen: Counter[int] = Counter()
        self._early_ones: dict[int, torch.Tensor | None] = {}
        super().__init__(label, parameters, settings, name)

    def produced(self, index: int) -> None:
        if self.early and index in self._early_ones:
            self._check_replaced()
            drop = self._drop()
            assert drop is not None
            drop()
        self._seen[index] += 1
        if self.early:
            self._early_ones[index] = self._slots[index].parameter.grad
            if index + 1 < len(self._slots):
                super().produced(index)

    def _check_replaced(self) -> None:
        """What was handed over must not be part of the gradients that are being made: others change it."""
        for index, handed in self._early_ones.items():
            slot = self._slots[index]
            if slot.parameter.grad is handed:
                raise SettingsError(
                    f"backward() has come to gradients that are being reduced already, without a step between: {slot.name}. "
                    "For a step with several backward passes, pass DistributedOptimizer(..., team=Team(threads=0))."
                )

    def end_step(self, state: State) -> None:
        """Let a step go by, in which gradients may have been handed over, and leave those there are now. Collective."""
        try:
            self._plan.end_step(state)
        finally:
            self._in_flight = False
            for slot in self._slots:
                slot.passes, slot.handed = 0, False
        self.one_pass()

    def one_pass(self) -> bool:
        """Whether no gradient was made twice since the last call."""
        most = max(self._seen.values(), default=0)
        self._seen.clear()
        self._early_ones.clear()
        return most <= 1


class BackwardReducer:
    """Reduces the gradients of some variables. Collective to make: every rank of the set does."""

    alone = False
    """Keras builds models before they train on torch: there is no step with different weights."""

    def __init__(self, label: str, name: str, variables: Sequence[Any], settings: BufferSettings) -> None:
        self._parameters = [v.value for v in variables]
        kernels.install()
        self._reducer = _Watched(
            label,
            [(v.path, p) for v, p in zip(variables, self._parameters)],
            ReducerSettings(
                how=settings.how,
                wire=settings.wire,
                passes=1,
                sparse_as_dense=True,
                process_set=settings.process_set,
                team=settings.team,
            ),
            name,
            weakref.WeakMethod(self._drop),  # whoever drops an optimizer gets its threads and windows back at once
        )
        self._may_overlap = settings.team.threads > 0
        self._trusted_steps = 0

    @torch.compiler.disable
    def reduce(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks. Collective."""
        as_left = all(g is p.grad for g, p in zip(grads, self._parameters))
        if self._reducer.early and not as_left:
            raise SettingsError(
                "the gradients given to the optimizer are not those that backward left in the variables, which are "
                "being reduced already. For a train_step that changes gradients, pass DistributedOptimizer("
                "..., team=Team(threads=0))."
            )
        for gradient, parameter in zip(grads, self._parameters):
            parameter.grad = gradient
        self._reducer.synchronize()
        self._watch(as_left)
        return [parameter.grad for parameter in self._parameters]

    def _watch(self, as_left: bool) -> None:
        one_pass = self._reducer.one_pass()
        self._may_overlap = self._may_overlap and as_left and one_pass
        self._trusted_steps += self._may_overlap
        self._reducer.early = self._may_overlap and self._trusted_steps >= _STEPS_TO_TRUST

    def _drop(self) -> None:
        """Gradients were handed over that no step has followed: forget them, and reduce none early again. Collective."""
        self._may_overlap = self._reducer.early = False
        self._reducer.end_step(State.DROPPED)

    @torch.compiler.disable
    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        if self._reducer.in_flight:
            self._drop()
        self._reducer.end_step(State.ENDED)
        for parameter in self._parameters:
            parameter.grad = None

    def statistics(self) -> dict[str, float]:
        found = self._reducer.statistics()
        overlapped = float(self._reducer.early)
        return {
            "steps": found.steps,
            "bytes": found.nbytes,
            "seconds": found.busy_s,
            "exposed_s": found.exposed_s,
            "overlapped": overlapped,
        }


make_reducer = BackwardReducer


def when_due(is_due: Any, reduce: Any, grads: list[Any]) -> list[Any]:
    """Reduce accumulated gradients: Keras asks for it in the steps that apply them."""
    reduced: list[Any] = reduce(grads)
    return reduced


def set_threads() -> None:
    threads = given_threads(os.environ)
    if threads is not None:
        torch.set_num_threads(threads)


def prepare() -> None:
    """Nothing of Keras' needs to change for this backend."""
