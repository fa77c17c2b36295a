"""What would be otherwise: `network=2x`, `loader=fast`, `wire=bf16`, `batch=40`, `collective=tree`, or several at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farandole.errors import SettingsError
from farandole.predict.curves import COLLECTIVES, LATENCY
from farandole.predict.model import Model, Otherwise
from farandole.predict.posterior import Change
from farandole.results.scaling import CAUSES

__all__ = ["Scenario", "applied", "is_so", "parse"]

_BYTES = {"fp32": 1.0, "bf16": 0.5, "fp16": 0.5, "fp8": 0.25}
_PARTS = tuple(cause.name for cause in CAUSES if cause.name != "rest")
_GROWTH = ("bandwidth", "linear", "table", "log", "own")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Settings that are otherwise, together."""

    text: str
    settings: Mapping[str, str]


def parse(text: str) -> Scenario:
    pairs = [word.partition("=") for word in text.split(",")]
    if any(not name or not value for name, _, value in pairs):
        raise SettingsError(f"--what-if {text}: write name=value, or several with commas, e.g. network=2x or loader=fast,batch=40")
    return Scenario(text=text, settings={name.strip(): value.strip() for name, _, value in pairs})


def applied(scenario: Scenario, model: Model, models: Sequence[Model]) -> tuple[Model, Otherwise]:
    """The series that has such settings, where one has, and what else changes in it."""
    changes: dict[str, Change] = {}
    factors: dict[str, float] = {}
    for name, value in scenario.settings.items():
        part = "allreduce" if _has_allreduce(model) else "train" if "train" in model.fits else "rest"
        if name == "network":
            speed = _times(name, value)
            _change(changes, part, dict.fromkeys(_GROWTH, 1 / speed))
        elif name == "wire":
            _change(changes, _allreduce_of(name, model), {"bandwidth": _bytes(value)})
        elif name == "collective":
            _check_shape(value, model, part)
            _change(changes, part, {}, {LATENCY[model.collective]: LATENCY[value]})
        elif name in _PARTS and re.fullmatch(r"[\d.]+x", value):
            factors[name] = 1 / _times(name, value)
        elif (other := _series_with("batch_size" if name == "batch" else name, value, model, models)) is not None:
            model = other
        elif name == "batch":
            factors |= _fewer_steps(value, model)
        else:
            raise SettingsError(_unknown(name, value, models))
    return model, Otherwise(changes=changes, factors=factors)


def is_so(scenario: Scenario, model: Model) -> bool:
    """Whether a series has been measured with all of it: there is nothing to suppose."""
    settings = {name: str(value) for name, value in model.measured.settings.items()}
    return all(settings.get("batch_size" if name == "batch" else name) == value for name, value in scenario.settings.items())


def _has_allreduce(model: Model) -> bool:
    return "allreduce" in model.fits or model.network is not None


def _change(changes: dict[str, Change], part: str, factors: Mapping[str, float], swaps: Mapping[str, str] | None = None) -> None:
    before = changes.get(part, Change())
    both = {name: before.factors.get(name, 1.0) * factors.get(name, 1.0) for name in {*before.factors, *factors}}
    changes[part] = Change(factors=both, swaps={**before.swaps, **(swaps or {})})


def _times(name: str, value: str) -> float:
    try:
        speed = float(value.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise SettingsError(f"--what-if {name}={value}: write how many times as fast, e.g. {name}=2x")
    return speed


def _bytes(value: str) -> float:
    if value not in _BYTES:
        raise SettingsError(f"--what-if wire={value}: there are {', '.join(_BYTES)}")
    return _BYTES[value]


def _allreduce_of(name: str, model: Model) -> str:
    if not _has_allreduce(model):
        raise SettingsError(f"--what-if {name}: this study does not tell the allreduce from the rest. Its runs have to know `exposed_s`.")
    return "allreduce"


def _check_shape(value: str, model: Model, part: str) -> None:
    if value not in COLLECTIVES:
        raise SettingsError(f"--what-if collective={value}: there are {', '.join(COLLECTIVES)}")
    if not model.collective:
        raise SettingsError(f"--what-if collective={value}: it is not known which one was used. Add --collective ring, tree or two-level.")
    if part != "allreduce" and model.collective not in ("ring", "two-level"):
        _allreduce_of("collective", model)


def _series_with(name: str, value: str, model: Model, models: Sequence[Model]) -> Model | None:
    wanted = {**{key: str(one) for key, one in model.measured.settings.items()}, name: value}
    if name not in model.measured.settings:
        return None
    return next((one for one in models if {key: str(found) for key, found in one.measured.settings.items()} == wanted), None)


def _fewer_steps(value: str, model: Model) -> dict[str, float]:
    """Computing takes as long for a sample; what is there once a step is there less often."""
    batch = model.measured.largest.case.median("local_batch") or model.measured.largest.case.settings.get("batch_size")
    if not batch or not _has_allreduce(model):
        raise SettingsError(f"--what-if batch={value}: this study does not tell its batch, or the allreduce from the rest.")
    if not re.fullmatch(r"\d+", value) or int(value) < 1:
        raise SettingsError(f"--what-if batch={value}: write how many samples a rank takes in a step")
    return dict.fromkeys(("allreduce", "straggler"), float(batch) / int(value))


def _unknown(name: str, value: str, models: Sequence[Model]) -> str:
    known = {key: sorted({str(one.measured.settings.get(key)) for one in models}) for one in models for key in one.measured.settings}
    measured = "".join(f"; {key} {' or '.join(values)}" for key, values in known.items())
    return f"--what-if {name}={value}: known are network=2x, wire=bf16, batch=40, collective=tree, PART=2x ({', '.join(_PARTS)}), and what was measured{measured or ': one series'}."
