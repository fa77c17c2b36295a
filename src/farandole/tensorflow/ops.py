"""Collectives on TensorFlow tensors, eager or inside tf.function, with gradients of their own.

Inside a function an operation without a name takes that of its tensor, which is the same on every rank: ranks may
run operations in any order and meet by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.comm import world
from farandole.comm.named import collectives
from farandole.comm.named.compression import Compression, Compressor
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.named.submit import chosen_op
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.tensorflow.gradients import call_back

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


def _name(name: str | None, tensor: Any) -> str | None:
    """A name of the operation that is the same on every rank; None leaves it to the order of calls."""
    if name is not None or tf.executing_eagerly():
        return name
    return f"{_graph_name(tensor.graph)}.{tensor.name}"


_COUNT = re.compile(r"_\d+(?=_grad_\d+|$)")
"""In `cond_1_true_25`, or `cond_1_true_25_grad_31`: how many of them this process has made."""


def _graph_name(graph: Any) -> str:
    """A graph's, without the counts TensorFlow gives branches and loops; within the one that a branch is in."""
    if not getattr(graph, "is_control_flow_graph", False):
        return str(graph.name)
    return f"{_graph_name(graph.outer_graph)}.{_COUNT.sub('', graph.name)}"


def _size(process_set: ProcessSet) -> int:
    return process_set.runtime().transport.size


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ranks' tensors reduced; of tf.IndexedSlices, the rows of all ranks. Collective: every rank of the set calls it."""
    return grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
        name, process_set,
    )[0]  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: Op | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Several tensors reduced as one operation. Collective: every rank of the set calls it."""
    how = (compression, chosen_op(op, average), prescale_factor, postscale_factor)
    rows = {
        i: _rows_of_all(tensor, name and f"{name}.{i}", how, process_set)
        for i, tensor in enumerate(tensors)
        if isinstance(tensor, tf.IndexedSlices)
    }
    dense = [tf.convert_to_tensor(tensor) for i, tensor in enumerate(tensors) if i not in rows]

    @tf.custom_gradient
    def reduced(*inputs: Any) -> Any:
        outputs = _allreduced(inputs, _name(name, inputs[0]), how, process_set)
        return outputs, lambda *grads: grouped_reduce(grads)

    def grouped_reduce(grads: Sequence[Any]) -> list[Any]:
        return _allreduced(grads, _name(None, grads[0]), how, process_set)

    found = iter(reduced(*dense) if dense else ())
    return [rows[i] if i in rows else next(found) for i in range(len(tensors))]


def _rows_of_all(slices: Any, name: str | None, how: Any, process_set: ProcessSet) -> Any:
    """As Horovod does: the rows travel, and are added up by whoever uses them."""
    _, op, prescale, postscale = how
    if op not in (Op.AVERAGE, Op.SUM):
        raise SettingsError(f"allreduce(op={op.name}) of tf.IndexedSlices: use Average or Sum, or tf.convert_to_tensor() first")
    values, indices = grouped_allgather([slices.values, slices.indices], name, process_set=process_set)
    factor = prescale * postscale / (_size(process_set) if op == Op.AVERAGE else 1)
    return tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices, slices.dense_shape)


def _allreduced(tensors: Sequence[Any], name: str | None, how: Any, process_set: ProcessSet) -> list[Any]:
    compression, op, prescale, postscale = how

    def run(*arrays: Any) -> list[Any]:
        return collectives.grouped_allreduce(
            arrays, None, name, compression, op, prescale, postscale, process_set
        )

    outputs = call_back(run, tensors, [tensor.dtype for tensor in tensors])
    return [_shaped(output, tensor.shape) for output, tensor in zip(outputs, tensors)]


def _shaped(output: Any, shape: Any) -> Any:
    output.set_shape(shape)
    return output


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The ranks' tensors concatenated along dimension 0. Collective: every rank of the set calls it."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Several tensors gathered as one operation. Collective: every rank of the set calls it."""

    @tf.custom_gradient
    def gathered(*inputs: Any) -> Any:
        label = _name(name, inputs[0])

        def run(*arrays: Any) -> list[Any]:
            return collectives.grouped_allgather(arrays, label, process_set)

        outputs = call_back(run, inputs, [x.dtype for x in inputs])
        rows = tf.stack([tf.shape(x)[0] for x in inputs])

        def gradient(*dys: Any) -> Any:
            """The average of the ranks' gradients; of it, the rows this rank contributed."""
            (counts,) = call_back(
                lambda n: collectives.allgather(n[None], _rows(label), process_set), [rows], [tf.int32]
            )
            starts = tf.reduce_sum(counts[: process_set.runtime().transport.rank], 0)
            averages = grouped_allreduce(dys, op=Op.AVERAGE, process_set=process_set)
            return [dy[starts[i] : starts[i] + rows[i]] for i, dy in enumerate(averages)]

        return [_shaped(output, [None, *x.shape[1:]]) for output, x in zip(outputs, inputs)], gradient

    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(gathered(*dense)) if dense else []


def _rows(label: str | None) -> str | None:
    return None if label is None else f"{label}.rows"


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's tensor. Collective: every rank of the set calls it."""
    runtime = process_set.runtime()
    here = runtime.members[runtime.transport.rank] == root_rank

    @tf.custom_gradient
    def sent(x: Any) -> Any:
        label = _name(name, x)
        (output,) = call_back(
            lambda array: collectives.broadcast(array, root_rank, label, process_set), [x], [x.dtype]
        )

        def gradient(dy: Any) -> Any:
            """The average of the ranks' gradients on the root, zero elsewhere."""
            reduced = allreduce(dy, op=Op.AVERAGE, process_set=process_set)
            return reduced if here else tf.zeros_like(reduced)

        return _shaped(output, x.shape), gradient

    return sent(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Rows dealt out to all ranks; with splits, also the rows received from each. Collective."""
    x = tf.convert_to_tensor(tensor)
    size = _size(process_set)
    even = tf.fill([size], tf.shape(x)[0] // size) if splits is None else tf.cast(splits, tf.int32)
    output, received = _exchanged(x, even, name, process_set)
    return output if splits is None else (output, received)


def _exchanged(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
    @tf.custom_gradient
    def dealt(x: Any, parts: Any) -> Any:
        label = _name(name, x)
        output, received = call_back(
            lambda array, n: collectives.alltoall(array, n, label, process_set), [x, parts], [x.dtype, tf.int32]
        )

        def gradient(dy: Any, _: Any) -> Any:
            """The rows go back where they came from."""
            return _exchanged(dy, received, None, process_set)[0], None

        return (_shaped(output, [None, *x.shape[1:]]), _shaped(received, parts.shape)), gradient

    return dealt(tensor, splits)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: Op | int = Op.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """The ranks' tensors reduced; each rank gets its share of the rows. Collective: every rank calls it."""
    return grouped_reducescatter(
        [tensor], device_dense, compression, op, name, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: Op | int = Op.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Several tensors reduced and scattered as one operation. Collective: every rank calls it."""
    factor = prescale_factor * postscale_factor * (_size(process_set) if Op(op) == Op.SUM else 1)

    @tf.custom_gradient
    def scattered(*inputs: Any) -> Any:
        label = _name(name, inputs[0])

        def run(*arrays: Any) -> list[Any]:
            return collectives.grouped_reducescatter(
                arrays, label, compression, op, process_set, prescale_factor, postscale_factor
            )

        def gradient(*dys: Any) -> Any:
            """Every rank's input went into every share: gather the shares' gradients."""
            return grouped_allgather([dy * tf.cast(factor, dy.dtype) for dy in dys], process_set=process_set)

        outputs = call_back(run, inputs, [x.dtype for x in inputs])
        return [_shaped(output, [None, *x.shape[1:]]) for output, x in zip(outputs, inputs)], gradient

    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(scattered(*dense)) if dense else []


# Numbers of the world when a graph runs


def _number(read: Callable[[], int]) -> Any:
    return _shaped(call_back(lambda: np.int32(read()), [], [tf.int32])[0], [])


def rank_op(name: str | None = None) -> Any:
    """This process's number, read when the graph runs."""
    return _number(world.rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Number of ranks of a process set, read when the graph runs."""
    return _number(lambda: _size(world.get_process_set(process_set_id)))


def local_rank_op(name: str | None = None) -> Any:
    """This process's number on its node, read when the graph runs."""
    return _number(world.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """Number of ranks on this node, read when the graph runs."""
    return _number(world.local_size)
