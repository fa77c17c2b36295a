"""One parameter server and three workers, against the same workers (and all four ranks) without a server.

The server is synchronous, as ours is: a step ends when every worker has the new weights. It is given what such a
server can have over MPI: workers send each gradient as backward completes it; the server adds the workers'
gradients of a parameter once all have come, updates it, and sends it back while others are still on their way.
Whoever waits does so as farandole's ranks do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest
from bench.models import Workload, workload
from bench.training import Trainer
from farandole.comm.bytes.waiting import Subject, wait_until

__all__ = ["measure", "race"]

OURS, SERVER = "farandole", "parameter server"
_EVERYONE = "farandole, all ranks"
_SERVER_RANK = 0
_RATE = 0.01


def measure(ranks: Ranks, *, block_steps: int, budget_s: float) -> list[Case]:
    """The MLP of the other benchmarks."""
    return race(ranks, workload("mlp", ranks.rank), block_steps=block_steps, budget_s=budget_s)


def race(ranks: Ranks, work: Workload, *, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step on the workers; seconds for each batch on all ranks."""
    workers = [rank for rank in range(ranks.size) if rank != _SERVER_RANK]
    ranks.say(f"parameter server: {work.parameters:,} parameters, {len(workers)} workers")
    trainers = _trainers(ranks, work, hvd.add_process_set(workers))
    contestants = [
        Contestant(name=name, stages=[("", _block(steps, block_steps))])
        for name, (steps, _) in trainers.items()
    ]
    for steps, _ in trainers.values():
        steps(block_steps)
    _check_same_weights(trainers[OURS][1], trainers[SERVER][1])
    samples = contest(ranks, contestants, budget_s=budget_s)
    notes = {"parameters": work.parameters, "threads": torch.get_num_threads(), "block_steps": block_steps}
    step_s = {name: [s / block_steps for s in samples[name]] for name in (OURS, SERVER)}
    batch_s = {
        OURS: [s / block_steps / ranks.size for s in samples[_EVERYONE]],
        SERVER: [s / len(workers) for s in step_s[SERVER]],
    }
    return [
        Case(what=f"{work.name} step, {len(workers)} workers", samples=step_s, notes=notes),
        Case(what=f"{work.name} seconds a batch, {ranks.size} ranks", samples=batch_s, notes=notes),
    ]


_Steps = Callable[[int], None]


def _trainers(
    ranks: Ranks, work: Workload, workers: hvd.ProcessSet
) -> dict[str, tuple[_Steps, nn.Module | None]]:
    """What this rank does for each contestant, and the weights it trains."""
    everyone = _ours(work, hvd.global_process_set)
    if ranks.rank == _SERVER_RANK:
        server = _Server(ranks, work.model)
        return {
            OURS: (lambda _: None, None),
            SERVER: (server.steps, None),
            _EVERYONE: (everyone.steps, everyone.model),
        }
    ours, remote = _ours(work, workers), _worker(ranks, work)
    return {
        name: (trainer.steps, trainer.model)
        for name, trainer in ((OURS, ours), (SERVER, remote), (_EVERYONE, everyone))
    }


def _block(steps: _Steps, count: int) -> Callable[[], None]:
    return lambda: steps(count)


def _ours(work: Workload, process_set: hvd.ProcessSet) -> Trainer:
    trainer = Trainer(OURS, work, copy.deepcopy(work.model), lambda model: model)
    trainer.optimizer = hvd.DistributedOptimizer(
        trainer.optimizer, trainer.model.named_parameters(), process_set=process_set
    )
    return trainer


def _worker(ranks: Ranks, work: Workload) -> Trainer:
    trainer = Trainer(SERVER, work, copy.deepcopy(work.model), lambda model: model)
    trainer.optimizer = _Remote(ranks, trainer.model)
    return trainer


class _Remote(torch.optim.SGD):
    """A worker's optimizer: gradients go to the server as they are made, weights come back."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=_RATE)
        self._ranks = ranks
        self._parameters = list(model.parameters())
        self._sent: list[Any] = []
        for tag, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._sender(tag))

    def _sender(self, tag: int) -> Callable[[Tensor], None]:
        def send(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._sent.append(self._ranks.comm.Isend(parameter.grad.numpy(), _SERVER_RANK, tag))

        return send

    def step(self, closure: Any = None) -> None:
        received = [
            self._ranks.comm.Irecv(parameter.detach().numpy(), _SERVER_RANK, tag)
            for tag, parameter in enumerate(self._parameters)
        ]
        _wait(self._ranks, [*self._sent, *received])
        self._sent.clear()


class _Server:
    """Holds the weights."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self._ranks = ranks
        self._parameters = [parameter.detach().clone() for parameter in model.parameters()]
        self._workers = [rank for rank in range(ranks.size) if rank != _SERVER_RANK]
        self._gradients = [[torch.empty_like(p) for _ in self._workers] for p in self._parameters]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        pending = [
            [
                self._ranks.comm.Irecv(gradient.numpy(), worker, tag)
                for worker, gradient in zip(self._workers, gradients)
            ]
            for tag, gradients in enumerate(self._gradients)
        ]
        sent: list[Any] = []
        for tag in reversed(range(len(self._parameters))):  # as backward makes them
            _wait(self._ranks, pending[tag])
            self._update(tag)
            weights = self._parameters[tag].numpy()
            sent += [self._ranks.comm.Isend(weights, worker, tag) for worker in self._workers]
        _wait(self._ranks, sent)

    def _update(self, tag: int) -> None:
        total, *others = self._gradients[tag]
        for gradient in others:
            total.add_(gradient)
        self._parameters[tag].sub_(total, alpha=_RATE / len(self._workers))


def _wait(ranks: Ranks, requests: list[Any]) -> None:
    wait_until(
        lambda: ranks.mpi.Request.Testall(requests), Subject("parameter server", tuple(range(ranks.size)))
    )


def _check_same_weights(ours: nn.Module | None, theirs: nn.Module | None) -> None:
    """Whoever averaged the same gradients has the same weights, as long as roundings have not grown over many steps."""
    if ours is None or theirs is None:
        return
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters()):
        if not torch.allclose(mine, other, rtol=1e-5, atol=1e-7):
            apart = float((mine - other).detach().abs().max())
            raise AssertionError(
                f"{name}: the weights of farandole and of the server's worker are {apart:g} apart"
            )
