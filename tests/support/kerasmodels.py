"""Small Keras models for tests on two ranks of every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ranktest import rank_test

__all__ = ["compiled", "data", "model_of", "on_two", "weights"]

# As in tests/parity/test_keras_training.py, so that both share their launches.
ENV = {"JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


def on_two(backends: Sequence[str] = ("torch", "tensorflow", "jax"), *, shipped: bool = False) -> Callable[..., Any]:
    """A test on two ranks, once for each backend.

    `make test` runs those of torch, and all backends' in tests/parity.
    """
    return rank_test(n=2, door="keras", env=ENV, backends=backends, more=("tensorflow", "jax"), timeout=90, shipped=shipped)


def model_of(widths: Sequence[int] = (16, 1), seed: int = 0, policy: str = "float32") -> Any:
    import keras

    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(width, name=f"layer{i}") for i, width in enumerate(widths)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    keras.config.set_dtype_policy("float32")
    return model


def data(rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Inputs of `model_of`, and their sums."""
    import numpy as np

    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def weights(model: Any) -> list[Any]:
    import keras

    return [keras.ops.convert_to_numpy(v) for v in model.variables]


def compiled(hvd: Any, model: Any, optimizer: Any = None, **options: Any) -> Any:
    """The model, to be trained by all ranks."""
    import keras

    model.compile(hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.05), **options), "mse")
    return model
