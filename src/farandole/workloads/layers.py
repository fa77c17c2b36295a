"""Layers and initializers CANDLE's benchmarks use and Keras 3 does not have.

Keras knows all that a saved benchmark consists of once this module is imported: the metrics and the optimizer, too.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import farandole.optim.lars_keras  # registered with Keras, as the metrics are
import farandole.workloads.metrics  # noqa: F401
from farandole.errors import SettingsError

__all__ = [
    "Conv1D",
    "Latent",
    "LocallyConnected1D",
    "MaxPooling1D",
    "check_fits",
    "convolution_and_pool",
    "dropout",
    "initializer",
]

GROWING = ("elu", "leaky_relu", "linear", "relu", "relu6", "selu", "sigmoid", "softplus", "softsign", "tanh")


def initializer(name: str) -> Any:
    """A new one for each layer, by its name in CANDLE; `normal` is N(0, 0.05)."""
    if name == "normal":
        return keras.initializers.RandomNormal(0.0, 0.05)
    try:
        return keras.initializers.get(name)
    except ValueError:
        raise SettingsError(
            f"initialization={name!r} is unknown; known: normal, and Keras' own, e.g. glorot_uniform, he_normal"
        ) from None


def dropout(rate: float) -> Any:
    """Keras' own, with a seed: without one torch draws from a generator of its own, which is alike on all ranks."""
    return keras.layers.Dropout(rate, seed=random.randrange(1, 10**9))


@keras.saving.register_keras_serializable("farandole")
class Conv1D(keras.layers.Conv1D):
    """Keras' own, without padding; on torch and TensorFlow in the layout and with the kernels that are fastest there."""

    def call(self, inputs: Any) -> Any:
        backend = keras.backend.backend()
        if backend == "jax":
            return super().call(inputs)
        module = importlib.import_module(f"farandole.workloads.{backend}_convolution")
        rectify = self.activation is keras.activations.relu
        found = module.convolve(inputs, self.kernel.value, self.bias.value, self.strides[0], rectify=rectify)
        return found if rectify else self.activation(found)


@keras.saving.register_keras_serializable("farandole")
class MaxPooling1D(keras.layers.MaxPooling1D):
    """Keras' own, without padding; on torch in the layout its inputs have."""

    def call(self, inputs: Any) -> Any:
        if keras.backend.backend() != "torch":
            return super().call(inputs)
        from farandole.workloads.torch_convolution import pooled

        return pooled(inputs, self.pool_size[0], self.strides[0])


def convolution_and_pool(convolution: Any, pool: int, activation: str) -> list[Any]:
    """A convolution that has no activation yet, the activation, and the largest of each `pool` values.

    The largest value stays the largest through an activation that grows: pooled first, there are fewer to activate.
    """
    if pool > 1 and activation in GROWING:
        return [convolution, MaxPooling1D(pool), keras.layers.Activation(activation)]
    convolution.activation = keras.activations.get(activation)
    return [convolution] if pool == 1 else [convolution, MaxPooling1D(pool)]


@keras.saving.register_keras_serializable("farandole")
class LocallyConnected1D(keras.layers.Layer):
    """A convolution whose weights differ from place to place: (batch, length, channels) -> (batch, places, filters)."""

    def __init__(
        self,
        filters: int,
        width: int,
        stride: int,
        activation: Any = None,
        kernel_initializer: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.filters, self.width, self.stride = filters, width, stride
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")

    def build(self, input_shape: Any) -> None:
        _, length, channels = input_shape
        places = self._places(length)
        self.kernel = self.add_weight(
            shape=(places, self.width * channels, self.filters),
            initializer=self.kernel_initializer,
            name="kernel",
        )
        self.bias = self.add_weight(shape=(places, self.filters), initializer="zeros", name="bias")
        # Which values each place looks at: (places * width,)
        self._looks_at = (np.arange(places)[:, None] * self.stride + np.arange(self.width)).reshape(-1)

    def call(self, inputs: Any) -> Any:
        places = self.kernel.shape[0]
        patches = ops.take(inputs, self._looks_at, axis=1)
        patches = ops.reshape(patches, (-1, places, self.kernel.shape[1]))
        return self.activation(ops.einsum("npk,pkf->npf", patches, self.kernel) + self.bias)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], self._places(input_shape[1]), self.filters)

    def _places(self, length: int) -> int:
        return int((length - self.width) // self.stride + 1)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "width": self.width,
            "stride": self.stride,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable("farandole")
class Latent(keras.layers.Layer):
    """A variational autoencoder's latent values, drawn around their mean while training, and what drawing costs.

    The loss it adds is the distance from N(0, 1), divided by the number of the autoencoder's inputs.
    """

    def __init__(self, inputs: int, deviation: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.inputs, self.deviation = inputs, deviation
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, mean_and_log_variance: Any, training: bool = False) -> Any:
        mean, log_variance = mean_and_log_variance
        distance = -0.5 * ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)
        self.add_loss(ops.mean(distance) / self.inputs)
        if not training:
            return mean
        noise = keras.random.normal(ops.shape(mean), stddev=self.deviation, seed=self.seed_generator)
        return mean + ops.exp(log_variance / 2) * noise

    def compute_output_shape(self, shapes: Any) -> Any:
        return shapes[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "inputs": self.inputs, "deviation": self.deviation}


def check_fits(convolutions: Sequence[tuple[int, int, int, int]], features: int) -> None:
    """Refuse convolutions (filters, width, stride, pooling) that leave nothing of the features."""
    length = features
    for _, width, stride, pool in convolutions:
        for window, step in ((width, stride), (pool, pool)):
            if length < window:
                raise SettingsError(
                    f"{features} features are too few for these convolutions: {length} values are left where {window} "
                    "are needed. Use smaller widths in conv and pool, or more features."
                )
            length = (length - window) // step + 1
