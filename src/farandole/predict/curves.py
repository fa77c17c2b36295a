"""How parts of a run grow with ranks or nodes: shapes with a physical basis, each with its prior.

    bandwidth   (x - 1) / x     every byte of an allreduce is sent once, however many take part
    linear      x - 1           a message to each of the others: a ring's latency
    table       linear up to MANY_NODES, then logarithmic: the engine's own algorithms, then MPI's
    log         log2 x          a tree's latency; what the slowest of x adds
    power p     (x^p - 1) / p   from logarithmic (p = 0) to linear (p = 1): where nothing else is known; saturating below 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLLECTIVES", "LATENCY", "MANY_NODES", "Curve", "allreduce_curves", "curves_of", "declared", "tail_curve", "whole_curves"]

Floats = NDArray[np.float64]

MANY_NODES = 16
"""Above so many nodes the engine leaves the sum to MPI; as AlgorithmTable.many_nodes, which this room may not import."""
COLLECTIVES = ("ring", "tree", "two-level", "auto")
_MIXES = 25
_TREE_WIDTH = 0.1
"""How far from 0 the power of a series may be whose collective is a tree: other things grow as well."""


def _power(p: float) -> Callable[[Floats], Floats]:
    return np.log if p == 0 else lambda x: (x**p - 1) / p


def _table(x: Floats) -> Floats:
    most = MANY_NODES - 1.0
    return np.where(x <= MANY_NODES, x - 1, most * np.log2(np.maximum(x, MANY_NODES)) / np.log2(MANY_NODES))


_BASES: Mapping[str, Callable[[Floats], Floats]] = {
    "bandwidth": lambda x: 1 - 1 / x,
    "linear": lambda x: x - 1,
    "table": _table,
    "log": lambda x: np.log2(x),
    "sqrt-log": lambda x: np.sqrt(np.log2(x)),
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A sum of bases with weights: 0 for one rank or node."""

    terms: tuple[tuple[str, float], ...]
    log_prior: float = 0.0
    own: Callable[[Floats], Floats] | None = None
    """Of the basis `own`: a power, or the measured tail of step times."""

    def at(self, x: Floats, factors: Mapping[str, float] | None = None, swaps: Mapping[str, str] | None = None) -> Floats:
        """`factors` multiply bases; `swaps` put others in their place: what another collective would take."""
        found = np.zeros_like(x)
        for name, weight in self.terms:
            basis = (swaps or {}).get(name, name)
            function = self.own if basis == "own" and self.own is not None else _BASES[basis]
            found = found + weight * (factors or {}).get(name, 1.0) * function(x)
        return found


def _odds(steps: int) -> Floats:
    """Shares from next to nothing to nearly all, evenly in the logarithm of their odds."""
    odds = np.logspace(-3, 3, steps)
    shares: Floats = odds / (1 + odds)
    return shares


def _mixed(first: str, second: str, most: float, steps: int, *, odds: bool = False) -> list[Curve]:
    """From one basis alone to the other alone, as shares of the growth up to `most`; `odds`: their ratio may be of any size."""
    ends = [float(_BASES[name](np.array([most]))[0]) or 1.0 for name in (first, second)]
    shares = (_odds(steps) if odds else np.linspace(0, 1, steps)).tolist()
    return [Curve(terms=((first, (1 - share) / ends[0]), (second, share / ends[1]))) for share in shares]


def _powers(powers: Sequence[float], width: float = 0.0) -> list[Curve]:
    return [Curve(terms=(("own", 1.0),), own=_power(p), log_prior=-0.5 * (p / width) ** 2 if width else 0.0) for p in powers]


def _steps(low: float, high: float, steps: int) -> list[float]:
    return [float(value) for value in np.linspace(low, high, steps)]


def whole_curves(collective: str, most: float) -> list[Curve]:
    """Of a time that holds everything, such as an epoch; `collective` may be empty: not known."""
    if collective == "tree":
        return _powers(_steps(0.0, 0.6, 13), _TREE_WIDTH)
    mixed = _mixed("log", "linear", most, 21)
    return mixed if collective else [*_powers(_steps(0.0, 1.0, 21)), *mixed]


LATENCY = {"ring": "linear", "two-level": "linear", "tree": "log", "table": "table", "auto": "table"}
"""The basis of a collective's latency."""


def allreduce_curves(collective: str, most: float, latency_share: tuple[float, float] | None = None) -> list[Curve]:
    """Latency and bandwidth. `latency_share` at `most`, with its width, is what `farandole bench comm` has found."""
    latencies = (LATENCY[collective],) if collective else ("linear", "log")
    curves = [curve for latency in latencies for curve in _mixed("bandwidth", latency, most, _MIXES, odds=True)]
    if latency_share is None:
        return curves
    middle, width = latency_share
    priors = [-0.5 * ((share - middle) / width) ** 2 for _ in latencies for share in _odds(_MIXES)]
    return [Curve(terms=curve.terms, log_prior=prior) for curve, prior in zip(curves, priors)]


def declared(word: str | None) -> str:
    """The shape of the collective that a run has recorded, or a user has named; empty where neither says."""
    told = (word or "").rpartition(", ")[2].rpartition(": ")[2].strip()
    if told in ("ring", "tree", "two-level"):
        return told
    return {"scatter": "table", "exchange": "ring", "mpi": "tree"}.get(told, "")


def tail_curve(quantiles: Mapping[str, float], count: float) -> Curve | None:
    """What the slowest of x ranks adds: the measured quantiles of step times, and beyond them their last slope (an exponential tail)."""
    known = [(-np.log1p(-share), quantiles[name]) for name, share in (("p50", 0.5), ("p75", 0.75), ("p95", 0.95)) if quantiles.get(name)]
    known += [(float(np.log(count)) + 0.5772, quantiles["max"])] if quantiles.get("max") and count > 40 else []
    depths, seconds = np.array([depth for depth, _ in known]), np.maximum.accumulate(np.array([value for _, value in known]))
    if len(known) < 3 or seconds[-1] <= seconds[0]:
        return None
    slope = max((seconds[-1] - seconds[-2]) / (depths[-1] - depths[-2]), 0.0)

    def slowest(x: Floats) -> Floats:
        depth = np.log(x) + 0.5772
        inside: Floats = np.interp(depth, depths, seconds) + slope * np.maximum(depth - depths[-1], 0.0)
        return inside - float(np.interp(0.5772, depths, seconds))

    return Curve(terms=(("own", 1.0),), own=slowest)


def curves_of(part: str) -> list[Curve]:
    """Of a part that is neither the allreduce nor the whole."""
    if part == "load":
        return _powers(_steps(-1.0, 1.0, 17), 0.5)  # files that all ranks read at once: soon as slow as it gets, or ever slower
    if part == "broadcast":
        return _powers(_steps(0.0, 0.3, 4))
    if part == "straggler":
        return [Curve(terms=(("sqrt-log", 1.0),)), *_powers((0.0, 0.25, 0.5))]
    return _powers((0.0,))
