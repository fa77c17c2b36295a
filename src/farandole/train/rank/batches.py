"""Batches of a rank, as arrays, and how long training waited for them.

A rank that emulates others does their batches in turn: rank r of n takes those of ranks r, r + n, r + 2n, ... of a
step before it goes to the next. Random numbers follow the same rule, so that an emulated step is the same as a real one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from farandole.errors import DataError, TrainingError
from farandole.observe import timeline
from farandole.observe.hooks.training import TRAINING
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
        self.stall_s = 0.0
        """In which training waited for its batches."""
        self.tells = False
        """Whether these waits go on the timeline: hooks of frameworks tell of them otherwise."""
        self._trains = threading.get_ident()
        self._plan, self._where = plan, f"[rank {rank}/{size}]"
        self._stands_for = range(rank, plan.ranks, size)
        self._source: _Rows | _Ahead | _Streamed
        if isinstance(samples, Stream):
            self._source = _Streamed(samples, plan)
        else:
            kind = _Ahead if hasattr(samples, "batches") else _Rows
            self._source = kind(samples, plan, seed, shuffle, self._stands_for)

    def __len__(self) -> int:
        return self._plan.steps * self._plan.passes

    def __getitem__(self, index: int) -> Batch:
        step, emulated = divmod(index, self._plan.passes)
        began_ns = time.monotonic_ns()
        try:
            return self._source.batch(self.epoch, step, self._stands_for[emulated])
        except DataError as error:  # of one rank alone, where files are read while they are trained on
            raise TrainingError(f"{self._where} {error}") from error
        finally:
            self._waited(began_ns)

    def _waited(self, began_ns: int) -> None:
        """Only where training takes the batch itself: a framework may make it ahead, in a thread of its own."""
        if threading.get_ident() != self._trains:
            return
        ended_ns = time.monotonic_ns()
        self.stall_s += (ended_ns - began_ns) / 1e9
        if self.tells:
            timeline.span(TRAINING, "DATA", began_ns, ended_ns)

    def trained_as(self, index: int) -> int:
        """The rank that batch number `index` of an epoch is of: another one where ranks are emulated."""
        return self._stands_for[index % self._plan.passes]


class _Rows:
    """Of samples that are known by number: every epoch has an order of its own."""

    def __init__(self, samples: Samples, plan: Plan, seed: int, shuffle: bool, stands_for: range) -> None:
        self._samples, self._plan, self._seed, self._shuffle, self._stands_for = samples, plan, seed, shuffle, stands_for
        self._drawn: dict[int, list[Rows]] = {}
        self._epoch = -1

    def batch(self, epoch: int, step: int, rank: int) -> Batch:
        return self._samples.batch(self.rows(epoch, step, rank))

    def rows(self, epoch: int, step: int, rank: int) -> Rows:
        if epoch != self._epoch:
            self._epoch, self._drawn = epoch, {}
        if rank not in self._drawn:
            self._drawn[rank] = orders(
                self._plan, len(self._samples), epoch, seed=self._seed, shuffle=self._shuffle, rank=rank
            )
        return self._drawn[rank][step]


class _Ahead(_Rows):
    """Of samples that make batches before they are asked for, and are told which ones an epoch takes."""

    _next: tuple[int, int, int] | None = None
    _made: Iterator[Batch] = iter(())

    def batch(self, epoch: int, step: int, rank: int) -> Batch:
        if self._next != (epoch, step, rank):
            first = step * self._plan.passes + self._stands_for.index(rank)
            places = [divmod(number, self._plan.passes) for number in range(first, self._plan.steps * self._plan.passes)]
            wanted = [self.rows(epoch, step, self._stands_for[emulated]) for step, emulated in places]
            self._made = self._samples.batches(epoch, wanted)  # type: ignore[attr-defined]
        later, emulated = divmod(step * self._plan.passes + self._stands_for.index(rank) + 1, self._plan.passes)
        self._next = (epoch, later, self._stands_for[emulated])
        return next(self._made)


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
        self.in_turn = self.streamed or hasattr(samples, "batches")
        """Whether going through them is the way to take them."""
        self._rows = np.arange(0) if self.streamed else np.arange(rank, len(samples), size)
        if most:
            self._rows = self._rows[: most * batch]

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch)

    def __getitem__(self, index: int) -> Batch:
        assert not isinstance(self._samples, Stream)
        return self._samples.batch(self._of(index))

    def _of(self, index: int) -> Rows:
        return self._rows[index * self._batch : (index + 1) * self._batch]

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self._samples, Stream):
            batches = self._samples.batches(0, self._rank, self._size, self._batch)
            return itertools.islice(batches, self._most or None)
        if self.in_turn:
            made: Iterator[Batch] = self._samples.batches(0, [self._of(index) for index in range(len(self))])  # type: ignore[attr-defined]
            return made
        return (self[index] for index in range(len(self)))


def batch_length(arrays: Any) -> int:
    """Samples in a batch: rows of its first array."""
    if isinstance(arrays, dict):
        arrays = next(iter(arrays.values()))
    elif isinstance(arrays, (tuple, list)):
        arrays = arrays[0]
    return len(arrays)
