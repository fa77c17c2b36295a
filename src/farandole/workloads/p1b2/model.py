"""P1B2's network."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from farandole.workloads.layers import dropout, initializer
from farandole.workloads.p1b2 import P1B2
from farandole.workloads.samples import TrainingData

__all__ = ["build", "metrics"]


def build(parameters: P1B2, data: TrainingData) -> Any:
    model = keras.Sequential([keras.Input((data.features,))], name="p1b2")
    for width in parameters.dense:
        model.add(
            layers.Dense(
                width,
                parameters.activation,
                kernel_initializer=initializer(parameters.initialization),
                kernel_regularizer=keras.regularizers.L2(parameters.reg_l2),
                activity_regularizer=keras.regularizers.L2(parameters.reg_l2),
            )
        )
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(
        layers.Dense(
            len(data.classes),
            parameters.out_activation,
            kernel_initializer=initializer(parameters.initialization),
        )
    )
    return model


def metrics(parameters: P1B2, data: TrainingData) -> list[Any]:
    return [keras.metrics.CategoricalAccuracy(name="accuracy")]
