"""The TensorFlow 2 door: `import farandole.tensorflow as hvd` in a Horovod script, and it runs.

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""

from __future__ import annotations

from typing import Any

from farandole.comm import public as _public
from farandole.comm import world as _world
from farandole.comm.named.collectives import check_buffers_match, join
from farandole.comm.named.compression import Compression
from farandole.comm.public import *  # noqa: F403
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
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",  # noqa: F405
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_variables",
    "check_buffers_match",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += _public.__all__


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
