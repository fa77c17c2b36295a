"""From a graph's gradients to those of all ranks: one callback for all of them.

TensorFlow hands the callback its own memory, and takes aligned results as they are: a large gradient is copied
nowhere, where it is used up before the next step. A gradient that users may keep gets memory of its own. The callback
is stateful, so that TensorFlow keeps its place among other stateful operations on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from farandole.comm.gradients.buffers import BufferReducer, BufferSettings
from farandole.comm.gradients.interface import Entry, aligned
from farandole.errors import SettingsError

__all__ = ["GraphReducer", "call_back", "check_not_compiled", "name_of"]


def name_of(variable: Any) -> str:
    """A variable's name, for people: Keras' path, or TensorFlow's name, which a tensor has only in a graph."""
    if isinstance(variable, tf.Tensor):
        return "(tensor)"
    return str(getattr(variable, "path", None) or variable.name)


def check_not_compiled() -> None:
    """XLA cannot call Python, and says so in words of its own much later."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise SettingsError(
            "jit_compile=True: XLA on TensorFlow cannot wait for other ranks inside a compiled step. Use "
            "compile(jit_compile=False), or KERAS_BACKEND=jax, whose compiled steps can."
        )


def call_back(function: Callable[..., Any], tensors: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Run a function on arrays, now or as a part of the graph; a list of its results, also where there is one."""
    check_not_compiled()
    return list(tf.nest.flatten(tf.numpy_function(function, list(tensors), list(types))))


def _check_shapes(variables: Sequence[Any]) -> None:
    for variable in variables:
        if any(length is None for length in variable.shape):
            raise SettingsError(
                f"the gradient of {name_of(variable)} has shape {tuple(variable.shape)} while the function is traced, and "
                "is reduced by a plan. Give the tensor a fixed shape, or reduce its gradient with allreduce()."
            )


def _dense(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient as a tensor; the rows of an embedding do not always say of how many they are."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape))
    return tf.convert_to_tensor(gradient)


class GraphReducer:
    """Reduces the gradients of some variables. Collective to make: every rank of the set does."""

    alone = False
    """Whether gradients stay this rank's for now."""

    def __init__(
        self, label: str, name: str, variables: Sequence[Any], settings: BufferSettings, *, kept: bool = False
    ) -> None:
        """`name`: the plan's, alike on all ranks. `kept`: whether results may be looked at after the next step."""
        check_not_compiled()
        self._kept = kept
        _check_shapes(variables)
        entries = [Entry(name_of(v), tf.as_dtype(v.dtype).name, tuple(v.shape)) for v in variables]
        self._buffers = BufferReducer(label, name, entries, settings, in_place=False)

    def reduce(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks, as a part of the graph. Collective when it runs."""
        # As optimizers do: a step of the user's own may hand over gradients of another type than the variable's.
        dense = [tf.cast(_dense(g, entry.shape), entry.dtype) for g, entry in zip(grads, self._buffers.entries)]
        if self._buffers.changes_nothing:
            return dense
        reduced = call_back(self._run, dense, [gradient.dtype for gradient in dense])
        for result, entry in zip(reduced, self._buffers.entries):
            result.set_shape(entry.shape)
        return reduced

    def _run(self, *grads: Any) -> list[Any]:
        if self.alone:
            return list(grads)
        outs = [aligned(g.size, g.dtype).reshape(g.shape) for g in grads] if self._kept else None
        return self._buffers.reduce(grads, outs)

    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        self._buffers.end()

    def statistics(self) -> dict[str, float]:
        return self._buffers.summary()
