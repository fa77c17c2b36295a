"""The PyTorch door: `import farandole.torch as hvd` in a Horovod script, and it runs.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""

from __future__ import annotations

import os
from typing import Any

import torch as _torch

from farandole.comm import public as _public
from farandole.comm import world as _world
from farandole.comm.named.collectives import join
from farandole.comm.public import *  # noqa: F403
from farandole.comm.streams.relay import relay
from farandole.launch.environment import given_threads as _given_threads
from farandole.torch import checkpoint, elastic
from farandole.torch import kernels as _kernels
from farandole.torch.channels import receive, receive_async, send, send_async, sendrecv
from farandole.torch.compression import Compression
from farandole.torch.functions import (
    average,
    broadcast_optimizer_state,
    broadcast_parameters,
    check_buffers_match,
    scale_learning_rate,
    shard,
    warmup,
)
from farandole.torch.norm import SyncBatchNorm
from farandole.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    gather_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from farandole.torch.optimizer import DistributedOptimizer
from farandole.torch.sparse import sparse_allreduce_async
from farandole.torch.streams import Stream

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "Stream",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "average",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_buffers_match",
    "checkpoint",
    "elastic",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "join",
    "poll",
    "receive",
    "receive_async",
    "reducescatter",
    "reducescatter_async",
    "relay",
    "scale_learning_rate",
    "send",
    "send_async",
    "sendrecv",
    "shard",
    "sparse_allreduce_async",
    "synchronize",
    "warmup",
]
__all__ += _public.__all__


_threads_at_import = _torch.get_num_threads()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start; see farandole.init. Under `farandole launch` torch gets its share of the cores, unless the script has
    called torch.set_num_threads() since it imported this module."""
    _world.init(comm, process_sets)
    _kernels.install()
    threads = _given_threads(os.environ)
    if threads is not None and _torch.get_num_threads() == _threads_at_import:
        _torch.set_num_threads(threads)
