"""How much memory a rank will take at most, from the shapes of its layers: the formula of docs/benchmarks.md.

    load    process + code + tables + text of the largest file, where it is parsed
    train   process + code + tables
            + weights x (1 + slots)                       the state: slots are the optimizer's copies
            + weights x (1 + slots) + the largest layer's  its copy, to broadcast and to save it
            + weights x (1 + passes > 1)                  gradients
            + weights x (1 + slots), but on JAX           what the optimizer makes of them, which XLA does value by value
            + weights x 2, with several ranks             gradients as the ranks of a node share them
            + batch x (inputs + values kept for backward + 2 x the largest layer's inputs and outputs)

Twice the largest layer: its gradients, and its values once more in the layout that its convolution computes with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DataBytes", "LayerShape", "MemoryEstimate", "estimate_memory", "process_bytes"]

CODE_BYTES = {"torch": 25 << 20, "tensorflow": 60 << 20, "jax": 180 << 20}
"""Of each framework, beyond its imports: code that is loaded by the first step, and what a compiler makes and takes."""
NUMBA_BYTES = 100 << 20
"""Of functions that numba compiles: to parse text, and to add up the gradients of several ranks."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One layer; values are those of one sample."""

    name: str
    weights: tuple[tuple[int, ...], ...]
    """The shape of each."""
    inputs: int
    outputs: int
    kept: int
    """How many values a training step keeps for backward."""

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.weights))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataBytes:
    """What is still to be loaded; nothing, once it is."""

    tables: int = 0
    unused: int = 0
    """Tables of which only some features are kept."""
    text: int = 0
    """Of the largest file that is parsed: it is mapped, and its pages count until they are given back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Of one rank."""

    phases: Mapping[str, int]
    """Bytes by phase, all that the process has counted in."""
    data_bytes: int
    needed_bytes: int
    """What it takes more than it has already, without pages that the system takes back when it must."""

    @property
    def largest_phase(self) -> str:
        return max(self.phases, key=self.phases.__getitem__)

    @property
    def peak_bytes(self) -> int:
        return self.phases[self.largest_phase]


def estimate_memory(
    layers: Sequence[LayerShape], *, framework: str, slots: int, local_batch: int, passes: int, ranks: int, data: DataBytes,
) -> MemoryEstimate:  # fmt: skip
    """`slots`: copies of the weights that the optimizer keeps; `passes`: batches whose gradients are added up before a step."""
    process = process_bytes()
    loaded = CODE_BYTES[framework] + (NUMBA_BYTES if data.text or ranks > 1 else 0) + data.tables
    training = loaded + _FLOAT_BYTES * (
        _weight_values(layers, framework, slots, passes, ranks) + local_batch * _batch_values(layers)
    )
    loading = loaded + data.unused + data.text
    return MemoryEstimate(
        phases={"load": process + loading, "train": process + training},
        data_bytes=data.tables,
        needed_bytes=max(training, loading - data.text),
    )


def _weight_values(layers: Sequence[LayerShape], framework: str, slots: int, passes: int, ranks: int) -> int:
    weights = sum(layer.parameters for layer in layers)
    state = weights * (1 + slots)
    copied = state + max((layer.parameters for layer in layers), default=0)
    gradients = weights * (1 + (passes > 1))
    stepping = 0 if framework == "jax" else state
    shared = weights * 2 if ranks > 1 else 0
    return state + copied + gradients + stepping + shared


def _batch_values(layers: Sequence[LayerShape]) -> int:
    """Of one sample."""
    kept = sum(layer.kept for layer in layers)
    largest = max((layer.inputs + layer.outputs for layer in layers), default=0)
    return layers[0].inputs + kept + 2 * largest if layers else 0


def process_bytes() -> int:
    """What this process has in memory now; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()
    except OSError:
        return 0
    return int(fields[0]) * 1024 if fields else 0
