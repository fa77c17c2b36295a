"""Dictionaries that CANDLE's Supervisor passes to a benchmark, and what it looks for in what it gets back."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farandole.train import supervisors
from farandole.train.settings import RunSettings

FROM_THE_SUPERVISOR = {
    "batch_size": 40,
    "drop": 0.3,
    "framework": "keras",
    "save": "runs/7/output",
    "instance_directory": "runs/7",
    "model_name": "nt3",
    "experiment_id": "X042",
    "run_id": "7",
    "timeout": 3600.0,
}
EPOCHS = [
    {"epoch": 1, "loss": 0.5, "accuracy": 0.7, "val_loss": 0.6, "val_accuracy": 0.8, "val_correlation": 0.2},
    {"epoch": 2, "loss": 0.4, "accuracy": 0.8, "val_loss": 0.5, "val_accuracy": 0.9, "val_correlation": 0.3},
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """The settings of every run, none of which trains."""
    found: list[RunSettings] = []

    def run_here(settings: RunSettings, **_: Any) -> dict[str, Any]:
        found.append(settings)
        return {"epochs": EPOCHS}

    monkeypatch.setattr(supervisors, "run_here", run_here)
    return found


def test_the_supervisors_own_names_are_no_hindrance(asked: list[RunSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    nt3 = supervisors.supervised("nt3")
    nt3.run(nt3.initialize_parameters() | FROM_THE_SUPERVISOR)
    assert (asked[0].framework, asked[0].output_dir) == ("torch", Path("runs/7/output"))
    assert asked[0].parameters.as_dict() | {"batch_size": 40, "dropout": 0.3, "timeout": 3600} == asked[0].parameters.as_dict()


def test_numbers_of_numpy_in_a_searchs_configuration(asked: list[RunSettings]) -> None:
    config = {"dense": [np.int64(50), np.int64(20)], "dropout": np.float64(0.2), "conv": np.array([8, 20, 1]), "pool": (np.int32(4),)}
    with pytest.raises(KeyError):  # of the run that has not trained
        supervisors.supervised("nt3").objective(config)
    found = asked[0].parameters.as_dict()
    assert {name: found[name] for name in config} == {"dense": [50, 20], "dropout": 0.2, "conv": [8, 20, 1], "pool": [4]}


def test_the_supervisors_frameworks(asked: list[RunSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports Keras for framework='keras' before it calls a benchmark, which then has to do with that backend."""
    nt3 = supervisors.supervised("nt3")
    nt3.run({"framework": "pytorch"})
    loaded = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "tensorflow"))
    monkeypatch.setitem(sys.modules, "keras", loaded)
    nt3.run({"framework": "keras"})
    assert [settings.framework for settings in asked] == ["torch", "tensorflow"]


def test_metrics_go_by_candles_names_as_well(asked: list[RunSettings]) -> None:
    history = supervisors.supervised("p1b1").run({}).history
    assert history["acc"] == history["accuracy"] == [0.7, 0.8]
    assert history["val_acc"] == history["val_accuracy"] == [0.8, 0.9]
    assert history["val_corr"] == history["val_correlation"] == [0.2, 0.3]
