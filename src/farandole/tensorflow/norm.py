"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.node.arithmetic import Op
from farandole.tensorflow.ops import allreduce

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable("farandole")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization with the statistics of the whole batch, whatever each rank's share.

    In training its forward and backward are collective: every rank of the set calls them.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> Any:
        """Mean and variance over all ranks, the variance around the mean of all: no cancellation."""
        weights = tf.ones_like(inputs[..., :1]) if mask is None else _wide(mask, inputs)
        count = self._of_all(tf.reduce_sum(tf.ones_like(inputs) * weights, self._reduction_axes))
        mean = self._of_all(tf.reduce_sum(inputs * weights, self._reduction_axes)) / count
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        spread = tf.square(inputs - tf.reshape(mean, shape)) * weights
        return mean, self._of_all(tf.reduce_sum(spread, self._reduction_axes)) / count

    def _of_all(self, sums: Any) -> Any:
        return allreduce(sums, op=Op.SUM, process_set=self._process_set)


def _wide(mask: Any, inputs: Any) -> Any:
    """(batch, ...) -> as many dimensions as the inputs."""
    missing = len(inputs.shape) - len(mask.shape)
    return tf.cast(tf.reshape(mask, tf.concat([tf.shape(mask), [1] * missing], 0)), inputs.dtype)
