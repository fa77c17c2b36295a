"""What a point has measured, from the run directory that `farandole run` has left and the power sampled meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from farandole.errors import DataError
from farandole.results.runs import energy_of, measures_of_record, read_json
from farandole.results.schema import MEASURES, RUN, RUN_PHASES
from farandole.study.tracing import TRACED, trace_measures

__all__ = ["NO_IDLE", "WORDS", "Measures", "add_trace", "energy_measures", "measures_of_command", "measures_of_run"]

WORDS = ("metric", "collective", "energy_window", "validation")
"""Measures that are words."""
NO_IDLE = "the idle node was not measured (--idle)"
_PHASE_MEASURES = tuple(f"{name}_s" for name in RUN_PHASES)


@dataclass(kw_only=True, slots=True)
class Measures:
    """Values by name, and why those that are null are."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(MEASURES) | {"power_provenance": "none"})
    reasons: dict[str, str] = field(default_factory=dict)
    steps: list[dict[str, Any]] | None = None
    """Quantiles of every rank's step times."""
    phases_w: dict[str, float | None] | None = None
    """Watts of all nodes by phase."""

    def add(self, found: Mapping[str, Any], reason: str = "") -> None:
        for name, value in found.items():
            self.values[name] = value
            if value is None and reason:
                self.reasons[name] = reason
            elif value is not None:
                self.reasons.pop(name, None)


def measures_of_run(folder: Path) -> Measures:
    """Without power. DataError where there is no record."""
    record = read_json(folder / RUN)
    if record is None:
        raise DataError(f"the run has left no record: {folder / RUN} is not there or no JSON object")
    measures = Measures()
    found = measures_of_record(record)
    measures.add({name: value for name, value in found.items() if name not in WORDS or value is not None}, "the run does not tell it")
    told = {name.rpartition(".")[2]: str(why) for name, why in (record.get("reasons") or {}).items()}
    measures.reasons |= {name: why for name, why in told.items() if name in measures.values and measures.values[name] is None}
    measures.steps, measures.phases_w = (record.get("steps") or {}).get("ranks"), record.get("phases_w")
    if measures.values.get("sign_accuracy") is None:
        measures.add(dict.fromkeys(("sign_accuracy", "test_sign_accuracy")), "this workload has none")
    if record.get("metric") == "loss":
        measures.add(dict.fromkeys(("accuracy", "test_accuracy")), "this workload is judged by its loss")
    add_trace(measures, folder)
    return measures


def add_trace(measures: Measures, run: Path, phases_s: Mapping[str, float] = MappingProxyType({})) -> None:
    """What the timeline shows and the run has not told itself.

    `phases_s` are those that were sampled with power, for what the timeline lacks: of one rank, and each with others that
    lie within.
    """
    found, reasons = trace_measures(run)
    for name in RUN_PHASES:
        if name in phases_s:
            found.setdefault(f"{name}_s", phases_s[name])
    told = measures.values
    if told["exposed_s"] is not None:  # the run's own, of gradients alone; the timeline's is of all collectives
        found["wait_s"] = found["gradient_wait_s"]
    if all(told[name] is None and name not in found for name in _PHASE_MEASURES):
        found["train_s"], reasons["train_s"] = found["training_s"], reasons.get("training_s", "the timeline shows no step")
    for name in (*TRACED, *_PHASE_MEASURES):
        if name in found and told[name] is None:
            measures.add({name: found[name]}, reasons.get(name, ""))


def measures_of_command(wall_s: float, told: Mapping[str, Any]) -> Measures:
    """Of a user's own program: its time as seen from outside, and what it has written."""
    unknown = sorted({*told} - {*MEASURES, *WORDS})
    if unknown:
        raise DataError(f"unknown figure {', '.join(unknown)}; known: {', '.join((*MEASURES, *WORDS))}")
    _check_told(told)
    measures = Measures()
    measures.add(dict.fromkeys(MEASURES), "the program has not told it")
    measures.add({"total_s": wall_s})
    known = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in told.items()}
    measures.add(known, "null, infinite or no number, as the program has told it")
    return measures


def _check_told(told: Mapping[str, Any]) -> None:
    for name, value in told.items():
        if name in WORDS:
            if not isinstance(value, str):
                raise DataError(f"figure {name}={value!r}: expected a word, e.g. accuracy")
        elif isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise DataError(f"figure {name}={value!r}: expected a number, or null")
    if (samples := told.get("samples")) is not None and not 0 < samples < math.inf:
        raise DataError(f"figure samples={samples!r}: expected how many were trained on, 1 or more")


def energy_measures(measures: Measures, total: Mapping[str, Any], no_idle: str = NO_IDLE) -> None:
    """`total` is that of a power report: joules, watts, in how many seconds, and how they are known.

    `no_idle` says why the idle node is not, where it has joules.
    """
    found = energy_of({**total, "duration_s": total.get("duration_s") or measures.values["total_s"]}, measures.values.get("samples"))
    reason = total.get("reason") or ""
    for name, value in found.items():
        idle = name in ("idle_w", "above_idle_j")
        measures.add({name: value}, "" if name in WORDS else reason or (no_idle if idle else "the samples are not known"))
