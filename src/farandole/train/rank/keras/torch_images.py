"""Layers for images on torch, as Keras computes them but without its copies.

Keras (3.15) keeps images with their channels last. Around every convolution and pooling on torch it copies them to channels first, and for
convolutions back again; kernels are copied into torch's order in every step, and their gradients back. Batch normalisation is a dozen
operations, each with a result that is kept for backward. Here images stay as they are, kernels lie in memory as torch reads them,
and normalisation is torch's own. For ResNet-50 that is a third of a step (docs/experiments.md).

Layers of these types alone, not of classes derived from them, and only with settings that torch has as well; whatever else, and
whatever comes in another shape or type, goes Keras' way.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras

__all__ = ["compute_images_in_place"]


def compute_images_in_place(model: Any) -> None:
    """Replace what the layers of `model` call, where they are of torch and it is the same."""
    if keras.backend.backend() != "torch":
        return
    for layer in model._flatten_layers():
        call = _CALLS.get(type(layer))
        if call is not None and layer.built and _is_known(layer):
            layer.call = types.MethodType(call, layer)
            if type(layer) is keras.layers.Conv2D:
                _lay_out(layer.kernel.value)


def _is_known(layer: Any) -> bool:
    """Whether torch does the same with the layer's settings."""
    if {layer.compute_dtype, layer.variable_dtype} != {"float32"}:
        return False
    if isinstance(layer, keras.layers.BatchNormalization):
        return not layer.renorm and not layer.synchronized and layer.axis in (-1, 3)
    return layer.data_format == "channels_last" and _padding(layer) is not None and not getattr(layer, "lora_enabled", False)


def _padding(layer: Any) -> Any:
    """On both sides of rows and columns; None where Keras pads one side more than the other."""
    window = layer.kernel_size if type(layer) is keras.layers.Conv2D else layer.pool_size
    if layer.padding == "valid":
        return (0, 0)
    even = any(not length % 2 for length in window) or {*layer.strides, *getattr(layer, "dilation_rate", (1,))} != {1}
    return None if even else tuple(length // 2 for length in window)


def _lay_out(kernel: Any) -> None:
    """(height, width, channels, filters) as before, in the memory of (filters, height, width, channels)."""
    import torch

    kernel.data = kernel.data.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last).permute(2, 3, 1, 0)


def _is_images(values: Any) -> bool:
    import torch

    return isinstance(values, torch.Tensor) and values.ndim == 4 and values.dtype == torch.float32 and values.device.type != "meta"


def _convolved(self: Any, inputs: Any) -> Any:
    import torch

    if not _is_images(inputs):
        return type(self).call(self, inputs)
    bias = self.bias.value if self.use_bias else None
    found = torch.nn.functional.conv2d(
        inputs.permute(0, 3, 1, 2), self.kernel.value.permute(3, 2, 0, 1), bias, self.strides, _padding(self), self.dilation_rate, self.groups
    ).permute(0, 2, 3, 1)
    return found if self.activation is None else self.activation(found)


def _pooled(self: Any, inputs: Any) -> Any:
    import torch

    if not _is_images(inputs):
        return type(self).call(self, inputs)
    return torch.nn.functional.max_pool2d(inputs.permute(0, 3, 1, 2), self.pool_size, self.strides, _padding(self)).permute(0, 2, 3, 1)


def _normalised(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    import torch

    if mask is not None or not training or not self.trainable or not _is_images(inputs):
        return type(self).call(self, inputs, training=training, mask=mask)
    scale, shift = (getattr(self, name).value if there else None for name, there in (("gamma", self.scale), ("beta", self.center)))
    found, mean, deviation = torch.native_batch_norm(inputs.permute(0, 3, 1, 2), scale, shift, None, None, True, 0.0, self.epsilon)
    with torch.no_grad():
        for moving, batch in ((self.moving_mean, mean), (self.moving_variance, deviation.pow(-2) - self.epsilon)):
            moving.value.lerp_(batch, 1 - self.momentum)
    return found.permute(0, 2, 3, 1)


_CALLS: dict[type, Callable[..., Any]] = {
    keras.layers.Conv2D: _convolved, keras.layers.MaxPooling2D: _pooled, keras.layers.BatchNormalization: _normalised,
}  # fmt: skip
