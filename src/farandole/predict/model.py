"""A series fitted: draws of the seconds of every part on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farandole.predict.comm import Network
from farandole.predict.curves import (
    Curve,
    Floats,
    allreduce_curves,
    curves_of,
    declared,
    tail_curve,
    whole_curves,
)
from farandole.predict.parts import Measured
from farandole.predict.posterior import DRAWS, TAU, Change, Fit, Samples, fit, normal

__all__ = ["Model", "Otherwise", "fit_models"]

_FROM_ZERO = ("allreduce", "straggler")


@dataclass(frozen=True, kw_only=True, slots=True)
class Otherwise:
    """What is supposed to be otherwise than measured."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """By part."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Of the seconds of parts."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The posterior of a series, part by part."""

    measured: Measured
    collective: str
    """The shape of the allreduce; empty where it is not known, and all are weighed."""
    fits: Mapping[str, Fit]
    network: Network | None = None
    """Between nodes, where no run has crossed it."""
    tau: float = TAU

    def parts(self, ranks: int, otherwise: Otherwise | None = None, *, measured_to: float = 0.0, noisy: bool = True) -> dict[str, Floats]:
        """Draws of seconds, in the order of the fits."""
        known = otherwise or Otherwise()
        found: dict[str, Floats] = {}
        for name, one in self.fits.items():
            x, to = self._x(name, ranks), self._x(name, int(measured_to)) if measured_to else 0.0
            seconds = one.at(x, known.changes.get(name), tau=self.tau, measured_to=to, noisy=noisy)
            found[name] = seconds * self.measured.amount(name, ranks) * known.factors.get(name, 1.0)
        if self.network is not None and (nodes := self.measured.nodes_at(ranks)) > 1:
            found["allreduce"] = found.get("allreduce", np.zeros(DRAWS)) + self._across(nodes, ranks, known)
        return found

    def whole(self, ranks: int, otherwise: Otherwise | None = None, *, measured_to: float = 0.0, noisy: bool = True) -> Floats:
        total: Floats = np.sum([*self.parts(ranks, otherwise, measured_to=measured_to, noisy=noisy).values()], axis=0)
        return total

    def _x(self, part: str, ranks: int) -> float:
        if part != "allreduce" or not self.measured.nodes_known:
            return float(ranks)
        # All on one node: what is beyond it is the network's.
        return self.measured.nodes_at(ranks) if _over_nodes(self.measured) else float(min(ranks, self.measured.largest.ranks))

    def _across(self, nodes: float, ranks: int, otherwise: Otherwise) -> Floats:
        assert self.network is not None
        doublings = np.log2(nodes / min(nodes, self.network.nodes))
        spread = np.hypot(self.network.error, self.tau * np.sqrt(doublings))
        change = otherwise.changes.get("allreduce")
        seconds = self.network.seconds(nodes, self.collective or "ring", change) * self.measured.amount("allreduce", ranks)
        draws: Floats = seconds * otherwise.factors.get("allreduce", 1.0) * np.exp(spread * normal("network"))
        return draws


def fit_models(found: Sequence[Measured], *, collective: str = "auto", network: Network | None = None, tau: float = TAU) -> list[Model]:
    """Series that have a part in common share its shape: they ran on one machine."""
    names = [one.names() for one in found]
    shapes = [_collective(one, collective) for one in found]
    fits: list[dict[str, Fit]] = [{} for _ in found]
    for name in dict.fromkeys(name for of_one in names for name in of_one):
        samples = {place: one for place, measured in enumerate(found) if name in names[place] and (one := _samples(measured, name)) is not None}
        for shape in dict.fromkeys(shapes[place] for place in samples):
            places = [place for place in samples if shapes[place] == shape]
            for place, fitted in zip(places, _fit(name, [samples[p] for p in places], found[places[0]], shape, network)):
                fits[place][name] = fitted
    alone = [all(point.nodes == 1 for point in one.points) for one in found]
    return [
        Model(measured=one, collective=shape, fits=made, network=network if only else None, tau=tau)
        for one, shape, made, only in zip(found, shapes, fits, alone)
    ]


def _over_nodes(measured: Measured) -> bool:
    """Whether an allreduce is fitted over nodes: where they are known, and are several."""
    return measured.nodes_known and any((point.nodes or 1) > 1 for point in measured.points)


def _samples(measured: Measured, part: str) -> Samples | None:
    x, seconds = measured.seconds(part)
    if part in _FROM_ZERO:
        x, seconds = x[x > 1], seconds[x > 1]
    if part == "allreduce" and _over_nodes(measured):
        x = np.array([measured.nodes_at(int(ranks)) for ranks in x])  # 1 node shows what it takes within one
    return Samples(x=x, seconds=seconds, error=measured.error(part)) if x.size else None


def _fit(name: str, samples: Sequence[Samples], measured: Measured, shape: str, network: Network | None) -> list[Fit]:
    most = max(float(one.x[-1]) for one in samples)
    if name in ("rest", "train"):
        first = min(float(one.x[0]) for one in samples)
        return fit(name, samples, whole_curves("" if shape == "table" else shape, most / first))
    if name == "allreduce":
        share = network.latency_share(most, shape or "ring") if network and _over_nodes(measured) else None
        return fit(name, samples, allreduce_curves(shape, most, share), from_zero=True)
    kind = "load" if name == "other" and "load" not in measured.names() else name  # which may be in it
    curves = [*_tails(measured), *curves_of(name)] if name == "straggler" else curves_of(kind)
    return fit(name, samples, curves, from_zero=name in _FROM_ZERO, steady=kind not in (*_FROM_ZERO, "load", "broadcast"))


def _tails(measured: Measured) -> list[Curve]:
    """Of the step times of the largest run's ranks, their median quantiles."""
    steps = [one for result in measured.largest.case.results for one in result.steps if one.get("p50")]
    if not steps:
        return []
    quantiles = {name: float(np.median([one[name] for one in steps])) for name in ("p50", "p75", "p95", "max") if all(one.get(name) for one in steps)}
    found = tail_curve(quantiles, float(np.median([one.get("count") or 0 for one in steps])))
    return [] if found is None else [found]


def _collective(measured: Measured, told: str) -> str:
    """As declared by the user, or as the largest run has recorded it: never by the fit."""
    if told != "auto":
        return told
    words = [str(result.measures.get("collective") or "") for result in measured.largest.case.results]
    return declared(words[0]) if words else ""
