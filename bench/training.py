"""Training steps: ranks that do not communicate, farandole and DDP, on copies of one model in the same ranks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest
from bench.models import Workload, workload

__all__ = ["Trainer", "measure", "measure_timeline"]

ALONE, OURS, DDP, TUNED_DDP = "no communication", "farandole", "DDP", "DDP, bucket views, no buffers"


def measure(ranks: Ranks, *, model: str, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step, as mean of a block of steps."""
    work = workload(model, ranks.rank)
    ranks.say(f"{model}: {work.parameters:,} parameters on {ranks.size} ranks")
    ranks.join_gloo()
    trainers = [_alone(work), _ours(work), _ddp(work), _tuned_ddp(work)]
    contestants = [trainer.contestant(block_steps) for trainer in trainers]
    samples = contest(ranks, contestants, budget_s=budget_s)
    _check_same_weights(trainers)
    ranks.leave_gloo()
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in samples.items()}
    notes = {"parameters": work.parameters, "threads": torch.get_num_threads(), "block_steps": block_steps}
    return [Case(what=f"{model} step", samples=per_step, notes=notes)]


def measure_timeline(ranks: Ranks, *, model: str, block_steps: int, budget_s: float) -> list[Case]:
    """The same steps with and without a timeline that records them.

    A step before each turn is not timed: starting and stopping a timeline, which here happens in every round,
    makes the step after it 3 to 4% slower, even if nothing is recorded any more.
    """
    ranks.say(f"timeline: {model} on {ranks.size} ranks")
    trainer = _ours(workload(model, ranks.rank))

    def record() -> None:
        hvd.start_timeline(ranks.folder / "timeline.json")
        trainer.steps(1)

    contestants = [
        Contestant(
            name="timeline off",
            stages=[("", lambda: trainer.steps(block_steps))],
            prepare=lambda: trainer.steps(1),
        ),
        Contestant(
            name="timeline on",
            stages=[("", lambda: trainer.steps(block_steps))],
            prepare=record,
            tidy=hvd.stop_timeline,
        ),
    ]
    samples = contest(ranks, contestants, budget_s=budget_s, most_rounds=2000)
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in samples.items()}
    return [Case(what=f"{model} step, timeline on", samples=per_step, notes={"block_steps": block_steps})]


class Trainer:
    """A model in training by one of the contestants."""

    def __init__(
        self, name: str, work: Workload, model: nn.Module, wrap: Callable[[nn.Module], nn.Module]
    ) -> None:
        self.name = name
        self.model = model
        self._inputs, self._labels = work.inputs, work.labels
        self._forward = wrap(model)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def contestant(self, block_steps: int) -> Contestant:
        return Contestant(name=self.name, stages=[("", lambda: self.steps(block_steps))])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss: Any = cross_entropy(self._forward(self._inputs), self._labels)
            loss.backward()
            self.optimizer.step()


def _alone(work: Workload) -> Trainer:
    return Trainer(ALONE, work, copy.deepcopy(work.model), lambda model: model)


def _ours(work: Workload) -> Trainer:
    trainer = Trainer(OURS, work, copy.deepcopy(work.model), lambda model: model)
    trainer.optimizer = hvd.DistributedOptimizer(trainer.optimizer, trainer.model.named_parameters())
    hvd.broadcast_parameters(trainer.model.state_dict(), root_rank=0)
    return trainer


def _ddp(work: Workload) -> Trainer:
    return Trainer(DDP, work, copy.deepcopy(work.model), DistributedDataParallel)


def _tuned_ddp(work: Workload) -> Trainer:
    """Without the copies and broadcasts that DDP makes unless told otherwise."""

    def wrap(model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            # Newer versions of torch have another name for it, which older ones do not know.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)

    return Trainer(TUNED_DDP, work, copy.deepcopy(work.model), wrap)


def _check_same_weights(trainers: list[Trainer]) -> None:
    """Whoever averaged the same gradients as often has the same weights now."""
    ours, peers = trainers[1], trainers[2:]
    for peer in peers:
        for (name, mine), theirs in zip(ours.model.named_parameters(), peer.model.parameters()):
            if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4):
                apart = float((mine - theirs).abs().max())
                raise AssertionError(f"{name}: the weights of farandole and {peer.name} are {apart:g} apart")
