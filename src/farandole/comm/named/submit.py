"""Submitting operations: what the doors share between their tensors and the engine.

A door makes an operation on arrays (`make_*`), then runs it in its own thread (`run`) or submits it and
gets a number, the handle. `convert` makes the door's result of the raw one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.adasum import AdasumReduce
from farandole.comm.named.operations import (
    Allgather,
    Allreduce,
    Alltoall,
    Barrier,
    Broadcast,
    Gather,
    Reducescatter,
    shares,
)
from farandole.comm.named.pending import Operation
from farandole.comm.named.process_sets import SetRuntime
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError

__all__ = [
    "Adasum",
    "Average",
    "Convert",
    "Max",
    "Min",
    "Product",
    "Sum",
    "chosen_op",
    "issue",
    "make_allgather",
    "make_allreduce",
    "make_alltoall",
    "make_barrier",
    "make_broadcast",
    "make_gather",
    "make_reducescatter",
    "poll",
    "run",
    "submit",
    "synchronize",
]

Average, Sum, Adasum, Min, Max, Product = (Op(code) for code in (0, 1, 2, 3, 4, 5))

Convert = Callable[[Any], Any]


class Waits(Protocol):
    """What carries a handle out."""

    def poll(self, handle: Any) -> bool: ...

    def wait(self, handle: Any) -> Any: ...


class _Ticket(NamedTuple):
    engine: Waits
    handle: Any
    convert: Convert


_tickets: dict[int, _Ticket] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def _same(value: Any) -> Any:
    return value


def submit(runtime: SetRuntime, operation: Operation, convert: Convert = _same) -> int:
    """Start an operation in the background; its handle."""
    return issue(runtime.engine, runtime.engine.submit(operation, background=True), convert)


def issue(engine: Waits, handle: Any, convert: Convert = _same) -> int:
    """The number that `poll` and `synchronize` know a handle by."""
    with _lock:
        number = next(_numbers)
        _tickets[number] = _Ticket(engine, handle, convert)
    return number


def run(runtime: SetRuntime, operation: Operation, convert: Convert = _same) -> Any:
    """Do an operation now, in this thread."""
    engine = runtime.engine
    return convert(engine.wait(engine.submit(operation, background=False)))


def poll(handle: int) -> bool | None:
    """Whether an asynchronous operation is done; None for an unknown handle."""
    ticket = _tickets.get(handle)
    return None if ticket is None else ticket.engine.poll(ticket.handle)


def synchronize(handle: int) -> Any:
    """The result of an asynchronous operation; None for an unknown handle."""
    with _lock:
        ticket = _tickets.pop(handle, None)
    return None if ticket is None else ticket.convert(ticket.engine.wait(ticket.handle))


def chosen_op(op: Op | int | None, average: bool | None) -> Op:
    """`op`, or what the deprecated `average` means."""
    if op is not None and average is not None:
        raise SettingsError("give op or average, not both (average is deprecated: use op=Average or op=Sum)")
    if op is None:
        return Sum if average is False else Average
    try:
        return Op(op)
    except ValueError:
        raise SettingsError(f"op={op}: use Average, Sum, Min, Max or Product") from None


def make_allreduce(
    runtime: SetRuntime,
    arrays: Sequence[AnyArray],
    outs: Sequence[AnyArray],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
) -> Allreduce | AdasumReduce:
    with runtime.naming("allreduce", name) as label:
        if op == Op.ADASUM:
            return AdasumReduce(runtime.lane, label, arrays, outs, float(prescale), float(postscale))
        return Allreduce(runtime.lane, label, arrays, outs, op, float(prescale), float(postscale))


def make_allgather(runtime: SetRuntime, arrays: Sequence[AnyArray], name: str | None) -> Allgather:
    with runtime.naming("allgather", name) as label:
        return Allgather(runtime.lane, label, arrays)


def make_gather(runtime: SetRuntime, arrays: Sequence[AnyArray], root: int, name: str | None) -> Gather:
    with runtime.naming("gather", name) as label:
        return Gather(runtime.lane, label, arrays, runtime.local(root))


def make_broadcast(
    runtime: SetRuntime, arrays: Sequence[AnyArray], outs: Sequence[AnyArray], root: int, name: str | None
) -> Broadcast:
    with runtime.naming("broadcast", name) as label:
        return Broadcast(runtime.lane, label, arrays, outs, runtime.local(root))


def make_alltoall(
    runtime: SetRuntime, array: AnyArray, splits: Sequence[int] | None, name: str | None
) -> Alltoall:
    with runtime.naming("alltoall", name) as label:
        return Alltoall(runtime.lane, label, array, _even(runtime, label, array) if splits is None else splits)


def _even(runtime: SetRuntime, label: str, array: AnyArray) -> list[int]:
    """The rows dealt out evenly."""
    size = runtime.transport.size
    rows = array.shape[0] if array.ndim else 0
    if rows % size:
        raise SettingsError(
            f"alltoall.{label}: {rows} rows do not divide over {size} ranks ({rows} % {size} = {rows % size}). "
            "Pass splits, one count a rank."
        )
    return shares(rows, size)


def make_reducescatter(
    runtime: SetRuntime,
    arrays: Sequence[AnyArray],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
) -> Reducescatter:
    with runtime.naming("reducescatter", name) as label:
        return Reducescatter(runtime.lane, label, arrays, op, float(prescale), float(postscale))


def make_barrier(runtime: SetRuntime) -> Barrier:
    return Barrier(runtime.lane, runtime.next_name("barrier"))
