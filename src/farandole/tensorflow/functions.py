"""Starting all ranks from the same variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from farandole.comm.gradients.agreement import agree_on_gradients
from farandole.comm.gradients.interface import Entry
from farandole.comm.named import collectives
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.gradients import call_back, name_of

__all__ = ["broadcast_", "broadcast_variables"]


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Give every rank the root's values of variables, TensorFlow's or Keras'. Collective: every rank calls it.

    Inside tf.function too, where it is a part of the graph. `inplace` is accepted for Horovod's sake.
    """
    broadcast_(variables, root_rank, process_set=process_set)


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The same, with the new values as tensors. Collective: every rank calls it."""
    listed = list(variables)
    runtime = process_set.runtime()
    label = name or f"variables.{runtime.next_name('variables').rsplit('.', 1)[1]}"
    entries = [Entry(name_of(v), tf.as_dtype(v.dtype).name, tuple(v.shape)) for v in listed]
    agree_on_gradients(process_set, label, "broadcast_variables", entries)

    def run(*arrays: Any) -> list[Any]:
        return [collectives.broadcast(a, root_rank, f"{label}.{i}", process_set) for i, a in enumerate(arrays)]

    values = [tf.convert_to_tensor(v) for v in listed]
    received = call_back(run, values, [v.dtype for v in values])
    for variable, value in zip(listed, received):
        value.set_shape(variable.shape)
        variable.assign(value)
    return received
