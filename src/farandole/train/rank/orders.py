"""Which samples a rank takes in an epoch, and in which order."""

from __future__ import annotations

import numpy as np

from farandole.data.split import batches_of_rank
from farandole.train.plan import Plan
from farandole.workloads.samples import Rows

__all__ = ["orders"]


def orders(plan: Plan, rows: int, epoch: int, *, seed: int, shuffle: bool, rank: int) -> list[Rows]:
    """Row numbers of each batch of `rank`, one of the ranks trained as, in an epoch."""
    if plan.parallel == "epochs":
        order = np.random.default_rng([seed, epoch, rank]).permutation(rows) if shuffle else np.arange(rows)
        batches = [order[start : start + plan.local_batch] for start in range(0, rows, plan.local_batch)]
    else:
        order = np.random.default_rng([seed, epoch]).permutation(rows) if shuffle else np.arange(rows)
        batches = batches_of_rank(order, plan.local_batch, rank=rank, size=plan.ranks)
    return batches[: plan.steps]
