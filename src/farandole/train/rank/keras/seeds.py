"""Random numbers of training steps: none twice, on any rank, and the same ones where ranks are emulated.

A layer draws with a seed and a counter. All ranks have the same seeds; rank r of n uses the counters r, r + n, r + 2n,
... in its batches. So ranks never draw alike, and one rank that does the batches of n ranks in turn draws what they draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

__all__ = ["spread_seeds"]


class _Spread:
    """Put in front of a seed generator's class: counters advance by the number of ranks."""

    _farandole_stride: int

    def next(self: Any, ordered: bool = True) -> Any:
        if not ordered:
            return super().next(ordered)  # type: ignore[misc]
        drawn = self.state.value * 1
        stride = keras.ops.convert_to_tensor(np.array([0, self._farandole_stride]), dtype=self.state.dtype)
        self.state.assign(keras.ops.add(self.state, stride))
        return drawn


def spread_seeds(model: Any, rank: int, size: int) -> None:
    """Let `model` draw random numbers that are this rank's own."""
    for generator in _generators(model):
        plain = type(generator)
        generator.__class__ = type(plain.__name__, (_Spread, plain), {})
        generator._farandole_stride = size
        seed = np.asarray(keras.ops.convert_to_numpy(generator.state))
        generator.state.assign(np.array([seed[0], rank], dtype=seed.dtype))


def _generators(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        found = getattr(layer, "seed_generator", None)
        if isinstance(found, keras.random.SeedGenerator):
            yield found
