"""alpha and beta of T(n) = alpha + beta * n, piece by piece.

The sum of squares of relative errors is made small, so that microseconds count as much as milliseconds. A piece
ends where the engine is known to change its algorithm, and where the times bend by themselves (another protocol
of MPI's, the end of a cache): a piece that does not fit is cut in two where that helps most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Piece", "fit"]

Floats = NDArray[np.float64]

_FEWEST_POINTS = 3
_GOOD_ERROR = 0.05
_WORTH_A_CUT = 0.6
"""A cut is made where it leaves at most this share of the squared error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One pair of alpha and beta, and for which sizes."""

    up_to_bytes: int | None
    """None: the last piece, for all that is larger."""
    alpha_s: float
    beta_s_per_byte: float
    points: int
    rms_error: float
    """Relative, of the measured sizes; as `largest_error`."""
    largest_error: float

    def seconds(self, nbytes: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * nbytes


def fit(sizes: Sequence[int], seconds: Sequence[float], cuts: Sequence[float] = ()) -> list[Piece]:
    """The pieces in rising order; `cuts` are sizes after which the algorithm is another one."""
    n, t = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    ends = _known_ends(n, cuts)
    ends = [end for start, stop in zip([0, *ends], ends) for end in _split(n, t, start, stop)]
    limits = [_limit(n, end, cuts) for end in ends]
    return [_piece(n[a:b], t[a:b], limit) for a, b, limit in zip([0, *ends], ends, limits)]


def _known_ends(n: Floats, cuts: Sequence[float]) -> list[int]:
    """Where ranges end, as positions; a cut that leaves too few sizes on a side is none."""
    ends = [0]
    for position in sorted(int(np.searchsorted(n, cut, side="right")) for cut in cuts):
        if position - ends[-1] >= _FEWEST_POINTS and n.size - position >= _FEWEST_POINTS:
            ends.append(position)
    return [*ends[1:], n.size]


def _split(n: Floats, t: Floats, start: int, stop: int) -> list[int]:
    """The ends of the pieces of one range."""
    whole = _squares(n[start:stop], t[start:stop])
    places = range(start + _FEWEST_POINTS, stop - _FEWEST_POINTS + 1)
    if not places or whole <= _GOOD_ERROR**2 * (stop - start):
        return [stop]
    halves = {at: _squares(n[start:at], t[start:at]) + _squares(n[at:stop], t[at:stop]) for at in places}
    best = min(halves, key=lambda at: halves[at])
    if halves[best] > _WORTH_A_CUT * whole:
        return [stop]
    return [*_split(n, t, start, best), *_split(n, t, best, stop)]


def _limit(n: Floats, end: int, cuts: Sequence[float]) -> int | None:
    """The size at which a piece ends: the engine's own where there is one, otherwise halfway (in the logarithm)."""
    if end == n.size:
        return None
    below, above = float(n[end - 1]), float(n[end])
    known = [cut for cut in cuts if below <= cut < above]
    return int(known[0]) if known else round(math.sqrt(below * above))


def _piece(n: Floats, t: Floats, limit: int | None) -> Piece:
    alpha, beta = _solved(n, t)
    errors = np.abs(_errors(n, t))
    return Piece(
        up_to_bytes=limit,
        alpha_s=alpha,
        beta_s_per_byte=beta,
        points=n.size,
        rms_error=float(np.sqrt(np.mean(errors**2))),
        largest_error=float(errors.max()),
    )


def _squares(n: Floats, t: Floats) -> float:
    return float(np.sum(_errors(n, t) ** 2))


def _errors(n: Floats, t: Floats) -> Floats:
    alpha, beta = _solved(n, t)
    return (alpha + beta * n) / t - 1.0


def _solved(n: Floats, t: Floats) -> tuple[float, float]:
    """Neither may be negative: no time passes backwards, and no byte is sent for less than nothing."""
    unit = n.max()  # bytes and seconds are many orders of magnitude apart
    by_alpha, by_beta = 1.0 / t, n / unit / t
    only_alpha = float(by_alpha.sum() / (by_alpha @ by_alpha)), 0.0
    if n.size == 1:
        return only_alpha
    alpha, beta = np.linalg.lstsq(np.stack([by_alpha, by_beta], axis=1), np.ones(n.size), rcond=None)[0]
    if beta < 0:
        return only_alpha
    if alpha < 0:
        return 0.0, float(by_beta.sum() / (by_beta @ by_beta) / unit)
    return float(alpha), float(beta / unit)
