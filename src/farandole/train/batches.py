"""Batches of a rank, as Keras takes them.

A rank that emulates others does their batches in turn: rank r of n takes those of ranks r, r + n, r + 2n, ... of a
step before it goes to the next. Together with `seeds.py` this makes an emulated step the same as a real one.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from farandole.benchmarks.samples import Rows, Samples
from farandole.train.orders import orders
from farandole.train.plan import Plan

__all__ = ["EvaluationBatches", "TrainingBatches"]


class TrainingBatches(keras.utils.PyDataset):
    """One rank's batches; `epoch` is set before each epoch."""

    def __init__(
        self, samples: Samples, plan: Plan, *, seed: int, shuffle: bool, rank: int, size: int
    ) -> None:
        super().__init__()
        self.epoch = 0
        self.at_hand = getattr(samples, "at_hand", False)
        self._samples, self._plan = samples, plan
        self._seed, self._shuffle = seed, shuffle
        self._stands_for = range(rank, plan.ranks, size)
        self._drawn: tuple[int, list[list[Rows]]] = (-1, [])

    def __len__(self) -> int:
        return self._plan.steps * self._plan.passes

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        step, emulated = divmod(index, self._plan.passes)
        return self._samples.batch(self._orders()[emulated][step])

    def _orders(self) -> list[list[Rows]]:
        epoch, found = self._drawn
        if epoch != self.epoch:
            found = [self._order(rank) for rank in self._stands_for]
            self._drawn = (self.epoch, found)
        return found

    def _order(self, rank: int) -> list[Rows]:
        rows = len(self._samples)
        return orders(self._plan, rows, self.epoch, seed=self._seed, shuffle=self._shuffle, rank=rank)


class EvaluationBatches(keras.utils.PyDataset):
    """This rank's share of some samples, in order; it may be empty."""

    def __init__(self, samples: Samples, batch: int, *, rank: int, size: int, most: int = 0) -> None:
        super().__init__()
        self._samples, self._batch = samples, batch
        self._rows = np.arange(rank, len(samples), size)
        if most:
            self._rows = self._rows[: most * batch]

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._samples.batch(self._rows[index * self._batch : (index + 1) * self._batch])
