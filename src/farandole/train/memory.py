"""Memory a training will need, before it needs it."""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.optim.scaling import scaled_batch
from farandole.train.cgroup import granted_bytes
from farandole.train.optimizer import SLOTS
from farandole.train.plan import Plan
from farandole.train.settings import RunSettings

__all__ = ["available_bytes", "check_memory", "check_training", "estimated_bytes", "largest_batch", "weights_within"]

_NO_LIMIT = 1 << 62


@contextlib.contextmanager
def weights_within(share: int, *, make: bool = True) -> Iterator[list[int]]:
    """Refuse a layer before its weights are made, where a rank's do not fit into its share of the free memory.

    Their bytes, one after the other; without `make` that is all there is of them.
    """
    import keras

    add_weight = keras.layers.Layer.add_weight
    sizes: list[int] = []

    def counted(layer: Any, shape: Any = None, *rest: Any, **options: Any) -> Any:
        sizes.append(4 * math.prod(shape or ()))
        if sum(sizes) > share:
            raise SettingsError(
                f"weights of {sum(sizes) / 2**30:.1f} GiB, up to {' x '.join(f'{width:,}' for width in shape)} of layer "
                f"{layer.name}, cannot fit: {share / 2**30:.1f} GiB are free for each rank of the node. Use narrower layers "
                "(dense, conv), fewer features (feature_subsample), or fewer ranks on a node."
            )
        return add_weight(layer, shape, *rest, **options) if make else None

    keras.layers.Layer.add_weight = counted
    try:
        yield sizes
    finally:
        keras.layers.Layer.add_weight = add_weight


def estimated_bytes(
    model: Any, optimizer: str, plan: Plan, local_batch: int | None = None, *, parameters: int | None = None
) -> int:
    """Of one rank, beside the data: weights, gradients, the optimizer's copies, and a batch on its way forth and back.

    `parameters`: how many a model would have that was built without.
    """
    count = int(model.count_params()) if parameters is None else parameters
    copies = 2 + SLOTS[optimizer] + (plan.passes > 1)
    outputs = sum(math.prod(layer.output.shape[1:]) for layer in model.layers)
    return 4 * (count * copies + 2 * (local_batch or plan.local_batch) * int(outputs))


def largest_batch(share: int, needed: Callable[[int], int], most: int) -> int:
    """The largest batch_size below `most` for which no more than `share` bytes are needed; 0 where none is small enough."""
    return bisect.bisect_right(range(1, most), share, key=needed)  # larger ones need more: as many as fit are the largest


def check_training(
    model: Any, settings: RunSettings, plan: Plan, share: int, *, data_bytes: int = 0, parameters: int | None = None
) -> int:
    """The estimate; an error where it, and data that is not loaded yet, do not fit into a rank's share."""

    def needed(batch_size: int) -> int:
        batch = scaled_batch(batch_size, plan.ranks, settings.batch_scaling)
        return data_bytes + estimated_bytes(model, settings.parameters.optimizer, plan, batch, parameters=parameters)

    most = settings.parameters.batch_size
    check_memory(needed(most), share, lambda: largest_batch(share, needed, most), data_bytes)
    return needed(most) - data_bytes


def check_memory(needed: int, share: int, largest: Callable[[], int] = lambda: 0, data_bytes: int = 0) -> None:
    """Refuse what cannot fit into a rank's share of what was free before it was made; `largest` batch_size does."""
    if needed > share:
        data = f", {data_bytes / 2**30:.1f} GiB of it data," if data_bytes else ""
        features = "fewer features (feature_subsample), " if data_bytes else ""
        batch = f"a batch_size of at most {fits}, " if (fits := largest()) else ""
        raise SettingsError(
            f"about {needed / 2**30:.1f} GiB a rank{data} cannot fit: {share / 2**30:.1f} GiB are free for each rank of the "
            f"node. Use fewer ranks on a node, {features}{batch}or an optimizer with fewer copies of the weights (sgd has none)."
        )


def available_bytes() -> int:
    """What the system, and the limits this process runs under, could still give; without a limit where neither says."""
    granted = granted_bytes()
    return min(_free_bytes(), _NO_LIMIT if granted is None else granted)


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _NO_LIMIT
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), _NO_LIMIT)
