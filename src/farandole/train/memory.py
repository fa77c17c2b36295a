"""Memory a training will need, before it needs it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.train.optimizer import SLOTS
from farandole.train.plan import Plan

__all__ = ["available_bytes", "check_memory", "estimated_bytes"]


def estimated_bytes(model: Any, optimizer: str, plan: Plan) -> int:
    """Of one rank, beside the data: weights, gradients, the optimizer's copies, and a batch on its way forth and back."""
    copies = 2 + SLOTS[optimizer] + (plan.passes > 1)
    outputs = sum(math.prod(layer.output.shape[1:]) for layer in model.layers)
    return 4 * (int(model.count_params()) * copies + 2 * plan.local_batch * int(outputs))


def check_memory(needed: int, there: int, model: Any, ranks: int) -> None:
    """Refuse what cannot fit: the weights exist already, the rest is needed once for every rank of the node."""
    more = (needed - 4 * int(model.count_params())) * ranks
    if more > there:
        raise SettingsError(
            f"{ranks} ranks of {needed / 2**30:.1f} GiB each do not fit: {more / 2**30:.1f} GiB are still needed, "
            f"{there / 2**30:.1f} GiB are free. Use fewer ranks on a node, a smaller batch_size, or an optimizer with fewer "
            "copies of the weights (sgd has none)."
        )


def available_bytes() -> int:
    """What the system could still give; without a limit where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 62
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 1 << 62)
