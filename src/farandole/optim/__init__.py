"""Scaling rules and schedules for many ranks: pure arithmetic, shared by the doors."""

from farandole.optim.scaling import RULES, scaled_batch, scaled_rate, warmup_factor

__all__ = ["RULES", "scaled_batch", "scaled_rate", "warmup_factor"]
