"""The layers of torch modules by their shapes: of weights before they have memory, of what flows through them by one sample.

The meta device could do the second as well, but its arithmetic takes more than a second to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from farandole.train.rank.memory_estimate import LayerShape
from farandole.train.settings import RunSettings
from farandole.workloads.samples import TrainingData

__all__ = ["called_layers", "weight_shapes"]

_VIEWS = (torch.nn.Flatten, torch.nn.Unflatten, torch.nn.Identity)
"""Their outputs are their inputs' memory."""


def weight_shapes(settings: RunSettings, data: TrainingData) -> list[LayerShape]:
    """Empty where the model cannot be built without memory: it may look at its weights."""
    known = settings.workload.torch
    assert known is not None
    try:
        with torch.device("meta"):
            built = known.build(settings.parameters, data)
    except (RuntimeError, NotImplementedError):
        return []
    modules = built.values() if isinstance(built, Mapping) else [built]
    return [
        LayerShape(name=name, weights=_weights(leaf), inputs=0, outputs=0, kept=0)
        for module in modules if isinstance(module, torch.nn.Module) for name, leaf in _leaves(module)
    ]  # fmt: skip


def called_layers(module: torch.nn.Module, inputs: Any) -> list[LayerShape]:
    """By what goes into and comes out of every innermost module, for `inputs` of one sample."""
    found: list[LayerShape] = []
    hooks = [
        leaf.register_forward_hook(lambda called, given, made, name=name: found.append(_shape(name, called, given, made)))
        for name, leaf in _leaves(module)
    ]
    before = module.training
    try:
        with torch.no_grad():
            module.eval()
            module(**inputs) if isinstance(inputs, dict) else module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    finally:
        module.train(before)
        for hook in hooks:
            hook.remove()
    return found


def _leaves(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    return ((name or type(leaf).__name__, leaf) for name, leaf in module.named_modules() if not any(leaf.children()))


def _shape(name: str, module: torch.nn.Module, given: Any, made: Any) -> LayerShape:
    outputs = _values(made)
    return LayerShape(
        name=name, weights=_weights(module), inputs=_values(given), outputs=outputs,
        kept=0 if isinstance(module, _VIEWS) else outputs * (1 + isinstance(module, torch.nn.Dropout)),
    )  # fmt: skip


def _weights(module: torch.nn.Module) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in module.parameters())


def _values(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return math.prod(tensors.shape)
    if isinstance(tensors, Mapping):
        return sum(map(_values, tensors.values()))
    return sum(map(_values, tensors)) if isinstance(tensors, (tuple, list)) else 0
