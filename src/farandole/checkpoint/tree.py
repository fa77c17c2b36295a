"""States as trees, and trees as what files hold: arrays by name, and JSON with holes where they were.

A tree is made of dicts, lists, tuples, numbers, strings, None and arrays. JSON knows neither tuples nor keys that
are no strings, nor infinity: these become dicts with one key that begins with `$`.

    {"weight": array, "betas": (0.9, 0.99), 3: inf}
    {"$items": [["weight", {"$array": "model/weight"}], ["betas", {"$tuple": [0.9, 0.99]}], [3, {"$float": "inf"}]]}
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.errors import CheckpointError

__all__ = ["ArrayInfo", "Flat", "Tensor", "describe", "flatten", "replaced", "unflatten", "without_tensors"]

_MARK = "$"


class Tensor(NamedTuple):
    """An array that is a tensor for the framework it comes from, and is to become one again."""

    array: Any
    unchanged: Callable[[], bool] | None = None
    """Given where its owner leaves it alone until the checkpoint has a copy: whether it has kept to that."""


class ArrayInfo(NamedTuple):
    """What stands for an array where only its form matters."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Flat(NamedTuple):
    """A tree taken apart."""

    skeleton: Any
    arrays: dict[str, AnyArray]
    held: dict[str, Callable[[], bool]]
    """By name, those of `arrays` that need no copy at once."""


def flatten(tree: Any, name: str = "") -> Flat:
    """Take a tree apart; the names of its arrays begin with `name`."""
    flat = Flat(None, {}, {})
    return flat._replace(skeleton=_Taking(flat).value(tree, name))


def unflatten(skeleton: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree again, with whatever `arrays` has by the names of its arrays and tensors."""
    if isinstance(skeleton, list):
        return [unflatten(item, arrays) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if len(skeleton) == 1:
        ((key, content),) = skeleton.items()
        if key.startswith(_MARK):
            return _marked(key, content, arrays)
    return {key: unflatten(value, arrays) for key, value in skeleton.items()}


def replaced(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The tree with its leaves replaced: whatever is no dict, list or tuple, and every Tensor."""
    if isinstance(tree, Tensor):
        return leaf(tree)
    if isinstance(tree, Mapping):
        pairs = {key: replaced(value, leaf) for key, value in tree.items()}
        return Counter(pairs) if isinstance(tree, Counter) else pairs
    if isinstance(tree, list | tuple):
        items = [replaced(value, leaf) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    return leaf(tree)


def without_tensors(tree: Any) -> Any:
    """The tree with plain arrays."""
    return replaced(tree, lambda value: value.array if isinstance(value, Tensor) else value)


def describe(arrays: Mapping[str, AnyArray]) -> dict[str, ArrayInfo]:
    return {name: ArrayInfo(array.shape, array.dtype.name) for name, array in arrays.items()}


def _marked(key: str, content: Any, arrays: Mapping[str, Any]) -> Any:
    match key:
        case "$array":
            return arrays[content]
        case "$tensor":
            return Tensor(arrays[content])
        case "$float":
            return float(content)
        case "$tuple":
            return tuple(unflatten(content, arrays))
        case "$items":
            return _pairs(content, arrays)
        case "$counter":
            return Counter(_pairs(content, arrays))
    raise CheckpointError(f"the state has a {key!r}, which this version of farandole does not know")


def _pairs(content: Any, arrays: Mapping[str, Any]) -> dict[Any, Any]:
    return {unflatten(key, arrays): unflatten(value, arrays) for key, value in content}


class _Taking:
    """Walks a tree and puts its arrays aside."""

    def __init__(self, into: Flat) -> None:
        self._into = into

    def value(self, value: Any, path: str) -> Any:
        match value:
            case None | bool() | str():
                return value
            case np.generic():
                return self.value(value.item(), path)
            case int():
                return int(value)
            case float():
                return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
            case Tensor():
                return self._tensor(value, path)
            case np.ndarray():
                return {"$array": self._array(value, path)}
            case tuple():
                return {"$tuple": self._list(value, path)}
            case list():
                return self._list(value, path)
            case Mapping():
                return self._mapping(value, path)
        raise CheckpointError(
            f"{path} is a {type(value).__name__}, which a checkpoint cannot hold. It takes numbers, strings, arrays, "
            "and lists, tuples and dicts of them"
        )

    def _tensor(self, tensor: Tensor, path: str) -> Any:
        name = self._array(tensor.array, path)
        if tensor.unchanged is not None:
            self._into.held[name] = tensor.unchanged
        return {"$tensor": name}

    def _array(self, array: AnyArray, path: str) -> str:
        name, count = path, 1
        while name in self._into.arrays:  # {"a/b": array, "a": {"b": array}}
            count += 1
            name = f"{path}#{count}"
        self._into.arrays[name] = array
        return name

    def _list(self, values: list[Any] | tuple[Any, ...], path: str) -> list[Any]:
        return [self.value(value, f"{path}/{index}") for index, value in enumerate(values)]

    def _mapping(self, mapping: Mapping[Any, Any], path: str) -> Any:
        taken = [(key, self.value(value, f"{path}/{key}" if path else str(key))) for key, value in mapping.items()]
        if isinstance(mapping, Counter):
            return {"$counter": self._keyed(taken, path)}
        if all(isinstance(key, str) and not key.startswith(_MARK) for key in mapping):
            return dict(taken)
        return {"$items": self._keyed(taken, path)}

    def _keyed(self, taken: list[tuple[Any, Any]], path: str) -> list[list[Any]]:
        return [[self.value(key, f"{path}, the key {key!r}"), value] for key, value in taken]
