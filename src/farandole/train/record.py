"""`run.json` and `history.csv`: what was run, on what, what each phase cost and how good the model is."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole import __version__
from farandole.benchmarks import benchmark
from farandole.train.session import Result
from farandole.train.settings import RunSettings

if TYPE_CHECKING:
    from farandole.data.make.manifest import Manifest

__all__ = ["PHASES", "column_names", "make_record", "write_history", "write_record"]

SCHEMA = 1
PHASES = ("start", "load", "preprocess", "build", "broadcast", "train", "evaluate", "save")


def make_record(
    settings: RunSettings, result: Result, *, started_s: float, machine: dict[str, Any], made: Manifest | None
) -> dict[str, Any]:
    """Everything known of a run, in plain values; `machine` as it was when the run began, `made` what its files are, if made."""
    plan, first = result.plan, result.ranks[0]
    return {
        "schema": SCHEMA,
        "farandole": __version__,
        "benchmark": settings.benchmark,
        "preset": settings.preset,
        "framework": settings.framework,
        "ranks": len(result.ranks),
        "trained_as": plan.ranks,
        "started": datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds"),
        "settings": settings.as_flat(),
        "seeds": {"weights, orders, dropout": settings.parameters.rng_seed, "made data": None if made is None else made.seed},
        "made_data": None if made is None else made.describe(),
        "plan": dataclasses.asdict(plan) | {"global_batch": plan.global_batch},
        "notes": result.notes,
        "checkpoints": result.checkpoints,
        "parameters": result.parameters,
        "seconds": _seconds(result),
        "epoch_s": _summary(first.epoch_s),
        "step_s": _summary(first.step_s),
        "samples_per_s": _samples_per_s(result),
        "epochs": [_epoch(record) for record in result.epochs],
        "metric": benchmark(settings.benchmark).watched,
        "final": _final(result),
        "communication": _communication(result),
        "memory": {
            "estimated_bytes_a_rank": result.estimated_bytes,
            "peak_bytes": [rank.peak_memory_bytes for rank in result.ranks],
        },
        "weights": {"same_on_all_ranks": True, "sha256": result.weights_sha256},
        "hosts": [rank.host for rank in result.ranks],
        "environment": machine,
        "git": git_state(),
    }


def _seconds(result: Result) -> dict[str, Any]:
    phases = {name: [rank.phases_s.get(name, 0.0) for rank in result.ranks] for name in PHASES}
    totals = [rank.total_s for rank in result.ranks]
    return {
        name: _summary(values) | {"ranks": _rounded(values)}
        for name, values in {**phases, "total": totals}.items()
    }


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"min": None, "median": None, "max": None}
    return {
        "min": round(min(values), 6),
        "median": round(statistics.median(values), 6),
        "max": round(max(values), 6),
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]


def _samples_per_s(result: Result) -> float | None:
    """Over all ranks, of training alone; the best epoch, because the first one compiles."""
    planned = result.plan.samples_per_epoch
    speeds = [(record.samples or planned) / record.training_s for record in result.epochs]
    return round(max(speeds), 3) if speeds else None


def _epoch(record: Any) -> dict[str, Any]:
    return {
        "epoch": record.epoch,
        "seconds": round(record.seconds, 6),
        "validation_s": round(record.validation_s, 6),
        "test_s": round(record.test_s, 6),
        "rate": record.rate,
        **record.metrics,
    }


def _final(result: Result) -> dict[str, dict[str, float]]:
    last = result.epochs[-1].metrics if result.epochs else {}
    return {
        "train": {name: value for name, value in last.items() if not name.startswith(("val_", "test_"))},
        "validation": {
            name.removeprefix("val_"): value for name, value in last.items() if name.startswith("val_")
        },
        "test": result.test,
    }


def _communication(result: Result) -> dict[str, Any]:
    """Gradients alone, of each rank."""
    found = [rank.communication for rank in result.ranks]
    busy = [figures.get("seconds", 0.0) for figures in found]
    exposed = [figures.get("exposed_s", 0.0) for figures in found]
    return {
        "bytes": [int(figures.get("bytes", 0)) for figures in found],
        "seconds": _rounded(busy),
        "exposed_s": _rounded(exposed),
        "hidden_s": _rounded([max(0.0, b - e) for b, e in zip(busy, exposed)]),
    }


def git_state() -> dict[str, Any] | None:
    """Of the folder the run was started in; None where it is in no repository, or git is not there."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changes)}


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a record."""
    partial = folder / f".run.json.{os.getpid()}"
    partial.write_text(json.dumps(_as_json(record), indent=1, allow_nan=False) + "\n")
    partial.replace(folder / "run.json")


def _as_json(value: Any) -> Any:
    """The same, but null for what JSON has no number for: a loss on validation data may be infinite."""
    if isinstance(value, dict):
        return {name: _as_json(found) for name, found in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(found) for found in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def column_names(epochs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of all epochs: the last one of a run that later went on was not tested."""
    return list(dict.fromkeys(name for epoch in epochs for name in epoch))


def write_history(folder: Path, record: dict[str, Any]) -> None:
    """A line an epoch; empty where an epoch does not know a value."""
    rows = record["epochs"]
    with (folder / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, column_names(rows) or ["epoch"])
        writer.writeheader()
        writer.writerows(rows)
