"""Farandole: train neural networks on MPI machines, and know where every second and joule goes.

The framework-neutral API: ranks, and collectives on NumPy arrays. Importing it starts nothing; `init()`
does. `farandole.torch` is the door for PyTorch.

    import farandole, numpy as np
    farandole.init()
    print(farandole.allreduce(np.ones(3), op=farandole.Sum))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "comm.world": (
        "add_process_set",
        "cross_rank",
        "cross_size",
        "describe",
        "get_process_set",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "remove_process_set",
        "shutdown",
        "size",
        "start_timeline",
        "stop_timeline",
    ),
    "comm.named.process_sets": ("ProcessSet", "global_process_set"),
    "comm.named.compression": ("Compression",),
    "comm.world.energy": ("job_energy",),
    "comm.world.probes": (
        "ccl_built",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rocm_built",
    ),
    "comm.channels.channels": ("receive", "receive_async", "send", "send_async", "sendrecv"),
    "comm.streams.streams": ("Stream",),
    "comm.streams.relay": ("relay",),
    "comm.named.collectives": (
        "Adasum",
        "Average",
        "Max",
        "Min",
        "Product",
        "Sum",
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
        "check_buffers_match",
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
        "join",
        "poll",
        "reducescatter",
        "reducescatter_async",
        "synchronize",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]

if TYPE_CHECKING:
    from farandole import observe as observe
    from farandole.comm.channels.channels import *  # noqa: F403
    from farandole.comm.named.collectives import *  # noqa: F403
    from farandole.comm.named.compression import Compression as Compression
    from farandole.comm.named.process_sets import ProcessSet as ProcessSet
    from farandole.comm.named.process_sets import global_process_set as global_process_set
    from farandole.comm.streams.relay import relay as relay
    from farandole.comm.streams.streams import Stream as Stream
    from farandole.comm.world import *  # noqa: F403
    from farandole.comm.world.energy import job_energy as job_energy
    from farandole.comm.world.probes import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Names are loaded when first used, so that importing the package costs nothing."""
    if name == "observe":
        return import_module("farandole.observe")
    if name not in _HOME:
        raise AttributeError(f"module 'farandole' has no attribute {name!r}")
    value = getattr(import_module(f"farandole.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
