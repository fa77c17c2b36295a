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

import numpy as np

from farandole import __version__
from farandole.observe.machine_time import LEAST_STEPS, spread_of_steps, why_busy
from farandole.results.schema import RUN_PHASES, SCHEMA
from farandole.train.rank.session import Trained, steered_by_validation
from farandole.train.settings import RunSettings
from farandole.workloads.finding import source_of

if TYPE_CHECKING:
    from farandole.data.make.manifest import Manifest

__all__ = ["column_names", "make_record", "write_history", "write_record"]



def make_record(
    settings: RunSettings,
    trained: Trained,
    *,
    started_s: float,
    machine: dict[str, Any],
    made: Manifest | None,
    used: Mapping[str, float | None],
    power: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything known of a run, in plain values.

    `machine` as it was when the run began, `made` what its files are, if made, `used` what others took of the machine, `power`
    what the job took, if sampled. A value that is not known is None, and `reasons` says why.
    """
    plan, first = trained.plan, trained.ranks[0]
    steps = [_quantiles(rank.steady_s) for rank in trained.ranks]
    record = {
        "schema": SCHEMA,
        "farandole": __version__,
        "benchmark": settings.workload.name,
        "workload": {"reference": settings.benchmark, "source": source_of(settings.benchmark)},
        "preset": settings.preset,
        "api": settings.api,
        "framework": settings.framework,
        "ranks": len(trained.ranks),
        "replicas": len(trained.ranks),
        "partitions": 1,
        "nodes": trained.machines.nodes,
        "cores": trained.machines.cores,
        "threads": _same(trained.machines.threads),
        "trained_as": plan.ranks,
        "started": datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds"),
        "settings": settings.as_flat(),
        "seeds": {"weights, orders, dropout": settings.parameters.rng_seed, "made data": None if made is None else made.seed},
        "made_data": None if made is None else made.describe(),
        "plan": dataclasses.asdict(plan) | {"global_batch": plan.global_batch},
        "notes": trained.notes,
        "checkpoints": trained.checkpoints,
        "parameters": trained.parameters,
        "seconds": _seconds(trained),
        "startup_s": _startup_s(trained),
        "epoch_s": _summary(first.epoch_s),
        "step_s": _summary(first.steady_s),
        "steps": {"ranks": steps},
        "samples_per_s": round(plan.samples_per_step / steps[0]["p50"], 3) if steps[0]["p50"] else None,
        "epochs": [_epoch(epoch) for epoch in trained.epochs],
        "metric": settings.workload.watched,
        "figures": dict(settings.workload.figures),
        "validation": {
            "on": "test set" if trained.tests_early else "samples that are not trained on",
            "steers": steered_by_validation(settings),
        },
        "final": _final(trained),
        "communication": _communication(trained),
        "data": {name: _rounded([rank.data[name] for rank in trained.ranks]) for name in first.data},
        "machine": _busy(used, steps),
        "phases_w": None if power is None else {name: found["mean_w"] for name, found in power["phases"].items()},
        "power_provenance": "none" if power is None else power["total"]["provenance"],
        "memory": {
            "estimated_bytes_a_rank": trained.memory.peak_bytes,
            "estimated_phase": trained.memory.largest_phase,
            "peak_bytes": [rank.peak_memory_bytes for rank in trained.ranks],
        },
        "weights": {"same_on_all_ranks": True, "sha256": trained.weights_sha256},
        "hosts": [rank.host for rank in trained.ranks],
        "environment": machine,
        "git": git_state(),
    }
    return record | {"reasons": _reasons(record)}


def _reasons(record: Mapping[str, Any]) -> dict[str, str]:
    """Why values are null, by their names."""
    sent, uncounted = record["communication"], "the system does not count processor time (/proc/stat)"
    epochs, untrained = len(record["epochs"]), "no step was seen that tells the speed of training"
    alone = "one rank: nothing is sent" if record["ranks"] == 1 else "this part of the run has trained no step"
    found = {
        "threads": (record["threads"], "ranks compute with different numbers of threads"),
        "startup_s": (record["startup_s"], f"{epochs} epoch{'s' * (epochs != 1)}: there is no other to compare the first with"),
        "step_s": (record["step_s"]["median"], untrained),
        "samples_per_s": (record["samples_per_s"], untrained),
        **{f"communication.{name}": (sent[name], alone) for name in ("bytes_per_step", "messages_per_step", "collective")},
        "machine.others_share": (record["machine"]["others_share"], uncounted),
        "machine.steal_share": (record["machine"]["steal_share"], uncounted),
        "machine.steps_spread": (record["machine"]["steps_spread"], f"fewer than {LEAST_STEPS} steps to compare"),
        "phases_w": (record["phases_w"], "power was not sampled by this run (--power)"),
    }
    return {name: reason for name, (value, reason) in found.items() if value is None}


def _same(values: Sequence[int]) -> int | None:
    return values[0] if len(set(values)) == 1 else None


def _seconds(trained: Trained) -> dict[str, Any]:
    phases = {name: [rank.phases_s.get(name, 0.0) for rank in trained.ranks] for name in RUN_PHASES}
    totals = [rank.total_s for rank in trained.ranks]
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


def _quantiles(values: Sequence[float]) -> dict[str, Any]:
    shares = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
    found = np.quantile(values, list(shares.values())).tolist() if values else [None] * len(shares)
    return {"count": len(values)} | {name: None if value is None else round(value, 6) for name, value in zip(shares, found)}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]


def _startup_s(trained: Trained) -> float | None:
    """What the first epoch cost more than others, of which none began a part of the run; without tests, which the last one lacks."""
    seconds = {epoch.epoch: epoch.seconds - epoch.test_s for epoch in trained.epochs}
    others = [value for epoch, value in seconds.items() if epoch not in (1, *trained.begun_with)]
    return round(seconds[1] - statistics.median(others), 6) if 1 in seconds and others else None


def _epoch(record: Any) -> dict[str, Any]:
    return {
        "epoch": record.epoch,
        "seconds": round(record.seconds, 6),
        "validation_s": round(record.validation_s, 6),
        "test_s": round(record.test_s, 6),
        "rate": record.rate,
        **record.metrics,
    }


def _final(trained: Trained) -> dict[str, dict[str, float]]:
    last = trained.epochs[-1].metrics if trained.epochs else {}
    return {
        "train": {name: value for name, value in last.items() if not name.startswith(("val_", "test_"))},
        "validation": {
            name.removeprefix("val_"): value for name, value in last.items() if name.startswith("val_")
        },
        "test": trained.test,
    }


def _communication(trained: Trained) -> dict[str, Any]:
    """Gradients alone, of each rank."""
    found = [rank.communication for rank in trained.ranks]
    busy = [figures.get("seconds", 0.0) for figures in found]
    exposed = [figures.get("exposed_s", 0.0) for figures in found]
    return {
        "bytes": [int(figures.get("bytes", 0)) for figures in found],
        "seconds": _rounded(busy),
        "exposed_s": _rounded(exposed),
        "hidden_s": _rounded([max(0.0, b - e) for b, e in zip(busy, exposed)]),
        **trained.collective,
    }


def _busy(used: Mapping[str, float | None], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the machine was ours: what others took of the worst node, and how far the steps of the worst rank spread."""
    spreads = [found for rank in steps if (found := spread_of_steps(rank)) is not None]
    told = {**used, "steps_spread": max(spreads, default=None)}
    why = why_busy(**told)
    known = any(value is not None for value in told.values())
    return {**told, "busy": bool(why) if known else None, "why": why}


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
