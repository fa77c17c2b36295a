"""run.json."""

import json
import os
from pathlib import Path

import pytest

from farandole.train import record, running, session
from farandole.train.record import write_record
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
    monkeypatch.setattr(record, "make_record", lambda *_, started_s, machine: {"machine": machine})
    assert running.run_here(RunSettings.from_flat({"benchmark": "nt3"}))["machine"]["load_average"] == [0.1] * 3
