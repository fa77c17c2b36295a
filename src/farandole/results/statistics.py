"""When two samples differ: Welch's interval, on logarithms where values are ratios (times, joules).

A claim is made where the interval of the difference leaves out 0. Of samples that do not differ, at most ALPHA of such claims are
false; where one is picked out of several comparisons, each gets its share of that (Bonferroni). One value on either side tells
nothing of how far values vary, so that nothing is claimed. `python -m bench claims` measures both rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["ALPHA", "Difference", "compare", "quantile_t"]

ALPHA = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Of `after` from `before`: a ratio of geometric means, or a difference of means, with its interval."""

    value: float
    low: float | None
    """None where there are too few repeats to tell."""
    high: float | None
    ratio: bool

    def times(self, factor: float) -> Difference:
        """A ratio of something else."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return replace(self, value=factor * self.value, low=low, high=high)

    @property
    def known(self) -> bool:
        """Whether there are repeats enough for an interval."""
        return self.low is not None

    @property
    def claimed(self) -> bool:
        """Whether the two may be said to differ."""
        none = 1.0 if self.ratio else 0.0
        return self.low is not None and self.high is not None and not self.low <= none <= self.high


def compare(before: Sequence[float], after: Sequence[float], *, ratio: bool = True, among: int = 1) -> Difference | None:
    """None where one side is empty, or a ratio has values that are not above 0. `among`: of so many comparisons it is picked."""
    if not before or not after or (ratio and min(*before, *after) <= 0):
        return None
    first, second = ([math.log(value) for value in side] if ratio else list(side) for side in (before, after))
    middle, share = statistics.fmean(second) - statistics.fmean(first), ALPHA / max(1, among)
    half = _half_width(first, second, share)
    back = _ratio if ratio else float
    low, high = (None, None) if half is None else (back(middle - half), back(middle + half))
    return Difference(value=back(middle), low=low, high=high, ratio=ratio)


def _ratio(logarithm: float) -> float:
    return math.exp(min(logarithm, 700.0))


def _half_width(first: Sequence[float], second: Sequence[float], alpha: float) -> float | None:
    """Welch's: variances may differ, degrees of freedom after Satterthwaite.

    None of values that are all equal: accuracies of few samples repeat by chance, and say nothing of how far they vary.
    """
    if min(len(first), len(second)) < 2:
        return None
    parts = [statistics.variance(side) / len(side) for side in (first, second)]
    total = sum(parts)
    if total == 0.0:
        return None
    freedom = total**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second)))
    return quantile_t(1 - alpha / 2, freedom) * math.sqrt(total)


def quantile_t(share: float, freedom: float) -> float:
    """The value below which a `share` above one half of Student's t lies, by halving: its distribution function is monotonic."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < share else (low, middle)
    return high


def _below(value: float, freedom: float) -> float:
    """Student's t distribution function for `value` of at least 0."""
    return 1 - _incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised; by its continued fraction, which converges fast below the mean, else by symmetry."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    # Lentz's method: c and d are ratios of successive numerators and denominators.
    tiny, c, d = 1e-300, 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d or tiny), 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return front * fraction
