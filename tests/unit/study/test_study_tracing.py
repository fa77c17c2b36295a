"""What a point's timeline adds to its figures: timelines whose truth is known."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from farandole.observe import timeline
from farandole.observe.analysis import analyse
from farandole.study.folder import StudyFolder
from farandole.study.measures import Measures, add_trace, measures_of_command, measures_of_run
from farandole.study.pointrun import PointRunner
from farandole.study.points import Point
from farandole.study.tracing import TRACED, trace_measures
from powertree import Machine

MS = 1_000_000
Spans = list[tuple[Any, ...]]
STEP: Spans = [
    ("training", "DATA", 0, 2), ("training", "FORWARD", 2, 6), ("training", "BACKWARD", 6, 16), ("training", "OPTIMIZER", 16, 19),
    ("steps", "STEP", 0, 20, {"step": 0}),
]  # fmt: skip

# Rank 1 loads 50 ms longer, so that rank 0 waits for it in the broadcast, and is 4 ms late for the gradients.
RANKS = [
    [
        ("broadcast.w", "BROADCAST", 10, 70),
        ("training", "DATA", 70, 72),
        ("training", "WAIT_FOR_GRADIENTS", 90, 100, {"step": 0}),
        ("steps", "STEP", 70, 110, {"step": 0}),
    ],
    [
        ("broadcast.w", "BROADCAST", 60, 70),
        ("training", "DATA", 70, 72),
        ("training", "WAIT_FOR_GRADIENTS", 94, 100, {"step": 0}),
        ("steps", "STEP", 70, 110, {"step": 0}),
    ],
]


def record(run: Path, *ranks: Spans) -> None:
    """Spans: (track, name, start and end in ms, arguments)."""
    path, origin_ns = run / "timeline.json", time.monotonic_ns()
    for rank, spans in enumerate(ranks):
        timeline.start(path, rank=rank, size=len(ranks), host="n", origin_ns=origin_ns)
        for track, name, start_ms, end_ms, *args in spans:
            timeline.span(track, name, origin_ns + start_ms * MS, origin_ns + end_ms * MS, *args)
        timeline.stop()
    timeline.merge_parts(path)


def test_the_parts_of_steps_are_figures(tmp_path: Path) -> None:
    record(tmp_path, STEP, [*STEP, ("training", "DATA", 20, 24)])
    found = measures_of_command(1.0, {})
    add_trace(found, tmp_path)
    expected = {"data_stall_s": 0.004, "forward_s": 0.004, "backward_s": 0.010, "optimizer_s": 0.003}
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)
    assert not {*TRACED} & {*found.reasons}


def test_what_a_framework_hides_is_unknown_and_said(tmp_path: Path) -> None:
    hidden = {"backend": "tensorflow", "unseen": ["DATA", "FORWARD", "BACKWARD", "OPTIMIZER"]}
    ranks: Spans = [("steps", "FIT", 0, 40, hidden), ("training", "RUN", 1, 39), ("steps", "STEP", 0, 40, {"step": 0})]
    record(tmp_path, ranks, ranks)
    found = measures_of_command(1.0, {})
    add_trace(found, tmp_path)
    for name in ("data_stall_s", "forward_s", "backward_s", "optimizer_s"):
        assert found.values[name] is None and "compiles with tensorflow" in found.reasons[name]
    assert found.values["comm_s"] == found.values["wait_s"] == 0


def test_phases_are_the_timeline_s_and_only_those_that_it_lacks_the_sampler_s(tmp_path: Path) -> None:
    """The sampler knows those of one rank, and the whole of each, with others that lie within."""
    record(tmp_path, [("phases", "load", 0, 300), ("phases", "epoch", 300, 400)], [("phases", "load", 0, 100)])
    found = measures_of_command(1.0, {})
    add_trace(found, tmp_path, {"load": 0.3, "train": 0.5, "training": 0.7})
    assert found.values["load_s"] == pytest.approx(0.2) and found.values["train_s"] == 0.5
    assert found.values["epoch_s"] is None, "marked regions of other names are no figures"


def test_a_program_s_own_figures_go_over_all(tmp_path: Path) -> None:
    record(tmp_path, [("phases", "load", 0, 300)])
    found = measures_of_command(1.0, {"load_s": 7.0})
    add_trace(found, tmp_path, {"load": 0.3})
    assert found.values["load_s"] == 7.0


@pytest.mark.parametrize("power", [True, False])
def test_phases_are_the_same_with_power_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: bool) -> None:
    Machine(tmp_path / "bare").proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path / "bare"))
    (tmp_path / "train.py").write_text(NESTED)
    point = Point(settings={"command": f"{sys.executable} {tmp_path / 'train.py'} {{ranks}}", "ranks": 1, "nodes": 1})
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", power=power).run(point)
    assert found["status"] == "ok", found["reason"]
    assert found["figures"]["train_s"] == pytest.approx(0.3, abs=0.15)
    assert found["figures"]["evaluate_s"] == pytest.approx(0.5, abs=0.15)


NESTED = """
import time
from farandole.observe import energy

with energy("train"):
    time.sleep(0.3)
    with energy("evaluate"):
        time.sleep(0.5)
"""


def test_power_is_sampled_once_and_is_on_the_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the study, not by the ranks as well."""
    Machine(tmp_path / "bare").proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path / "bare"))
    (tmp_path / "train.py").write_text(PROGRAM)
    point = Point(settings={"command": f"{sys.executable} {tmp_path / 'train.py'} {{ranks}}", "ranks": 1, "nodes": 1})
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong").run(point)
    assert found["status"] == "ok", found["reason"]
    assert found["figures"]["loss"] == 0, "threads that sample in the program"
    run = tmp_path / found["run"]
    (node,) = analyse(run / "timeline.json")["power"]
    whole = json.loads((run / "power.json").read_text())["whole"]["total"]
    assert node["provenance"] == whole["provenance"] == "modelled" and node["source"] == whole["source"]


PROGRAM = """
import json, os, threading, time
from farandole.observe import timeline

timeline.start(os.environ["FARANDOLE_TIMELINE"], rank=0, size=1, host="n")
timeline.span("training", "FORWARD", time.monotonic_ns(), time.monotonic_ns() + 1)
threads = sum("power" in thread.name for thread in threading.enumerate())
timeline.stop()
json.dump({"loss": threads}, open(os.environ["FARANDOLE_FIGURES"], "w"))
"""


def test_a_run_without_a_timeline(tmp_path: Path) -> None:
    found, reasons = trace_measures(tmp_path)
    assert found.keys() >= set(TRACED) and set(found.values()) == {None} and set(reasons.values()) == {"the run has left no timeline"}


def milliseconds(found: Measures, *names: str) -> list[float]:
    return [round(found.values[name] * 1e3, 3) for name in names]


def test_stragglers_of_a_benchmark_are_those_of_its_gradients(tmp_path: Path) -> None:
    """The run says what it waited for gradients; the wait in the broadcast is part of another phase."""
    seconds = {name: {"ranks": [0.05, 0.05], "max": 0.05} for name in ("broadcast", "train", "total")}
    (tmp_path / "run.json").write_text(json.dumps({
        "benchmark": "nt3", "seconds": seconds, "epoch_s": {"median": 0.05}, "step_s": {"median": 0.04}, "samples_per_s": 1.0,
        "communication": {"bytes": [8, 8], "seconds": [0.02, 0.02], "exposed_s": [0.010, 0.006]},
        "final": {"train": {}, "test": {}}, "plan": {"global_batch": 2, "local_batch": 1, "epochs": 1, "samples_per_epoch": 2},
        "epochs": [{}], "parameters": 7, "memory": {"peak_bytes": [5, 6]}, "hosts": ["a", "a"],
    }))  # fmt: skip
    record(tmp_path, *RANKS)
    found = measures_of_run(tmp_path)
    assert milliseconds(found, "exposed_s", "wait_s", "data_stall_s", "train_s") == [8, 2, 2, 50]


def test_a_program_that_tells_nothing_is_seen_by_its_timeline(tmp_path: Path) -> None:
    record(tmp_path, *RANKS)
    found = measures_of_command(0.2, {})
    add_trace(found, tmp_path)
    assert milliseconds(found, "exposed_s", "wait_s", "data_stall_s", "train_s") == [43, 27, 2, 40]
    marked = measures_of_command(0.2, {})
    add_trace(marked, tmp_path, {"load": 0.05})
    assert marked.values["train_s"] is None, "its phases may lie within its steps"


def test_nothing_is_summed_up_of_a_timeline_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", "0.02")
    record(tmp_path, [("training", f"{number} {'x' * 80}", number, number + 1) for number in range(400)])
    found = measures_of_command(0.2, {})
    add_trace(found, tmp_path)
    assert found.values["exposed_s"] is None and "recording was cut on rank 0" in found.reasons["exposed_s"]
