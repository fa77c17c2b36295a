"""Keras on TensorFlow: the graph calls back with its gradients, as in the TensorFlow door."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from farandole.tensorflow.gradients import GraphReducer as Reducer

__all__ = ["KEEPS_ABSENT", "Reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = False


def when_due(is_due: Any, reduce: Any, grads: list[Any]) -> list[Any]:
    """Reduce accumulated gradients: Keras asks for it in the steps that apply them."""
    reduced: list[Any] = reduce(grads)
    return reduced


def set_threads(threads: int) -> None:
    with contextlib.suppress(RuntimeError):  # too late: TensorFlow has begun to compute
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def prepare() -> None:
    """Nothing of Keras' needs to change for this backend."""
