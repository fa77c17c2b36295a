"""The TensorFlow 2 door: `import farandole.tensorflow as hvd` in a Horovod script, and it runs.

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""

from __future__ import annotations

from typing import Any

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
    check_buffers_match,
    join,
)
from farandole.comm.compression import Compression
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
from farandole.tensorflow.functions import broadcast_, broadcast_variables
from farandole.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    local_rank_op,
    local_size_op,
    rank_op,
    reducescatter,
    size_op,
)
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from farandole.tensorflow.threads import set_threads as _set_threads

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "Team",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "check_buffers_match",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "describe",
    "get_process_set",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start; see farandole.init. Under `farandole launch` TensorFlow gets its share of the cores."""
    _world.init(comm, process_sets)
    _set_threads()


def __getattr__(name: str) -> Any:
    """What needs Keras is loaded when first used: its backend may be another one."""
    if name == "SyncBatchNormalization":
        from farandole.tensorflow.norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "DistributedOptimizer":
        from farandole.keras.optimizer import DistributedOptimizer

        return DistributedOptimizer
    raise AttributeError(f"module 'farandole.tensorflow' has no attribute {name!r}")
