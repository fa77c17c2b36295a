"""A chain of layers on torch, without what Keras does around the call of each.

Keras converts, looks for masks and keeps scopes at every layer: for NT3 4 to 5 ms of a step, which with 600 genes takes 80 (found
with 60 genes, where little else is done). Layers of the benchmarks need none of it. Around the model as a whole it stays. TensorFlow and JAX do it once, when they compile.
"""

from __future__ import annotations

import types
from typing import Any

import keras

__all__ = ["shorten_calls"]


def shorten_calls(model: Any) -> None:
    """Let a Sequential `model` call its layers directly, where that is the same."""
    if keras.backend.backend() == "torch" and isinstance(model, keras.Sequential) and not any(map(_needs_more, model.layers)):
        model.call = types.MethodType(_call, model)


def _needs_more(layer: Any) -> bool:
    return bool(layer.compute_dtype != layer.variable_dtype or layer.activity_regularizer is not None)


def _call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    if mask is not None or isinstance(inputs, keras.KerasTensor):
        return type(self).call(self, inputs, training=training, mask=mask)
    for layer in self.layers:
        inputs = layer.call(inputs, training=training) if layer._call_has_training_arg else layer.call(inputs)
    return inputs
