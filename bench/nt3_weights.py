"""NT3 without Keras: what its plain forms have in common.

Weights are those of the Keras model, in its order: kernel and bias of two convolutions and three dense layers.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["DROPOUT", "RATE", "Network", "channels_first"]

RATE = 0.001
DROPOUT = 0.1


class Network(Protocol):
    """One form of NT3, in training."""

    def step(self, x: Any, y: Any) -> None:
        """Forward, backward and SGD on a batch: (batch, genes, 1) and (batch, classes), as NumPy arrays."""

    def loss(self, x: Any, y: Any) -> float:
        """On a batch, without dropout."""


def channels_first(kernel: Any, channels: int) -> Any:
    """The first dense kernel, whose rows are (places, channels), for a framework that has (channels, places)."""
    places = kernel.shape[0] // channels
    return np.ascontiguousarray(kernel.reshape(places, channels, -1).transpose(1, 0, 2)).reshape(kernel.shape)
