"""DistributedOptimizer(op=Adasum): ranks step alone, then combine how far each has moved every parameter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from farandole.comm.named.process_sets import ProcessSet
from farandole.comm.named.submit import Adasum, Max
from farandole.errors import SettingsError
from farandole.torch.compression import Compressor
from farandole.torch.ops import allreduce, grouped_allreduce_

__all__ = ["StepsCombined"]


class StepsCombined:
    """Put in front of an optimizer's class."""

    _farandole_set: ProcessSet
    _farandole_compression: type[Compressor]
    param_groups: list[dict[str, Any]]
    # A GradScaler then leaves it to step() to unscale, and to step at all: alone, it would skip the step on one rank only.
    _step_supports_amp_scaling = True
    grad_scale: torch.Tensor | None
    """Set by a GradScaler for one step, as is `found_inf`."""
    found_inf: torch.Tensor | None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the optimizer's own, combined over the ranks. Collective: every rank calls it."""
        found = self.__dict__.get("found_inf")
        if found is not None and self._farandole_overflow(found):
            return None
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        step: Any = super().step  # type: ignore[misc]
        loss = step(closure)
        with torch.no_grad():
            packed = [self._farandole_compression.compress(p - old) for p, old in zip(parameters, before)]
            moved = grouped_allreduce_(
                [tensor for tensor, _ in packed], op=Adasum, process_set=self._farandole_set
            )
            for p, old, tensor, (_, context) in zip(parameters, before, moved, packed):
                p.copy_(old + self._farandole_compression.decompress(tensor, context))
        return loss

    def _farandole_overflow(self, found: torch.Tensor) -> bool:
        """Whether a gradient of any rank has overflown; if not, they are unscaled, and the optimizer need not."""
        if allreduce(found, op=Max, process_set=self._farandole_set).item():
            return True
        if self.grad_scale is not None:
            for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                p.grad.div_(self.grad_scale.to(p.grad.device))
        self.grad_scale = self.found_inf = None
        return False

    def synchronize(self) -> None:
        """Nothing is under way between steps."""

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        raise SettingsError("skip_synchronize: an Adasum optimizer combines steps, not gradients; call step() alone")
