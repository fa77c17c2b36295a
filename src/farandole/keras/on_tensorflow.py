"""Keras on TensorFlow: the graph calls back with its gradients, as in the TensorFlow door."""

from __future__ import annotations

from typing import Any

from farandole.tensorflow.gradients import GraphReducer as make_reducer
from farandole.tensorflow.threads import set_threads

__all__ = ["KEEPS_ABSENT", "make_reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = False


def when_due(is_due: Any, reduce: Any, grads: list[Any]) -> list[Any]:
    """Reduce accumulated gradients: Keras asks for it in the steps that apply them."""
    reduced: list[Any] = reduce(grads)
    return reduced


def prepare() -> None:
    """Let Keras make such epochs as are faster here."""
    from farandole.keras.private import on_tensorflow

    on_tensorflow.offer()
