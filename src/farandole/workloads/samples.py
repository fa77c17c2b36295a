"""What a workload trains on: samples by row number, whatever they are made of, or a stream of batches.

    TrainingData(train=ArraySamples(x, y), test=ArraySamples(x_test, y_test))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from farandole.data.split import drawn, held_out
from farandole.errors import SettingsError

__all__ = ["ArraySamples", "DatasetSamples", "RepeatedSamples", "Rows", "Samples", "Stream", "TrainingData", "split"]

Rows = NDArray[np.intp]
Array = NDArray[Any]
Inputs = Array | Sequence[Array] | Mapping[str, Array]


class Samples(Protocol):
    """Some rows, of which batches are made; `at_hand` is true where one is only picked out and need not be made ahead.

    Samples that make batches ahead also have `batches(epoch, orders)`, which yields a batch for each of `orders`, some rows, in turn. What
    is random about them may follow from the epoch. `spent()`, if there is one, tells the seconds and counts that a run's record gets.
    """

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        """Inputs and targets of the samples numbered `rows`."""


@dataclass(frozen=True, slots=True)
class ArraySamples:
    """Rows of arrays of any shape. Several inputs are a tuple, or a dict by name. A target of None is the first input."""

    inputs: Inputs
    target: Array | None = None
    at_hand: ClassVar[bool] = True

    def __post_init__(self) -> None:
        lengths = [len(array) for array in (*self._arrays(), *([] if self.target is None else [self.target]))]
        if not lengths or len(set(lengths)) > 1:
            raise SettingsError(f"ArraySamples: arrays of {lengths} rows; expected as many of each input and of the target")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Any) -> ArraySamples:
        """Some of them: a slice, or row numbers."""
        return ArraySamples(self._picked(rows), None if self.target is None else self.target[rows])

    @property
    def x(self) -> Array:
        """The first input."""
        return self._arrays()[0]

    @property
    def y(self) -> Array:
        """What is to be predicted."""
        return self.x if self.target is None else self.target

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self._arrays()) + (0 if self.target is None else int(self.target.nbytes))

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        inputs = self._picked(rows)
        if self.target is not None:
            return inputs, self.target[rows]
        return inputs, inputs if isinstance(inputs, np.ndarray) else next(iter(_values(inputs)))

    def _arrays(self) -> list[Array]:
        inputs: Any = self.inputs
        return [inputs] if hasattr(inputs, "shape") else list(_values(inputs))

    def _picked(self, rows: Any) -> Any:
        inputs: Any = self.inputs
        if isinstance(inputs, Mapping):
            return {name: array[rows] for name, array in inputs.items()}
        return inputs[rows] if hasattr(inputs, "shape") else tuple(array[rows] for array in inputs)


def _values(inputs: Any) -> Any:
    return inputs.values() if isinstance(inputs, Mapping) else inputs


@dataclass(frozen=True, slots=True)
class DatasetSamples:
    """Whatever has a length and gives an input and a target by number, as torch's datasets do."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        inputs, targets = zip(*(self.dataset[int(row)] for row in rows))
        return np.stack([np.asarray(one) for one in inputs]), np.stack([np.asarray(one) for one in targets])


@dataclass(frozen=True, slots=True)
class RepeatedSamples:
    """The same few samples again and again, made once, as where only speed counts: a batch is handed out without a copy."""

    inputs: Array
    target: Array
    samples: int
    """Of an epoch."""
    at_hand: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.samples

    @property
    def nbytes(self) -> int:
        return int(self.inputs.nbytes + self.target.nbytes)

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        if len(rows) > len(self.inputs):
            rows = np.arange(len(rows)) % len(self.inputs)
            return self.inputs[rows], self.target[rows]
        return self.inputs[: len(rows)], self.target[: len(rows)]


@dataclass(frozen=True, slots=True)
class Stream:
    """Batches that come in an order of their own, e.g. from a file too large to index; ranks divide the steps of an epoch.

    `batches(epoch, rank, ranks, batch_size)` yields inputs and targets of one rank's share of an epoch.
    """

    samples: int
    """Of an epoch, over all ranks."""
    batches: Callable[[int, int, int, int], Iterator[tuple[Any, Any]]]

    def __len__(self) -> int:
        return self.samples


@dataclass(kw_only=True, slots=True)
class TrainingData:
    """What a model trains on, is watched by while it trains, and is judged by at the end."""

    train: Samples | Stream
    validation: Any = None
    """Samples or a Stream; left out: the test samples, which a note then says."""
    test: Samples | Stream
    features: int = 0
    """Values of a sample; 0 counts those of its first input."""
    classes: tuple[str, ...] = ()
    nbytes: int = 0
    """Memory of all of it, of each rank; 0 counts that of arrays."""

    def __post_init__(self) -> None:
        if self.validation is None:
            self.validation = self.test
        if isinstance(self.train, ArraySamples):
            self.features = self.features or math.prod(self.train.x.shape[1:])
        if not self.nbytes:
            parts = {id(part): part for part in (self.train, self.validation, self.test)}
            self.nbytes = sum(getattr(part, "nbytes", 0) for part in parts.values())


def split(inputs: Inputs, target: Array | None = None, *, test: float = 0.2, validation: float = 0.1, seed: int = 0) -> TrainingData:
    """Arrays divided at random, the same way on every rank."""
    whole = ArraySamples(inputs, target)
    order = drawn(len(whole), seed)
    tested = held_out(len(whole), test)
    watched = tested + held_out(len(whole), validation)
    return TrainingData(train=whole[order[watched:]], validation=whole[order[tested:watched]], test=whole[order[:tested]])
