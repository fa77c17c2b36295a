"""Networks described once, for torch and for Keras: layers in a chain, side by side, or added up.

    Chain(Conv(64, 7, stride=2, padding=3), Pool("max", 3, 2, 1), ..., Mean(), Dense(1000))

`on_torch.py` and `on_keras.py` make modules and layers of such a tree; `nets.py` has the trees.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Beside", "Chain", "Conv", "Dense", "Dropout", "Flatten", "Mean", "Node", "Norm", "Pool", "Shrink", "Sum", "pair"]


@dataclass(frozen=True, slots=True)
class Conv:
    """With `norm` without biases, and normalised over the batch; then ReLU unless `relu` is off."""

    filters: int
    size: int | tuple[int, int]
    stride: int = 1
    padding: int | tuple[int, int] = 0
    norm: bool = True
    relu: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalised over the batch, then ReLU."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The largest value (`max`), or the mean of those there are (`mean`)."""

    kind: str
    size: int
    stride: int
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Shrink:
    """Every second value of rows and columns, with channels of zeros behind those there are: a shortcut without weights."""

    filters: int


@dataclass(frozen=True, slots=True)
class Mean:
    """Of every channel: (channels,)."""


@dataclass(frozen=True, slots=True)
class Flatten:
    """All values in a row."""


@dataclass(frozen=True, slots=True)
class Dropout:
    rate: float


@dataclass(frozen=True, slots=True)
class Dense:
    units: int
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """Each of the same values; their channels one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """The body's values and the shortcut's, or the inputs where there is none; then ReLU if asked for."""

    body: Node
    shortcut: Node | None = None
    relu: bool = False


Node = Conv | Norm | Pool | Shrink | Mean | Flatten | Dropout | Dense | Chain | Beside | Sum


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """Of rows and columns."""
    return (value, value) if isinstance(value, int) else value
