"""Collectives on tensors, with Horovod's names, arguments and meaning, and gradients of their own.

Host tensors are read and written where they lie. Tensors elsewhere travel through host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named import submit as engine
from farandole.comm.named.process_sets import ProcessSet, SetRuntime, global_process_set
from farandole.comm.named.submit import Average, Sum, chosen_op, poll, synchronize
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.torch.compression import Compression, Compressor
from farandole.torch.tensors import as_array, as_tensor, staged

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
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
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

Tensor = torch.Tensor
Prepared = tuple[SetRuntime, Any, Callable[[Any], Any]]


def _back(array: AnyArray, like: Tensor) -> Tensor:
    """An array of results, where the input was."""
    return as_tensor(array).to(like.device)


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


class _Target:
    """Where a result is written: a host tensor's own memory, or a copy that is brought back."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.array = as_array(tensor)
        if not staged(tensor):
            # torch sees nobody write: autograd and saves in the background go by the version.
            torch.autograd.graph.increment_version(tensor)

    def deliver(self) -> Tensor:
        if staged(self._tensor):
            self._tensor.detach().copy_(as_tensor(self.array))
        return self._tensor


class _NoContext:
    """Stands for autograd's context where nothing is recorded."""

    def mark_non_differentiable(self, *_: Any) -> None:
        return


def _apply(function: Any, *args: Any) -> Any:
    """Through autograd only where it records: it takes as long as a small message does."""
    if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return function.apply(*args)
    return function.forward(_NoContext(), *args)


# Allreduce


def _prepare_allreduce(
    tensors: Sequence[Tensor],
    in_place: bool,
    name: str | None,
    op: Op,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Prepared:
    runtime = process_set.runtime()
    if in_place:
        targets = [_Target(t) for t in tensors]
        arrays = [target.array for target in targets]
        outs = arrays

        def convert(_: None) -> list[Tensor]:
            return [target.deliver() for target in targets]
    else:
        arrays = [as_array(t) for t in tensors]
        results = [_empty(t) for t in tensors]
        outs = [as_array(t) for t in results]

        def convert(_: None) -> list[Tensor]:
            return [r.to(t.device) for r, t in zip(results, tensors)]

    operation = engine.make_allreduce(runtime, arrays, outs, name, op, prescale_factor, postscale_factor)
    return runtime, operation, convert


def _one(prepared: Prepared) -> Prepared:
    runtime, operation, convert = prepared
    return runtime, operation, lambda raw: convert(raw)[0]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        name, op, prescale, postscale, process_set, *tensors = args
        ctx.how = (op, prescale, postscale, process_set)
        return tuple(
            engine.run(*_prepare_allreduce(tensors, False, name, op, prescale, postscale, process_set))
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, prescale, postscale, process_set = ctx.how
        filled = [g.contiguous() for g in grads]
        return None, None, None, None, None, *_apply(_Allreduce,
            None, op, prescale, postscale, process_set, *filled
        )


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The ranks' tensors reduced into a new one. Collective: every rank of the set calls it."""
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce` in the background; returns a handle for `poll` and `synchronize`."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return engine.submit(*_one(_prepare_allreduce([tensor], False, name, *how)))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """`allreduce` into the tensor itself."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    result: Tensor = engine.run(*_one(_prepare_allreduce([tensor], True, name, *how)))
    return result


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce_` in the background; returns a handle."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return engine.submit(*_one(_prepare_allreduce([tensor], True, name, *how)))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Several tensors reduced as one operation. Collective: every rank of the set calls it."""
    packed = [compression.compress(t) for t in tensors]
    how = (chosen_op(op, average), float(prescale_factor), float(postscale_factor), process_set)
    results = _apply(_Allreduce, name, *how, *(t for t, _ in packed))
    return [compression.decompress(t, ctx) for t, (_, ctx) in zip(results, packed)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`grouped_allreduce` in the background; one handle for all."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return engine.submit(*_prepare_allreduce(tensors, False, name, *how))


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """`grouped_allreduce` into the tensors themselves."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    result: list[Tensor] = engine.run(*_prepare_allreduce(tensors, True, name, *how))
    return result


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`grouped_allreduce_` in the background; one handle for all."""
    how = (chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return engine.submit(*_prepare_allreduce(tensors, True, name, *how))


# Allgather and gather


def _prepare_allgather(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> Prepared:
    runtime = process_set.runtime()
    operation = engine.make_allgather(runtime, [as_array(t) for t in tensors], name)
    return runtime, operation, lambda raw: [_back(a, t) for a, t in zip(raw, tensors)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        name, process_set, *tensors = args
        ctx.rows = [t.shape[0] if t.dim() else 0 for t in tensors]
        ctx.process_set = process_set
        return tuple(engine.run(*_prepare_allgather(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The average of the ranks' gradients; of it, the rows this rank contributed."""
        runtime = ctx.process_set.runtime()
        rows = torch.tensor([ctx.rows])
        table = allgather(rows, process_set=ctx.process_set)
        starts = table[: runtime.transport.rank].sum(0).tolist()
        reduced = grouped_allreduce(
            [g.contiguous() for g in grads], op=Average, process_set=ctx.process_set
        )
        return None, None, *(g[a : a + n] for g, a, n in zip(reduced, starts, ctx.rows))


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The ranks' tensors concatenated along dimension 0. Collective: every rank of the set calls it."""
    result: Tensor = _apply(_Allgather, name, process_set, tensor)[0]
    return result


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`allgather` in the background; returns a handle."""
    return engine.submit(*_one(_prepare_allgather([tensor], name, process_set)))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Several tensors gathered as one operation. Collective: every rank of the set calls it."""
    return list(_apply(_Allgather, name, process_set, *tensors))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`grouped_allgather` in the background; one handle for all."""
    return engine.submit(*_prepare_allgather(tensors, name, process_set))


def _prepare_gather(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Prepared:
    runtime = process_set.runtime()
    operation = engine.make_gather(runtime, [as_array(tensor)], root_rank, name)
    return runtime, operation, lambda raw: None if raw[0] is None else _back(raw[0], tensor)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        tensor, root_rank, name, process_set, differentiable = args
        ctx.rows, ctx.root_rank, ctx.process_set, ctx.differentiable = tensor.shape[:1], root_rank, process_set, differentiable
        result = engine.run(*_prepare_gather(tensor, root_rank, name, process_set))
        return tensor.new_empty((0, *tensor.shape[1:])) if result is None and differentiable else result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The root's gradient of the rows this rank contributed."""
        if not ctx.differentiable:
            raise RuntimeError(
                "backward through the result of gather(), which only the root has: the other ranks would get no gradient. "
                "Call gather(..., differentiable=True), which returns something to call backward on everywhere."
            )
        runtime = ctx.process_set.runtime()
        rows = allgather(torch.tensor(ctx.rows), process_set=ctx.process_set)
        here = runtime.members[runtime.transport.rank] == ctx.root_rank
        mine, _ = alltoall(grads[0].contiguous(), rows if here else torch.zeros_like(rows), process_set=ctx.process_set)
        return mine, None, None, None, None


def gather(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    differentiable: bool = False,
) -> Tensor | None:
    """The ranks' tensors concatenated on the root; None elsewhere. Collective: every rank calls it.

    With `differentiable` the others get a tensor of no rows, so that every rank of the set can call backward, as it must:
    each then gets the root's gradient of its rows.
    """
    result: Tensor | None = _apply(_Gather, tensor, root_rank, name, process_set, differentiable)
    return result


def gather_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`gather` in the background; returns a handle."""
    return engine.submit(*_prepare_gather(tensor, root_rank, name, process_set))


# Broadcast


def _prepare_broadcast(
    tensor: Tensor, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> Prepared:
    runtime = process_set.runtime()
    if in_place:
        target = _Target(tensor)
        operation = engine.make_broadcast(runtime, [target.array], [target.array], root_rank, name)
        return runtime, operation, lambda _: target.deliver()
    result = _empty(tensor)
    operation = engine.make_broadcast(runtime, [as_array(tensor)], [as_array(result)], root_rank, name)
    return runtime, operation, lambda _: result.to(tensor.device)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return engine.run(*_prepare_broadcast(tensor, False, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The average of the ranks' gradients on the root, zero elsewhere."""
        runtime = ctx.process_set.runtime()
        reduced = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        here = runtime.members[runtime.transport.rank] == ctx.root_rank
        return reduced if here else torch.zeros_like(reduced), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The root's tensor, as a new one. Collective: every rank of the set calls it."""
    result: Tensor = _apply(_Broadcast, tensor, root_rank, name, process_set)
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`broadcast` in the background; returns a handle."""
    return engine.submit(*_prepare_broadcast(tensor, False, root_rank, name, process_set))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """`broadcast` into the tensor itself."""
    result: Tensor = engine.run(*_prepare_broadcast(tensor, True, root_rank, name, process_set))
    return result


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`broadcast_` in the background; returns a handle."""
    return engine.submit(*_prepare_broadcast(tensor, True, root_rank, name, process_set))


# Alltoall


def _prepare_alltoall(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Prepared:
    runtime = process_set.runtime()
    given = None if splits is None else _splits(splits)

    def convert(raw: tuple[AnyArray, list[int]]) -> tuple[Tensor, Tensor]:
        out, received = raw
        return _back(out, tensor), torch.tensor(received, dtype=torch.int32)

    return runtime, engine.make_alltoall(runtime, as_array(tensor), given, name), convert


def _splits(splits: Tensor | Sequence[int]) -> list[int]:
    counts = torch.as_tensor(splits)
    if counts.dim() != 1 or counts.dtype not in (torch.int32, torch.int64):
        raise SettingsError(f"splits must be 1-D and int32; got {counts.dim()}-D {counts.dtype}")
    return [int(n) for n in counts]


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        out, received = engine.run(*_prepare_alltoall(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return out, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The rows go back where they came from."""
        back, _ = _apply(_Alltoall, grads[0].contiguous(), ctx.received, None, ctx.process_set)
        return back, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows dealt out to all ranks; with splits, also the rows received from each.

    Collective: every rank of the set calls it.
    """
    out, received = _apply(_Alltoall, tensor, splits, name, process_set)
    return out if splits is None else (out, received)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`alltoall` in the background; returns a handle."""
    runtime, operation, convert = _prepare_alltoall(tensor, splits, name, process_set)
    return engine.submit(runtime, operation, convert if splits is not None else lambda raw: convert(raw)[0])


# Reducescatter


def _prepare_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> Prepared:
    runtime = process_set.runtime()
    arrays = [as_array(t) for t in tensors]
    operation = engine.make_reducescatter(runtime, arrays, name, op, prescale_factor, postscale_factor)
    return runtime, operation, lambda raw: [_back(a, t) for a, t in zip(raw, tensors)]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        name, op, process_set, prescale, postscale, *tensors = args
        ctx.how = (op, process_set, prescale * postscale)
        return tuple(
            engine.run(*_prepare_reducescatter(tensors, name, op, process_set, prescale, postscale))
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Every rank's input went into every share: gather the shares' gradients."""
        op, process_set, scale = ctx.how
        size = process_set.runtime().transport.size
        factor = scale * (size if op == Sum else 1)
        gathered = grouped_allgather([g.contiguous() * factor for g in grads], process_set=process_set)
        return None, None, None, None, None, *gathered


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """The ranks' tensors reduced; each rank gets its share of the rows. Collective: every rank calls it."""
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """`reducescatter` in the background; returns a handle."""
    how = (chosen_op(op, None), process_set, prescale_factor, postscale_factor)
    return engine.submit(*_one(_prepare_reducescatter([tensor], name, *how)))


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Several tensors reduced and scattered as one operation. Collective: every rank calls it."""
    packed = [compression.compress(t) for t in tensors]
    how = (chosen_op(op, None), process_set, float(prescale_factor), float(postscale_factor))
    results = _apply(_Reducescatter, name, *how, *(t for t, _ in packed))
    return [compression.decompress(t, ctx) for t, (_, ctx) in zip(results, packed)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """`grouped_reducescatter` in the background; one handle for all."""
    how = (chosen_op(op, None), process_set, prescale_factor, postscale_factor)
    return engine.submit(*_prepare_reducescatter(tensors, name, *how))
