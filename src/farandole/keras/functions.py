"""Starting all ranks from the same state, collectives on values, and loading what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from farandole.comm.gradients.agreement import agree_on_gradients
from farandole.comm.gradients.interface import Entry
from farandole.comm.named import collectives
from farandole.comm.named.compression import Compression, Compressor
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.keras.optimizer import DistributedOptimizer, local_variables

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]


def _array(value: Any) -> Any:
    return keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else np.asarray(value)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | int | None = None,
    compression: type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ranks' values (numbers, arrays, tensors) reduced, as an array. Collective: every rank calls it."""
    return collectives.allreduce(
        _array(value), average, name, compression, op, prescale_factor, postscale_factor, process_set
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The ranks' values concatenated along dimension 0, as an array. Collective: every rank calls it."""
    return collectives.allgather(_array(value), name, process_set)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's value, as an array. Collective: every rank calls it."""
    return collectives.broadcast(_array(value), root_rank, name, process_set)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: Op | int = Op.AVERAGE,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ranks' values reduced; each rank gets its share of the rows. Collective: every rank calls it."""
    return collectives.reducescatter(_array(value), name, Compression.none, op, process_set)


# Variables


def broadcast_variables(
    variables: Sequence[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank the root's values of Keras variables. Collective: every rank calls it."""
    runtime = process_set.runtime()
    label = f"variables.{runtime.next_name('variables').rsplit('.', 1)[1]}"
    listed = [Entry(v.path, str(v.dtype), tuple(v.shape)) for v in variables]
    agree_on_gradients(process_set, label, "broadcast_variables", listed)
    # As bytes: there are types (uint32) that can be sent but not reduced.
    arrays = [np.array(_array(v)) for v in variables]
    views = [array.reshape(-1).view(np.uint8) for array in arrays]
    handles = [
        collectives.broadcast_async_(view, root_rank, f"{label}.{i}", process_set)
        for i, view in enumerate(views)
        if view.size
    ]
    for handle in handles:
        collectives.synchronize(handle)
    if runtime.members[runtime.transport.rank] != root_rank:
        for variable, array in zip(variables, arrays):
            variable.assign(array)


def broadcast_global_variables(
    root_rank: int = 0, model: Any = None, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank the root's model and optimizer state. Collective: every rank calls it.

    What belongs to a rank stays: layers left to it by PartialDistributedOptimizer, and the state of random seeds,
    without which all ranks would drop the same units out.
    """
    if model is None:
        raise SettingsError(
            "broadcast_global_variables(root_rank, model=...): Keras 3 keeps no list of all variables; pass the model, "
            "or give fit() a BroadcastGlobalVariablesCallback"
        )
    broadcast_variables(shared_variables(model), root_rank, process_set)


def shared_variables(model: Any) -> list[Any]:
    """A model's variables, and its optimizer's, that start alike on all ranks."""
    optimizer = getattr(model, "optimizer", None)
    own = {id(v) for v in local_variables(optimizer)}
    held = [*model.variables, *([] if optimizer is None else optimizer.variables)]
    return [v for v in held if id(v) not in own and v.name != "seed_generator_state"]


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **options: Any,
) -> Any:
    """keras.saving.load_model, with the model's optimizer distributed.

    What DistributedOptimizer got as `backward_passes_per_step` is given here again: of it, a saved model knows only that
    Keras accumulates gradients, which by itself averages them.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**known, **(custom_objects or {})}, **options)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(
            model.optimizer,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
    return model
