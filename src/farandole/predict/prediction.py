"""What `farandole predict` says: figures with intervals for every rank count and what-if, as the object that prediction.json holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import SettingsError
from farandole.predict.comm import Network, read_network
from farandole.predict.curves import COLLECTIVES, Floats
from farandole.predict.model import Model, Otherwise, fit_models
from farandole.predict.parts import FEWEST, TRAINING, WHOLES, Measured, measured_of
from farandole.predict.power import Power, fit_power
from farandole.predict.what_if import Scenario, applied, is_so
from farandole.results.numbers import number
from farandole.results.reading import Study

__all__ = ["KIND", "SCHEMA", "Asked", "interval", "models_of", "predict"]

KIND, SCHEMA = "farandole predict", 1
FAR = 16.0
"""From this factor beyond the largest run on a prediction comes with a warning."""
_CURVE_POINTS = 24
_LEAST_LOST = 0.01
"""Of the time: of less it is not worth while to say what it went to."""


@dataclass(kw_only=True, slots=True)
class Asked:
    """What a user wants to know."""

    ranks: Sequence[int]
    up_to: int | None = None
    """Fit runs on at most so many ranks."""
    comm: Path | None = None
    collective: str = "auto"
    what_ifs: Sequence[Scenario] = ()
    level: float = 0.9
    command: str = ""

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1:
            raise SettingsError("--ranks: write the rank counts to predict, e.g. --ranks 64,512,3072")
        if not 0 < self.level < 1:
            raise SettingsError(f"--level {self.level:g}: write a share between 0 and 1, e.g. 0.9")
        if self.collective not in COLLECTIVES:
            raise SettingsError(f"--collective {self.collective}: there are {', '.join(COLLECTIVES)}")


def models_of(study: Study, asked: Asked) -> list[Model]:
    """One for each series of the study, fitted."""
    found = measured_of(study, up_to=asked.up_to, comm=asked.comm is not None)
    return fit_models(found, collective=asked.collective, network=_network(found, asked.comm))


def _network(found: Sequence[Measured], comm: Path | None) -> Network | None:
    if comm is None:
        return None
    case = found[0].largest.case
    return read_network(comm, case.median("bytes_per_step"), case.median("messages_per_step"))


def predict(study: Study, asked: Asked) -> dict[str, Any]:
    """The document; docs/prediction.md describes it."""
    models = models_of(study, asked)
    powers = fit_power([model.measured for model in models])
    fitted = [_fitted(model, asked) for model in models]
    return {
        "schema": SCHEMA, "kind": KIND, "study": study.name, "command": asked.command, "level": asked.level, "tau": models[0].tau,
        "fitted": fitted,
        "predictions": [_prediction(model, power, ranks, asked.level) for model, power in zip(models, powers) for ranks in sorted({*asked.ranks})],
        "what_ifs": [
            _what_if(scenario, model, models, powers, ranks, asked.level)
            for model in models for scenario in asked.what_ifs if not is_so(scenario, model) for ranks in sorted({*asked.ranks})
        ],
        "warnings": _warnings(models, fitted, asked),
    }  # fmt: skip


def interval(draws: Floats, level: float = 0.9) -> dict[str, float]:
    low, median, high = np.quantile(draws, [(1 - level) / 2, 0.5, (1 + level) / 2]).tolist()
    return {"low": low, "median": median, "high": high}


def _prediction(model: Model, power: Power | None, ranks: int, level: float, otherwise: Otherwise | None = None) -> dict[str, Any]:
    measured, parts = model.measured, model.parts(ranks, otherwise)
    whole = np.sum([*parts.values()], axis=0)
    known, reasons = _times(model, ranks, parts, whole)
    if power is not None and "total_s" in known:
        known["energy_j"] = power.energy_j(ranks, parts)
    else:
        reasons["energy_j"] = reasons.get("total_s") or _no_energy(measured)
    return {
        "ranks": ranks, "settings": dict(measured.settings),
        **{name: interval(known[name], level) if name in known else None for name in ("epoch_s", "total_s", "efficiency", "energy_j")},
        "whole": measured.whole, "whole_s": interval(whole, level) if "efficiency" in known else None, "measured_s": _measured_s(measured, ranks),
        "energy_provenance": power.provenance if power is not None and "energy_j" in known else None,
        "parts": {name: interval(seconds, level) for name, seconds in parts.items()},
        "limited_by": _limit(measured, ranks, parts), "beyond": ranks / measured.largest.ranks, "reasons": reasons,
    }  # fmt: skip


def _measured_s(measured: Measured, ranks: int) -> float | None:
    """Where the study has run on as many, whether or not that was fitted."""
    known = (case.median(measured.whole) for case in measured.series.cases if case.ranks == ranks and not case.oversubscribed)
    return next((seconds for seconds in known if seconds is not None), None)


def _times(model: Model, ranks: int, parts: Mapping[str, Floats], whole: Floats) -> tuple[dict[str, Floats], dict[str, str]]:
    measured, reasons = model.measured, dict[str, str]()
    known: dict[str, Floats] = {"efficiency": _ideal_s(measured, ranks) / whole}
    if measured.whole == "total_s":
        known["total_s"] = whole
    else:
        reasons["total_s"] = f"the study knows times {WHOLES[measured.whole]}, and none in all"
    epochs = measured.epochs.at(ranks) if measured.epochs else None
    if measured.whole == "epoch_s":
        known["epoch_s"] = whole
    elif epochs and measured.whole in ("total_s", "train_s"):
        known["epoch_s"] = np.sum([seconds for name, seconds in parts.items() if name in TRAINING], axis=0) / epochs
    else:
        reasons["epoch_s"] = "the study does not tell its epochs"
    if epochs is not None and epochs < 0.999 and measured.whole != "epoch_s":
        known = {name: draws for name, draws in known.items() if name == "epoch_s"}
        reasons["total_s"] = reasons["efficiency"] = f"{number(epochs)} of an epoch a rank: there are fewer epochs than ranks"
    return known, reasons


def _no_energy(measured: Measured) -> str:
    if measured.whole == "total_s" and any(point.case.median("energy_j") for point in measured.points):
        return "the study does not tell training from the rest"
    return measured.study.reason("energy_j") or "the study has no joules"


def _ideal_s(measured: Measured, ranks: int) -> float:
    return measured.base.whole_s * _share(measured, ranks)


def _share(measured: Measured, ranks: int) -> float:
    """Of the base's time, what an ideal machine would take: the same, or divided over the ranks."""
    return measured.base.ranks / ranks if measured.work == "strong" and measured.whole in ("total_s", "train_s") else 1.0


def _limit(measured: Measured, ranks: int, parts: Mapping[str, Floats]) -> dict[str, Any] | None:
    """The part that takes most beyond its ideal; None where a study does not tell parts apart."""
    share = _share(measured, ranks)
    excess = {name: float(np.median(seconds)) - share * measured.base.parts.get(name, 0.0) for name, seconds in parts.items()}
    lost = {name: seconds for name, seconds in excess.items() if seconds > 0}
    if len(parts) < 2 or sum(lost.values()) < _LEAST_LOST * sum(float(np.median(seconds)) for seconds in parts.values()):
        return None
    name = max(lost, key=lambda one: lost[one])
    return {"part": name, "share": lost[name] / sum(lost.values())}


def _fitted(model: Model, asked: Asked) -> dict[str, Any]:
    measured = model.measured
    last = max([*asked.ranks, measured.largest.ranks])
    grid = sorted({round(x) for x in np.geomspace(measured.base.ranks, last, _CURVE_POINTS)} | {*asked.ranks})
    return {
        "settings": dict(measured.settings), "work": measured.work, "whole": measured.whole, "ranks": [point.ranks for point in measured.points],
        "measured": [{"ranks": point.ranks, "whole_s": point.whole_s, "parts": dict(point.parts)} for point in measured.points],
        "collective": model.collective or None, "collective_from": _collective_from(model, asked),
        "held_out": _held_out(model, asked), "remarks": list(measured.remarks),
        "curve": [
            {"ranks": ranks, **interval(np.sum([*parts.values()], axis=0), asked.level),
             "parts": {name: float(np.median(seconds)) for name, seconds in parts.items()}}
            for ranks in grid if (parts := model.parts(ranks))
        ],
    }  # fmt: skip


def _collective_from(model: Model, asked: Asked) -> str:
    return "declared" if asked.collective != "auto" else "recorded by the runs" if model.collective else "not known: several shapes are weighed"


def _held_out(model: Model, asked: Asked) -> dict[str, Any] | None:
    """The largest run, predicted from the others; None where these would be too few."""
    measured = model.measured
    if len(measured.points) <= FEWEST:
        return None
    before = replace(measured, points=measured.points[:-1])
    smaller = fit_models([before], collective=asked.collective, network=model.network, tau=model.tau)[0]
    found, truth = interval(smaller.whole(measured.largest.ranks), asked.level), measured.largest.whole_s
    return {
        "ranks": measured.largest.ranks, "measured_s": truth, "predicted_s": found, "error": found["median"] / truth - 1,
        "inside": found["low"] <= truth <= found["high"],
    }  # fmt: skip


def _what_if(
    scenario: Scenario, model: Model, models: Sequence[Model], powers: Sequence[Power | None], ranks: int, level: float
) -> dict[str, Any]:
    other, otherwise = applied(scenario, model, models)
    power = powers[next(place for place, one in enumerate(models) if one is other)]
    ratio = other.whole(ranks, otherwise) / model.whole(ranks)
    found = _prediction(other, power, ranks, level, otherwise)
    return {"what_if": scenario.text, **found, "settings": dict(model.measured.settings), "ratio": interval(ratio, level)}


def _warnings(models: Sequence[Model], fitted: Sequence[Mapping[str, Any]], asked: Asked) -> list[str]:
    largest = min(model.measured.largest.ranks for model in models)
    far = sorted({ranks for ranks in asked.ranks if ranks / largest > FAR})
    told = [f"{', '.join(f'{ranks:,}' for ranks in far)} ranks are more than {FAR:g} times the largest run: the machine may change its ways before."] if far else []
    told += [f"{_named(model, models)}{words}." for model in models for words in model.measured.remarks]
    if any(model.network is not None for model in models):
        told.append("No run has crossed the network: what it takes is from farandole bench comm alone, without overlap with computing.")
    missed = [model for model, one in zip(models, fitted) if one["held_out"] and not one["held_out"]["inside"]]
    told += [f"{_named(model, models)}the largest run lies outside of what the others predict: believe these intervals less." for model in missed]
    return [*told, *models[0].measured.study.warnings]


def _named(model: Model, models: Sequence[Model]) -> str:
    return f"{model.measured.series.label}: " if len(models) > 1 else ""
