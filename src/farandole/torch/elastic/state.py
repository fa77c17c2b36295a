"""The state of a training with PyTorch: models, optimizers, samplers, and any other values."""

from __future__ import annotations

import copy
from typing import Any

import torch

from farandole.elastic import ObjectState
from farandole.torch.checkpoint import with_arrays, with_tensors
from farandole.torch.functions import broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState"]


class TorchState(ObjectState):
    """`TorchState(model, optimizer, sampler=sampler, epoch=0)`: all of it as attributes.

    What has a `state_dict()` (a sampler, a learning-rate schedule) is kept by it, anything else as a copy.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        super().__init__(model=model, optimizer=optimizer, **values)

    def sync(self) -> None:
        for name in self._names:
            self._sync(name, getattr(self, name))
        super().sync()

    def _sync(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            broadcast_parameters(value.state_dict(), root_rank=0)
        elif isinstance(value, torch.optim.Optimizer):
            broadcast_optimizer_state(value, root_rank=0)
        elif not self.is_plain(value):
            value.load_state_dict(self._bcast_object(value.state_dict(), 0, f"elastic.{name}"))

    def reset(self) -> None:
        """Gradients of the step that failed are of no use, once no rank reads them any more."""
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, torch.optim.Optimizer):
                reducer = getattr(value, "_farandole_reducer", None)
                if reducer is not None and reducer.in_flight:
                    reducer.synchronize_early()
                value.zero_grad()

    def is_plain(self, value: Any) -> bool:
        return not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict"))

    def take(self, value: Any) -> Any:
        return copy.deepcopy(value if self.is_plain(value) else value.state_dict())

    def put(self, name: str, saved: Any) -> None:
        value = getattr(self, name)
        if self.is_plain(value):
            super().put(name, saved)
        else:
            # Optimizers go on working on the very tensors they are given.
            value.load_state_dict(copy.deepcopy(saved))

    def pack(self, name: str, saved: Any) -> Any:
        return saved if self.is_plain(getattr(self, name)) else with_arrays(saved)

    def unpack(self, name: str, packed: Any) -> Any:
        return packed if self.is_plain(getattr(self, name)) else with_tensors(packed)
