"""Contestants take turns on the same ranks, so that whatever else happens happens to all of them.

A round gives each contestant one turn. Before a turn all ranks meet. A turn lasts from the moment at which
the last rank starts until the last one is done (the ranks of one node read the same clock), so that it does
not matter how precisely they have met. The first rounds are dropped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Contestant", "Ranks", "contest"]

_DROPPED_ROUNDS = 2
_FEWEST_ROUNDS = 5


def _nothing() -> None:
    return


@dataclass(kw_only=True, slots=True)
class Contestant:
    """One way to do the work."""

    name: str
    stages: Sequence[tuple[str, Callable[[], object]]]
    """(suffix of the name, work): timed from the start of the first to the end of each."""
    prepare: Callable[[], object] = _nothing
    """Before each turn, not timed."""
    tidy: Callable[[], object] = _nothing
    """After each turn, not timed."""
    check: Callable[[], object] = _nothing
    """After each of the dropped turns: raises where the work was not done right."""


class Ranks:
    """All ranks of this run, as a benchmark needs them: beside farandole, with MPI at hand."""

    def __init__(self, folder: Path) -> None:
        """farandole has been initialised; `folder` is shared by all ranks, for files of a moment."""
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD.Dup()
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self.folder = folder

    def meet(self) -> None:
        """A barrier that leaves the core to whoever is late."""
        request = self.comm.Ibarrier()
        while not request.Test():
            os.sched_yield()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def join_gloo(self) -> None:
        """Make torch.distributed's process group of the same ranks."""
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{self.folder}/gloo", rank=self.rank, world_size=self.size
        )

    def leave_gloo(self) -> None:
        import torch.distributed as dist

        self.meet()
        dist.destroy_process_group()


def contest(
    ranks: Ranks, contestants: Sequence[Contestant], *, budget_s: float, most_rounds: int = 200
) -> dict[str, list[float]]:
    """Seconds of each contestant's stages, by `name + suffix`; as many rounds as fit the budget."""
    for number in range(_DROPPED_ROUNDS):
        began = time.perf_counter()
        _round(ranks, contestants, number, checked=True)
    round_s = time.perf_counter() - began
    rounds = ranks.comm.bcast(int(np.clip(budget_s / round_s, _FEWEST_ROUNDS, most_rounds)))
    turns = [_round(ranks, contestants, number) for number in range(rounds)]
    samples: dict[str, list[float]] = {}
    for contestant in contestants:
        stamps = np.array([turn[contestant.name] for turn in turns])  # (rounds, 1 + stages)
        last = np.max(ranks.comm.allgather(stamps), axis=0)
        for stage, (suffix, _) in enumerate(contestant.stages, 1):
            samples[contestant.name + suffix] = (last[:, stage] - last[:, 0]).tolist()
    return samples


def _round(
    ranks: Ranks, contestants: Sequence[Contestant], number: int, *, checked: bool = False
) -> dict[str, list[float]]:
    """One turn for each; who goes first, and in which direction, changes from round to round."""
    first = (number // 2) % len(contestants)
    order = [*contestants[first:], *contestants[:first]]
    stamps: dict[str, list[float]] = {}
    for contestant in order if number % 2 == 0 else reversed(order):
        contestant.prepare()
        ranks.meet()
        stamps[contestant.name] = _turn(contestant)
        if checked:
            contestant.check()
        contestant.tidy()
    return stamps


def _turn(contestant: Contestant) -> list[float]:
    stamps = [time.perf_counter()]
    for _, work in contestant.stages:
        work()
        stamps.append(time.perf_counter())
    return stamps
