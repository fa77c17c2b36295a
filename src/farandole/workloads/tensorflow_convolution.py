"""A convolution along one axis on TensorFlow, whose gradient of the kernel stays fast for long inputs.

TensorFlow's own, made by oneDNN, takes time that grows with the square of the length beyond a thousand places. The sum over
a long input is that over its parts, each short enough to be fast. An input of few channels goes another way in
TensorFlow, which has no such length: in parts it would only be slower.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["convolve"]

_PART = 512
_FEWEST_CHANNELS = 16


def convolve(values: Any, kernel: Any, bias: Any, stride: int, *, rectify: bool) -> Any:
    """(batch, length, channels), (width, channels, filters) and (filters,) -> (batch, places, filters)."""
    width, channels, _ = kernel.shape
    places = (values.shape[1] - width) // stride + 1
    if channels < _FEWEST_CHANNELS or places <= 2 * _PART:
        found = tf.nn.conv1d(values, kernel, stride, "VALID")
    else:
        found = _convolve_long(values, tf.convert_to_tensor(kernel), stride)
    found = tf.nn.bias_add(found, bias)
    return tf.nn.relu(found) if rectify else found


def _convolve_long(values: Any, kernel: Any, stride: int) -> Any:
    @tf.custom_gradient
    def convolved(values: Any, kernel: Any) -> Any:
        def gradients(upstream: Any) -> Any:
            return _of_values(values, kernel, upstream, stride), _of_kernel(values, kernel, upstream, stride)

        return tf.nn.conv1d(values, kernel, stride, "VALID"), gradients

    return convolved(values, kernel)


def _of_values(values: Any, kernel: Any, upstream: Any, stride: int) -> Any:
    found = tf.raw_ops.Conv2DBackpropInput(
        input_sizes=[tf.shape(values)[0], 1, *values.shape[1:]],
        filter=kernel[None],
        out_backprop=upstream[:, None],
        strides=[1, 1, stride, 1],
        padding="VALID",
    )
    return found[:, 0]


def _of_kernel(values: Any, kernel: Any, upstream: Any, stride: int) -> Any:
    """The sum of what every part of the places has seen."""
    width, places = kernel.shape[0], upstream.shape[1]
    found = []
    for first in range(0, places, _PART):
        last = min(first + _PART, places)
        seen = values[:, first * stride : (last - 1) * stride + width]
        found.append(_of_kernel_in_part(seen, kernel, upstream[:, first:last], stride))
    return tf.add_n(found)


def _of_kernel_in_part(values: Any, kernel: Any, upstream: Any, stride: int) -> Any:
    found = tf.raw_ops.Conv2DBackpropFilter(
        input=values[:, None],
        filter_sizes=[1, *kernel.shape],
        out_backprop=upstream[:, None],
        strides=[1, 1, stride, 1],
        padding="VALID",
    )
    return found[0]
