"""What a point's timeline adds to what its run has told."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from farandole.observe import timeline
from farandole.study.figures import Figures, add_trace, figures_of_command, figures_of_run

MS = 1_000_000
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


def record(run: Path, ranks: list[list[Any]]) -> None:
    origin_ns = time.monotonic_ns()
    for rank, spans in enumerate(ranks):
        timeline.start(run / "timeline.json", rank=rank, size=len(ranks), host="a", origin_ns=origin_ns)
        for track, name, start_ms, end_ms, *args in spans:
            timeline.span(track, name, origin_ns + start_ms * MS, origin_ns + end_ms * MS, *args)
        timeline.stop()
    timeline.merge_parts(run / "timeline.json")


def milliseconds(found: Figures, *names: str) -> list[float]:
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
    record(tmp_path, RANKS)
    found = figures_of_run(tmp_path)
    assert milliseconds(found, "exposed_s", "wait_s", "data_stall_s", "train_s") == [8, 2, 2, 50]


def test_a_program_that_tells_nothing_is_seen_by_its_timeline(tmp_path: Path) -> None:
    record(tmp_path, RANKS)
    found = figures_of_command(0.2, {}, {})
    add_trace(found, tmp_path)
    assert milliseconds(found, "exposed_s", "wait_s", "data_stall_s", "train_s") == [43, 27, 2, 40]
    marked = figures_of_command(0.2, {"load": 0.05}, {})
    add_trace(marked, tmp_path)
    assert marked.values["train_s"] is None, "its phases may lie within its steps"


def test_nothing_is_summed_up_of_a_timeline_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", "0.02")
    record(tmp_path, [[("training", f"{number} {'x' * 80}", number, number + 1) for number in range(400)]])
    found = figures_of_command(0.2, {}, {})
    add_trace(found, tmp_path)
    assert found.values["exposed_s"] is None and "recording was cut on rank 0" in found.reasons["exposed_s"]


def test_what_a_framework_does_not_show_stays_unknown(tmp_path: Path) -> None:
    record(tmp_path, [[("steps", "STEP", 0, 5, {"step": 0}), ("steps", "FIT", 0, 9, {"backend": "tensorflow", "unseen": ["DATA"]})]])
    found = figures_of_command(0.2, {}, {})
    add_trace(found, tmp_path)
    assert found.values["data_stall_s"] is None and "compiles with tensorflow" in found.reasons["data_stall_s"]
    assert milliseconds(found, "train_s") == [pytest.approx(5)]
