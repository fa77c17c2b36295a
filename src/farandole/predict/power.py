"""Joules on more ranks: watts of a rank while it computes and while it does anything else, times the seconds of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farandole.predict.curves import Floats
from farandole.predict.parts import Measured, Point
from farandole.predict.posterior import normal

__all__ = ["Power", "fit_power"]

_LEAST_ERROR = 0.02
_LONG_ENOUGH_S = 1.0
"""Of a shorter phase a meter has seen too little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """Watts a rank, as draws."""

    measured: Measured
    computing_w: Floats
    waiting_w: Floats
    provenance: str
    """How the watts are known: no prediction makes modelled ones measured."""

    def energy_j(self, ranks: int, parts: Mapping[str, Floats]) -> Floats:
        """Of all ranks; `parts` are seconds."""
        whole = np.sum([*parts.values()], axis=0)
        computing = np.minimum(parts["compute"] if "compute" in parts else _least_training_s(self.measured, ranks), whole)
        joules: Floats = ranks * (self.computing_w * computing + self.waiting_w * (whole - computing))
        return joules


def fit_power(found: Sequence[Measured]) -> list[Power | None]:
    """One for each series, with the same watts: they ran on one machine. None where no run knows its joules, or none tells its parts."""
    known = [measured for measured in found if measured.whole == "total_s" and not any(point.parts.get("rest") for point in measured.points)]
    rows = [row for measured in known for point in measured.points for row in _rows(measured, point)]
    if len(rows) < 2:
        return [None for _ in found]
    a = np.array([[computing, waiting] for computing, waiting, _ in rows]) / np.array([[joules] for _, _, joules in rows])
    levels = _not_below_0(a)
    error = max(_LEAST_ERROR, float(np.sqrt(np.mean((a @ levels - 1) ** 2))))
    spread = error * np.linalg.cholesky(np.linalg.pinv(a.T @ a) + 1e-9 * np.eye(2))
    draws = np.maximum(levels[:, None] + spread @ np.array([normal("computing watts"), normal("waiting watts")]), 0.0)
    provenances = [point.case.provenance for measured in known for point in measured.points if point.case.median("energy_j")]
    weakest = min(provenances, key=("none", "modelled", "measured-component", "measured-node").index)
    return [
        Power(measured=one, computing_w=draws[0], waiting_w=draws[1], provenance=weakest) if one in known else None for one in found
    ]


def _rows(measured: Measured, point: Point) -> Iterator[tuple[float, float, float]]:
    """Rank-seconds of computing, of the rest, and joules: of whole runs, and of phases where they are known."""
    energy_j = point.case.median("energy_j")
    if not energy_j:
        return
    computing = point.ranks * (point.parts["compute"] if "compute" in point.parts else _least_training_s(measured, point.ranks))
    yield computing, point.ranks * point.whole_s - computing, energy_j
    for result in point.case.results:
        for name, watts in result.phases_w.items():
            seconds = result.measure(f"{name}_s")
            if name != "train" and watts and seconds and seconds > _LONG_ENOUGH_S:
                yield 0.0, point.ranks * seconds, watts * seconds


def _least_training_s(measured: Measured, ranks: int) -> float:
    """Where communication is not told from computing: on fewest ranks there is least of it."""
    x, seconds = measured.seconds("train")
    return float(seconds[0]) * measured.amount("train", ranks) if x.size else 0.0


def _not_below_0(a: Floats) -> Floats:
    """The two levels that fit best, neither negative: relative errors count alike."""
    levels: Floats = np.asarray(np.linalg.lstsq(a, np.ones(len(a)), rcond=None)[0], np.float64)
    for place in (0, 1):
        if levels[place] < 0:
            column = a[:, 1 - place]
            alone = float(column.sum() / (column @ column))
            return np.array([0.0, alone] if place == 0 else [alone, 0.0])
    return levels
