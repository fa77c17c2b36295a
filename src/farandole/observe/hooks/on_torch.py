"""PyTorch: DataLoader, the outermost module's forward, backward, optimizers, torch.distributed and DDP.

Modules are wrapped where they are called and not hooked one by one: what is inside another costs one comparison.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from farandole.observe.hooks.ddp import Exchanges
from farandole.observe.hooks.training import Patches, Training

__all__ = ["install"]

# By what they are called on the timeline.
_COLLECTIVES = {
    "ALLREDUCE": ("all_reduce", "all_reduce_coalesced", "reduce"),
    "BROADCAST": ("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"),
    "ALLGATHER": (
        "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_coalesced", "gather", "gather_object",
    ),
    "REDUCESCATTER": ("reduce_scatter", "reduce_scatter_tensor"),
    "ALLTOALL": ("all_to_all", "all_to_all_single"),
    "BARRIER": ("barrier", "monitored_barrier"),
    "SENDRECV": ("send", "recv", "batch_isend_irecv"),
}  # fmt: skip


def install(torch: Any, training: Training, patches: Patches) -> None:
    exchanges = Exchanges(torch, training)
    patches.replace(torch.nn.Module, "__call__", lambda original: _forward(torch, training, exchanges, original))
    patches.replace(torch.autograd, "backward", lambda original: _backward(training, exchanges, original))
    _watch_optimizers(sys.modules["torch.optim.optimizer"], training, patches)
    loading = torch.utils.data.dataloader
    for owner, name in ((loading._BaseDataLoaderIter, "__next__"), (loading.DataLoader, "__iter__")):
        patches.replace(owner, name, functools.partial(_data, training))
    if torch.distributed.is_available():
        _watch_collectives(torch.distributed, training, patches)


def _forward(torch: Any, training: Training, exchanges: Exchanges, original: Callable[..., Any]) -> Callable[..., Any]:
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # First: whoever compiles a model traces through here.
        if compiling() or training.inside or not training.recording() or isinstance(self, training.layers_of_keras):
            return original(self, *args, **kwargs)

        def told(start_ns: int) -> None:
            training.forward(start_ns, evaluates=not (torch.is_grad_enabled() and self.training))
            exchanges.seen(self)

        return training.outermost(told, original, self, *args, **kwargs)

    return __call__


def _backward(training: Training, exchanges: Exchanges, original: Callable[..., Any]) -> Callable[..., Any]:
    timed = training.timed("BACKWARD", original)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        result = timed(*args, **kwargs)
        exchanges.tell()
        return result

    return backward


def _watch_optimizers(optimizers: Any, training: Training, patches: Patches) -> None:
    """By torch's own hooks around every optimizer's step."""
    began_ns = 0

    def before(*_: Any) -> None:
        nonlocal began_ns
        if training.recording():
            began_ns = time.monotonic_ns()

    def after(optimizer: Any, *_: Any) -> None:
        if training.recording() and began_ns:
            training.span("OPTIMIZER", began_ns, time.monotonic_ns())
            training.stepped(optimizer)

    patches.on_undo(optimizers.register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(optimizers.register_optimizer_step_post_hook(after).remove)


def _data(training: Training, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(loader: Any) -> Any:
        # Keras' fit() times what it waits for itself.
        if training.in_fit or not training.recording():
            return original(loader)
        start_ns = time.monotonic_ns()
        found = original(loader)  # which at the end of an epoch is nothing, but an exception
        training.span("DATA", start_ns, time.monotonic_ns())
        return found

    return call


def _instead(ours: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    return ours


def _watch_collectives(distributed: Any, training: Training, patches: Patches) -> None:
    """In the package and in the module that it takes them from: scripts use either."""
    for name, functions in _COLLECTIVES.items():
        for function in functions:
            original = getattr(distributed, function, None)
            if original is None:
                continue
            ours = training.timed(name, original)
            for owner in (distributed, distributed.distributed_c10d):
                patches.replace(owner, function, functools.partial(_instead, ours))
    # What asynchronous ones are waited for with.
    patches.replace(distributed.Work, "wait", lambda original: training.timed("WAIT_FOR_COLLECTIVE", original))
