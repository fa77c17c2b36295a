"""What programs that search hyper-parameters call: CANDLE's supervisors, Optuna, DeepHyper.

    from farandole.candle import nt3                        # of yours: nt3 = supervised("my_model.py"), from farandole.train.supervisors
    parameters = nt3.initialize_parameters(epochs=8)        # a dictionary; defaults, config file, then these
    history = nt3.run(parameters).history                    # as Keras' own: {"loss": [...], "val_accuracy": [...]}
    score = nt3.objective({"dropout": 0.2})                  # one number, larger is better

Each runs in the calling process, as one of the ranks there are; on several, all of them call it together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from farandole.train.rank.record import column_names
from farandole.train.rank.running import run_here
from farandole.train.settings import RunSettings
from farandole.workloads.finding import find_workload
from farandole.workloads.samples import TrainingData

__all__ = ["History", "Supervised", "supervised"]


@dataclass(frozen=True, slots=True)
class History:
    """A run as Keras tells of one: values of each metric, epoch by epoch; NaN where an epoch does not know one."""

    history: dict[str, list[float]]
    """Also by CANDLE's names: `val_acc` is `val_accuracy`, `val_corr` is `val_correlation`."""
    record: dict[str, Any]
    """What `farandole run` writes to run.json."""


class Supervised(NamedTuple):
    """The three functions of a workload."""

    initialize_parameters: Callable[..., dict[str, Any]]
    run: Callable[..., History]
    objective: Callable[..., float]


def supervised(name: str) -> Supervised:
    """Those of a workload, by its name, file or module: "nt3", "my_model.py:WORKLOAD"."""

    def initialize_parameters(default_model: str | Path | None = None, **given: Any) -> dict[str, Any]:
        """Every setting and hyper-parameter; `default_model` is a config file."""
        file = {} if default_model is None else {"config_file": str(default_model)}
        return RunSettings.from_flat({"benchmark": name, **file, **given}).as_flat()

    def run(params: Mapping[str, Any], comm: Any = None, *, data: TrainingData | None = None) -> History:
        """Train, and tell how it went. Collective where there are several ranks: every one calls it.

        `data` (farandole.workloads.TrainingData), the same on every rank, takes the place of what the workload loads.
        """
        settings = RunSettings.from_flat({**params, "benchmark": name})
        record = run_here(settings, stream=sys.stderr, comm=comm, data=data)
        rest = ("epoch", "seconds", "validation_s", "test_s")
        names = [key for key in column_names(record["epochs"]) if key not in rest]
        history = {key: [epoch.get(key, math.nan) for epoch in record["epochs"]] for key in names}
        return History(history | {_candles_name(key): values for key, values in history.items()}, record)

    def objective(config: Any, comm: Any = None) -> float:
        """The validation metric by which runs of this workload are compared, larger is better: of a loss, minus the loss.

        `config` has hyper-parameters by name, as a dictionary or, as DeepHyper's jobs do, in `.parameters`.
        """
        chosen = getattr(config, "parameters", config)
        plain = {key: _plain(value) for key, value in chosen.items()}
        found = run(initialize_parameters(**plain), comm).record
        watched = find_workload(name).watched
        value = float(found["final"]["validation"][watched])
        return -value if watched == "loss" else value

    return Supervised(initialize_parameters, run, objective)


def _plain(value: Any) -> Any:
    """Searches draw NumPy's numbers, and lists of them."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _candles_name(metric: str) -> str:
    return metric.replace("accuracy", "acc").replace("correlation", "corr")
