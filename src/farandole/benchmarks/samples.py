"""What a benchmark trains on: samples by row number, whatever they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArraySamples", "Rows", "Samples", "TrainingData"]

Rows = NDArray[np.intp]
Array = NDArray[np.float32]


class Samples(Protocol):
    """Some rows, of which batches are made; `at_hand` is true where one is only picked out and need not be made ahead."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        """Inputs and targets of the samples numbered `rows`."""


@dataclass(frozen=True, slots=True)
class ArraySamples:
    """Rows of arrays; several inputs are a tuple. A target of None is the first input: what an autoencoder aims at."""

    inputs: Sequence[Array]
    target: Array | None
    at_hand: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.inputs[0])

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        chosen = tuple(array[rows] for array in self.inputs)
        return chosen if len(chosen) > 1 else chosen[0], chosen[0] if self.target is None else self.target[
            rows
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """What a model trains on, is watched by while it trains, and is judged by at the end."""

    train: Samples
    validation: Samples
    test: Samples
    features: int
    classes: tuple[str, ...] = ()
    nbytes: int
    """Memory of all of it, of each rank: what those of a node have read together becomes its own where it is scaled."""
