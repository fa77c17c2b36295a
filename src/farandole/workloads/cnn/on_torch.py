"""The CNNs as plain torch modules. Images come with their channels last, which is how torch computes fastest on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farandole.workloads.cnn import Cnn
from farandole.workloads.cnn.nets import TREES
from farandole.workloads.cnn.resnet import MODELS as RESNETS
from farandole.workloads.cnn.resnet import start_values
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
from farandole.workloads.samples import TrainingData

__all__ = ["accuracy", "build", "loss", "network"]

Shape = tuple[int, ...]
"""Of one sample's values: (channels, height, width), or (values,)."""
_EPSILON = 1e-3


def network(model: str, classes: int, side: int) -> nn.Module:
    """As torch's users have it: (n, 3, side, side) to (n, classes)."""
    if model in RESNETS:
        return RESNETS[model](classes)
    return _made(TREES[model](classes), (3, side, side))[0].apply(start_values)


class FromPixels(nn.Module):
    """A network for images whose channels come last."""

    def __init__(self, net: nn.Module, layout: str) -> None:
        super().__init__()
        self._last = layout == "channels_last"
        self.net: nn.Module = net.to(memory_format=torch.channels_last) if self._last else net  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        seen = images.permute(0, 3, 1, 2)  # in torch's channels_last as it is
        return self.net(seen if self._last else seen.contiguous())  # type: ignore[no-any-return]


def build(parameters: Cnn, data: TrainingData) -> nn.Module:
    classes = parameters.classes or len(data.classes)
    return FromPixels(network(parameters.model, classes, parameters.side), parameters.layout)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.argmax(1) == labels


class _Beside(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([part(values) for part in self.parts], 1)


class _Sum(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module | None, relu: bool) -> None:
        super().__init__()
        self.body, self.shortcut, self._relu = body, shortcut, relu

    def forward(self, values: Tensor) -> Tensor:
        straight = values if self.shortcut is None else self.shortcut(values)
        found = self.body(values) + straight
        return found.relu_() if self._relu else found  # type: ignore[no-any-return]


class _Shrink(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self._channels = channels

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.pad(values[:, :, ::2, ::2], (0, 0, 0, 0, 0, self._channels))


def _made(node: Node, shape: Shape) -> tuple[nn.Module, Shape]:
    """For values of `shape`; and the shape that comes out."""
    match node:
        case Chain(parts):
            modules = []
            for part in parts:
                module, shape = _made(part, shape)
                modules += list(module) if isinstance(module, nn.Sequential) else [module]
            return nn.Sequential(*modules), shape
        case Beside(parts):
            made = [_made(part, shape) for part in parts]
            return _Beside([module for module, _ in made]), (sum(found[0] for _, found in made), *made[0][1][1:])
        case Sum(body, shortcut, relu):
            module, found = _made(body, shape)
            return _Sum(module, None if shortcut is None else _made(shortcut, shape)[0], relu), found
        case _:
            return _layer(node, shape)


def _layer(node: Any, shape: Shape) -> tuple[nn.Module, Shape]:
    channels = shape[0]
    match node:
        case Conv():
            return _convolution(node, channels), (node.filters, *_window(shape, node.size, node.stride, node.padding))
        case Norm():
            return nn.Sequential(nn.BatchNorm2d(channels, _EPSILON), nn.ReLU(inplace=True)), shape
        case Pool(kind, size, stride, padding):
            mean = nn.AvgPool2d(size, stride, padding, count_include_pad=False)
            pool = nn.MaxPool2d(size, stride, padding) if kind == "max" else mean
            return pool, (channels, *_window(shape, size, stride, padding))
        case Shrink(filters):
            return _Shrink(filters - channels), (filters, -(-shape[1] // 2), -(-shape[2] // 2))
        case Mean():
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), (channels,)
        case Flatten():
            return nn.Flatten(), (shape[0] * shape[1] * shape[2],)
        case Dropout(rate):
            return nn.Dropout(rate), shape
        case Dense(units, relu):
            dense = nn.Linear(channels, units)
            return (nn.Sequential(dense, nn.ReLU(inplace=True)) if relu else dense), (units,)
    raise TypeError(f"{node} is no layer")


def _convolution(node: Conv, channels: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(channels, node.filters, pair(node.size), node.stride, pair(node.padding), bias=node.bias)]
    if node.norm:
        parts.append(nn.BatchNorm2d(node.filters, _EPSILON))
    if node.relu:
        parts.append(nn.ReLU(inplace=True))
    return nn.Sequential(*parts) if len(parts) > 1 else parts[0]


def _window(shape: Shape, size: int | tuple[int, int], stride: int, padding: int | tuple[int, int]) -> list[int]:
    return [(length + 2 * p - s) // stride + 1 for length, s, p in zip(shape[1:], pair(size), pair(padding))]
