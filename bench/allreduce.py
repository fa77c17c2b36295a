"""An ad-hoc allreduce of a tensor, against MPI_Allreduce by hand: the input stays, the sum is a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest

__all__ = ["measure"]


def measure(ranks: Ranks, *, kib: list[int], budget_s: float) -> list[Case]:
    return [_case(ranks, size, budget_s) for size in kib]


def _case(ranks: Ranks, kib: int, budget_s: float) -> Case:
    what = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
    ranks.say(f"allreduce: {what} on {ranks.size} ranks")
    turns = _Turns(ranks, kib << 8)
    contestants = [
        Contestant(name=name, stages=[("", work)], check=turns.check, tidy=turns.drop)
        for name, work in (
            ("farandole", turns.ours),
            ("MPI_Allreduce", turns.into_fresh),
            ("MPI_Allreduce into a kept tensor", turns.into_kept),
        )
    ]
    samples = contest(ranks, contestants, budget_s=budget_s, most_rounds=400)
    return Case(what=f"allreduce {what}", samples=samples, notes={"kib": kib})


class _Turns:
    def __init__(self, ranks: Ranks, count: int) -> None:
        self._comm, self._op = ranks.comm, ranks.mpi.SUM
        values = torch.rand(count, generator=torch.Generator().manual_seed(7))
        self._tensor = values * (ranks.rank + 1)
        self._expected = values * (ranks.size * (ranks.size + 1) / 2)
        self._kept = torch.empty(count)
        self._result: Tensor | None = None

    def ours(self) -> None:
        self._result = hvd.allreduce(self._tensor, name="bench", op=hvd.Sum)

    def into_fresh(self) -> None:
        self._into(torch.empty_like(self._tensor))

    def into_kept(self) -> None:
        self._into(self._kept)

    def _into(self, result: Tensor) -> None:
        self._comm.Allreduce(self._tensor.numpy(), result.numpy(), self._op)
        self._result = result

    def check(self) -> None:
        torch.testing.assert_close(self._result, self._expected)

    def drop(self) -> None:
        self._result = None
