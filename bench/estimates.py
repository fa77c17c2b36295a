"""From samples to figures: medians, ratios and how sure we are of them.

Contestants take turns, so that sample i of one and sample i of another were measured next to each other. The
bootstrap draws such pairs, not single samples: what slows the machine down for a while slows both down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "median", "median_difference", "overhead_bound", "ratio_of_medians"]

Floats = NDArray[np.float64]

_DRAWS = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def median(samples: Sequence[float]) -> float:
    return float(np.median(np.asarray(samples, np.float64)))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """How many times `above` is as long as `below`."""
    return _estimate(_medians_ratio, above, below)


def median_difference(longer: Sequence[float], shorter: Sequence[float]) -> Estimate:
    """By how much `longer` exceeds `shorter`, pair by pair."""
    return _estimate(_paired_difference, longer, shorter)


def overhead_bound(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, float]:
    """(share by which a pair's first is longer, its upper 95% bound, one-sided)."""
    value, draws = _drawn(_paired_overhead, with_it, without)
    return value, float(np.quantile(draws, 0.95))


def _medians_ratio(above: Floats, below: Floats) -> Any:
    return np.median(above, axis=-1) / np.median(below, axis=-1)


def _paired_difference(longer: Floats, shorter: Floats) -> Any:
    return np.median(longer - shorter, axis=-1)


def _paired_overhead(with_it: Floats, without: Floats) -> Any:
    return np.median(with_it / without, axis=-1) - 1.0


def _estimate(statistic: Callable[[Floats, Floats], Any], a: Sequence[float], b: Sequence[float]) -> Estimate:
    value, draws = _drawn(statistic, a, b)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value=value, low=float(low), high=float(high))


def _drawn(
    statistic: Callable[[Floats, Floats], Any], a: Sequence[float], b: Sequence[float]
) -> tuple[float, Floats]:
    """The statistic of the samples, and of many draws of pairs with replacement (always the same draws)."""
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.size == 0:
        raise ValueError(
            f"{first.size} and {second.size} samples: contestants that took turns have equally many"
        )
    pick = np.random.default_rng(0).integers(0, first.size, (_DRAWS, first.size))  # (draws, samples)
    return float(statistic(first, second)), statistic(first[pick], second[pick])
