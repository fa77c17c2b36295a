"""The layers of a Keras model by their shapes, found without memory for its weights.

    layer_shapes(lambda: keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)]))

Inside `keras.StatelessScope` Keras makes variables that have no values yet. It would give them values later, and counts the names
of layers, both for each thread: in a thread that ends, neither is left behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras

from farandole.train.rank.memory_estimate import LayerShape

__all__ = ["layer_shapes"]

_VIEWS = (keras.layers.Flatten, keras.layers.Reshape)
"""Their outputs are their inputs' memory."""


def layer_shapes(build: Callable[[], Any]) -> list[LayerShape]:
    """Of any Keras model, which `build` makes and which is dropped again."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_built, build).result()


def _built(build: Callable[[], Any]) -> list[LayerShape]:
    with keras.StatelessScope(initialize_variables=False):
        return [_shape(layer) for layer in _layers(build())]


def _layers(model: Any) -> Iterator[Any]:
    """Those of nested models, too; a subclass of Model that tells no layers is one."""
    for layer in getattr(model, "layers", None) or [model]:
        if getattr(layer, "layers", None):
            yield from _layers(layer)
        else:
            yield layer


def _shape(layer: Any) -> LayerShape:
    outputs = _values(layer, "output")
    masks = isinstance(layer, keras.layers.Dropout)
    return LayerShape(
        name=layer.name,
        weights=tuple(tuple(weight.shape) for weight in layer.weights),
        inputs=_values(layer, "input"),
        outputs=outputs,
        kept=0 if isinstance(layer, _VIEWS) else outputs * (1 + masks),
    )


def _values(layer: Any, side: str) -> int:
    """Of one sample; 0 where the layer was never called, as those of a subclass of Model before it sees data."""
    try:
        tensors = getattr(layer, side)
    except AttributeError:
        return 0
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return sum(_known(tensor.shape[1:]) for tensor in keras.tree.flatten(tensors))


def _known(shape: Iterable[int | None]) -> int:
    """A length that is not known counts as one."""
    return math.prod(length or 1 for length in shape)
