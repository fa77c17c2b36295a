"""The collectives, each from its arrays and the coordinator's verdict to its result.

Every operation knows what it asks of the others (`request`) and how to carry it out over a lane: the
data communicator of one process set and its two-level reduction. Operations are carried out in the same
order on every rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.lane import NATIVE_BYTES, Lane
from farandole.comm.named.negotiate import OperationRequest, Verdict
from farandole.comm.named.pending import Operation
from farandole.comm.node.arithmetic import Op, Reduction, bfloat16, kernels_for
from farandole.comm.node.spans import phase
from farandole.errors import SettingsError

__all__ = [
    "Allgather",
    "Allreduce",
    "Alltoall",
    "Barrier",
    "Broadcast",
    "Gather",
    "Reducescatter",
    "run_batch",
]

_COMBINE = {Op.AVERAGE: "sum", Op.SUM: "sum", Op.MIN: "min", Op.MAX: "max", Op.PRODUCT: "product"}


def _describe(key: str, arrays: Sequence[AnyArray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    for array in arrays:
        if array.dtype.kind not in "biufc" and array.dtype != bfloat16:
            raise SettingsError(
                f"{key}: {array.dtype} arrays cannot be exchanged; convert to bool, an integer type, float16, "
                "bfloat16, float32 or float64"
            )
        if not array.dtype.isnative:
            raise SettingsError(f"{key}: {array.dtype.str} is not this machine's byte order; convert it first")
    return tuple((_name(array.dtype), array.shape) for array in arrays)


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # NumPy makes it anew each time, in Python


def _need_writable(key: str, outs: Sequence[AnyArray]) -> None:
    if not all(out.flags.writeable for out in outs):
        raise SettingsError(f"{key}: the array is read-only and cannot take the result; pass a copy")


def _flat(array: AnyArray) -> AnyArray:
    return np.ascontiguousarray(array).reshape(-1)


def reduction(op: Op, size: int, postscale: float, kind: str) -> Reduction:
    """The arithmetic of an operation over `size` ranks."""
    if op == Op.ADASUM:
        raise SettingsError(f"{kind}: Adasum is not a reduction of single arrays; use Average or Sum")
    return Reduction(_COMBINE[op], postscale, size if op == Op.AVERAGE else 1)


def _prescaled(array: AnyArray, factor: float) -> AnyArray:
    """The array times a factor, in its own type: before the sum, which might overflow without it."""
    if factor == 1.0:
        return array
    copy = np.empty(array.shape, array.dtype)
    kernels = kernels_for(array.dtype)
    wide = array.astype(kernels.accumulator(array.dtype), order="C")
    kernels.finish(Reduction("sum", factor), wide.reshape(-1), copy.reshape(-1))
    return copy


class Allreduce:
    """One array, or a group reduced together; results go to `outs`."""

    def __init__(
        self,
        lane: Lane,
        name: str,
        arrays: Sequence[AnyArray],
        outs: Sequence[AnyArray],
        op: Op,
        prescale: float,
        postscale: float,
    ) -> None:
        self.lane = lane
        self.arrays = arrays
        self.outs = outs
        self.prescale = prescale
        self.how = reduction(op, lane.transport.size, postscale, "allreduce")
        if op == Op.AVERAGE and any(array.dtype == np.bool_ for array in arrays):
            raise SettingsError(f"allreduce.{name}: bool has no average; use op=Sum (any), Min (all) or Max")
        arguments = (("op", op.name), ("prescale_factor", prescale), ("postscale_factor", postscale))
        key = f"allreduce.{name}"
        _need_writable(key, outs)
        self.request = OperationRequest(key, "allreduce", _describe(key, arrays), arguments)

    def run(self, verdict: Verdict) -> Any:
        _reduce_together(self.lane, [self])
        return None

    def pairs(self) -> list[tuple[AnyArray, AnyArray]]:
        """(source, out) arrays."""
        return [(_prescaled(array, self.prescale), out) for array, out in zip(self.arrays, self.outs)]

    def fuses_with(self, other: Allreduce) -> bool:
        return self.how == other.how


@dataclass(slots=True)
class _Pack:
    """Small arrays of one type, reduced as one."""

    pairs: list[tuple[AnyArray, AnyArray]] = field(default_factory=list)
    nbytes: int = 0


def _reduce_together(lane: Lane, operations: list[Allreduce]) -> None:
    """Reduce many arrays of one kind of arithmetic: small ones packed by type, large ones alone."""
    key = operations[0].request.key
    how = operations[0].how
    packs: dict[Any, _Pack] = {}
    for source, out in (pair for operation in operations for pair in operation.pairs()):
        if source.nbytes * 2 > lane.fusion_bytes or source.nbytes > NATIVE_BYTES:
            _reduce_one(lane, source, out, how, key)
        else:
            pack = packs.setdefault(source.dtype, _Pack())
            pack.pairs.append((source, out))
            pack.nbytes += source.nbytes
            if pack.nbytes > lane.fusion_bytes:
                _reduce_pack(lane, packs.pop(source.dtype).pairs, how, key)
    for pack in packs.values():
        _reduce_pack(lane, pack.pairs, how, key)


def _reduce_one(lane: Lane, source: AnyArray, out: AnyArray, how: Reduction, key: str) -> None:
    flat = _flat(source)
    if out.flags.c_contiguous:
        lane.reduce(flat, flat if out is source else out.reshape(-1), how, key)
    else:
        result = np.empty_like(flat)
        lane.reduce(flat, result, how, key)
        np.copyto(out, result.reshape(out.shape))


def _reduce_pack(lane: Lane, pairs: list[tuple[AnyArray, AnyArray]], how: Reduction, key: str) -> None:
    if len(pairs) == 1:
        _reduce_one(lane, *pairs[0], how, key)
        return
    with phase("MEMCPY_IN_FUSION_BUFFER", key):
        packed = np.concatenate([source.reshape(-1) for source, _ in pairs])
    lane.reduce(packed, packed, how, key)
    at = 0
    with phase("MEMCPY_OUT_FUSION_BUFFER", key):
        for _, out in pairs:
            np.copyto(out, packed[at : at + out.size].reshape(out.shape))
            at += out.size


class Allgather:
    """Arrays concatenated along dimension 0; rows may differ between ranks."""

    kind = "allgather"

    def __init__(self, lane: Lane, name: str, arrays: Sequence[AnyArray]) -> None:
        _need_rows(self.kind, name, arrays)
        self.lane = lane
        self.arrays = arrays
        key = f"{self.kind}.{name}"
        self.request = OperationRequest(key, self.kind, _describe(key, arrays))

    def run(self, verdict: Verdict) -> list[AnyArray]:
        results = []
        for index, array in enumerate(self.arrays):
            rows = [counts[index] for counts in verdict.rows]
            out = np.empty((sum(rows), *array.shape[1:]), array.dtype)
            width = _row_bytes(array)
            request = self.lane.transport.allgather(_flat(array), out, [n * width for n in rows])
            self.lane.complete(request, self.request.key, "MPI_ALLGATHER")
            results.append(out)
        return results


class Gather:
    """As allgather, but only the root gets the result; None elsewhere."""

    kind = "gather"

    def __init__(self, lane: Lane, name: str, arrays: Sequence[AnyArray], root: int) -> None:
        """`root` counts within the set."""
        _need_rows(self.kind, name, arrays)
        self.lane = lane
        self.arrays = arrays
        self.root = root
        arguments = (("root_rank", lane.members[root]),)
        key = f"{self.kind}.{name}"
        self.request = OperationRequest(key, self.kind, _describe(key, arrays), arguments)

    def run(self, verdict: Verdict) -> list[AnyArray | None]:
        results: list[AnyArray | None] = []
        for index, array in enumerate(self.arrays):
            rows = [counts[index] for counts in verdict.rows]
            here = self.lane.transport.rank == self.root
            out = np.empty((sum(rows), *array.shape[1:]), array.dtype) if here else None
            width = _row_bytes(array)
            request = self.lane.transport.gather(_flat(array), out, [n * width for n in rows], self.root)
            self.lane.complete(request, self.request.key, "MPI_GATHER")
            results.append(out)
        return results


class Broadcast:
    """The root's arrays, into `outs` on every rank."""

    def __init__(
        self, lane: Lane, name: str, arrays: Sequence[AnyArray], outs: Sequence[AnyArray], root: int
    ) -> None:
        self.lane = lane
        self.arrays = arrays
        self.outs = outs
        self.root = root
        arguments = (("root_rank", lane.members[root]),)
        key = f"broadcast.{name}"
        _need_writable(key, outs)
        self.request = OperationRequest(key, "broadcast", _describe(key, arrays), arguments)

    def run(self, verdict: Verdict) -> None:
        here = self.lane.transport.rank == self.root
        for array, out in zip(self.arrays, self.outs):
            in_place = out.flags.c_contiguous
            flat = out.reshape(-1) if in_place else np.empty(out.size, out.dtype)
            if here and not (in_place and out is array):
                np.copyto(flat.reshape(out.shape), array)
            request = self.lane.transport.broadcast(flat, self.root)
            self.lane.complete(request, self.request.key, "MPI_BCAST")
            if not in_place:
                np.copyto(out, flat.reshape(out.shape))


class Alltoall:
    """Rows of each rank's array dealt out to all ranks; (result, rows received from each)."""

    def __init__(self, lane: Lane, name: str, array: AnyArray, splits: Sequence[int]) -> None:
        _need_rows("alltoall", name, [array])
        self.lane = lane
        self.array = array
        given = tuple(int(n) for n in splits)
        if len(given) != lane.transport.size or sum(given) != array.shape[0] or min(given) < 0:
            raise SettingsError(
                f"alltoall.{name}: splits={list(given)} must be {lane.transport.size} counts, one a rank, "
                f"that add up to the {array.shape[0]} rows of the array"
            )
        key = f"alltoall.{name}"
        self.request = OperationRequest(key, "alltoall", _describe(key, [array]), splits=given)

    def run(self, verdict: Verdict) -> tuple[AnyArray, list[int]]:
        rank = self.lane.transport.rank
        received = [splits[rank] for splits in verdict.splits]
        out = np.empty((sum(received), *self.array.shape[1:]), self.array.dtype)
        width = _row_bytes(self.array)
        sends = [n * width for n in verdict.splits[rank]]
        request = self.lane.transport.alltoall(_flat(self.array), out, sends, [n * width for n in received])
        self.lane.complete(request, self.request.key, "MPI_ALLTOALL")
        return out, received


class Reducescatter:
    """Arrays reduced over the ranks; each rank keeps its share of the rows."""

    def __init__(
        self, lane: Lane, name: str, arrays: Sequence[AnyArray], op: Op, prescale: float, postscale: float
    ) -> None:
        _need_rows("reducescatter", name, arrays)
        if op not in (Op.AVERAGE, Op.SUM):
            raise SettingsError(f"reducescatter.{name}: op={op.name}; only Average and Sum are possible")
        self.lane = lane
        self.arrays = arrays
        self.prescale = prescale
        self.how = reduction(op, lane.transport.size, postscale, "reducescatter")
        arguments = (("op", op.name), ("prescale_factor", prescale), ("postscale_factor", postscale))
        key = f"reducescatter.{name}"
        self.request = OperationRequest(key, "reducescatter", _describe(key, arrays), arguments)

    def run(self, verdict: Verdict) -> list[AnyArray]:
        return [self._scatter(_prescaled(array, self.prescale)) for array in self.arrays]

    def _scatter(self, array: AnyArray) -> AnyArray:
        """Each rank gets everyone's copy of its rows and adds them in rank order."""
        size, rank = self.lane.transport.size, self.lane.transport.rank
        rows = shares(array.shape[0], size)
        width = _row_bytes(array)
        copies = np.empty((size, rows[rank], *array.shape[1:]), array.dtype)
        sends = [n * width for n in rows]
        request = self.lane.transport.alltoall(_flat(array), copies, sends, [rows[rank] * width] * size)
        self.lane.complete(request, self.request.key, "MPI_ALLTOALL")
        kernels = kernels_for(array.dtype)
        wide = kernels.accumulator(self.how.widened(array.dtype))
        total = copies[0].astype(wide).reshape(-1)
        for copy in copies[1:]:
            kernels.add("sum", total, copy.reshape(-1))
        out: AnyArray = np.empty_like(copies[0])
        kernels.finish(self.how, total, out.reshape(-1))
        return out


class Barrier:
    """Nothing, once every rank is here: the verdict itself is the barrier."""

    def __init__(self, lane: Lane, name: str) -> None:
        self.request = OperationRequest(f"barrier.{name}", "barrier", ())

    def run(self, verdict: Verdict) -> None:
        return None


def shares(rows: int, size: int) -> list[int]:
    """Rows of each rank: the first `rows % size` ranks get one more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _need_rows(kind: str, name: str, arrays: Sequence[AnyArray]) -> None:
    for array in arrays:
        if array.ndim == 0:
            raise SettingsError(
                f"{kind}.{name}: a 0-d array has no rows. Pass x.reshape(1) to {kind} single values."
            )


def _row_bytes(array: AnyArray) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def run_batch(batch: list[tuple[Operation, Verdict]]) -> list[Any]:
    """Carry out operations in order; neighbouring allreduces of one kind of arithmetic are fused."""
    values: list[Any] = []
    index = 0
    while index < len(batch):
        operation, verdict = batch[index]
        group = [operation]
        if isinstance(operation, Allreduce):
            for other, _ in batch[index + 1 :]:
                if not isinstance(other, Allreduce) or not operation.fuses_with(other):
                    break
                group.append(other)
        if len(group) > 1:
            _reduce_together(operation.lane, group)  # type: ignore[attr-defined, arg-type]
            values += [None] * len(group)
        else:
            values.append(operation.run(verdict))
        index += len(group)
    return values
