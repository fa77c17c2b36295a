"""P1B1's networks."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from farandole.workloads.layers import Latent, dropout, initializer
from farandole.workloads.metrics import R2, Correlation
from farandole.workloads.p1b1 import P1B1
from farandole.workloads.samples import TrainingData

__all__ = ["build", "metrics"]


def build(parameters: P1B1, data: TrainingData) -> Any:
    genes = keras.Input((data.features,), name="genes")
    cancer_type = (
        keras.Input((len(data.classes),), name="cancer_type") if parameters.model == "cvae" else None
    )

    def beside_type(values: Any) -> Any:
        return values if cancer_type is None else layers.Concatenate()([values, cancer_type])

    encoded = _hidden(beside_type(genes), parameters.dense, parameters)
    latent = _latent(encoded, parameters, data.features)
    decoded = _hidden(beside_type(latent), parameters.dense[::-1], parameters)
    restored = layers.Dense(
        data.features, parameters.out_activation, kernel_initializer=initializer(parameters.initialization)
    )(decoded)
    return keras.Model(
        genes if cancer_type is None else (genes, cancer_type), restored, name=parameters.model
    )


def _hidden(values: Any, widths: tuple[int, ...], parameters: P1B1) -> Any:
    for width in widths:
        values = layers.Dense(
            width, parameters.activation, kernel_initializer=initializer(parameters.initialization)
        )(values)
        if parameters.dropout:
            values = dropout(parameters.dropout)(values)
    return values


def _latent(encoded: Any, parameters: P1B1, features: int) -> Any:
    def narrow(activation: str, name: str) -> Any:
        dense = layers.Dense(
            parameters.latent_dim,
            activation,
            kernel_initializer=initializer(parameters.initialization),
            name=name,
        )
        return dense(encoded)

    if parameters.model == "ae":
        return narrow(parameters.activation, "latent")
    return Latent(features, parameters.epsilon_std)(
        (narrow("linear", "z_mean"), narrow("linear", "z_log_var"))
    )


def metrics(parameters: P1B1, data: TrainingData) -> list[Any]:
    return [keras.metrics.MeanSquaredError(name="mse"), R2(data.features), Correlation()]
