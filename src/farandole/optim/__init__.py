"""Scaling rules and schedules for many ranks: pure arithmetic, shared by the doors.

The optimizers are imported from where they belong: farandole.optim.lars_torch, farandole.optim.lars_keras.
"""

from farandole.optim.epochs import comp_epochs, equal_epochs
from farandole.optim.scaling import RULES, scaled_batch, scaled_rate, warmup_factor
from farandole.optim.schedules import cosine_decay, linear_warmup, poly_decay, step_decay, warmed_up

__all__ = [
    "RULES",
    "comp_epochs",
    "cosine_decay",
    "equal_epochs",
    "linear_warmup",
    "poly_decay",
    "scaled_batch",
    "scaled_rate",
    "step_decay",
    "warmed_up",
    "warmup_factor",
]
