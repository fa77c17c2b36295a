"""run.json."""

import csv
import json
import math
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farandole.comm import world
from farandole.errors import SettingsError
from farandole.observe.phases import PhaseTimes
from farandole.train import supervisors
from farandole.train.rank import session
from farandole.train.rank.checkpointing import Spent
from farandole.train.rank.record import write_history, write_record


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    write_record(tmp_path, {"epochs": [{"loss": 0.5, "val_loss": float("inf")}], "final": {"test": {"r2": float("nan")}}, "n": (1, 2)})
    text = (tmp_path / "run.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"{word} is no JSON")
    assert found == {"epochs": [{"loss": 0.5, "val_loss": None}], "final": {"test": {"r2": None}}, "n": [1, 2]}


RUNS = """
import json, os, sys
from pathlib import Path

loads = iter(range(100))
os.getloadavg = lambda: (float(next(loads)),) * 3

from farandole.data.make import make
from farandole.train.rank.running import run_here
from farandole.train.settings import RunSettings
from farandole.train.table import table
from farandole.workloads.nt3 import FILES, WORKLOAD

folder = Path(sys.argv[1])
small = {"data_dir": str(folder), "conv": [4, 5, 1], "pool": [4], "dense": [8], "batch_size": 8, "learning_rate": 1e-3}
flat = lambda **more: RunSettings.from_flat({"benchmark": "nt3", **small, **more})
made = make(FILES, folder, rows=100, features=60, seed=7, threads=1)
whole = run_here(flat(epochs=3, threads=2))
split = flat(epochs=1, val_split=0.25, reduce_lr=False)
parted = run_here(split)
given = run_here(split, data=WORKLOAD.load(split.parameters, folder))
(folder / "nt_train2.csv").write_text((folder / "nt_train2.csv").read_text().replace("0,", "0 ,", 1))
changed = run_here(split)
print(json.dumps({"made": made.describe(), "whole": whole, "parted": parted, "given": given, "changed": changed, "shown": table(whole)}))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    words = [sys.executable, "-c", RUNS, str(tmp_path_factory.mktemp("nt3"))]
    done = subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_load_of_the_machine_is_the_one_that_the_run_has_found(runs: dict[str, Any]) -> None:
    assert runs["whole"]["environment"]["load_average"] == [0.0] * 3


def test_made_data_is_told_from_real_files(runs: dict[str, Any]) -> None:
    assert runs["whole"]["made_data"] == runs["parted"]["made_data"] == runs["made"]
    assert runs["given"]["made_data"] is runs["changed"]["made_data"] is None, "arrays, and files that were replaced, were not made"


def test_what_it_was_run_on(runs: dict[str, Any]) -> None:
    names = ("schema", "ranks", "replicas", "partitions", "nodes", "threads")
    assert [runs["whole"][name] for name in names] == [2, 1, 1, 1, 1, 2]
    assert runs["parted"]["threads"] == 1, "torch's own number again"
    assert runs["whole"]["cores"] >= 1
    crowded = any(note.startswith("oversubscribed: 1 rank with 2 threads") for note in runs["whole"]["notes"])
    assert crowded == (runs["whole"]["cores"] < 2)


def test_the_speed_is_that_of_the_median_step_after_the_first_epoch(runs: dict[str, Any]) -> None:
    record = runs["whole"]
    rows, batch = record["plan"]["samples_per_epoch"], record["plan"]["local_batch"]
    (steps,) = record["steps"]["ranks"]
    assert rows % batch and steps["count"] == 2 * (rows // batch), "of two epochs, without the short step of each"
    assert record["samples_per_s"] == pytest.approx(batch / steps["p50"], rel=1e-3)
    assert record["step_s"]["median"] == steps["p50"] and record["step_s"]["max"] == steps["max"]
    assert steps["p05"] <= steps["p25"] <= steps["p50"] <= steps["p75"] <= steps["p95"] <= steps["max"]
    (alone,) = runs["parted"]["steps"]["ranks"]
    full = runs["parted"]["plan"]["samples_per_epoch"] // batch
    assert alone["count"] == full - -(-full // 10), "one epoch: without its first tenth"
    line = f"{record['samples_per_s']:,.0f} samples/s (median step after the first epoch)"
    assert line in runs["shown"]


def test_the_first_epoch_is_compared_with_the_others(runs: dict[str, Any]) -> None:
    record, alone = runs["whole"], runs["parted"]
    first, *others = (epoch["seconds"] - epoch["test_s"] for epoch in record["epochs"])
    assert record["startup_s"] == pytest.approx(first - sum(others) / 2, abs=1e-5)
    assert "startup_s" not in record["reasons"]
    assert alone["startup_s"] is None and alone["reasons"]["startup_s"] == "1 epoch: there is no other to compare the first with"


def test_one_rank_sends_nothing(runs: dict[str, Any]) -> None:
    sent, reasons = runs["whole"]["communication"], runs["whole"]["reasons"]
    assert (sent["bytes_per_step"], sent["messages_per_step"], sent["collective"]) == (0, 0, None)
    assert reasons["communication.collective"] == "one rank: nothing is sent"
    assert "gradients:" not in runs["shown"] and "communication took" not in runs["shown"]


def test_power_that_was_not_sampled_has_a_reason(runs: dict[str, Any]) -> None:
    assert runs["whole"]["phases_w"] is None and runs["whole"]["power_provenance"] == "none"
    assert "power was not sampled" in runs["whole"]["reasons"]["phases_w"]


def test_who_else_has_used_the_machine(runs: dict[str, Any]) -> None:
    seen = runs["whole"]["machine"]
    assert set(seen) == {"others_share", "steal_share", "steps_spread", "busy", "why"}
    assert seen["busy"] == bool(seen["why"]) and 0 <= seen["others_share"] <= 1 and 0 <= seen["steal_share"] <= 1


def test_what_validation_was_on(runs: dict[str, Any]) -> None:
    whole, parted = runs["whole"], runs["parted"]
    assert whole["validation"] == {"on": "test set", "steers": "learning rate"}
    assert parted["validation"] == {"on": "samples that are not trained on", "steers": None}
    assert parted["plan"]["samples_per_epoch"] == whole["plan"]["samples_per_epoch"] * 3 // 4
    told = "validation is on the test set and steers the learning rate"
    assert any(note.startswith(told) for note in whole["notes"]) and told in runs["shown"]
    assert not any("test set" in note for note in parted["notes"])
    assert parted["epochs"][0]["val_loss"] != parted["epochs"][0]["test_loss"]


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
