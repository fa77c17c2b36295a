"""A user's training script, for farandole or for DDP; writes the seconds of its steps. To run it:

    farandole launch -n 2 -- python -m bench.shipped farandole 20 steps.json
    torchrun --nproc-per-node 2 -m bench.shipped ddp 20 steps.json

Memory, threads and network are as the launchers and libraries leave them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from bench.models import workload

__all__ = ["main"]

_DROPPED_STEPS = 3


def main(kind: str, steps: str, out: str) -> None:
    rank, model, inputs, labels, optimizer = _with_farandole() if kind == "farandole" else _with_ddp()
    seconds = []
    for _ in range(_DROPPED_STEPS + int(steps)):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        Path(out).write_text(json.dumps(seconds[_DROPPED_STEPS:]))
    if kind == "ddp":
        dist.destroy_process_group()


_Training = tuple[int, nn.Module, torch.Tensor, torch.Tensor, torch.optim.Optimizer]


def _with_farandole() -> _Training:
    hvd.init()
    work = workload("mlp", hvd.rank())
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.01)
    wrapped = hvd.DistributedOptimizer(optimizer, work.model.named_parameters())
    hvd.broadcast_parameters(work.model.state_dict(), root_rank=0)
    return hvd.rank(), work.model, work.inputs, work.labels, wrapped


def _with_ddp() -> _Training:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    work = workload("mlp", dist.get_rank())
    model = DistributedDataParallel(work.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return dist.get_rank(), model, work.inputs, work.labels, optimizer


if __name__ == "__main__":
    main(*sys.argv[1:])
