"""The Keras 3 door, on TensorFlow, JAX or torch: `import farandole.keras as hvd` in a Horovod script, and it runs.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(optimizer, "mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
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
from farandole.keras import backend as _backend

_backend.backend_name()

# Only now, with a Keras that fits.
from farandole.keras import callbacks, checkpoint  # noqa: E402
from farandole.keras.functions import (  # noqa: E402
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    load_model,
    reducescatter,
)
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer  # noqa: E402

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "Team",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_buffers_match",
    "checkpoint",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "describe",
    "get_process_set",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start; see farandole.init. Under `farandole launch` the backend gets its share of the cores."""
    _world.init(comm, process_sets)
    _backend.limit_threads()
