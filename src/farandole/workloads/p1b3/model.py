"""P1B3's networks."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from farandole.workloads.layers import (
    Conv1D,
    LocallyConnected1D,
    check_fits,
    convolution_and_pool,
    dropout,
    initializer,
)
from farandole.workloads.metrics import R2, SignAccuracy
from farandole.workloads.p1b3 import P1B3
from farandole.workloads.samples import TrainingData

__all__ = ["build", "metrics"]


def build(parameters: P1B3, data: TrainingData) -> Any:
    model = keras.Sequential([keras.Input((data.features,))], name="p1b3")
    if parameters.conv:
        _add_convolutions(model, parameters, data.features)
    for width in parameters.dense or ():
        model.add(
            layers.Dense(
                width, parameters.activation, kernel_initializer=initializer(parameters.initialization)
            )
        )
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(
        layers.Dense(1, parameters.out_activation, kernel_initializer=initializer(parameters.initialization))
    )
    return model


def _add_convolutions(model: Any, parameters: P1B3, features: int) -> None:
    kind = LocallyConnected1D if parameters.locally_connected else Conv1D
    check_fits(parameters.convolutions, features)
    model.add(layers.Reshape((features, 1)))
    for filters, width, stride, pool in parameters.convolutions:
        convolution = kind(
            filters, width, stride, kernel_initializer=initializer(parameters.initialization)
        )
        for layer in convolution_and_pool(convolution, pool, parameters.activation):
            model.add(layer)
    model.add(layers.Flatten())


def metrics(parameters: P1B3, data: TrainingData) -> list[Any]:
    return [SignAccuracy(), R2(1)]
