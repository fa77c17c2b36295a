"""The two models of the comparisons: an MLP of CANDLE P1B2's shape, and ResNet-50."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["Workload", "mlp", "resnet50", "workload"]

FEATURES = 28_204
CLASSES = 20


def mlp() -> nn.Module:
    """29.5 M parameters, 98% of them in the first layer."""
    widths = (FEATURES, 1024, 512, 256)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


class Bottleneck(nn.Module):
    """1x1 to narrow, 3x3, 1x1 to widen fourfold; added to its input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.branch = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the image's size (over the stride), and the normalisation after it."""
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


def resnet50() -> nn.Module:
    """25,557,032 parameters, 1000 classes."""
    layers: list[nn.Module] = [
        *convolution(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


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
