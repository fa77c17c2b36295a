"""Starting all ranks from the same state, keeping and checking it, and dealing data out to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from farandole.comm.named import collectives
from farandole.comm.named.collectives import broadcast_object
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.errors import SettingsError
from farandole.optim import scaled_rate, warmup_factor
from farandole.torch.ops import allreduce_, broadcast_async_, synchronize
from farandole.torch.sparse import as_sparse
from farandole.torch.tensors import as_array

__all__ = [
    "average",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_buffers_match",
    "scale_learning_rate",
    "shard",
    "warmup",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]] | Iterable[torch.Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the root's values: `model.state_dict()`, named parameters, or a list of tensors. Collective."""
    pairs = sorted(params.items()) if isinstance(params, Mapping) else _pairs(params)
    handles = [
        broadcast_async_(tensor, root_rank, f"parameters.{name}", process_set)
        for name, tensor in pairs
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def _pairs(params: Any) -> list[tuple[str, Any]]:
    wanted = "model.state_dict() or model.named_parameters()"
    if isinstance(params, str | bytes | torch.Tensor) or not isinstance(params, Iterable):
        raise SettingsError(f"broadcast_parameters: pass {wanted}, not {type(params).__name__}")
    pairs = list(params)
    if pairs and all(isinstance(tensor, torch.Tensor) for tensor in pairs):
        return [(str(number), tensor) for number, tensor in enumerate(pairs)]
    if any(not (isinstance(pair, tuple) and len(pair) == 2) for pair in pairs):
        raise SettingsError(f"broadcast_parameters: pass {wanted}: (name, tensor) pairs")
    return pairs


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the root's optimizer state; no weight moves. Collective.

    As with Horovod, whose first state comes from a step without gradients, parameters of an optimizer without a state have
    gradients afterwards, of zeros. `model` is accepted for Horovod's sake and not needed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SettingsError("broadcast_optimizer_state: LBFGS keeps its state in a way that cannot be sent")
    runtime = process_set.runtime()
    here = runtime.members[runtime.transport.rank] == root_rank
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    skeleton = _take_tensors(state, tensors) if here else None
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state", process_set)
    shapes = [(t.shape, t.dtype) for t in tensors]
    shapes = broadcast_object(shapes, root_rank, "optimizer_state.shapes", process_set)
    if not here:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer_state.{i}", process_set)
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    if not here:
        optimizer.load_state_dict(_put_tensors(skeleton, tensors))
    if not optimizer.state:
        _make_gradients(optimizer)


def _make_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Zeros where there are none; without rows for an optimizer that takes sparse ones alone."""
    only_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for p in (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.grad is None):
        p.grad = as_sparse(None, p) if only_sparse else torch.zeros_like(p)


class _Hole:
    """Stands for a tensor in a state without its tensors."""

    def __init__(self, index: int) -> None:
        self.index = index


def _walk(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(item, leaf) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_walk(item, leaf) for item in value)
    return leaf(value)


def _take_tensors(state: Any, tensors: list[torch.Tensor]) -> Any:
    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return _Hole(len(tensors) - 1)

    return _walk(state, leaf)


def _put_tensors(state: Any, tensors: list[torch.Tensor]) -> Any:
    return _walk(state, lambda value: tensors[value.index] if isinstance(value, _Hole) else value)


def shard(
    dataset: Dataset[Any],
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    process_set: ProcessSet = global_process_set,
) -> DistributedSampler[Any]:
    """A sampler that gives each rank its part of a dataset; call its set_epoch() every epoch."""
    runtime = process_set.runtime()
    return DistributedSampler(
        dataset,
        num_replicas=runtime.transport.size,
        rank=runtime.transport.rank,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )


def scale_learning_rate(
    optimizer: torch.optim.Optimizer, rule: str = "linear", process_set: ProcessSet = global_process_set
) -> None:
    """Scale the rates of all parameter groups for the number of ranks: linear, sqrt, cbrt or none."""
    size = process_set.runtime().transport.size
    for group in optimizer.param_groups:
        group["lr"] = scaled_rate(group["lr"], size, rule)


def warmup(
    optimizer: torch.optim.Optimizer, steps: int, process_set: ProcessSet = global_process_set, rule: str = "linear"
) -> torch.optim.lr_scheduler.LambdaLR:
    """A scheduler that raises rates, already scaled by `rule`, from the one-rank rate over `steps` steps."""
    size = process_set.runtime().transport.size
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_factor(step, steps, size, rule))


def average(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Average a tensor over the ranks, in place. Collective: every rank of the set calls it."""
    return allreduce_(tensor, name=name, process_set=process_set)


def check_buffers_match(tensors: Sequence[torch.Tensor], process_set: ProcessSet = global_process_set) -> int:
    """0 when all ranks hold bitwise equal tensors, otherwise how many differ. Collective."""
    return collectives.check_buffers_match([np.ascontiguousarray(as_array(t)) for t in tensors], process_set)
