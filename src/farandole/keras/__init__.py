"""The Keras 3 door, on TensorFlow, JAX or torch: `import farandole.keras as hvd` in a Horovod script, and it runs.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(optimizer, "mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from __future__ import annotations

from typing import Any

from farandole.comm import public as _public
from farandole.comm import world as _world
from farandole.comm.named.collectives import check_buffers_match
from farandole.comm.named.compression import Compression
from farandole.comm.public import *  # noqa: F403
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
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "check_buffers_match",
    "checkpoint",
    "init",
    "load_model",
    "reducescatter",
]
__all__ += _public.__all__


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start; see farandole.init. Under `farandole launch` the backend gets its share of the cores."""
    _world.init(comm, process_sets)
    _backend.limit_threads()
