"""LARS for torch: momentum SGD with a rate for every layer, in proportion to its weights' and gradients' norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from farandole.errors import SettingsError

__all__ = ["LARS"]


class LARS(torch.optim.Optimizer):
    """You, Gitman, Ginsburg 2017. Parameters of fewer than two dimensions (biases, norms) are stepped as by SGD."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-8,
    ) -> None:
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0 or trust_coefficient <= 0:
            raise SettingsError(
                f"LARS(lr={lr}, momentum={momentum}, weight_decay={weight_decay}, trust_coefficient={trust_coefficient}): "
                "lr and weight_decay must be 0 or more, momentum in [0, 1), trust_coefficient above 0"
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "epsilon": epsilon,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        rate = group["lr"]
        if parameter.dim() > 1:
            rate = rate * _trust(parameter, gradient, group)
            gradient = gradient.add(parameter, alpha=group["weight_decay"])  # type: ignore[union-attr]
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(group["momentum"]).add_(gradient * rate)
        parameter.sub_(state["momentum"])


def _trust(parameter: torch.Tensor, gradient: Any, group: dict[str, Any]) -> torch.Tensor:
    """coefficient * |w| / (|g| + decay * |w|), or 1 where either norm is 0."""
    w, g = parameter.norm(), gradient.norm()
    ratio = group["trust_coefficient"] * w / (g + group["weight_decay"] * w + group["epsilon"])
    return torch.where((w > 0) & (g > 0), ratio, torch.ones_like(ratio))
