"""Training steps on two hosts with a slow link between them: farandole and DDP, with 32 and with 16 bits on the wire."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Ranks, contest
from bench.models import Workload, workload
from bench.training import Trainer

__all__ = ["measure"]

OURS, OURS_16, DDP, DDP_16 = "farandole", "farandole, 16 bits", "DDP", "DDP, 16 bits"


def measure(ranks: Ranks, *, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of the MLP's step, as mean of a block of steps."""
    work = workload("mlp", ranks.rank)
    ranks.say(f"hosts: {work.parameters:,} parameters on {ranks.size} ranks of {hvd.cross_size()} hosts")
    ranks.join_gloo()
    trainers = [
        _ours(OURS, work, hvd.Compression.none),
        _ours(OURS_16, work, hvd.Compression.fp16),
        Trainer(DDP, work, copy.deepcopy(work.model), DistributedDataParallel),
        Trainer(DDP_16, work, copy.deepcopy(work.model), _ddp_16),
    ]
    samples = contest(ranks, [trainer.contestant(block_steps) for trainer in trainers], budget_s=budget_s)
    _check_same_weights(trainers)
    ranks.leave_gloo()
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in samples.items()}
    notes = {"parameters": work.parameters, "threads": torch.get_num_threads(), "block_steps": block_steps}
    return [Case(what="mlp step", samples=per_step, notes=notes)]


def _ours(name: str, work: Workload, compression: type[hvd.Compression.none]) -> Trainer:
    trainer = Trainer(name, work, copy.deepcopy(work.model), lambda model: model)
    trainer.optimizer = hvd.DistributedOptimizer(
        trainer.optimizer, trainer.model.named_parameters(), compression=compression
    )
    hvd.broadcast_parameters(trainer.model.state_dict(), root_rank=0)
    return trainer


def _ddp_16(model: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped


def _check_same_weights(trainers: list[Trainer]) -> None:
    """All have averaged the same gradients as often, two of them rounded to 16 bits."""
    first, *others = trainers
    for other in others:
        for (name, mine), theirs in zip(first.model.named_parameters(), other.model.parameters()):
            if not torch.allclose(mine, theirs, rtol=1e-2, atol=1e-3):
                apart = float((mine - theirs).abs().max())
                raise AssertionError(f"{name}: the weights of {first.name} and {other.name} are {apart:g} apart")
