"""Collectives on NumPy arrays: the framework-neutral API, with Horovod's names and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.current import current
from farandole.comm.named.adasum import AdasumReduce
from farandole.comm.named.compression import Compression, Compressor
from farandole.comm.named.join import join as join_set
from farandole.comm.named.operations import Allreduce, Alltoall, Broadcast, Reducescatter
from farandole.comm.named.process_sets import ProcessSet, SetRuntime, global_process_set
from farandole.comm.named.submit import (
    Adasum,
    Average,
    Convert,
    Max,
    Min,
    Product,
    Sum,
    chosen_op,
    make_allgather,
    make_allreduce,
    make_alltoall,
    make_barrier,
    make_broadcast,
    make_gather,
    make_reducescatter,
    poll,
    run,
    submit,
    synchronize,
)
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError

__all__ = [
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
]


def _arrays(values: Sequence[Any]) -> list[AnyArray]:
    return [np.asarray(value) for value in values]


def _grouped_allreduce(
    values: Sequence[Any],
    outs: Sequence[AnyArray] | None,
    average: bool | None,
    name: str | None,
    op: Op | int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: type[Compressor] = Compression.none,
) -> tuple[SetRuntime, Allreduce | AdasumReduce, Convert]:
    runtime = process_set.runtime()
    arrays = _arrays(values)
    packed, contexts = zip(*(compression.compress(a) for a in arrays)) if arrays else ((), ())
    targets = [np.empty(a.shape, a.dtype) for a in packed] if outs is None else list(outs)
    operation = make_allreduce(
        runtime, packed, targets, name, chosen_op(op, average), prescale_factor, postscale_factor
    )

    def convert(_: None) -> list[Any]:
        return [compression.decompress(t, c) for t, c in zip(targets, contexts)]

    return runtime, operation, convert


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyArray:
    """The ranks' arrays reduced into a new one. Collective: every rank of the set calls it."""
    runtime, operation, convert = _grouped_allreduce(
        [tensor], None, average, name, op, prescale_factor, postscale_factor, process_set, compression
    )
    result: AnyArray = run(runtime, operation, convert)[0]
    return result


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce` in the background; returns a handle for `poll` and `synchronize`."""
    runtime, operation, convert = _grouped_allreduce(
        [tensor], None, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return submit(runtime, operation, lambda raw: convert(raw)[0])


def allreduce_(
    tensor: AnyArray,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyArray:
    """`allreduce` into the array itself."""
    runtime, operation, convert = _grouped_allreduce(
        [tensor], [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    run(runtime, operation, convert)
    return tensor


def allreduce_async_(
    tensor: AnyArray,
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`allreduce_` in the background; returns a handle."""
    runtime, operation, convert = _grouped_allreduce(
        [tensor], [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return submit(runtime, operation, lambda raw: convert(raw)[0])


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[AnyArray]:
    """Several arrays reduced as one operation. Collective: every rank of the set calls it."""
    result: list[AnyArray] = run(
        *_grouped_allreduce(
            tensors, None, average, name, op, prescale_factor, postscale_factor, process_set, compression
        )
    )
    return result


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`grouped_allreduce` in the background; one handle for all."""
    return submit(
        *_grouped_allreduce(tensors, None, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_(
    tensors: Sequence[AnyArray],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[AnyArray]:
    """`grouped_allreduce` into the arrays themselves."""
    run(
        *_grouped_allreduce(
            tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return list(tensors)


def grouped_allreduce_async_(
    tensors: Sequence[AnyArray],
    average: bool | None = None,
    name: str | None = None,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """`grouped_allreduce_` in the background; one handle for all."""
    return submit(
        *_grouped_allreduce(
            tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def _first(values: list[Any]) -> Any:
    return values[0]


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyArray:
    """The ranks' arrays concatenated along dimension 0. Collective: every rank of the set calls it."""
    runtime = process_set.runtime()
    result: AnyArray = run(runtime, make_allgather(runtime, _arrays([tensor]), name), _first)
    return result


def allgather_async(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`allgather` in the background; returns a handle."""
    runtime = process_set.runtime()
    return submit(runtime, make_allgather(runtime, _arrays([tensor]), name), _first)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[AnyArray]:
    """Several arrays gathered as one operation. Collective: every rank of the set calls it."""
    runtime = process_set.runtime()
    result: list[AnyArray] = run(runtime, make_allgather(runtime, _arrays(tensors), name))
    return result


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`grouped_allgather` in the background; one handle for all."""
    runtime = process_set.runtime()
    return submit(runtime, make_allgather(runtime, _arrays(tensors), name))


def gather(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyArray | None:
    """The ranks' arrays concatenated on the root; None elsewhere. Collective: every rank calls it."""
    runtime = process_set.runtime()
    result: AnyArray | None = run(runtime, make_gather(runtime, _arrays([tensor]), root_rank, name), _first)
    return result


def gather_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`gather` in the background; returns a handle."""
    runtime = process_set.runtime()
    return submit(runtime, make_gather(runtime, _arrays([tensor]), root_rank, name), _first)


def _broadcast(
    value: Any, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> tuple[SetRuntime, Broadcast, Convert]:
    runtime = process_set.runtime()
    array = np.asarray(value)
    out = array if in_place else np.empty(array.shape, array.dtype)
    operation = make_broadcast(runtime, [array], [out], root_rank, name)
    return runtime, operation, lambda _: out


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyArray:
    """The root's array, as a new one. Collective: every rank of the set calls it."""
    result: AnyArray = run(*_broadcast(tensor, False, root_rank, name, process_set))
    return result


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`broadcast` in the background; returns a handle."""
    return submit(*_broadcast(tensor, False, root_rank, name, process_set))


def broadcast_(
    tensor: AnyArray, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyArray:
    """`broadcast` into the array itself."""
    result: AnyArray = run(*_broadcast(tensor, True, root_rank, name, process_set))
    return result


def broadcast_async_(
    tensor: AnyArray, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`broadcast_` in the background; returns a handle."""
    return submit(*_broadcast(tensor, True, root_rank, name, process_set))


def _alltoall(
    value: Any, splits: Any, name: str | None, process_set: ProcessSet
) -> tuple[SetRuntime, Alltoall, Convert]:
    runtime = process_set.runtime()
    given = None if splits is None else [int(n) for n in np.asarray(splits).reshape(-1)]

    def convert(raw: tuple[AnyArray, list[int]]) -> Any:
        out, received = raw
        return out if given is None else (out, np.array(received, np.int32))

    return runtime, make_alltoall(runtime, np.asarray(value), given, name), convert


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Rows dealt out to all ranks; with splits, also the rows received from each.

    Collective: every rank of the set calls it.
    """
    return run(*_alltoall(tensor, splits, name, process_set))


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`alltoall` in the background; returns a handle."""
    return submit(*_alltoall(tensor, splits, name, process_set))


def _reducescatter(
    values: Sequence[Any],
    name: str | None,
    compression: type[Compressor],
    op: Op | int,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> tuple[SetRuntime, Reducescatter, Convert]:
    runtime = process_set.runtime()
    arrays = _arrays(values)
    packed, contexts = zip(*(compression.compress(a) for a in arrays)) if arrays else ((), ())
    operation = make_reducescatter(
        runtime, packed, name, chosen_op(op, None), prescale_factor, postscale_factor
    )
    return runtime, operation, lambda raw: [compression.decompress(t, c) for t, c in zip(raw, contexts)]


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> AnyArray:
    """The ranks' arrays reduced; each rank gets its share of the rows. Collective: every rank calls it."""
    runtime, operation, convert = _reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )
    result: AnyArray = run(runtime, operation, convert)[0]
    return result


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """`reducescatter` in the background; returns a handle."""
    runtime, operation, convert = _reducescatter(
        [tensor], name, Compression.none, op, process_set, prescale_factor, postscale_factor
    )
    return submit(runtime, operation, lambda raw: convert(raw)[0])


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[AnyArray]:
    """Several arrays reduced and scattered as one operation. Collective: every rank calls it."""
    result: list[AnyArray] = run(
        *_reducescatter(tensors, name, compression, op, process_set, prescale_factor, postscale_factor)
    )
    return result


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Op | int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """`grouped_reducescatter` in the background; one handle for all."""
    return submit(
        *_reducescatter(tensors, name, Compression.none, op, process_set, prescale_factor, postscale_factor)
    )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set is here. Collective: every rank of the set calls it."""
    runtime = process_set.runtime()
    run(runtime, make_barrier(runtime))


def join(device: int = -1) -> int:
    """Let the other ranks go on: they get zeros from this one until all have joined. Collective.

    Meanwhile only allreduces, gradients and barriers are possible, and averages still divide by all ranks. Returns
    the rank that joined last, on every rank. `device` has no meaning here.
    """
    return join_set(global_process_set.runtime(), current().plans)


# Objects


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, pickled (cloudpickle). Collective: every rank of the set calls it."""
    runtime = process_set.runtime()
    here = runtime.transport.rank == runtime.local(root_rank)
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8).copy() if here else np.zeros(0, np.uint8)
    label = name or runtime.next_name("broadcast_object")
    length = broadcast(np.array([data.size]), root_rank, f"{label}.size", process_set)
    buffer = data if here else np.empty(int(length[0]), np.uint8)
    broadcast_(buffer, root_rank, f"{label}.data", process_set)
    return obj if here else cloudpickle.loads(buffer.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in rank order, pickled (cloudpickle). Collective: every rank calls it."""
    runtime = process_set.runtime()
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    label = name or runtime.next_name("allgather_object")
    sizes = allgather(np.array([data.size]), f"{label}.size", process_set)
    joined = allgather(data, f"{label}.data", process_set)
    ends = np.cumsum(sizes)
    return [cloudpickle.loads(joined[e - n : e].tobytes()) for e, n in zip(ends.tolist(), sizes.tolist())]


# The Cray PE DL Plugin's helpers


def average(
    tensor: AnyArray, name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyArray:
    """Average an array over the ranks, in place. Collective: every rank of the set calls it."""
    return allreduce_(tensor, name=name, op=Average, process_set=process_set)


def check_buffers_match(tensors: Sequence[Any], process_set: ProcessSet = global_process_set) -> int:
    """0 when all ranks hold bitwise equal arrays, otherwise how many arrays differ. Collective."""
    import hashlib

    digests = [hashlib.blake2b(np.ascontiguousarray(t).tobytes(), digest_size=16).digest() for t in tensors]
    table = allgather_object(digests, process_set=process_set)
    if any(len(row) != len(digests) for row in table):
        raise SettingsError(f"check_buffers_match: ranks pass {[len(row) for row in table]} arrays")
    return sum(len({row[i] for row in table}) > 1 for i in range(len(digests)))
