"""How often verdicts claim what is not so, and find what is: simulated studies, judged by the code that judges real ones.

Runs differ by lognormal noise of 5%, accuracies of seeds by 0.01. A false claim is a verdict that tells a difference between
settings that have none; power is how often it tells one of 10%. `python -m bench claims`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rows import Row, Target
from farandole.results.analysis import analyse_study
from farandole.results.reading import Study
from farandole.results.schema import SCHEMA, Result

__all__ = ["measure"]

_NOISE = 0.05
_SEEDS_APART = 0.01
_REPEATS = (1, 2, 3, 5, 8)
_MOST_FALSE = 0.05
_SLACK = 1.645
"""Standard errors of a simulated rate: above the goal by more is not chance."""

Values = Callable[[random.Random], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """A kind of study, its settings with what they measure, and the words that claim a difference."""

    what: str
    kind: str
    settings: Sequence[dict[str, Any]]
    values: Sequence[Values]
    claim: str


def measure(*, quick: bool) -> list[Row]:
    trials = 400 if quick else 2000
    rows = []
    for scene in _SCENES:
        for repeats in _REPEATS:
            rate = _rate(scene, repeats, trials)
            most = _MOST_FALSE + _SLACK * math.sqrt(_MOST_FALSE * (1 - _MOST_FALSE) / trials)
            target = Target(wanted=f"false claims <= {_MOST_FALSE:.0%}", found=rate, met=rate <= most)
            rows.append(Row(what=f"{scene.what}, alike, {_runs(repeats)}: false claims", ours=rate, target=target))
    for repeats in _REPEATS[1:]:
        rows.append(Row(what=f"{_POWER.what}, 10% apart, {_runs(repeats)}: found", ours=_rate(_POWER, repeats, trials)))
    return rows


def _runs(repeats: int) -> str:
    return f"{repeats} run{'s' * (repeats > 1)} each"


def _rate(scene: _Scene, repeats: int, trials: int) -> float:
    draw = random.Random(f"{scene.what} {repeats}")
    return sum(_claims(scene, repeats, draw) for _ in range(trials)) / trials


def _claims(scene: _Scene, repeats: int, draw: random.Random) -> bool:
    results = [
        Result(
            key=str(at), settings={**settings, "seed": repeat}, repeat=repeat, ok=True, reason=None, run=None, marks=(),
            measures={"metric": "accuracy", **values(draw)}, reasons={},
        )
        for repeat in range(repeats)
        for at, (settings, values) in enumerate(zip(scene.settings, scene.values))
    ]  # fmt: skip
    about = {"schema": SCHEMA, "kind": scene.kind, "base": dict(scene.settings[0]), "points": []}
    study = Study(folder=Path(), kind=scene.kind, title="", command=None, about=about, results=results, tries=len(results), raw=[])
    return any(re.search(scene.claim, words) for verdict in analyse_study(study).verdicts() for words in (verdict.headline, *verdict.caveats))


def _time(name: str, seconds: float) -> Values:
    return lambda draw: {name: seconds * math.exp(draw.gauss(0.0, _NOISE))}


def _energy(draw: random.Random) -> dict[str, Any]:
    joules = 500.0 * math.exp(draw.gauss(0.0, _NOISE))
    return {"total_s": 10.0 * math.exp(draw.gauss(0.0, _NOISE)), "energy_j": joules, "power_provenance": "measured-node"}


def _accuracy(draw: random.Random) -> dict[str, Any]:
    return {"total_s": 10.0, "test_accuracy": 0.95 + draw.gauss(0.0, _SEEDS_APART)}


def _loader(name: str, ranks: int = 1) -> dict[str, Any]:
    return {"ranks": ranks, "loader": name}


_TWO_LOADERS = [_loader(name, ranks) for name in ("a", "b") for ranks in (1, 2)]
_FASTER = r"\d(%|×) ?\S* (less|more) time|× as fast as|\d% (less|more) time"
_SCENES = (
    _Scene(what="two loaders of a run", kind="strong", settings=_TWO_LOADERS, values=[_time("total_s", 10.0)] * 4, claim=_FASTER),
    _Scene(
        what="five batch sizes", kind="batch", settings=[{"ranks": 1, "batch_size": size} for size in (10, 20, 40, 80, 160)],
        values=[_time("total_s", 10.0)] * 5, claim=_FASTER,
    ),
    _Scene(
        what="five loaders of a file", kind="loaders", settings=[_loader(name) for name in ("pandas", "b", "c", "d", "e")],
        values=[_time("load_s", 1.0)] * 5, claim=_FASTER,
    ),
    _Scene(
        what="1, 2, 4 ranks at 80%", kind="strong", settings=[{"ranks": ranks} for ranks in (1, 2, 4)],
        values=[_time("total_s", 10.0 / ranks / share) for ranks, share in ((1, 1.0), (2, 0.8), (4, 0.8))],
        claim=r"^(Efficient to [24]|Not efficient)",
    ),
    _Scene(
        what="energy of two loaders", kind="strong", settings=_TWO_LOADERS, values=[_energy] * 4, claim=r"\d% (less|more) energy"
    ),
    _Scene(
        what="accuracy on 1, 2, 4, 8 ranks", kind="strong", settings=[{"ranks": ranks} for ranks in (1, 2, 4, 8)], values=[_accuracy] * 4,
        claim="falls from",
    ),
)  # fmt: skip
_POWER = _Scene(
    what="two loaders of a run", kind="strong", settings=_TWO_LOADERS,
    values=[_time("total_s", seconds) for seconds in (10.0, 10.0, 9.0, 9.0)], claim=_FASTER,
)  # fmt: skip
