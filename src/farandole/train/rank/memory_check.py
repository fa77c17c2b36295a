"""Whether a run fits into memory, before it takes any: from the beginning of its files, and from its layers without weights.

Files tell their columns at once and their rows roughly. What is refused here could not have been loaded, or trained on.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from farandole.data.cache import FOLDER
from farandole.data.loaders import CACHED
from farandole.data.tables import Shapes
from farandole.errors import SettingsError
from farandole.train.optimizers import SLOTS
from farandole.train.plan import local_batch, passes_of_rank
from farandole.train.rank.memory_estimate import DataBytes, LayerShape, MemoryEstimate, estimate_memory
from farandole.train.rank.trainer import layer_shapes
from farandole.train.settings import RunSettings
from farandole.workloads.samples import ArraySamples, TrainingData

__all__ = ["check_before_loading", "check_training", "text_bytes"]

_SOME_CLASSES = ("",) * 10
"""How many there are is known once labels are read, and is next to nothing of a network."""


def check_before_loading(
    settings: RunSettings, shapes: Shapes, text: int, *, size: int, local_size: int, share: int
) -> MemoryEstimate:
    """What each of `size` ranks needs; an error where that is more than its `share` of the free memory.

    `shapes` and `text` are those of its files, by `TableSet.shapes` and `text_bytes`.
    """
    known, parameters = settings.workload, settings.parameters
    if text:
        _check_reading(settings, shapes, share * local_size)
    features, nbytes = known.expected(parameters, shapes)
    unused = sum(_table_bytes(shape) for shape in shapes.values()) if getattr(parameters, "feature_subsample", 0) and text else 0
    none = ArraySamples(np.empty((0, features), np.float32))
    data = TrainingData(train=none, validation=none, test=none, features=features, classes=_SOME_CLASSES, nbytes=nbytes)
    to_load = DataBytes(tables=nbytes, unused=unused, text=text)
    return check_training(settings, data, size=size, share=share, to_load=to_load)


def check_training(
    settings: RunSettings, data: TrainingData, *, size: int, share: int, to_load: DataBytes | None = None,
    layers: Sequence[LayerShape] | None = None,
) -> MemoryEstimate:  # fmt: skip
    """The estimate for the workload's network on `data`, which is in memory but for what is `to_load`; the same error."""
    parameters = settings.parameters
    layers = layer_shapes(settings, data) if layers is None else layers
    _check_weights(layers, share)

    def estimated(batch_size: int) -> MemoryEstimate:
        return estimate_memory(
            layers, framework=settings.framework, slots=SLOTS[parameters.optimizer], passes=passes_of_rank(settings, size), ranks=size,
            local_batch=local_batch(settings, batch_size, size), data=to_load or DataBytes(),
        )  # fmt: skip

    found = estimated(parameters.batch_size)
    if found.needed_bytes > share:
        raise _too_large(found, share, _largest(lambda batch: estimated(batch).needed_bytes, share, parameters.batch_size))
    return found


def _largest(needed: Callable[[int], int], share: int, most: int) -> int:
    """The largest batch_size below `most` for which `share` bytes are enough; 0 where none is small enough."""
    return bisect.bisect_right(range(1, most), share, key=needed)  # larger ones need more: as many as fit are the largest


def _too_large(found: MemoryEstimate, share: int, batch_size: int) -> SettingsError:
    data = f", {_gib(found.data_bytes)} of it data," if found.data_bytes else ""
    features = "fewer features (feature_subsample), " if found.data_bytes else ""
    batch = f"a batch_size of at most {batch_size}, " if batch_size else ""
    return SettingsError(
        f"about {_gib(found.needed_bytes)} a rank{data} cannot fit: {_gib(share)} are free for each rank of the node. Use fewer "
        f"ranks on a node, {features}{batch}or an optimizer with fewer copies of the weights (sgd has none)."
    )


def _check_weights(layers: Sequence[LayerShape], share: int) -> None:
    needed = 4 * sum(layer.parameters for layer in layers)
    if needed <= share:
        return
    largest = max(layers, key=lambda layer: layer.parameters)
    shape = max(largest.weights, key=math.prod)
    raise SettingsError(
        f"weights of {_gib(needed)}, up to {' x '.join(f'{width:,}' for width in shape)} of layer {largest.name}, cannot fit: "
        f"{_gib(share)} are free for each rank of the node. Use narrower layers (dense, conv), fewer features "
        "(feature_subsample), or fewer ranks on a node."
    )


def _check_reading(settings: RunSettings, shapes: Shapes, free: int) -> None:
    """Of a node, whose ranks share a table while it is read."""
    role, shape = max(shapes.items(), key=lambda item: _table_bytes(item[1]))
    if _table_bytes(shape) > free:
        rows, features = shape
        raise SettingsError(
            f"{settings.tables.files[role].name} cannot be read: about {rows:,} rows of {features:,} numbers take "
            f"{_gib(_table_bytes(shape))}, and {_gib(free)} are free on the node. Read it once where there is more memory, with "
            f"the default loader: it is kept in {FOLDER} beside the file, and from then on only the features in use "
            "(feature_subsample) take memory."
        )


def text_bytes(settings: RunSettings, roles: Collection[str] | None) -> int:
    """Of the largest file that will be parsed; 0 where all were parsed before, whose tables are mapped, page by page."""
    if settings.loader == CACHED and (settings.data_folder / FOLDER).is_dir():
        return 0
    return max(path.stat().st_size for path in settings.tables.find(settings.data_folder, roles).values())


def _table_bytes(shape: tuple[int, int]) -> int:
    return 4 * math.prod(shape)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
