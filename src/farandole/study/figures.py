"""The figures of a point, from the run directory that `farandole run` has left and the power sampled meanwhile."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from farandole.errors import DataError
from farandole.study.tracing import TRACED, trace_figures

__all__ = ["FIGURES", "NO_IDLE", "Figures", "add_trace", "energy_figures", "figures_of_command", "figures_of_run"]

FIGURES = {
    "total_s": "seconds of the whole run, of the slowest rank",
    "start_s": "seconds until Python, the framework and MPI were there; this and the phases below: mean over the ranks",
    "load_s": "reading files",
    "preprocess_s": "labels, scaling, splitting",
    "build_s": "the model and its optimizer",
    "broadcast_s": "every rank gets rank 0's weights, with the wait for ranks that load longer",
    "train_s": "epochs with validation; of a program that marks no phases, from its first step to its last",
    "evaluate_s": "the test data",
    "save_s": "comparing and writing the model",
    "epoch_s": "an epoch with validation, median",
    "step_s": "a step, median",
    "samples_per_s": "over all ranks, of the best epoch, without validation",
    "comm_bytes": "gradients sent by a rank, mean",
    "comm_s": "seconds they took, mean over the ranks",
    "exposed_s": "seconds in which training waited for communication, mean over the ranks",
    "wait_s": "the part of exposed_s in which a rank waited for slower ones, mean",
    "data_stall_s": "seconds in which training waited for data, mean",
    "forward_s": "seconds of training in the model, mean over the ranks; null where a framework compiles the whole step",
    "backward_s": "the same, in the gradients",
    "optimizer_s": "the same, in the optimizer",
    "peak_bytes": "the most memory of a rank",
    "cpu_s": "processor seconds of the run and its children",
    "others_share": "of the machine's processor time, what other programs took meanwhile",
    "energy_j": "joules of all nodes: on one from the command's start to its end, on several while phases last (not in start_s)",
    "power_w": "mean watts of all nodes in that time",
    "energy_per_sample_j": "energy_j over the samples trained on, epochs counted",
    "edp_js": "energy-delay product: energy_j x the seconds it was taken in, energy_j / power_w",
    "idle_w": "mean watts of the idle node, where `--idle` has asked for them",
    "above_idle_j": "energy_j without what the idle node takes in the same time",
    "loss": "of the last epoch, training data",
    "accuracy": "of the last epoch, training data; P1B1: correlation, P1B3: R2 (`metric` says which)",
    "test_loss": "of the trained model, test data",
    "test_accuracy": "the same metric, test data",
    "sign_accuracy": "P1B3 alone: how often growth is told from shrinking, last epoch, training data; what its paper calls accuracy",
    "test_sign_accuracy": "the same, of the trained model, test data",
    "global_batch": "samples of a step over all ranks, emulated ones too",
    "local_batch": "samples of a rank in a step",
    "epochs": "of a rank, that were trained: a timeout may end it before those asked for",
    "parameters": "of the model",
}
"""Every figure of a result, and what it means. Null is unknown; `reasons` then says why."""
NO_IDLE = "the idle node was not measured (--idle)"
_PHASES = ("start", "load", "preprocess", "build", "broadcast", "train", "evaluate", "save")
_PHASE_FIGURES = tuple(f"{name}_s" for name in _PHASES)


@dataclass(kw_only=True, slots=True)
class Figures:
    """Values by name, and why those that are null are."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(FIGURES) | {"power_provenance": "none"})
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, found: Mapping[str, Any], reason: str = "") -> None:
        for name, value in found.items():
            self.values[name] = value
            if value is None and reason:
                self.reasons[name] = reason
            elif value is not None:
                self.reasons.pop(name, None)


def figures_of_run(folder: Path) -> Figures:
    """Without power. DataError where there is no record."""
    try:
        record = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"the run has left no record: {folder / 'run.json'}: {error}") from error
    figures = Figures()
    figures.add(_times(record))
    figures.add(_communication(record))
    add_trace(figures, folder)
    figures.add(_quality(record), "nothing was trained")
    figures.add(_of_signs(record), "a figure of P1B3 alone")
    plan = record["plan"]
    figures.add({
        "global_batch": plan["global_batch"], "local_batch": plan["local_batch"], "epochs": len(record["epochs"]),
        "parameters": record["parameters"], "peak_bytes": max(record["memory"]["peak_bytes"]),
        "hosts": len(set(record["hosts"])), "samples": plan["samples_per_epoch"] * len(record["epochs"]),
    })  # fmt: skip
    return figures


def _times(record: Mapping[str, Any]) -> dict[str, Any]:
    seconds = record["seconds"]
    phases = {f"{name}_s": _mean(seconds[name]["ranks"]) for name in _PHASES if name in seconds}
    return {
        "total_s": seconds["total"]["max"], **phases, "epoch_s": record["epoch_s"]["median"],
        "step_s": record["step_s"]["median"], "samples_per_s": record["samples_per_s"],
    }  # fmt: skip


def _communication(record: Mapping[str, Any]) -> dict[str, Any]:
    told = record["communication"]
    return {
        "comm_bytes": _mean(told["bytes"]), "comm_s": _mean(told["seconds"]), "exposed_s": _mean(told["exposed_s"]),
    }  # fmt: skip


def add_trace(figures: Figures, run: Path, phases_s: Mapping[str, float] = MappingProxyType({})) -> None:
    """What the timeline shows and the run has not told itself.

    `phases_s` are those that were sampled with power, for what the timeline lacks: of one rank, and each with others that
    lie within.
    """
    found, reasons = trace_figures(run)
    for name in _PHASES:
        if name in phases_s:
            found.setdefault(f"{name}_s", phases_s[name])
    told = figures.values
    if told["exposed_s"] is not None:  # the run's own, of gradients alone; the timeline's is of all collectives
        found["wait_s"] = found["gradient_wait_s"]
    if all(told[name] is None and name not in found for name in _PHASE_FIGURES):
        found["train_s"], reasons["train_s"] = found["training_s"], reasons.get("training_s", "the timeline shows no step")
    for name in (*TRACED, *_PHASE_FIGURES):
        if name in found and told[name] is None:
            figures.add({name: found[name]}, reasons.get(name, ""))


def _quality(record: Mapping[str, Any]) -> dict[str, Any]:
    from farandole.benchmarks import benchmark

    metric, final = benchmark(record["benchmark"]).watched, record["final"]
    return {
        "loss": final["train"].get("loss"), "accuracy": final["train"].get(metric),
        "test_loss": final["test"].get("loss"), "test_accuracy": final["test"].get(metric), "metric": metric,
    }  # fmt: skip


def _of_signs(record: Mapping[str, Any]) -> dict[str, Any]:
    """P1B3 is judged by R2 and has an accuracy as well."""
    final = record["final"] if record["benchmark"] == "p1b3" else {"train": {}, "test": {}}
    return {"sign_accuracy": final["train"].get("accuracy"), "test_sign_accuracy": final["test"].get("accuracy")}


def figures_of_command(wall_s: float, told: Mapping[str, Any]) -> Figures:
    """Of a user's own program: its time as seen from outside, and the figures it has written."""
    unknown = sorted({*told} - {*FIGURES, "metric", "samples"})
    if unknown:
        raise DataError(f"unknown figure {', '.join(unknown)}; known: {', '.join(FIGURES)}, metric, samples")
    _check_told(told)
    figures = Figures()
    figures.add(dict.fromkeys(FIGURES), "the program has not told it")
    figures.add({"total_s": wall_s})
    known = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in told.items()}
    figures.add(known, "null, infinite or no number, as the program has told it")
    return figures


def _check_told(told: Mapping[str, Any]) -> None:
    for name, value in told.items():
        if name == "metric":
            if not isinstance(value, str):
                raise DataError(f"figure metric={value!r}: expected a word, e.g. accuracy")
        elif isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise DataError(f"figure {name}={value!r}: expected a number, or null")
    if (samples := told.get("samples")) is not None and not 0 < samples < math.inf:
        raise DataError(f"figure samples={samples!r}: expected how many were trained on, 1 or more")


def energy_figures(figures: Figures, energy: Mapping[str, Any], no_idle: str = NO_IDLE) -> None:
    """`energy` is the total of a power report: joules, watts, in how many seconds, and how they are known.

    `no_idle` says why the idle node is not, where it has joules.
    """
    joules, seconds = energy["energy_j"], energy.get("duration_s") or figures.values["total_s"]
    samples = figures.values.get("samples")
    figures.add(
        {
            "energy_j": joules, "power_w": energy["mean_w"],
            "energy_per_sample_j": joules / samples if joules is not None and samples else None,
            "edp_js": joules * seconds if joules is not None and seconds else None,
        },
        energy["reason"] or "the samples are not known",
    )  # fmt: skip
    figures.add({name: energy.get(name) for name in ("idle_w", "above_idle_j")}, energy["reason"] or no_idle)
    figures.values["power_provenance"] = str(energy["provenance"])


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None
