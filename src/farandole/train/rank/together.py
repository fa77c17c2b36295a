"""What all ranks must agree on before anything is trained: that their data has loaded, and is alike."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from farandole.comm import world
from farandole.comm.named.collectives import allgather_object
from farandole.errors import FarandoleError, SettingsError, TrainingError
from farandole.train.settings import RunSettings
from farandole.workloads.samples import Stream, TrainingData

__all__ = ["check_alike", "loaded_by_user"]


def loaded_by_user(settings: RunSettings) -> TrainingData:
    """What the workload's `load` gives; what it raises becomes an error that names the rank and the line. Collective."""
    name, where = settings.workload.name, f"[rank {world.rank()}/{world.size()}]"
    try:
        data = settings.workload.load(settings.parameters, settings.data_folder)
    except (FarandoleError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise TrainingError(
            f"{where} workload {name}: load() has failed: {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
        ) from error
    if not isinstance(data, TrainingData):
        raise SettingsError(f"workload {name}: load() has returned {type(data).__name__}, expected farandole.workloads.TrainingData")
    return data


def check_alike(data: TrainingData) -> None:
    """Refuse data that differs between ranks in numbers, shapes or types: they would train on something else. Collective."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    found = allgather_object({name: _described(part) for name, part in parts.items()} | {"classes": list(data.classes)})
    for name, first in found[0].items():
        odd = [rank for rank, theirs in enumerate(found) if theirs[name] != first]
        if odd:
            raise SettingsError(f"{name}: rank {odd[0]} has {found[odd[0]][name]}, rank 0 has {first}. load() must give every rank the same data.")


def _described(samples: Any) -> str:
    count = f"{len(samples):,} samples"
    if isinstance(samples, Stream) or not len(samples):
        return f"{count} in a stream" if isinstance(samples, Stream) else count
    inputs, targets = samples.batch(np.arange(1))
    return f"{count} of {_shapes(inputs)} with targets of {_shapes(targets)}"


def _shapes(arrays: Any) -> str:
    if isinstance(arrays, Mapping):
        return ", ".join(f"{name} {_shapes(array)}" for name, array in arrays.items())
    if isinstance(arrays, (tuple, list)):
        return ", ".join(map(_shapes, arrays))
    array = np.asarray(arrays)
    return f"{'x'.join(map(str, array.shape[1:])) or 'single'} {array.dtype}"
