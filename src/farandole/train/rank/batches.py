"""Batches of a rank, as arrays.

A rank that emulates others does their batches in turn: rank r of n takes those of ranks r, r + n, r + 2n, ... of a
step before it goes to the next. Random numbers follow the same rule, so that an emulated step is the same as a real one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from farandole.errors import TrainingError
from farandole.train.plan import Plan
from farandole.train.rank.orders import orders
from farandole.workloads.samples import Rows, Samples, Stream

__all__ = ["Batch", "EvaluationBatches", "TrainingBatches", "batch_length"]

Batch = tuple[Any, Any]
"""Inputs and targets."""


class TrainingBatches:
    """One rank's batches; `epoch` is set before each epoch, whose batches are taken in order."""

    def __init__(self, samples: Samples | Stream, plan: Plan, *, seed: int, shuffle: bool, rank: int, size: int) -> None:
        self.epoch = 0
        self.at_hand = getattr(samples, "at_hand", False)
        self._plan = plan
        self._source: _Rows | _Streamed = (
            _Streamed(samples, plan) if isinstance(samples, Stream) else _Rows(samples, plan, seed, shuffle)
        )
        self._stands_for = range(rank, plan.ranks, size)

    def __len__(self) -> int:
        return self._plan.steps * self._plan.passes

    def __getitem__(self, index: int) -> Batch:
        step, emulated = divmod(index, self._plan.passes)
        return self._source.batch(self.epoch, step, self._stands_for[emulated])

    def trained_as(self, index: int) -> int:
        """The rank that batch number `index` of an epoch is of: another one where ranks are emulated."""
        return self._stands_for[index % self._plan.passes]


class _Rows:
    """Of samples that are known by number: every epoch has an order of its own."""

    def __init__(self, samples: Samples, plan: Plan, seed: int, shuffle: bool) -> None:
        self._samples, self._plan, self._seed, self._shuffle = samples, plan, seed, shuffle
        self._drawn: dict[int, list[Rows]] = {}
        self._epoch = -1

    def batch(self, epoch: int, step: int, rank: int) -> Batch:
        if epoch != self._epoch:
            self._epoch, self._drawn = epoch, {}
        if rank not in self._drawn:
            self._drawn[rank] = orders(
                self._plan, len(self._samples), epoch, seed=self._seed, shuffle=self._shuffle, rank=rank
            )
        return self._samples.batch(self._drawn[rank][step])


class _Streamed:
    """Of a stream, which is read from its beginning in every epoch."""

    def __init__(self, stream: Stream, plan: Plan) -> None:
        self._stream, self._plan = stream, plan
        self._open: dict[int, tuple[int, int, Iterator[Batch]]] = {}

    def batch(self, epoch: int, step: int, rank: int) -> Batch:
        of_epoch, taken, batches = self._open.get(rank, (-1, 0, iter(())))
        if (of_epoch, taken) != (epoch, step):
            batches = self._stream.batches(epoch, rank, self._plan.ranks, self._plan.local_batch)
            for number in range(step):
                self._next(batches, number, rank)
        found = self._next(batches, step, rank)
        self._open[rank] = (epoch, step + 1, batches)
        return found

    def _next(self, batches: Iterator[Batch], number: int, rank: int) -> Batch:
        try:
            return next(batches)
        except StopIteration:
            raise TrainingError(
                f"the stream of training samples has ended after {number} batches on rank {rank}, of {self._plan.steps} in an epoch. "
                "Stream(samples=...) says how many samples all ranks have together: give a smaller number, or train_steps."
            ) from None


class EvaluationBatches:
    """This rank's share of some samples, in order; it may be empty. A stream's can be gone through and nothing else."""

    at_hand = False

    def __init__(self, samples: Samples | Stream, batch: int, *, rank: int, size: int, most: int = 0) -> None:
        self._samples, self._batch, self._rank, self._size, self._most = samples, batch, rank, size, most
        self.streamed = isinstance(samples, Stream)
        self._rows = np.arange(0) if self.streamed else np.arange(rank, len(samples), size)
        if most:
            self._rows = self._rows[: most * batch]

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch)

    def __getitem__(self, index: int) -> Batch:
        assert not isinstance(self._samples, Stream)
        return self._samples.batch(self._rows[index * self._batch : (index + 1) * self._batch])

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self._samples, Stream):
            batches = self._samples.batches(0, self._rank, self._size, self._batch)
            return itertools.islice(batches, self._most or None)
        return (self[index] for index in range(len(self)))


def batch_length(arrays: Any) -> int:
    """Samples in a batch: rows of its first array."""
    if isinstance(arrays, dict):
        arrays = next(iter(arrays.values()))
    elif isinstance(arrays, (tuple, list)):
        arrays = arrays[0]
    return len(arrays)
