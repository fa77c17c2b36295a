"""The two models of the comparisons: an MLP of CANDLE P1B2's shape, and ResNet-50."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from farandole.workloads.cnn.resnet import resnet50

__all__ = ["Workload", "mlp", "workload"]

FEATURES = 28_204
CLASSES = 20


def mlp() -> nn.Module:
    """29.5 M parameters, 98% of them in the first layer."""
    widths = (FEATURES, 1024, 512, 256)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


class Workload:
    """A model (the same on every rank) and one rank's batch for it."""

    def __init__(self, name: str, model: nn.Module, shape: tuple[int, ...], classes: int, rank: int) -> None:
        self.name = name
        self.model = model
        self.parameters = sum(p.numel() for p in model.parameters())
        source = torch.Generator().manual_seed(1 + rank)
        self.inputs = torch.randn(shape, generator=source)
        self.labels = torch.randint(0, classes, shape[:1], generator=source)


def workload(name: str, rank: int) -> Workload:
    """`mlp`: batch 60; `resnet`: batch 16 at 64x64."""
    torch.manual_seed(0)
    if name == "mlp":
        return Workload(name, mlp(), (60, FEATURES), CLASSES, rank)
    return Workload(name, resnet50(), (16, 3, 64, 64), 1000, rank)
