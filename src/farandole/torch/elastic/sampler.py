"""A sampler that knows how much of the epoch is done, and deals the rest out to any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from farandole.comm.world import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(Sampler[int]):
    """This rank's share of what is left of an epoch.

    Call `record_batch()` after every batch and `set_epoch()` at the end of every epoch. Shares are of the same
    length on all ranks: where samples do not divide, some of the epoch's first are taken twice. On the same number
    of ranks, an epoch that was interrupted goes on with the very batches it would have had.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        """Samples of the epoch that are done, on all ranks together: the first ones of its order."""
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is done."""
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank has done a batch. Ranks take samples in turn, so that a count says which."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out what is left to the ranks there are now."""
        self.num_replicas, self.rank = size(), rank()
        order = self._order()
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        # Filled up from the epoch's start, not from what is left: an interruption must not change the batches.
        filled = itertools.chain(self.remaining_indices, itertools.cycle(order))
        self.indices = list(itertools.islice(filled, self.rank, self.total_size, self.num_replicas))

    def _order(self) -> list[int]:
        """All samples in the order of this epoch, the same on every rank."""
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(len(self.dataset), generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
