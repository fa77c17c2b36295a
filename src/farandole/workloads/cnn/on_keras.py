"""The CNNs in Keras: those of keras.applications as they are, the others made of their trees."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
from keras import layers, ops

from farandole.workloads.cnn import Cnn
from farandole.workloads.cnn.nets import TREES
from farandole.workloads.cnn.trees import (
    Beside,
    Chain,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Mean,
    Node,
    Norm,
    Pool,
    Shrink,
    Sum,
    pair,
)
from farandole.workloads.layers import dropout
from farandole.workloads.samples import TrainingData

__all__ = ["build", "loss", "metrics"]

APPLICATIONS = {
    "resnet50": "ResNet50", "resnet101": "ResNet101", "resnet152": "ResNet152", "inception_v3": "InceptionV3", "vgg16": "VGG16",
    "vgg19": "VGG19",
}  # fmt: skip


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build(parameters: Cnn, data: TrainingData) -> Any:
    """(n, side, side, 3) to (n, classes), before the softmax."""
    classes, shape = parameters.classes or len(data.classes), (parameters.side, parameters.side, 3)
    if (known := APPLICATIONS.get(parameters.model)) is not None:
        make = getattr(keras.applications, known)
        return make(weights=None, input_shape=shape, classes=classes, classifier_activation=None)
    images = keras.Input(shape)
    with _deep_calls():
        return keras.Model(images, _applied(TREES[parameters.model](classes), images), name=parameters.model)


@contextlib.contextmanager
def _deep_calls() -> Iterator[None]:
    """Keras walks from the last layer to the first by calls within calls: ResNet-1001 has more than Python allows."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def metrics(parameters: Cnn, data: TrainingData) -> list[Any]:
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@keras.saving.register_keras_serializable("farandole")
class Shortcut(layers.Layer):
    """Every second value of rows and columns, and channels of zeros."""

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__(**options)
        self.channels = channels

    def call(self, values: Any) -> Any:
        return ops.pad(values[:, ::2, ::2, :], [[0, 0], [0, 0], [0, 0], [0, self.channels]])

    def compute_output_shape(self, shape: Any) -> Any:
        batch, height, width, channels = shape
        return (batch, -(-height // 2), -(-width // 2), channels + self.channels)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "channels": self.channels}


def _applied(node: Node, values: Any) -> Any:
    match node:
        case Chain(parts):
            for part in parts:
                values = _applied(part, values)
            return values
        case Beside(parts):
            return layers.Concatenate()([_applied(part, values) for part in parts])
        case Sum(body, shortcut, relu):
            found = layers.Add()([_applied(body, values), values if shortcut is None else _applied(shortcut, values)])
            return layers.ReLU()(found) if relu else found
        case _:
            return _layer(node, values)


def _layer(node: Any, values: Any) -> Any:
    match node:
        case Conv():
            return _convolved(node, values)
        case Norm():
            return layers.ReLU()(layers.BatchNormalization()(values))
        case Pool(kind, size, stride, padding):
            pool = layers.MaxPooling2D if kind == "max" else layers.AveragePooling2D
            if stride == 1:
                return pool(size, 1, "same" if padding else "valid")(values)
            return pool(size, stride)(_padded(values, padding))  # behind a ReLU zeros are as good as nothing
        case Shrink(filters):
            return Shortcut(filters - values.shape[-1])(values)
        case Mean():
            return layers.GlobalAveragePooling2D()(values)
        case Flatten():
            return layers.Flatten()(values)
        case Dropout(rate):
            return dropout(rate)(values)
        case Dense(units, relu):
            return layers.Dense(units, "relu" if relu else None)(values)
    raise TypeError(f"{node} is no layer")


def _convolved(node: Conv, values: Any) -> Any:
    """Padded alike on all sides, which `same` is for odd windows without a stride."""
    same = node.stride == 1 and pair(node.padding) == tuple(length // 2 for length in pair(node.size))
    conv = layers.Conv2D(
        node.filters, pair(node.size), node.stride, "same" if same else "valid", use_bias=node.bias, kernel_initializer="he_normal"
    )
    values = conv(values if same else _padded(values, node.padding))
    if node.norm:
        values = layers.BatchNormalization()(values)
    return layers.ReLU()(values) if node.relu else values


def _padded(values: Any, padding: int | tuple[int, int]) -> Any:
    return layers.ZeroPadding2D(pair(padding))(values) if any(pair(padding)) else values
