"""How long a point will take: a rough guess before the first has run, its own measurements afterwards."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farandole.study.points import Point, run_settings, usable_cores
from farandole.workloads.parameters import parameters_from

if TYPE_CHECKING:
    from farandole.train.settings import RunSettings

__all__ = ["Estimate"]

_START_S = 8.0
"""Python, the framework, MPI, the data: once a run."""
_SECONDS_A_SAMPLE = 1e-3
"""Where a workload does not say."""
_UNKNOWN_S = 60.0
"""A program of a user's own, and a workload whose data nobody here knows."""
_BYTES_A_VALUE = 5
"""Of a table as text: 2 to 9."""
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
    run = None if "command" in settings else run_settings(settings)
    if run is None or run.workload.files is None or run.preset not in run.workload.files.presets:
        return _UNKNOWN_S
    crowd = max(1.0, settings["ranks"] / usable_cores())
    cost = run.workload.seconds_a_sample.get(run.preset, _SECONDS_A_SAMPLE)
    return float(crowd * (_START_S + _load_s(run) + cost * _share_of_features(run) * _samples_a_rank(run, settings["ranks"])))


def _load_s(run: RunSettings) -> float:
    size, full = run.tables.size(run.preset), run.tables.full_size
    values = sum(file.rows * (file.features + len(file.columns)) for file in run.tables.files.values())
    share = size.rows * size.features / (full.rows * full.features)
    return values * share * _BYTES_A_VALUE / 1e6 * _LOAD_S_A_MB.get(run.loader, 0.01)


def _share_of_features(run: RunSettings) -> float:
    """Most of the work is in layers whose width follows the features."""
    if not getattr(run.parameters, "feature_subsample", 0):
        return 1.0
    size, expected = run.tables.size(run.preset), run.workload.expected
    shapes = {role: (0, run.tables.features(role, size)) for role in run.tables.files}
    whole = parameters_from(type(run.parameters), run.parameters.as_dict() | {"feature_subsample": 0})
    return expected(run.parameters, shapes)[0] / expected(whole, shapes)[0]


def _samples_a_rank(run: RunSettings, ranks: int) -> float:
    """That go through the model on every rank there is."""
    from farandole.train.plan import make_plan

    rows = run.tables.presets[run.preset].rows
    # A batch that does not fit will fail at once; here it counts like one that does.
    batch = min(run.parameters.batch_size, max(1, rows // max(ranks, run.emulate_ranks or 1)))
    fitting = replace(run, parameters=replace(run.parameters, batch_size=batch), batch_scaling="none")
    plan = make_plan(fitting, rows, ranks)
    return float(plan.epochs * plan.steps * plan.local_batch * plan.passes)
