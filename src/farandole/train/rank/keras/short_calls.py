"""A chain of layers on torch, without what Keras does around the call of each.

Keras converts, looks for masks and keeps scopes at every layer: for NT3 4 to 5 ms of a step, which with 600 genes takes 80 (found
with 60 genes, where little else is done). Layers of the benchmarks need none of it. Around the model as a whole it stays, and
inputs of another shape or type than the model's go through Keras, which converts them or says what is wrong. TensorFlow and
JAX do all this once, when they compile.
"""

from __future__ import annotations

import types
from typing import Any

import keras

__all__ = ["shorten_calls"]


def shorten_calls(model: Any) -> None:
    """Let a Sequential `model` call its layers directly, where that is the same."""
    if keras.backend.backend() != "torch" or not isinstance(model, keras.Sequential):
        return
    dtype, shape = model.inputs[0].dtype, tuple(model.input_shape[1:])
    if any(_needs_more(layer, dtype) for layer in model.layers):
        return

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if mask is not None or not _is_plain(inputs, dtype, shape):
            return type(self).call(self, inputs, training=training, mask=mask)
        for layer in self.layers:
            inputs = layer.call(inputs, training=training) if layer._call_has_training_arg else layer.call(inputs)
        return inputs

    model.call = types.MethodType(call, model)


def _needs_more(layer: Any, dtype: str) -> bool:
    """Conversions on the way, or a part of the loss."""
    return {layer.compute_dtype, layer.variable_dtype} != {dtype} or layer.activity_regularizer is not None


def _is_plain(inputs: Any, dtype: str, shape: tuple[int, ...]) -> bool:
    """A batch as the first layer takes it."""
    return (
        keras.ops.is_tensor(inputs)
        and not isinstance(inputs, keras.KerasTensor)
        and tuple(inputs.shape[1:]) == shape
        and keras.backend.standardize_dtype(inputs.dtype) == dtype
    )
