"""Metrics whose states are sums: added up over the ranks, they give the metric over all rows."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

__all__ = ["R2", "Correlation", "SignAccuracy"]


@keras.saving.register_keras_serializable("farandole")
class R2(keras.metrics.Metric):
    """1 - squared error / variance around each column's mean, over all values."""

    def __init__(self, columns: int, name: str = "r2", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._columns = columns
        self._count = self.add_weight(name="count", initializer="zeros")
        self._error = self.add_weight(name="error", initializer="zeros")
        self._squares = self.add_weight(name="squares", initializer="zeros")
        self._sums = self.add_weight(shape=(columns,), name="sums", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y, p = _pair(y_true, y_pred, self._columns)
        self._count.assign_add(ops.cast(ops.shape(y)[0], self.dtype))
        self._error.assign_add(ops.sum(ops.square(y - p)))
        self._squares.assign_add(ops.sum(ops.square(y)))
        self._sums.assign_add(ops.sum(y, axis=0))

    def result(self) -> Any:
        spread = self._squares - ops.sum(ops.square(self._sums)) / ops.maximum(self._count, 1.0)
        return 1.0 - self._error / ops.maximum(spread, 1e-12)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "columns": self._columns}


@keras.saving.register_keras_serializable("farandole")
class Correlation(keras.metrics.Metric):
    """Pearson's, between all values and what was predicted for them."""

    def __init__(self, name: str = "correlation", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._sums = self.add_weight(shape=(6,), name="sums", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y, p = ops.reshape(y_true, (-1,)), ops.reshape(y_pred, (-1,))
        count = ops.cast(ops.size(y), self.dtype)
        sums = [count, ops.sum(y), ops.sum(p), ops.sum(y * y), ops.sum(p * p), ops.sum(y * p)]
        self._sums.assign_add(ops.stack(sums))

    def result(self) -> Any:
        sums = ops.convert_to_tensor(self._sums)
        y, p, yy, pp, yp = (sums[i] / ops.maximum(sums[0], 1.0) for i in range(1, 6))
        spread = ops.maximum(yy - y * y, 0.0) * ops.maximum(pp - p * p, 0.0)
        return (yp - y * p) / ops.sqrt(ops.maximum(spread, 1e-24))


@keras.saving.register_keras_serializable("farandole")
class SignAccuracy(keras.metrics.MeanMetricWrapper):
    """How often the prediction tells growth from shrinking."""

    def __init__(self, name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(_same_sign, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _same_sign(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.cast(ops.equal(y_true > 0, y_pred > 0), keras.config.floatx()), axis=-1)


def _pair(y_true: Any, y_pred: Any, columns: int) -> tuple[Any, Any]:
    return ops.reshape(y_true, (-1, columns)), ops.reshape(y_pred, (-1, columns))
