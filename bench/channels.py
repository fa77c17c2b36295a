"""Arrays from rank to rank, against MPI_Isend and MPI_Irecv by hand, and against copying them once."""

from __future__ import annotations

import numpy as np

import farandole as fd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest

__all__ = ["measure"]

COMPUTES_S = 0.03


def measure(ranks: Ranks, *, kib: list[int], budget_s: float) -> list[Case]:
    return [*(_case(ranks, size, budget_s) for size in kib), _while_computing(ranks, 8 << 10, budget_s)]


def _case(ranks: Ranks, kib: int, budget_s: float) -> Case:
    what = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
    ranks.say(f"channels: {what}")
    turns = _Turns(ranks, kib << 10)
    names = {
        "farandole": turns.ours,
        "farandole into a new array": turns.ours_fresh,
        "MPI_Isend and MPI_Irecv": turns.mpi,
        "one memory copy": turns.copy,
    }
    contestants = [
        Contestant(name=name, stages=[("", work)], prepare=turns.forget, check=turns.check) for name, work in names.items()
    ]
    samples = contest(ranks, contestants, budget_s=budget_s, most_rounds=400)
    return Case(what=f"send and receive {what}", samples=samples, notes={"kib": kib})


def _while_computing(ranks: Ranks, kib: int, budget_s: float) -> Case:
    """The sender's turn ends once the send has begun; then it computes, and waits."""
    turns = _Turns(ranks, kib << 10)
    contestants = [
        Contestant(name=name, stages=[("", work)], prepare=turns.forget, tidy=turns.compute_and_wait)
        for name, work in (("farandole", turns.ours_begun), ("MPI_Isend and MPI_Irecv", turns.mpi_begun))
    ]
    samples = contest(ranks, contestants, budget_s=budget_s, most_rounds=100)
    return Case(what=f"receive {kib >> 10} MiB while the sender computes", samples=samples)


class _Turns:
    """From rank 0 to rank 1."""

    def __init__(self, ranks: Ranks, nbytes: int) -> None:
        self._ranks = ranks
        self._sends = ranks.rank == 0
        self._sent = np.arange(nbytes, dtype=np.uint8)
        self._kept = np.empty_like(self._sent)
        self._result = self._kept
        self._request = None
        self._handle = 0

    def forget(self) -> None:
        self._kept[::4096] = 0

    def ours(self) -> None:
        if self._sends:
            fd.send(self._sent, 1, "bench")
        else:
            self._result = fd.receive(0, "bench", out=self._kept)

    def ours_fresh(self) -> None:
        if self._sends:
            fd.send(self._sent, 1, "bench")
        else:
            self._result = fd.receive(0, "bench", like=self._sent)

    def ours_begun(self) -> None:
        if self._sends:
            self._handle = fd.send_async(self._sent, 1, "bench")
        else:
            self.ours()

    def mpi(self) -> None:
        self.mpi_begun()
        if self._sends:
            self._wait()

    def mpi_begun(self) -> None:
        if self._sends:
            self._request = self._ranks.comm.Isend(self._sent, 1)
        else:
            self._request = self._ranks.comm.Irecv(self._kept, 0)
            self._wait()
            self._result = self._kept

    def copy(self) -> None:
        if not self._sends:
            np.copyto(self._kept, self._sent)
            self._result = self._kept

    def _wait(self) -> None:
        while self._request is not None:
            if self._request.Test():
                self._request = None

    def compute_and_wait(self) -> None:
        if self._sends:
            numbers = np.random.default_rng(0).random((600, 600))
            for _ in range(int(COMPUTES_S / 5e-3)):
                numbers = numbers @ numbers / 600
            self._wait()
            fd.synchronize(self._handle)

    def check(self) -> None:
        assert self._sends or (self._result == self._sent).all()
