"""NT3 in plain JAX: one compiled function a step, which takes weights and gives new ones in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.nt3_weights import DROPOUT, RATE, Network

__all__ = ["networks"]


def networks(weights: Sequence[Any]) -> dict[str, Network]:
    return {"conv": _Jax(weights, image=False), "conv, two dimensions": _Jax(weights, image=True)}


class _Jax:
    def __init__(self, weights: Sequence[Any], *, image: bool) -> None:
        self._image = image
        self._weights = [jnp.array(w) for w in weights]
        self._key = jax.random.key(0)
        self._step = jax.jit(self._trained, donate_argnums=0)
        self._loss = jax.jit(self._cross_entropy)

    def step(self, x: Any, y: Any) -> None:
        self._key, drawn = jax.random.split(self._key)
        self._weights = self._step(self._weights, x, y, drawn)
        jax.block_until_ready(self._weights)

    def loss(self, x: Any, y: Any) -> float:
        return float(self._loss(self._weights, x, y, None))

    def _trained(self, weights: Any, x: Any, y: Any, key: Any) -> Any:
        gradients = jax.grad(self._cross_entropy)(weights, x, y, key)
        return [weight - RATE * gradient for weight, gradient in zip(weights, gradients)]

    def _cross_entropy(self, weights: Any, x: Any, y: Any, key: Any) -> Any:
        first, second, *dense = zip(weights[::2], weights[1::2])
        values = self._convolved(self._convolved(x, *first), *second)
        values = lax.reduce_window(values, -jnp.inf, lax.max, (1, 10, 1), (1, 10, 1), "VALID")
        values = values.reshape(len(x), -1)
        for number, (kernel, bias) in enumerate(dense, 1):
            values = values @ kernel + bias
            if number < len(dense):
                values = jnp.maximum(values, 0)
                if key is not None:
                    kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - DROPOUT, values.shape)
                    values = jnp.where(kept, values / (1 - DROPOUT), 0)
        return -(y * jax.nn.log_softmax(values)).sum(axis=-1).mean()

    def _convolved(self, values: Any, kernel: Any, bias: Any) -> Any:
        if self._image:
            layout = ("NHWC", "HWIO", "NHWC")
            found = lax.conv_general_dilated(
                values[:, None], kernel[None], (1, 1), "VALID", dimension_numbers=layout
            )[:, 0]
        else:
            found = lax.conv_general_dilated(
                values, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
            )
        return jnp.maximum(found + bias, 0)
