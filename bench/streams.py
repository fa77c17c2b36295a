"""Batches that one rank makes and four read in place, against copying each of them once."""

from __future__ import annotations

import numpy as np

import farandole as fd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest

__all__ = ["measure"]

DEPTH = 4
BATCHES = 8
"""Of a turn."""


def measure(ranks: Ranks, *, mib: int, budget_s: float) -> list[Case]:
    ranks.say(f"streams: batches of {mib} MiB for {ranks.size - 1} subscribers")
    turns = _Turns(ranks, mib << 20)
    contestants = [
        Contestant(name=name, stages=[("", work)], check=turns.check)
        for name, work in (("farandole", turns.stream), ("one memory copy each", turns.copies))
    ]
    samples = contest(ranks, contestants, budget_s=budget_s)
    return [Case(what=f"{BATCHES} batches of {mib} MiB", samples=samples), _next(ranks, budget_s)]


class _Turns:
    """Rank 0 produces; the others look at each batch without reading all of it."""

    def __init__(self, ranks: Ranks, nbytes: int) -> None:
        self._batch = np.ones(nbytes, np.uint8)
        self._copies = [np.empty_like(self._batch) for _ in range(DEPTH if ranks.rank == 0 else 0)]
        stream = fd.Stream("bench", {"x": self._batch}, depth=DEPTH, subscribers=ranks.size - 1)
        self._producer = stream.producer() if ranks.rank == 0 else None
        self._subscriber = None if ranks.rank == 0 else stream.subscribe()
        self._count = 0
        ranks.meet()

    def stream(self) -> None:
        for _ in range(BATCHES):
            if self._producer is not None:
                self._producer.put(x=self._batch)
            elif self._subscriber is not None:
                self._count += int(self._subscriber.next()["x"][-1])

    def copies(self) -> None:
        for number in range(BATCHES if self._copies else 0):
            np.copyto(self._copies[number % DEPTH], self._batch)

    def check(self) -> None:
        assert self._producer is not None or self._count % BATCHES == 0


def _next(ranks: Ranks, budget_s: float) -> Case:
    """On each rank alone: a batch that is there already."""
    stream = fd.Stream(f"next on rank {ranks.rank}", {"x": ((1000,), "float32")}, depth=DEPTH)
    subscriber, producer = stream.subscribe(), stream.producer()
    batch = np.zeros(1000, np.float32)

    def fill() -> None:
        subscriber.next()
        for _ in range(DEPTH - 1):
            producer.put(x=batch)

    def ours() -> None:
        for _ in range(DEPTH - 1):
            subscriber.next()

    def nothing() -> None:
        for _ in range(DEPTH - 1):
            batch.sum()

    producer.put(x=batch)
    producer.put(x=batch)
    subscriber.next()
    contestants = [
        Contestant(name="farandole", stages=[("", ours)], prepare=fill, tidy=lambda: producer.put(x=batch)),
        Contestant(name="nothing", stages=[("", nothing)]),
    ]
    samples = contest(ranks, contestants, budget_s=budget_s / 4)
    per_call = {name: [seconds / (DEPTH - 1) for seconds in values] for name, values in samples.items()}
    return Case(what="next() of a batch that is there", samples=per_call)
