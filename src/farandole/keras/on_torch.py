"""Keras on torch: gradients are reduced while backward goes on, by the PyTorch door.

Keras leaves gradients in the variables and hands them to the optimizer after backward. Until two steps have
shown that a training step does just that (one backward pass, the gradients as it left them) nothing is reduced
before the optimizer is called; from then on every gradient is, as soon as it is complete.

A backward pass that no step follows (a GAN's generator makes gradients of its critic, too) hands over gradients that
nobody wants. The next pass notices: all ranks reduce what was handed over, drop it, and reduce nothing early any more.

Two words for each rank travel with every step, zero in a usual one: the rank has ended its training; the rank drops
this step's gradients. Where ranks do not say the same, all raise.
"""

from __future__ import annotations

import enum
import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.comm.gradients.buffers import BufferSettings, check_ended, raise_still_training
from farandole.errors import MismatchError, SettingsError
from farandole.launch.environment import given_threads
from farandole.torch import kernels
from farandole.torch.gradients import GradientReducer, ReducerSettings

__all__ = ["KEEPS_ABSENT", "make_reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = True
"""A variable without a gradient is reduced as well: another rank may have one."""

_STEPS_TO_TRUST = 2


class _Word(enum.IntEnum):
    """What a rank can say with a step."""

    ENDED = 0
    DROPPED = 1


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

    def drop_handed(self) -> None:
        """Let the step go by in which gradients were handed over, and leave those there are now. Collective."""
        for slot in self._slots[:-1]:
            if not slot.handed:
                self._hand_over_nothing(slot, 0)
        self._hand_over(self._slots[-1])  # the words
        try:
            self._plan.finish()
        finally:
            self._in_flight = False
            for slot in self._slots:
                slot.passes, slot.handed, slot.stand_in = 0, False, None
        self._deliver(self._slots[-1], 1)
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
        self._process_set = settings.process_set
        transport = settings.process_set.runtime().transport
        self._rank = transport.rank
        self._mine = torch.zeros(len(_Word), transport.size)
        self._words = torch.nn.Parameter(torch.zeros_like(self._mine), requires_grad=False)
        kernels.install()
        self._reducer = _Watched(
            label,
            # The words come first, so that they are the last to be handed over: pieces are reduced in that order.
            [("(what ranks say)", self._words), *((v.path, p) for v, p in zip(variables, self._parameters))],
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
        self._say(None)
        self._reducer.synchronize()
        self._check_dropped(False)
        if ended := self._who_said(_Word.ENDED):
            raise_still_training(ended, self._process_set, self._reducer.statistics().steps)
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
        self._say(_Word.DROPPED)
        self._reducer.drop_handed()
        self._check_dropped(True)

    def _say(self, word: _Word | None) -> None:
        """Give this rank's word to the next step."""
        mine = self._mine.numpy()
        mine[:] = 0
        if word is not None:
            mine[word, self._rank] = 1
        self._words.grad = self._mine

    def _who_said(self, word: _Word) -> list[int]:
        """Numbers, within the set, of ranks that gave this word to the last step."""
        assert self._words.grad is not None
        found: list[int] = self._words.grad.numpy()[word].nonzero()[0].tolist()
        return found

    def _check_dropped(self, dropped: bool) -> None:
        """Raise where some ranks drop the gradients of a step and others do not."""
        numbers = self._who_said(_Word.DROPPED)
        members = self._process_set.runtime().members
        if len(numbers) != (len(members) if dropped else 0):
            listed = ", ".join(str(members[number]) for number in numbers)
            raise MismatchError(
                f"rank {listed} has called backward() without a step of the optimizer after it, other ranks have not. Do "
                "it on all ranks, or pass DistributedOptimizer(..., team=Team(threads=0))."
            )

    @torch.compiler.disable
    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        if self._reducer.in_flight:
            self._drop()
        for parameter in self._parameters:
            parameter.grad = None
        steps = self._reducer.statistics().steps
        self._say(_Word.ENDED)
        self._reducer.synchronize()
        self._check_dropped(False)
        check_ended(self._who_said(_Word.ENDED), self._process_set, steps)
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
