"""What a line of results.jsonl, study.json and run.json hold. docs/results.md describes it for readers.

A reader takes every version in READS and leaves aside what it does not know. SCHEMA changes when a reader of the version
before would misread the new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError

__all__ = [
    "BUSY", "FIGURES_FILE", "MEASURES", "OF_POWER", "OVERSUBSCRIBED", "PERHAPS_PARTS", "PHASES", "PLAN", "PREDICTION", "PROVENANCES", "READS", "RESULTS",
    "RUN", "RUN_PHASES", "SCHEMA", "Result", "check_schema", "is_result",
]  # fmt: skip

SCHEMA = 2
READS = (1, 2)
PLAN, RESULTS, RUN = "study.json", "results.jsonl", "run.json"
PREDICTION = "prediction.json"
"""What `farandole predict` has found, in the folder of the study it is of."""

FIGURES_FILE = "FARANDOLE_FIGURES"
"""The variable that names a JSON file in which a program that a study runs may leave measures: loss, accuracy, samples, ..."""

PHASES = {
    "start": "start",
    "compile": "compiling",
    "load": "loading",
    "preprocess": "preprocessing",
    "build": "building",
    "broadcast": "broadcast",
    "train": "training",
    "evaluate": "evaluation",
    "save": "saving",
    "other": "other",
}
"""Of a run, in their order; `other` is what no phase has."""
RUN_PHASES = tuple(name for name in PHASES if name != "other")

MEASURES = {
    "total_s": "seconds of the whole run, of the slowest rank",
    "start_s": "seconds until Python, the framework and MPI were there; this and the phases below: mean over the ranks",
    "compile_s": "compiling the reader and the sums, once on a machine",
    "load_s": "reading files",
    "preprocess_s": "labels, scaling, splitting",
    "build_s": "the model and its optimizer",
    "broadcast_s": "every rank gets rank 0's weights, with the wait for ranks that load longer",
    "train_s": "epochs with validation; of a program that marks no phases, from its first step to its last",
    "evaluate_s": "the test data",
    "save_s": "comparing and writing the model",
    "epoch_s": "an epoch with validation, median",
    "startup_s": "the first epoch minus the median of the others: what the first one does once",
    "step_s": "a step, median of those after the first epoch; with one epoch, after its first tenth",
    "samples_per_s": "over all ranks: the global batch over the median step",
    "comm_bytes": "gradients sent by a rank, mean",
    "bytes_per_step": "gradients sent by a rank in a step, mean",
    "messages_per_step": "messages in which a rank sends them, mean",
    "comm_s": "seconds that communication took, mean over the ranks",
    "exposed_s": "seconds in which training waited for communication, mean over the ranks; not a part of comm_s",
    "wait_s": "the part of exposed_s in which a rank waited for slower ones, mean",
    "data_stall_s": "seconds in which training waited for data, mean",
    "forward_s": "seconds of training in the model, mean over the ranks; null where a framework compiles the whole step",
    "backward_s": "the same, in the gradients",
    "optimizer_s": "the same, in the optimizer",
    "mb_per_s": "megabytes of a file read in a second",
    "safe_s": "seconds until a reader's cache was safe on the disk",
    "peak_bytes": "the most memory of a rank",
    "resident_peak_bytes": "the same with the pages of mapped files",
    "held_bytes": "memory of all processes that hold a table; what they share counts once",
    "rows": "of the table that was read",
    "columns": "of the table that was read",
    "cpu_s": "processor seconds of the run and its children",
    "others_share": "of the machine's processor time, what other programs took meanwhile",
    "steal_share": "of the machine's processor time, what its host gave to other machines meanwhile",
    "steps_spread": "the middle half of the steps over their median, of the worst rank",
    "energy_j": "joules of all nodes, from the start of the ranks to their end; `energy_window` says where it is less or more",
    "power_w": "mean watts of all nodes in that time",
    "energy_per_sample_j": "energy_j over the samples trained on, epochs counted",
    "edp_js": "energy-delay product: energy_j x the seconds it was taken in, energy_j / power_w",
    "idle_w": "mean watts of the idle node, where `--idle` has asked for them",
    "above_idle_j": "energy_j without what the idle node takes in the same time",
    "loss": "of the last epoch, training data",
    "accuracy": "of the last epoch, training data: the metric that the workload is judged by (`metric` says which); null where that is its loss",
    "test_loss": "of the trained model, test data",
    "test_accuracy": "the same metric, test data",
    "sign_accuracy": "how often the sign is right, last epoch, training data, where a workload has that beside its metric",
    "test_sign_accuracy": "the same, of the trained model, test data",
    "threads": "threads a rank computes with",
    "replicas": "copies of the model that train on shares of the data",
    "partitions": "ranks that one copy of the model is divided over",
    "global_batch": "samples of a step over all ranks, emulated ones too",
    "local_batch": "samples of a rank in a step",
    "epochs": "of a rank, that were trained: a timeout may end it before those asked for",
    "samples": "trained on in all, epochs counted",
    "hosts": "machines that ranks ran on",
    "parameters": "of the model",
}
"""Every number of a result, and what it means. Null is unknown; `reasons` then says why."""

OF_POWER = ("power_w", "energy_j", "energy_per_sample_j", "edp_js", "idle_w", "above_idle_j")
"""Measures that are as well known as the watts are."""
PROVENANCES = ("modelled", "measured-component", "measured-node")
"""How watts are known, from the least to the best."""
BUSY = "busy machine"
"""The mark of a result beside which other programs ran, or whose machine did not get all of its time."""
OVERSUBSCRIBED = "oversubscribed"
PERHAPS_PARTS = "energy of whole nodes or of parts, not known which"
"""The mark of a result whose joules a batch system has counted without saying what of."""

_REQUIRED = ("schema", "study", "key", "settings", "repeat", "status", "figures")


@dataclass(kw_only=True, slots=True, frozen=True)
class Result:
    """One line of results.jsonl: a configuration run once."""

    key: str
    settings: Mapping[str, Any]
    repeat: int
    ok: bool
    reason: str | None
    """Why it has failed."""
    run: Path | None
    """Its run directory, where there is one."""
    marks: tuple[str, ...]
    """What a reader must know of it: oversubscribed, imported, ..."""
    measures: Mapping[str, Any]
    """In the file: `figures`. Numbers by the names of MEASURES, and the words metric, power_provenance and collective."""
    reasons: Mapping[str, str]
    """Why measures that are null are."""
    started: str | None = None
    made_with: Mapping[str, Any] = field(default_factory=dict)
    """Command, environment and commit; empty where the folder alone knows them."""
    steps: tuple[Mapping[str, Any], ...] = ()
    """Quantiles of every rank's step times."""
    phases_w: Mapping[str, float | None] = field(default_factory=dict)
    """Watts of all nodes by phase."""
    runs: int = 1
    """More than one where a median of several was imported."""
    spreads: Mapping[str, Any] = field(default_factory=dict)
    """Of imported medians: least, most and number of runs by measure."""

    @classmethod
    def of(cls, folder: Path, line: Mapping[str, Any]) -> Result:
        return cls(
            key=str(line["key"]), settings=line["settings"], repeat=int(line["repeat"]), ok=line["status"] == "ok",
            reason=line.get("reason"), run=folder / line["run"] if line.get("run") else None, marks=tuple(line.get("marks") or ()),
            measures=line.get("figures") or {}, reasons=line.get("reasons") or {}, started=line.get("started"),
            made_with=line.get("made_with") or {}, steps=tuple(line.get("steps") or ()), phases_w=line.get("phases_w") or {}, runs=line.get("runs") or 1, spreads=line.get("spreads") or {},
        )  # fmt: skip

    def measure(self, name: str) -> float | None:
        """A finite number, or None."""
        value = self.measures.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)


def is_result(line: Any) -> bool:
    """Whether this is a line of results, of whichever study."""
    if not isinstance(line, dict) or any(name not in line for name in _REQUIRED):
        return False
    return isinstance(line["settings"], dict) and isinstance(line["figures"] or {}, dict) and type(line["repeat"]) is int


def check_schema(path: Path, content: Any) -> dict[str, Any]:
    """The object in a file of this schema; DataError where it is none."""
    if not isinstance(content, dict):
        raise DataError(f"{path} is no JSON object: it was cut off, or something else has that name. Make it again.")
    version = content.get("schema")
    if version not in READS:
        newer = isinstance(version, int) and version > max(READS)
        advice = "Read it with the version of farandole that wrote it, or a later one." if newer else "Make it again."
        raise DataError(f"{path} has schema {version!r}, this version reads {' and '.join(map(str, READS))}. {advice}")
    return content
