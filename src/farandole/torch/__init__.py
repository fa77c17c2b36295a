"""The PyTorch door: `import farandole.torch as hvd` in a Horovod script, and it runs.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""

from __future__ import annotations

import os
from typing import Any

import torch as _torch

from farandole.comm import world as _world
from farandole.comm.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    join,
)
from farandole.comm.probes import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from farandole.comm.process_sets import ProcessSet, global_process_set
from farandole.comm.relay import relay
from farandole.comm.team import Team
from farandole.comm.world import (
    add_process_set,
    cross_rank,
    cross_size,
    describe,
    get_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from farandole.errors import HorovodInternalError
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
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Stream",
    "Sum",
    "SyncBatchNorm",
    "Team",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "average",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "check_buffers_match",
    "checkpoint",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "describe",
    "elastic",
    "gather",
    "gather_async",
    "get_process_set",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "receive",
    "receive_async",
    "reducescatter",
    "reducescatter_async",
    "relay",
    "remove_process_set",
    "rocm_built",
    "scale_learning_rate",
    "send",
    "send_async",
    "sendrecv",
    "shard",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "warmup",
]


_threads_at_import = _torch.get_num_threads()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start; see farandole.init. Under `farandole launch` torch gets its share of the cores, unless the script has
    called torch.set_num_threads() since it imported this module."""
    _world.init(comm, process_sets)
    _kernels.install()
    threads = _given_threads(os.environ)
    if threads is not None and _torch.get_num_threads() == _threads_at_import:
        _torch.set_num_threads(threads)
