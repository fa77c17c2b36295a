"""A run's optimizer: by CANDLE's names, at the plan's rate, distributed over the ranks; and the model compiled with it."""

from __future__ import annotations

from typing import Any

import keras

import farandole.keras as hvd
from farandole.train.plan import Plan
from farandole.train.short_calls import shorten_calls

__all__ = ["SLOTS", "compile_model"]

SLOTS = {"sgd": 0, "rmsprop": 1, "adam": 2, "adagrad": 1, "adadelta": 2, "adamax": 2, "nadam": 2, "lars": 1}
"""Copies of the weights each optimizer keeps."""

_CLASSES = {
    "sgd": keras.optimizers.SGD,
    "rmsprop": keras.optimizers.RMSprop,
    "adam": keras.optimizers.Adam,
    "adagrad": keras.optimizers.Adagrad,
    "adadelta": keras.optimizers.Adadelta,
    "adamax": keras.optimizers.Adamax,
    "nadam": keras.optimizers.Nadam,
}


def compile_model(model: Any, name: str, plan: Plan, loss: Any, metrics: list[Any]) -> None:
    """With optimizer `name`."""
    model.compile(_optimizer(name, plan), loss, metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    shorten_calls(model)


def _optimizer(name: str, plan: Plan) -> Any:
    """Gradients are averaged over all ranks it trains as, real and emulated."""
    return hvd.DistributedOptimizer(
        _class(name)(learning_rate=plan.rate),
        backward_passes_per_step=plan.passes,
        average_aggregated_gradients=True,
    )


def _class(name: str) -> Any:
    if name == "lars":
        from farandole.optim.lars_keras import LARS

        return LARS
    return _CLASSES[name]
