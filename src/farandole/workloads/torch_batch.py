"""One batch of a torch workload, as a user's `train_step` or `test_step` gets it.

    def train_step(batch):
        fake = batch.models["generator"](torch.randn(batch.length, 64))
        d_loss = ...
        batch.step("discriminator", d_loss)         # backward and the optimizer's step, gradients averaged over the ranks
        g_loss = ...
        batch.step("generator", g_loss)
        return {"loss": g_loss.detach(), "d_loss": d_loss.detach()}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TorchBatch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBatch:
    """Tensors, and the modules and optimizers to use them with."""

    inputs: Any
    targets: Any
    models: Mapping[str, torch.nn.Module]
    """By the names that `build` gave them; "model" where it returned one."""
    optimizers: Mapping[str, torch.optim.Optimizer]
    parameters: Any
    epoch: int
    """From 0; -1 in a `test_step`."""
    length: int
    """Samples."""
    passes: int = 1
    """Batches whose gradients are added up before a step."""
    ends_step: bool = True

    def outputs(self, model: str = "model") -> Any:
        """The module's outputs: several inputs are its arguments, named ones its keyword arguments."""
        module = self.models[model]
        if isinstance(self.inputs, Mapping):
            return module(**self.inputs)
        return module(*self.inputs) if isinstance(self.inputs, tuple) else module(self.inputs)

    def step(self, model: str, loss: torch.Tensor) -> None:
        """Backward through one module's parameters, and its optimizer's step. Collective."""
        trained = [parameter for parameter in self.models[model].parameters() if parameter.requires_grad]
        (loss / self.passes).backward(inputs=trained if len(self.models) > 1 else None)  # type: ignore[no-untyped-call]
        if self.ends_step:
            self.optimizers[model].step()
            self.optimizers[model].zero_grad()
