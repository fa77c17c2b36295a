"""NT3's network."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from farandole.workloads.layers import Conv1D, check_fits, convolution_and_pool, dropout, initializer
from farandole.workloads.nt3 import NT3
from farandole.workloads.samples import TrainingData

__all__ = ["build", "metrics"]


def build(parameters: NT3, data: TrainingData) -> Any:
    def start() -> Any:
        return initializer(parameters.initialization)

    model = keras.Sequential([keras.Input((data.features, 1))], name="nt3")
    check_fits(parameters.convolutions, data.features)
    for filters, width, stride, pool in parameters.convolutions:
        convolution = Conv1D(filters, width, stride, kernel_initializer=start())
        for layer in convolution_and_pool(convolution, pool, parameters.activation):
            model.add(layer)
    model.add(layers.Flatten())
    for width in parameters.dense:
        model.add(layers.Dense(width, parameters.activation, kernel_initializer=start()))
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(layers.Dense(len(data.classes), parameters.out_activation, kernel_initializer=start()))
    return model


def metrics(parameters: NT3, data: TrainingData) -> list[Any]:
    return [keras.metrics.CategoricalAccuracy(name="accuracy")]
