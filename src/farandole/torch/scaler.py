"""torch.amp.GradScaler with distributed optimizers: it looks for overflow in the gradients of all ranks.

The scaler reads gradients behind the optimizer's back, and skips the step where one of them has overflown: a rank that
did so alone would leave the others waiting. So its two methods that read gradients reduce them first.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["reduce_before_unscaling"]


def reduce_before_unscaling() -> None:
    """Let every GradScaler do so; the optimizer says how."""
    scaler: Any = torch.amp.GradScaler
    if "_farandole_original" not in scaler.__dict__:
        scaler._farandole_original = (scaler.unscale_, scaler.step)
        scaler.unscale_, scaler.step = _unscale, _step


def _unscale(self: Any, optimizer: Any) -> None:
    unscale, _ = self._farandole_original
    _reduce(self, optimizer)
    unscale(self, optimizer)


def _step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    _, step = self._farandole_original
    _reduce(self, optimizer)
    done = step(self, optimizer, *args, **kwargs)
    if hasattr(optimizer, "_farandole_after_scaled_step"):
        optimizer._farandole_after_scaled_step()
    return done


def _reduce(scaler: Any, optimizer: Any) -> None:
    if scaler.is_enabled() and hasattr(optimizer, "_farandole_before_unscaling"):
        optimizer._farandole_before_unscaling()
