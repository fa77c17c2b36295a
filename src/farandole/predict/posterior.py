"""A grid posterior of one part over ranks, in NumPy, without chance: the same study gives the same intervals.

    seconds(x) = level * ((1 - share) + share * curve(x) / curve(largest)), times noise

Curve, share and noise are a grid; the level is integrated over. Series of one study have the curve and the noise in common: they ran
on one machine. Beyond the largest run, growth may become other than it was: it is multiplied by a lognormal discrepancy, TAU
wide for twice the ranks and wider with the root of the doublings. A smaller one, LEVEL of it, is of the whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from farandole.predict.curves import Curve, Floats

__all__ = ["DRAWS", "TAU", "Change", "Fit", "Samples", "fit", "normal"]

DRAWS = 2000
TAU = 0.24
LEVEL = 1 / 6
_NOISE_MIDDLE, _NOISE_SPREAD = 0.015, 0.8
"""Of medians, unless repeats show more."""
_NOISES: Floats = np.exp(np.linspace(np.log(0.002), np.log(0.4), 16))
_SHARES = 61
_STEADY = .005
"""How much growth, in the logarithm, is usual of a part that should have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Seconds of a part at rising x (ranks or nodes)."""

    x: Floats
    seconds: Floats
    error: float = 0.0
    """Relative, as repeats tell it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a part would be otherwise: its bases times factors, others in their place."""

    factors: Mapping[str, float] = field(default_factory=dict)
    swaps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Draws from the posterior of one part."""

    name: str
    curves: Sequence[Curve]
    first: float
    last: float
    level: Floats
    """Logarithm of the seconds at `last`; as the others, one for each draw."""
    share: Floats
    curve: NDArray[np.intp]
    noise: Floats

    def at(self, x: float, change: Change | None = None, *, tau: float = TAU, measured_to: float = 0.0, noisy: bool = True) -> Floats:
        """Draws of the seconds that a run would take; `measured_to`: as if something had run at so many."""
        within, beyond = self._growth(min(x, self.last), change), self._growth(x, change)
        doublings = max(float(np.log2(x / max(self.last, measured_to))), 0.0)
        growth = within + (beyond - within) * np.exp(tau * np.sqrt(doublings) * normal("growth"))
        spread = np.hypot(self.noise if noisy else 0.0, tau * LEVEL * np.sqrt(doublings))
        seconds: Floats = np.exp(self.level + spread * normal(f"{self.name} run")) * (1 - self.share + self.share * growth)
        return seconds

    def _growth(self, x: float, change: Change | None) -> Floats:
        """For each draw, over that at the largest x without a change."""
        factors, swaps = (change.factors, change.swaps) if change else (None, None)
        here = np.array([curve.at(np.array([x / self.first]), factors, swaps)[0] for curve in self.curves])
        last = np.array([curve.at(np.array([self.last / self.first]))[0] for curve in self.curves])
        ratio: Floats = (here / np.where(last > 0, last, 1.0))[self.curve]
        return ratio


@cache
def normal(name: str) -> Floats:
    """DRAWS equally likely values of a normal distribution, in an order that depends on the name alone."""
    values = np.array([NormalDist().inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)])
    return np.random.default_rng(zlib.crc32(name.encode())).permutation(values)


def fit(name: str, series: Sequence[Samples], curves: Sequence[Curve], *, from_zero: bool = False, steady: bool = False) -> list[Fit]:
    """One for each series. `from_zero`: a part that one rank does not have, and may be growth alone; `steady`: one that should not grow."""
    relative = not from_zero
    grids = [_likelihood(samples, curves, from_zero=from_zero, steady=steady) for samples in series]
    middle = max(_NOISE_MIDDLE, *(samples.error for samples in series))
    prior = np.array([curve.log_prior for curve in curves])[:, None] - 0.5 * (np.log(_NOISES / middle) / _NOISE_SPREAD) ** 2
    evidence = [np.logaddexp.reduce(grid.log, axis=0) for grid in grids]
    common = prior + np.sum(evidence, axis=0)
    return [_drawn(name, samples, curves, grid, common - own, relative) for samples, grid, own in zip(series, grids, evidence)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    shares: Floats
    level: Floats
    """The best for each share and curve."""
    log: Floats
    """(shares, curves, noises)"""


def _likelihood(samples: Samples, curves: Sequence[Curve], *, from_zero: bool, steady: bool) -> _Grid:
    x = samples.x / (1.0 if from_zero else samples.x[0])
    heights = np.array([curve.at(x) for curve in curves])
    heights = heights / np.where(heights[:, -1:] > 0, heights[:, -1:], 1.0)  # (curves, points), 1 at the largest
    shares = _shares(samples, from_zero=from_zero)
    seconds = 1 - shares[:, None, None] * (1 - heights)
    errors = np.log(samples.seconds) - np.log(np.maximum(seconds, 1e-12))
    level = errors.mean(axis=-1)
    squares = ((errors - level[..., None]) ** 2).sum(axis=-1)
    log = -(x.size - 1) * np.log(_NOISES) - squares[..., None] / (2 * _NOISES**2)
    if steady:
        log = log + np.log1p(-shares)[:, None, None] / _STEADY
    return _Grid(shares=shares, level=level, log=log)


def _shares(samples: Samples, *, from_zero: bool) -> Floats:
    """Of the largest, what has grown: evenly in the logarithm of growth, or up to all of it."""
    if from_zero:
        odds = np.logspace(-2, 4, _SHARES)
        return np.asarray(odds / (1 + odds))
    most = 2 * float(np.log(samples.seconds.max() / samples.seconds.min())) + 0.07
    shares: Floats = -np.expm1(-np.linspace(0.0, most, _SHARES))
    return shares


def _drawn(name: str, samples: Samples, curves: Sequence[Curve], grid: _Grid, others: Floats, relative: bool) -> Fit:
    log = grid.log + others
    weights = np.exp(log - log.max())
    places = np.searchsorted(np.cumsum(weights.ravel()) / weights.sum(), (np.arange(DRAWS) + 0.5) / DRAWS)
    order = np.random.default_rng(zlib.crc32(f"{name} order".encode())).permutation(np.minimum(places, weights.size - 1))
    share, curve, noise = np.unravel_index(order, weights.shape)
    level = grid.level[share, curve] + _NOISES[noise] / np.sqrt(samples.x.size) * normal(f"{name} level")
    return Fit(
        name=name, curves=curves, first=float(samples.x[0]) if relative else 1.0, last=float(samples.x[-1]), level=level,
        share=grid.shares[share], curve=curve, noise=_NOISES[noise],
    )  # fmt: skip
