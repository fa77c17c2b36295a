"""Sparse tensors summed over ranks: their indices and values are gathered, equal indices added up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.named.submit import Average, Sum, synchronize
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.torch.ops import grouped_allgather_async

__all__ = ["as_sparse", "sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Start summing (or averaging) sparse COO tensors; calling what it returns waits for the result.

    Collective: every rank of the set calls it. Ranks may have different numbers of values, none included.
    """
    if not tensor.is_sparse:
        raise SettingsError(f"sparse_allreduce_async: a {tensor.layout} tensor; use allreduce for dense ones")
    if op not in (Average, Sum):
        raise SettingsError(f"sparse_allreduce_async: op={op}; use Average or Sum")
    mine = tensor.coalesce()
    handle = grouped_allgather_async([mine.indices().t().contiguous(), mine.values()], name, process_set)
    shape, size = tensor.shape, process_set.runtime().transport.size

    def wait() -> Tensor:
        indices, values = synchronize(handle)
        total = torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False).coalesce()
        return total / size if op == Average else total

    return wait


def as_sparse(gradient: Tensor | None, like: Tensor) -> Tensor:
    """A gradient as rows of its parameter, which an embedding makes; without any where there is no gradient."""
    if gradient is None:
        none = torch.empty((1, 0), dtype=torch.int64, device=like.device)
        values = torch.empty((0, *like.shape[1:]), dtype=like.dtype, device=like.device)
        return torch.sparse_coo_tensor(none, values, like.shape, check_invariants=False)
    if not gradient.is_sparse:
        return gradient.to_sparse(1)
    if gradient.sparse_dim() != 1:
        raise SettingsError(
            f"a sparse gradient with {gradient.sparse_dim()} sparse dimensions; only whole rows can travel. "
            "Pass sparse_as_dense=True to DistributedOptimizer"
        )
    return gradient
