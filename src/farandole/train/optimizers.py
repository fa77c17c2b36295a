"""The optimizers a run knows by name, whichever framework they are of."""

from __future__ import annotations

__all__ = ["DEFAULT_RATES", "SLOTS"]

DEFAULT_RATES = {
    "sgd": 0.01, "rmsprop": 0.001, "adam": 0.001, "adagrad": 0.001, "adadelta": 0.001, "adamax": 0.001, "nadam": 0.001, "lars": 0.01,
}  # fmt: skip
"""Where no rate is given: those of Keras, for torch modules too; LARS' has none."""
SLOTS = {"sgd": 0, "rmsprop": 1, "adam": 2, "adagrad": 1, "adadelta": 2, "adamax": 2, "nadam": 2, "lars": 1}
"""Copies of the weights each optimizer keeps."""
