"""Keras on JAX, models with very large gradients: a step in two compiled parts, and the reduction between them.

Inside one compiled step a result must be where XLA wants it: every rank copies what its neighbours have made. Between
two, the second part reads results where the node's ranks have written them. Keras' own `train_step` is taken apart
without knowing what is in it: once up to the gradients, and once from them on. One of the user's own stays whole: it
may look at variables after they were updated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import keras
from keras.src.backend.jax.trainer import JAXTrainer

from farandole.keras.parts import distributed_part

__all__ = ["offer"]

# From here on the node's ranks share memory for a result: see comm/node/algorithms.py.
_LARGE_BYTES = 16 << 20


class _SplitStep:
    """One training step of a model whose optimizer is distributed."""

    def __init__(self, model: Any) -> None:
        self._optimizer = model.optimizer
        self._gradients = model.optimizer._farandole
        self._compute = jax.jit(self._to_gradients(model), donate_argnums=(1, 3))
        self._apply = jax.jit(self._from_gradients, donate_argnums=(0, 2))

    def _to_gradients(self, model: Any) -> Callable[..., Any]:
        def compute(trainable: Any, others: Any, optimizer: Any, metrics: Any, batch: Any) -> Any:
            with self._gradients.holding() as held:
                logs, (_, others, _, metrics) = model.train_step((trainable, others, optimizer, metrics), batch)
            return held[0], logs, others, metrics

        return compute

    def _from_gradients(self, optimizer: Any, grads: Any, trainable: Any) -> Any:
        with self._gradients.as_reduced():
            return self._optimizer.stateless_apply(optimizer, grads, trainable)

    def __call__(self, state: Any, batch: Any) -> Any:
        trainable, others, optimizer, metrics = state
        grads, logs, others, metrics = self._compute(trainable, others, optimizer, metrics, batch)
        # The next reduction changes these: it needs gradients of the variables that are made of them here.
        reduced = self._gradients.reduce(grads, self._optimizer._trainable_variables, between=True)
        del grads  # its memory is free for the next step
        trainable, optimizer = self._apply(optimizer, reduced, trainable)
        return logs, (trainable, others, optimizer, metrics)


def offer() -> None:
    """Let Keras make such steps for models that have use for them."""
    if "_farandole_original" in JAXTrainer.__dict__:
        return
    JAXTrainer._farandole_original = JAXTrainer.make_train_function
    JAXTrainer.make_train_function = _make_train_function


def _make_train_function(self: Any, force: bool = False) -> None:
    is_new = self.train_function is None or force
    found = distributed_part(getattr(self, "optimizer", None))
    if found is not None:
        found._farandole.results_used = _is_usual(self) and not found.gradient_accumulation_steps
    JAXTrainer._farandole_original(self, force)
    if is_new and _has_use(self):
        self.train_function = self._make_function(_SplitStep(self))


def _has_use(model: Any) -> bool:
    """Whether there is a large gradient, neighbours to share results with, and a step that can be taken apart."""
    optimizer = model.optimizer
    if getattr(optimizer, "_farandole", None) is None or getattr(optimizer, "inner_optimizer", None) is not None:
        return False
    settings = optimizer._farandole.settings
    runtime = settings.process_set.runtime()
    shared = runtime.transport.size >= 2 * runtime.nodes and settings.wire is None
    whole = model.run_eagerly or not model.jit_compile or optimizer.gradient_accumulation_steps
    return shared and _is_usual(model) and not whole and _is_plain_jax() and _has_large(model)


def _is_usual(model: Any) -> bool:
    """Whether a step is Keras' own."""
    return type(model).train_step is JAXTrainer.train_step and "train_step" not in vars(model)


def _is_plain_jax() -> bool:
    """Whether Keras steps as it does by default, in a version whose steps are functions of a state and a batch."""
    with_nnx = getattr(keras.config, "is_nnx_enabled", lambda: False)()
    return keras.distribution.distribution() is None and not with_nnx and hasattr(JAXTrainer, "_make_function")


def _has_large(model: Any) -> bool:
    sizes = (math.prod(v.shape) * jax.numpy.dtype(v.dtype).itemsize for v in model.trainable_variables)
    return max(sizes, default=0) >= _LARGE_BYTES
