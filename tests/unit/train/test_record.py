"""run.json."""

import csv
import json
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from farandole.comm import world
from farandole.data.make import make
from farandole.errors import SettingsError
from farandole.observe.phases import PhaseTimes
from farandole.train import record, running, session, supervisors
from farandole.train.checkpointing import Spent
from farandole.train.record import write_history, write_record
from farandole.train.settings import RunSettings


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    write_record(tmp_path, {"epochs": [{"loss": 0.5, "val_loss": float("inf")}], "final": {"test": {"r2": float("nan")}}, "n": (1, 2)})
    text = (tmp_path / "run.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"{word} is no JSON")
    assert found == {"epochs": [{"loss": 0.5, "val_loss": None}], "final": {"test": {"r2": None}}, "n": [1, 2]}


def test_the_load_of_the_machine_is_the_one_that_the_run_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    load = [0.1]
    monkeypatch.setattr(os, "getloadavg", lambda: (load[-1],) * 3)
    monkeypatch.setattr(session, "start", lambda *_: None)
    monkeypatch.setattr(session, "run_on_rank", lambda *_, **__: load.append(9.0))
    monkeypatch.setattr(record, "make_record", lambda *_, machine, **__: {"machine": machine})
    assert running.run_here(RunSettings.from_flat({"benchmark": "nt3"}))["machine"]["load_average"] == [0.1] * 3


def test_made_data_is_told_from_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(session, "start", lambda *_: None)
    monkeypatch.setattr(session, "run_on_rank", lambda *_, **__: None)
    monkeypatch.setattr(record, "make_record", lambda *_, made, **__: told.append(made) or {})
    settings = RunSettings.from_flat({"benchmark": "nt3", "data_dir": str(tmp_path)})
    running.run_here(settings)
    made = make("nt3", tmp_path, rows=16, features=60, seed=7)
    running.run_here(settings)
    running.run_here(settings, data=object())  # type: ignore[arg-type]
    (tmp_path / "nt_train2.csv").write_text("0,1\n")
    running.run_here(settings)
    assert told == [None, made, None, None], "arrays, and files that were replaced, were not made"


def test_epochs_that_do_not_know_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one epoch was gone on with: its last epoch was not tested, later ones were."""
    found = {"epochs": [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "test_loss": 0.5}]}
    write_history(tmp_path, found)
    with (tmp_path / "history.csv").open() as file:
        assert [row["test_loss"] for row in csv.DictReader(file)] == ["", "0.5"]
    monkeypatch.setattr(supervisors, "run_here", lambda *_, **__: found)
    history = supervisors.supervised("nt3").run({}).history
    assert history["loss"] == [0.5, 0.25] and math.isnan(history["test_loss"][0]) and history["test_loss"][1] == 0.5


def test_what_a_rank_has_taken_adds_up_over_the_parts_of_a_run() -> None:
    first = Spent(PhaseTimes(), time.perf_counter() - 100, lambda: {"bytes": 300, "seconds": 2.0})
    state = first.state_dict() | {"phases": {"train": 90.0}, "peak_memory_bytes": 1 << 50}
    times = PhaseTimes()
    second = Spent(times, time.perf_counter() - 10, lambda: {"bytes": 20})
    second.load_state_dict(state)
    assert times.seconds == {"train": 90.0} and 110 <= second.total_s() < 120
    assert second.communication() == {"bytes": 320, "seconds": 2.0}
    assert second.peak_memory_bytes() == 1 << 50
    older = {name: state[name] for name in ("phases", "total")}
    third = Spent(PhaseTimes(), 0.0, lambda: {"bytes": 20})
    third.load_state_dict(older)
    assert third.communication() == {"bytes": 20} and 0 < third.peak_memory_bytes() < 1 << 50


def test_the_speed_is_that_of_the_best_epoch_whoever_has_trained_it() -> None:
    epochs = [SimpleNamespace(samples=samples, training_s=2.0) for samples in (100, 400, 0)]
    result = SimpleNamespace(epochs=epochs, plan=SimpleNamespace(samples_per_epoch=200))
    assert record._samples_per_s(result) == 200.0  # type: ignore[arg-type]


class World:
    size = 2


def test_another_communicator_of_as_many_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World()
    monkeypatch.setattr(world, "current", lambda: here)
    session._check_communicator([0, 1])  # nobody knows what the world was started with: as many will do
    session._communicators[here] = [0, 1]
    session._check_communicator([0, 1])
    session._check_communicator(None)
    with pytest.raises(SettingsError, match=r"comm=\[0, 2\]: .* already, 2 in all"):
        session._check_communicator([0, 2])
