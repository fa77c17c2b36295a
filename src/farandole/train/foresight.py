"""What a run will need, before anything is loaded: from the beginning of its files, and from its network without weights.

Files tell their columns at once and their rows roughly. What is refused here could not have been loaded, or trained on.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from farandole.benchmarks import benchmark
from farandole.benchmarks.benchmark import Shapes
from farandole.benchmarks.samples import ArraySamples, TrainingData
from farandole.data.cache import FOLDER
from farandole.data.candle.files import benchmark as files_of
from farandole.data.candle.tables import CACHED
from farandole.errors import SettingsError
from farandole.train.memory import check_training, weights_within
from farandole.train.plan import make_plan
from farandole.train.settings import RunSettings

__all__ = ["Needs", "foreseen"]

_SOME_CLASSES = ("",) * 10
"""How many there are is known once labels are read, and is next to nothing of a network."""
_ANY_ROWS = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Of a rank."""

    data_bytes: int
    training_bytes: int
    """Weights, gradients, the optimizer's copies and a batch."""


def foreseen(settings: RunSettings, shapes: Shapes, *, size: int, local_size: int, share: int) -> Needs:
    """What each of `size` ranks needs; an error where that is more than its `share` of the free memory."""
    known, parameters = benchmark(settings.benchmark), settings.parameters
    _check_reading(settings, shapes, share * local_size)
    features, data_bytes = known.expected(parameters, shapes)
    none = ArraySamples((), None)
    data = TrainingData(
        train=none, validation=none, test=none, features=features, classes=_SOME_CLASSES, nbytes=data_bytes
    )  # fmt: skip
    with _names_kept(), weights_within(share, make=False) as sizes:
        model = known.build(parameters, data)
    plan = make_plan(settings, _ANY_ROWS, size)
    training_bytes = check_training(model, settings, plan, share, data_bytes=data_bytes, parameters=sum(sizes) // 4)
    return Needs(data_bytes=data_bytes, training_bytes=training_bytes)


def _check_reading(settings: RunSettings, shapes: Shapes, free: int) -> None:
    """Of a node, whose ranks share a table while it is read; one that was read before is mapped, page by page."""
    role, (rows, features) = max(shapes.items(), key=lambda item: item[1][0] * item[1][1])
    cached = settings.loader == CACHED and (settings.data_folder / FOLDER).is_dir()
    if not cached and 4 * rows * features > free:
        raise SettingsError(
            f"{files_of(settings.benchmark).files[role].name} cannot be read: about {rows:,} rows of {features:,} numbers take "
            f"{4 * rows * features / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on the node. Read it once where there is "
            f"more memory, with the default loader: it is kept in {FOLDER} beside the file, and from then on only the features in "
            "use (feature_subsample) take memory."
        )


@contextlib.contextmanager
def _names_kept() -> Iterator[None]:
    """Keras numbers layers by name, and checkpoints know them so: those built here do not count."""
    from keras.src.backend.common import global_state

    table = "object_name_uids"
    before: dict[str, Any] = dict(global_state.get_global_attribute(table) or {})
    try:
        yield
    finally:
        global_state.set_global_attribute(table, defaultdict(int, before))
