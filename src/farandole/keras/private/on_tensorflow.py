"""Keras on TensorFlow: epochs of arrays that end with their last batch, and batches that are at hand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

__all__ = ["offer"]


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


def offer() -> None:
    """Let Keras make such epochs."""
    trainer.TFEpochIterator = _epochs
