"""What the engine costs while the program sleeps, and while it waits for a rank that comes late."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Ranks

__all__ = ["measure"]


def measure(ranks: Ranks, *, sleep_s: float) -> list[Case]:
    """The share of a core that each rank's threads use; they have all been at work before."""
    ranks.say(f"idle: {sleep_s:g} s on {ranks.size} ranks")
    _wake_every_thread()
    idle = _shares(ranks, lambda: time.sleep(sleep_s))
    waiting = _shares(ranks, lambda: _wait_for_the_last(ranks, sleep_s))[:-1]
    return [
        Case(what="engine idle", samples={"farandole": idle}),
        Case(what=f"waiting {sleep_s:g} s for a late rank", samples={"farandole": waiting}),
    ]


def _shares(ranks: Ranks, action: Callable[[], None]) -> list[float]:
    ranks.meet()
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    action()
    used = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
    return list(ranks.comm.allgather(used))


def _wait_for_the_last(ranks: Ranks, sleep_s: float) -> None:
    if ranks.rank == ranks.size - 1:
        time.sleep(sleep_s)
    hvd.allreduce(torch.ones(1), name="bench")


def _wake_every_thread() -> None:
    model = torch.nn.Linear(1024, 1024)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    for _ in range(3):
        model(torch.ones(8, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hvd.synchronize(hvd.allreduce_async(torch.ones(8), name="bench"))
