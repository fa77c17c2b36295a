"""How the learning rate and the batch follow the number of ranks.

    rate = scaled_rate(0.01, ranks=8)                 # linear: 0.08
    rate = scaled_rate(0.01, ranks=8, rule="sqrt")    # 0.0283
    factor = warmup_factor(step, warmup_steps=500, ranks=8)   # from 1/8 up to 1
"""

from __future__ import annotations

from farandole.errors import SettingsError

__all__ = ["RULES", "scaled_batch", "scaled_rate", "warmup_factor"]

RULES = {"linear": 1.0, "sqrt": 1 / 2, "cbrt": 1 / 3, "none": 0.0}


def _factor(ranks: int, rule: str) -> float:
    if rule not in RULES:
        raise SettingsError(f"unknown scaling rule {rule!r}; known: {', '.join(RULES)}")
    if ranks < 1:
        raise SettingsError(f"ranks={ranks}: must be 1 or more")
    return float(ranks ** RULES[rule])


def scaled_rate(rate: float, ranks: int, rule: str = "linear") -> float:
    """The learning rate for `ranks` times the batch."""
    return rate * _factor(ranks, rule)


def scaled_batch(batch: int, ranks: int, rule: str = "linear") -> int:
    """The batch for `ranks`, cut off to whole samples as in the papers."""
    return int(batch * _factor(ranks, rule) + 1e-9)


def warmup_factor(step: int, warmup_steps: int, ranks: int, rule: str = "linear") -> float:
    """What to multiply the rate scaled by `rule` by: from one rank's rate at step 0 linearly up to 1 at `warmup_steps`."""
    if warmup_steps <= 0 or step >= warmup_steps:
        return 1.0
    factor = _factor(ranks, rule)
    return (1.0 + step * (factor - 1) / warmup_steps) / factor
