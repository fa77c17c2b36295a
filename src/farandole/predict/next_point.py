"""`--next`: which further run would narrow the interval most, told from the draws themselves.

Of every candidate a few outcomes are supposed, as likely as the model holds them; each makes draws that would have led to it weigh more, and
beyond a larger run there is less to be wrong about.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from farandole.predict.curves import Floats
from farandole.predict.model import Model
from farandole.predict.prediction import interval

__all__ = ["next_points"]

_OUTCOMES = (0.1, 0.3, 0.5, 0.7, 0.9)
_NOISE = 0.015
"""Of a run, relative."""
_FARTHEST = 8


def next_points(models: Sequence[Model], ranks: Sequence[int], level: float) -> list[dict[str, Any]]:
    """For the most ranks that are asked for: candidates, those that narrow most first, with the width they would leave."""
    target = max(ranks)
    return [
        {"ranks": target, "settings": dict(model.measured.settings), "width": now["high"] / now["low"], "candidates": _candidates(model, target, level)}
        for model in models for now in [interval(model.whole(target), level)]
    ]  # fmt: skip


def _candidates(model: Model, target: int, level: float) -> list[dict[str, Any]]:
    found = [{"ranks": ranks, "width": _width(model, ranks, target, level)} for ranks in _counts(model, target)]
    return sorted(found, key=lambda one: (one["width"], one["ranks"]))


def _counts(model: Model, target: int) -> Iterator[int]:
    """Those that were measured once more, between them, and up to _FARTHEST times beyond."""
    known = [point.ranks for point in model.measured.points]
    between = [round((low * high) ** 0.5) for low, high in itertools.pairwise(known)]
    beyond = [known[-1] * factor for factor in (2, 4, _FARTHEST)]
    yield from (ranks for ranks in dict.fromkeys((*between, *known, *beyond)) if ranks < target)


def _width(model: Model, ranks: int, target: int, level: float) -> float:
    """Of the interval at the target, on average over outcomes."""
    run, then = np.log(model.whole(ranks, noisy=False)), model.whole(target, measured_to=ranks)
    outcomes = np.quantile(run, _OUTCOMES)
    widths = []
    for outcome in outcomes:
        weights = np.exp(-0.5 * ((run - outcome) / _NOISE) ** 2)
        low, high = _quantiles(then, weights, level)
        widths.append(np.log(high / low))
    return float(np.exp(np.mean(widths)))


def _quantiles(draws: Floats, weights: Floats, level: float) -> tuple[float, float]:
    order = np.argsort(draws)
    below = np.cumsum(weights[order]) / weights.sum()
    low, high = np.searchsorted(below, [(1 - level) / 2, (1 + level) / 2])
    return float(draws[order][low]), float(draws[order][min(high, draws.size - 1)])
