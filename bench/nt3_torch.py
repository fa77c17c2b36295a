"""NT3 in plain torch, with each way to convolve along the genes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bench.nt3_weights import DROPOUT, RATE, Network, channels_first

__all__ = ["networks"]


def networks(weights: Sequence[Any]) -> dict[str, Network]:
    return {
        "conv2d": _Torch(weights, "conv2d"),
        "conv2d, channels last": _Torch(weights, "channels last"),
        "conv1d": _Torch(weights, "conv1d"),
    }


class _Torch(nn.Module):
    def __init__(self, weights: Sequence[Any], how: str) -> None:
        super().__init__()
        self._image = how != "conv1d"
        self._layout = torch.channels_last if how == "channels last" else torch.contiguous_format
        first, second, *dense = zip(weights[::2], weights[1::2])
        self._convolutions = nn.ModuleList(self._convolution(*pair) for pair in (first, second))
        self._dense = nn.ModuleList(_linear(*pair) for pair in _flattened(dense, second[0].shape[2]))
        self._optimizer = torch.optim.SGD(self.parameters(), lr=RATE)

    def _convolution(self, kernel: Any, bias: Any) -> nn.Module:
        width, channels, filters = kernel.shape
        made: nn.Module = (
            nn.Conv2d(channels, filters, (1, width)) if self._image else nn.Conv1d(channels, filters, width)
        )
        values = torch.from_numpy(np.ascontiguousarray(kernel.transpose(2, 1, 0)))
        _set(made, values.unsqueeze(2).to(memory_format=self._layout) if self._image else values, bias)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = x.reshape(len(x), 1, 1, -1) if self._image else x.reshape(len(x), 1, -1)
        if self._layout == torch.channels_last:
            values = values.contiguous(memory_format=self._layout)
        first, second = self._convolutions
        values = torch.relu(second(torch.relu(first(values))))
        values = functional.max_pool2d(values, (1, 10)) if self._image else functional.max_pool1d(values, 10)
        values = values.flatten(1)
        *hidden, last = self._dense
        for layer in hidden:
            values = functional.dropout(torch.relu(layer(values)), DROPOUT, self.training)
        found: torch.Tensor = last(values)
        return found

    def step(self, x: Any, y: Any) -> None:
        self.train()
        self._optimizer.zero_grad()
        self._cross_entropy(x, y).backward()
        self._optimizer.step()

    def loss(self, x: Any, y: Any) -> float:
        self.eval()
        with torch.no_grad():
            return float(self._cross_entropy(x, y))

    def _cross_entropy(self, x: Any, y: Any) -> torch.Tensor:
        return functional.cross_entropy(self(torch.from_numpy(x)), torch.from_numpy(y))


def _flattened(dense: Sequence[Any], channels: int) -> list[Any]:
    """Torch has the channels first."""
    (kernel, bias), *rest = dense
    return [(channels_first(kernel, channels), bias), *rest]


def _linear(kernel: Any, bias: Any) -> nn.Module:
    made = nn.Linear(*kernel.shape)
    _set(made, torch.from_numpy(np.ascontiguousarray(kernel.T)), bias)
    return made


def _set(layer: Any, weight: torch.Tensor, bias: Any) -> None:
    with torch.no_grad():
        layer.weight = nn.Parameter(weight)
        layer.bias.copy_(torch.from_numpy(bias))
