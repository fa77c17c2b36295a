"""Learning rates over the course of training: what to multiply the full rate by, as pure functions of the step.

    factor = poly_decay(step, total_steps=9000, power=2, floor=1e-4)
    factor = warmed_up(step, warmup_steps=500, ranks=8, then=cosine_decay(step - 500, 8500))
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farandole.errors import SettingsError
from farandole.optim.scaling import warmup_factor

__all__ = ["cosine_decay", "linear_warmup", "poly_decay", "step_decay", "warmed_up"]


def linear_warmup(step: int, warmup_steps: int, start: float = 0.0) -> float:
    """From `start` at step 0 linearly up to 1 at `warmup_steps`."""
    if warmup_steps <= 0 or step >= warmup_steps:
        return 1.0
    return start + (1.0 - start) * step / warmup_steps


def warmed_up(step: int, warmup_steps: int, ranks: int, then: float, rule: str = "linear") -> float:
    """During the warm-up from one rank's rate up to 1, the rate scaled by `rule`; afterwards `then`."""
    return warmup_factor(step, warmup_steps, ranks, rule) if step < warmup_steps else then


def poly_decay(step: int, total_steps: int, power: float = 2.0, floor: float = 0.0) -> float:
    """(1 - step / total_steps) ** power, but never below `floor`; power 2 is the papers' `poly2`."""
    return max(floor, float((1.0 - _progress(step, total_steps)) ** power))


def cosine_decay(step: int, total_steps: int, floor: float = 0.0) -> float:
    """Half a cosine from 1 down to `floor`."""
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * _progress(step, total_steps)))


def step_decay(step: int, boundaries: Sequence[int], factor: float = 0.1) -> float:
    """1, multiplied by `factor` at each boundary that was reached."""
    if list(boundaries) != sorted(boundaries):
        raise SettingsError(f"boundaries={list(boundaries)}: give steps in increasing order")
    return float(factor ** sum(step >= boundary for boundary in boundaries))


def _progress(step: int, total_steps: int) -> float:
    if total_steps < 1:
        raise SettingsError(f"total_steps={total_steps}: must be 1 or more")
    return min(max(step, 0) / total_steps, 1.0)
