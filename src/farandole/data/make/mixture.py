"""Features that follow hidden factors: each is a level, a few factors with their weights, and noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.data.make.compiled import compiled
from farandole.data.make.sheet import bits, normal_table
from farandole.data.make.text import Format

__all__ = ["Mixture", "mixed_rows"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """How factors become features; one entry a feature."""

    level: Floats
    present: npt.NDArray[np.uint64]
    """Chance that there is a value, out of 65,536."""
    factor: Integers
    """(features, factors a feature): which factors the feature follows."""
    weight: Floats
    """(features, factors a feature)."""
    grain: Integers
    """Values are multiples of it, counted in the last decimal: 1 for all decimals, 1,000 for whole numbers."""
    noise: float
    absent: int
    """What stands where there is no value."""
    least: int
    """No value is below."""


def mixed_rows(
    mixture: Mixture, form: Format, leads: npt.NDArray[np.bytes_], factors: Floats, rows: slice,
    random: np.random.Generator,
) -> memoryview:  # fmt: skip
    """The text of some rows; factors: (all rows, factors)."""
    values = np.empty((rows.stop - rows.start, len(mixture.level)), np.int64)
    _mix(
        values, factors[rows], bits(random, *values.shape), normal_table(), mixture.level, mixture.present,
        mixture.factor, mixture.weight, mixture.grain, 10**form.decimals, mixture.noise, mixture.absent,
        mixture.least,
    )  # fmt: skip
    return form.rows(leads[rows], values)


@compiled
def _mix(
    values: Integers, factors: Floats, words: npt.NDArray[np.uint64], normal: Floats, level: Floats,
    present: npt.NDArray[np.uint64], factor: Integers, weight: Floats, grain: Integers, scale: int,
    noise: float, absent: int, least: int,
) -> None:  # fmt: skip
    low16 = np.uint64(0xFFFF)
    for row in range(values.shape[0]):
        for feature in range(values.shape[1]):
            word = words[row, feature]
            if (word & low16) >= present[feature]:
                values[row, feature] = absent
                continue
            value = level[feature] + noise * normal[(word >> np.uint64(16)) & low16]
            for i in range(factor.shape[1]):
                value += weight[feature, i] * factors[row, factor[feature, i]]
            grains = np.floor(value * scale / grain[feature] + 0.5)
            values[row, feature] = max(least, int(grains) * grain[feature])
