"""What a point's timeline adds to its figures: timelines whose truth is known."""

import time
from pathlib import Path
from typing import Any

import pytest

from farandole.observe import timeline
from farandole.study.figures import add_trace, figures_of_command
from farandole.study.tracing import TRACED, trace_figures

MS = 1_000_000
Spans = list[tuple[Any, ...]]
STEP: Spans = [
    ("training", "DATA", 0, 2), ("training", "FORWARD", 2, 6), ("training", "BACKWARD", 6, 16), ("training", "OPTIMIZER", 16, 19),
    ("steps", "STEP", 0, 20, {"step": 0}),
]  # fmt: skip


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
    found = figures_of_command(1.0, {}, {})
    add_trace(found, tmp_path)
    expected = {"data_stall_s": 0.004, "forward_s": 0.004, "backward_s": 0.010, "optimizer_s": 0.003}
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)
    assert not {*TRACED} & {*found.reasons}


def test_what_a_framework_hides_is_unknown_and_said(tmp_path: Path) -> None:
    hidden = {"backend": "tensorflow", "unseen": ["DATA", "FORWARD", "BACKWARD", "OPTIMIZER"]}
    ranks: Spans = [("steps", "FIT", 0, 40, hidden), ("training", "RUN", 1, 39), ("steps", "STEP", 0, 40, {"step": 0})]
    record(tmp_path, ranks, ranks)
    found = figures_of_command(1.0, {}, {})
    add_trace(found, tmp_path)
    for name in ("data_stall_s", "forward_s", "backward_s", "optimizer_s"):
        assert found.values[name] is None and "compiles with tensorflow" in found.reasons[name]
    assert found.values["comm_s"] == found.values["wait_s"] == 0


def test_phases_of_the_timeline_where_power_has_told_none(tmp_path: Path) -> None:
    record(tmp_path, [("phases", "load", 0, 300), ("phases", "epoch", 300, 400)], [("phases", "load", 0, 100)])
    found = figures_of_command(1.0, {"train": 0.5}, {})
    add_trace(found, tmp_path)
    assert found.values["load_s"] == pytest.approx(0.2) and found.values["train_s"] == 0.5
    assert found.values["epoch_s"] is None, "marked regions of other names are no figures"


def test_a_run_without_a_timeline(tmp_path: Path) -> None:
    found, reasons = trace_figures(tmp_path)
    assert found == dict.fromkeys(TRACED) and set(reasons.values()) == {"the run has left no timeline"}
