"""Keras on torch: gradients are reduced while backward goes on, by the PyTorch door.

Keras leaves gradients in the variables and hands them to the optimizer after backward. Until two steps have
shown that a training step does just that (one backward pass, the gradients as it left them) nothing is reduced
before the optimizer is called; from then on every gradient is, as soon as it is complete.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from farandole.comm.buffers import BufferSettings, check_ended, raise_still_training
from farandole.errors import SettingsError
from farandole.launch.environment import given_threads
from farandole.torch import kernels
from farandole.torch.compression import Compression
from farandole.torch.gradients import GradientReducer, ReducerSettings

__all__ = ["KEEPS_ABSENT", "Reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = True
"""A variable without a gradient is reduced as well: another rank may have one."""

_STEPS_TO_TRUST = 2
_COMPRESSION = {None: Compression.none, "float16": Compression.fp16, "bfloat16": Compression.bf16}


class _Watched(GradientReducer):
    """Counts backward passes, and hands gradients over early only where that is safe."""

    def __init__(
        self, label: str, parameters: Sequence[tuple[str, torch.Tensor]], settings: ReducerSettings, name: str
    ) -> None:
        self.early = False
        self._seen: Counter[int] = Counter()
        super().__init__(label, parameters, settings, name)

    def produced(self, index: int) -> None:
        self._seen[index] += 1
        if self.early:
            super().produced(index)

    def one_pass(self) -> bool:
        """Whether no gradient was made twice since the last call."""
        most = max(self._seen.values(), default=0)
        self._seen.clear()
        return most <= 1


class Reducer:
    """Reduces the gradients of some variables. Collective to make: every rank of the set does."""

    alone = False
    """Keras builds models before they train on torch: there is no step with different weights."""

    def __init__(self, label: str, name: str, variables: Sequence[Any], settings: BufferSettings) -> None:
        self._variables = list(variables)
        self._process_set = settings.process_set
        runtime = settings.process_set.runtime()
        self._rank = runtime.transport.rank
        self._ended = torch.nn.Parameter(torch.zeros(runtime.transport.size), requires_grad=False)
        kernels.install()
        self._reducer = _Watched(
            label,
            [("(ranks that have ended)", self._ended), *((v.path, v.value) for v in variables)],
            ReducerSettings(
                how=settings.how,
                compression=_COMPRESSION[settings.wire],
                passes=1,
                sparse_as_dense=True,
                process_set=settings.process_set,
                team=settings.team,
            ),
            name,
        )
        self._may_overlap = settings.team.threads > 0
        self._trusted_steps = 0

    @torch.compiler.disable
    def reduce(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks. Collective."""
        as_left = all(g is v.value.grad for g, v in zip(grads, self._variables))
        if self._reducer.early and not as_left:
            raise SettingsError(
                "the gradients given to the optimizer are not those that backward left in the variables, which are "
                "being reduced already. For a train_step that changes gradients, pass DistributedOptimizer("
                "..., team=Team(threads=0))."
            )
        for gradient, variable in zip(grads, self._variables):
            variable.value.grad = gradient
        if ended := self._synchronize(0.0):
            raise_still_training(ended, self._process_set, self._reducer.statistics().steps)
        self._watch(as_left)
        return [variable.value.grad for variable in self._variables]

    def _watch(self, as_left: bool) -> None:
        one_pass = self._reducer.one_pass()
        self._may_overlap = self._may_overlap and as_left and one_pass
        self._trusted_steps += self._may_overlap
        self._reducer.early = self._may_overlap and self._trusted_steps >= _STEPS_TO_TRUST

    def _synchronize(self, word: float) -> list[int]:
        """Reduce; numbers, within the set, of ranks that have ended."""
        words = torch.zeros_like(self._ended)
        words[self._rank] = word
        self._ended.grad = words
        self._reducer.synchronize()
        assert self._ended.grad is not None
        return [int(number) for number in self._ended.grad.nonzero().flatten()]

    @torch.compiler.disable
    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        if self._reducer.in_flight:
            return  # a step that was never applied
        for variable in self._variables:
            variable.value.grad = None
        steps = self._reducer.statistics().steps
        check_ended(self._synchronize(1.0), self._process_set, steps)
        for variable in self._variables:
            variable.value.grad = None

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
