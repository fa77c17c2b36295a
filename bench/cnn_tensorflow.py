"""A Keras CNN in plain TensorFlow: one function a step, by its graph or by XLA, and variables that it updates itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bench.cnn_steps import OURS_KERAS, RATE

__all__ = ["steps"]


def steps(ours: Mapping[str, Any]) -> dict[str, Callable[[Any, Any], Any]]:
    model = ours[OURS_KERAS].model
    return {"tf.function": _Function(model, xla=False), "tf.function, XLA": _Function(model, xla=True)}


class _Function:
    def __init__(self, model: Any, *, xla: bool) -> None:
        self._model = keras.models.clone_model(model)
        self._model.set_weights(model.get_weights())
        self._variables = [variable.value for variable in self._model.trainable_variables]
        self._step = tf.function(self._trained, jit_compile=xla)
        self._made: dict[int, Any] = {}

    def __call__(self, inputs: Any, labels: Any) -> Any:
        """Tensors are made once."""
        if id(inputs) not in self._made:
            self._made[id(inputs)] = tf.constant(inputs), tf.constant(labels)
        return float(self._step(*self._made[id(inputs)]))

    def _trained(self, images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = self._model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        for variable, gradient in zip(self._variables, tape.gradient(loss, self._variables)):
            variable.assign_sub(RATE * gradient)
        return loss
