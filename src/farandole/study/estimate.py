"""How long a point will take: a rough guess before the first has run, its own measurements afterwards."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from farandole.study.points import Point, run_settings, usable_cores

__all__ = ["Estimate"]

_START_S = 8.0
"""Python, the framework, MPI, the data: once a run."""
_SECONDS_A_SAMPLE = {
    ("nt3", "demo"): 6e-3, ("nt3", "test"): 4e-4, ("nt3", "paper"): 2.0,
    ("p1b1", "demo"): 1e-3, ("p1b1", "test"): 1e-4, ("p1b1", "paper"): 0.12,
    ("p1b2", "demo"): 4e-4, ("p1b2", "test"): 1e-4, ("p1b2", "paper"): 8e-3,
    ("p1b3", "demo"): 1e-4, ("p1b3", "test"): 5e-5, ("p1b3", "paper"): 5e-3,
}  # fmt: skip
"""Of one rank on one core of a virtual machine, forward and backward; good for a factor of 3."""
_PAPER_MB = {"nt3": 750, "p1b1": 1030, "p1b2": 217, "p1b3": 421}
_LOAD_S_A_MB = {"pandas": 0.12, "pandas-chunked": 0.05, "dask": 0.1}
"""Of other loaders a tenth of the slowest is assumed."""
_READING_S = 3.0
"""A process begins, and a library is imported and warmed up."""
_READ_S_A_MB = {"fast": 0.003, "dask": 1.0, "others": 0.04}
"""In a study of loaders, which reads files of any width; good for a factor of 3. Dask is that slow with wide ones alone."""


def _reading_s(method: str, ranks: int, size: int) -> float:
    """About how long a reading of a file takes, `ranks` at once; `size` in bytes."""
    cost = _READ_S_A_MB.get(method.partition("-")[0], _READ_S_A_MB["others"])
    return _READING_S + max(1.0, ranks / usable_cores()) * cost * size / 1e6


class Estimate:
    """Learns from points that have ended: `seconds` of the others get better."""

    def __init__(self, finished: Sequence[Mapping[str, Any]] = ()) -> None:
        self._ratios: list[float] = []
        for result in finished:
            self.learn(result)

    def learn(self, result: Mapping[str, Any]) -> None:
        if result["status"] == "ok" and result.get("wall_s"):
            self._ratios.append(result["wall_s"] / _guess_s(result["settings"]))

    @property
    def measured(self) -> bool:
        return bool(self._ratios)

    def seconds(self, points: Sequence[Point]) -> float:
        """Of these points, one after the other."""
        ratio = statistics.median(self._ratios) if self._ratios else 1.0
        return ratio * sum(_guess_s(point.settings) for point in points)


def _guess_s(settings: Mapping[str, Any]) -> float:
    if "bytes" in settings:
        return _reading_s(str(settings["loader"]), settings["ranks"], settings["bytes"])
    if "command" in settings:
        return 60.0
    crowd = max(1.0, settings["ranks"] / usable_cores())
    cost = _SECONDS_A_SAMPLE[settings["benchmark"], settings["preset"]]
    return float(crowd * (_START_S + _load_s(settings) + cost * _share_of_features(settings) * _samples_a_rank(settings)))


def _load_s(settings: Mapping[str, Any]) -> float:
    size_mb = _PAPER_MB[settings["benchmark"]] if settings["preset"] == "paper" else 0
    return size_mb * _LOAD_S_A_MB.get(str(settings["loader"]), 0.01)


def _share_of_features(settings: Mapping[str, Any]) -> float:
    """Most of the work is in layers whose width follows the features."""
    from farandole.benchmarks import benchmark
    from farandole.data.candle.files import BENCHMARKS

    if not settings.get("feature_subsample"):
        return 1.0
    files, expected = BENCHMARKS[settings["benchmark"]], benchmark(settings["benchmark"]).expected
    shapes = {role: (0, files.features(role, files.presets[settings["preset"]])) for role in files.files}
    parameters = run_settings(settings).parameters
    return expected(parameters, shapes)[0] / expected(replace(parameters, feature_subsample=0), shapes)[0]


def _samples_a_rank(settings: Mapping[str, Any]) -> float:
    """That go through the model on every rank there is."""
    from farandole.data.candle.files import BENCHMARKS
    from farandole.train.plan import make_plan

    rows = BENCHMARKS[settings["benchmark"]].presets[settings["preset"]].rows
    # A batch that does not fit will fail at once; here it counts like one that does.
    batch = min(settings["batch_size"], max(1, rows // max(settings["ranks"], settings.get("emulate_ranks") or 1)))
    plan = make_plan(run_settings(settings, batch_size=batch, batch_scaling="none"), rows, settings["ranks"])
    return float(plan.epochs * plan.steps * plan.local_batch * plan.passes)
