"""Keras on TensorFlow: the graph calls back with its gradients, as in the TensorFlow door."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from farandole.tensorflow.gradients import GraphReducer as Reducer
from farandole.tensorflow.threads import set_threads

__all__ = ["KEEPS_ABSENT", "Reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = False


def when_due(is_due: Any, reduce: Any, grads: list[Any]) -> list[Any]:
    """Reduce accumulated gradients: Keras asks for it in the steps that apply them."""
    reduced: list[Any] = reduce(grads)
    return reduced


class _Epochs(trainer.TFEpochIterator):
    """Keras' own, whose epochs end with their last batch.

    TensorFlow tunes a dataset on a thread that sleeps twice as long each time, and an epoch that has ended waits for it
    to wake up: up to as long as the epoch took. There is nothing to tune where Keras hands out arrays and batches itself.
    """

    def _get_iterator(self) -> Any:
        dataset: Any = super()._get_iterator()
        if not isinstance(dataset, tf.data.Dataset) or isinstance(self.data_adapter, TFDatasetAdapter):
            return dataset
        untuned = tf.data.Options()
        untuned.autotune.enabled = False
        return dataset.with_options(untuned)


def _epochs(distribute_strategy: Any = None, **options: Any) -> Any:
    """Epochs of the data `x`, and of whatever else Keras names.

    A `PyDataset` whose batches are `at_hand` hands them to the step itself: to make them ahead, in a thread of TensorFlow's
    that wants Python, takes longer than to make them.
    """
    if getattr(options["x"], "at_hand", False):
        return EpochIterator(**options)
    return _Epochs(distribute_strategy, **options)


def prepare() -> None:
    """Let Keras make such epochs."""
    trainer.TFEpochIterator = _epochs
