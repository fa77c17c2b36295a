"""NT3 in plain TensorFlow: one compiled function a step, by its graphs or by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bench.nt3_weights import DROPOUT, RATE, Network

__all__ = ["networks"]


def networks(weights: Sequence[Any]) -> dict[str, Network]:
    return {
        "graph": _TensorFlow(weights, image=False, xla=False),
        "graph, conv2d": _TensorFlow(weights, image=True, xla=False),
        "XLA": _TensorFlow(weights, image=False, xla=True),
        "XLA, conv2d": _TensorFlow(weights, image=True, xla=True),
    }


class _TensorFlow:
    def __init__(self, weights: Sequence[Any], *, image: bool, xla: bool) -> None:
        self._image = image
        self._variables = [tf.Variable(w) for w in weights]
        self._step = tf.function(self._trained, jit_compile=xla)
        self._loss = tf.function(lambda x, y: self._cross_entropy(x, y, training=False))

    def step(self, x: Any, y: Any) -> None:
        self._step(tf.convert_to_tensor(x), tf.convert_to_tensor(y))

    def loss(self, x: Any, y: Any) -> float:
        return float(self._loss(tf.convert_to_tensor(x), tf.convert_to_tensor(y)))

    def _trained(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._cross_entropy(x, y, training=True)
        for variable, gradient in zip(self._variables, tape.gradient(loss, self._variables)):
            variable.assign_sub(RATE * gradient)
        return loss

    def _cross_entropy(self, x: Any, y: Any, *, training: bool) -> Any:
        first, second, *dense = zip(self._variables[::2], self._variables[1::2])
        values = self._convolved(self._convolved(x, *first), *second)
        values = tf.nn.max_pool1d(values, 10, 10, "VALID")
        values = tf.reshape(values, (x.shape[0], -1))
        for number, (kernel, bias) in enumerate(dense, 1):
            values = values @ kernel + bias
            if number < len(dense):
                values = tf.nn.relu(values)
                values = tf.nn.dropout(values, DROPOUT) if training else values
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, values))

    def _convolved(self, values: Any, kernel: Any, bias: Any) -> Any:
        if self._image:
            found = tf.nn.conv2d(values[:, None], kernel[None], 1, "VALID")[:, 0]
        else:
            found = tf.nn.conv1d(values, kernel, 1, "VALID")
        return tf.nn.relu(tf.nn.bias_add(found, bias))
