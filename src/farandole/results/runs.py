"""Run directories: `run.json` as a line of results, and what `power.json` says of the energy and of the sampler."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.results.schema import OVERSUBSCRIBED, PHASES, SCHEMA

__all__ = ["Sampling", "command_of", "energy_of", "line_of_run", "measures_of_record", "read_json", "sampling_of", "training_api"]


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def line_of_run(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """A single run as a study of one point."""
    power = read_json(folder / "power.json")
    measures = measures_of_record(record)
    energy = _energy(power, record, measures)
    measures |= energy
    return {
        "schema": SCHEMA, "study": "run", "key": "run", "settings": _settings(record), "repeat": 0, "status": "ok",
        "started": record.get("started"), "run": ".", "marks": _marks(record, measures), "figures": measures,
        "reasons": {} if energy["energy_j"] is not None else {"energy_j": _why_no_energy(power, record)},
    }  # fmt: skip


def measures_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json tells, by the names of MEASURES; None where it does not. Older versions tell less."""
    return {**_times(record), **_communication(record), **_quality(record), **_sizes(record), **_machine(record)}


def _times(record: Mapping[str, Any]) -> dict[str, Any]:
    seconds = record.get("seconds") or {}
    phases = {f"{name}_s": mean((seconds.get(name) or {}).get("ranks")) for name in PHASES if name in seconds}
    return phases | {
        "total_s": (seconds.get("total") or {}).get("max"), "epoch_s": (record.get("epoch_s") or {}).get("median"),
        "step_s": (record.get("step_s") or {}).get("median"), "samples_per_s": record.get("samples_per_s"),
        "startup_s": record.get("startup_s"), "data_stall_s": mean((record.get("data") or {}).get("stall_s")),
    }  # fmt: skip


def _communication(record: Mapping[str, Any]) -> dict[str, Any]:
    sent = record.get("communication") or {}
    return {
        "comm_bytes": mean(sent.get("bytes")), "comm_s": mean(sent.get("seconds")), "exposed_s": mean(sent.get("exposed_s")),
        "bytes_per_step": sent.get("bytes_per_step"), "messages_per_step": sent.get("messages_per_step"),
        "collective": sent.get("collective"),
    }  # fmt: skip


def _quality(record: Mapping[str, Any]) -> dict[str, Any]:
    final, metric = record.get("final") or {}, str(record.get("metric") or "accuracy")
    train, test = final.get("train") or {}, final.get("test") or {}
    others = record.get("figures") or ({"sign_accuracy": "accuracy"} if metric == "r2" else {})  # older records do not tell which
    signs = others.get("sign_accuracy")
    judged = "" if metric == "loss" else metric  # a loss is no accuracy: smaller is better
    return {
        "loss": train.get("loss"), "accuracy": train.get(judged), "test_loss": test.get("loss"), "test_accuracy": test.get(judged),
        "sign_accuracy": train.get(signs), "test_sign_accuracy": test.get(signs),
        "metric": metric, "validation": _judged_on(record),
    }  # fmt: skip


def _judged_on(record: Mapping[str, Any]) -> str | None:
    """Where the samples that an accuracy is of have steered the training; None where they have not."""
    told = record.get("validation") or {}
    return f"validated on the {told['on']}, which steers the {told['steers']}" if told.get("steers") and told.get("on") == "test set" else None


def _sizes(record: Mapping[str, Any]) -> dict[str, Any]:
    plan, epochs = record.get("plan") or {}, len(record.get("epochs") or [])  # fewer than planned where a timeout has ended it
    return {
        "global_batch": plan.get("global_batch"), "local_batch": plan.get("local_batch"), "epochs": epochs,
        "samples": (plan.get("samples_per_epoch") or 0) * epochs or None, "parameters": record.get("parameters"),
        "peak_bytes": max((record.get("memory") or {}).get("peak_bytes") or [0]) or None, "hosts": len(set(record.get("hosts") or [])) or None,
        **{name: record.get(name) for name in ("threads", "replicas", "partitions")},
    }  # fmt: skip


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    told = record.get("machine") or {}
    return {name: told[name] for name in ("others_share", "steal_share", "steps_spread") if name in told}


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    plan = record.get("plan") or {}
    threads = {"threads": record["threads"]} if record.get("threads") else {}
    nodes = len(set(record.get("hosts") or [])) or None
    return {"ranks": record.get("ranks"), "nodes": nodes, **threads, "batch_size": plan.get("local_batch"), "rate": plan.get("rate")}


def training_api(settings: Mapping[str, Any]) -> str | None:
    """What trains a workload with these settings, for people; None where none is trained, or nobody has said."""
    if not settings.get("benchmark") or not settings.get("framework"):
        return None
    return "PyTorch" if settings.get("api") == "torch" else f"Keras on {settings['framework']}"


def energy_of(total: Mapping[str, Any], samples: float | None) -> dict[str, Any]:
    """Measures from the total of a power report: joules, watts, in how many seconds, and how they are known."""
    joules, seconds = total.get("energy_j"), total.get("duration_s")
    return {
        "energy_j": joules, "power_w": total.get("mean_w"), "idle_w": total.get("idle_w"), "above_idle_j": total.get("above_idle_j"),
        "energy_per_sample_j": joules / samples if joules is not None and samples else None,
        "edp_js": joules * seconds if joules is not None and seconds else None,
        "power_provenance": str(total.get("provenance") or "none"), "energy_window": _window(total),
    }  # fmt: skip


def _window(total: Mapping[str, Any]) -> str | None:
    """`ranks`, from their start to their end; or in words what it is instead."""
    window = total.get("window")
    return window if window in (None, "ranks") else str(total.get("window_reason") or window)


def _energy(power: Mapping[str, Any] | None, record: Mapping[str, Any], measures: Mapping[str, Any]) -> dict[str, Any]:
    total = {} if power is None else _total(power)
    if _is_resumed(record):  # its seconds and epochs are those of all starts, its meters were read since the last one
        total = {"provenance": total.get("provenance")}
    return energy_of(total, measures["samples"])


def _is_resumed(record: Mapping[str, Any]) -> bool:
    return bool((record.get("checkpoints") or {}).get("resumed_from"))


def _why_no_energy(power: Mapping[str, Any] | None, record: Mapping[str, Any]) -> str:
    if power is None:
        return "power was not sampled: there is no power.json"
    if _is_resumed(record):
        return "the run has gone on from a checkpoint, and power.json is of its last start alone"
    return str(_total(power).get("reason") or "power.json has no joules")


def _total(power: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a job of several nodes, or of one node."""
    total = power.get("total") or (power.get("whole") or {}).get("total") or {}
    return total if isinstance(total, dict) else {}


def _marks(record: Mapping[str, Any], measures: Mapping[str, Any]) -> list[str]:
    ranks, hosts = record.get("ranks") or 1, len(set(record.get("hosts") or [])) or 1
    cores = (record.get("environment") or {}).get("cores")
    marks = [OVERSUBSCRIBED] if cores and ranks * (record.get("threads") or 1) > cores * hosts else []
    marks += ["emulated ranks"] if (record.get("trained_as") or ranks) != ranks else []
    return marks + (["modelled power"] if measures["power_provenance"] == "modelled" else [])


def mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None


@dataclass(kw_only=True, slots=True, frozen=True)
class Sampling:
    """How well power was sampled in a run."""

    share_of_a_core: float | None
    covered: float | None
    """Share of the time that meters have seen; the rest was bridged."""
    sources: tuple[str, ...]
    remarks: tuple[str, ...]
    """What a reader must know of its meters, each once."""


def sampling_of(run: Path) -> Sampling | None:
    """None where power was not sampled."""
    power = read_json(run / "power.json")
    if power is None:
        return None
    nodes = [node for node in power.get("nodes") or [power] if isinstance(node, dict)]
    shares = [share for node in nodes if (share := (node.get("sampler") or {}).get("share_of_a_core")) is not None]
    total = _total(power)
    duration_s, bridged_s = total.get("duration_s"), total.get("bridged_s")
    return Sampling(
        share_of_a_core=max(shares, default=None),
        covered=1 - bridged_s / duration_s if duration_s and bridged_s is not None else None,
        sources=tuple(dict.fromkeys(str(total["source"]).split(" + ") if total.get("source") else ())),
        remarks=tuple(dict.fromkeys(remark for figure in (total, *_parts(nodes)) for remark in figure.get("remarks") or ())),
    )


def _parts(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Figures of nodes and of what they consist of: not every remark on a part is one on the total."""
    wholes = [whole for node in nodes if isinstance(whole := node.get("whole"), dict)]
    return [figure for whole in wholes for figure in (whole.get("total"), *(whole.get("parts") or {}).values()) if isinstance(figure, dict)]


_NOT_TYPED = frozenset({"benchmark", "output_dir", "work", "make_data", "emulate_ranks", "checkpoint_dir", "resume"})
"""Said in another way, or folders of the run that was: another one begins anew, in folders of its own."""


def command_of(record: Mapping[str, Any]) -> str | None:
    """The line that makes a run again, with every setting: defaults may change, this does not."""
    settings = record.get("settings") or {}
    if not record.get("benchmark") or not settings:
        return None
    words = ["farandole", "run", str(settings.get("benchmark") or record["benchmark"]), "-n", str(record.get("ranks") or 1), f"--{settings.get('work') or 'strong'}"]
    words += ["--make-data"] if settings.get("make_data") else []
    words += ["--emulate-ranks", str(settings["emulate_ranks"])] if settings.get("emulate_ranks") else []
    for name, value in settings.items():
        if name not in _NOT_TYPED and value != "" and _is_said(name, settings):
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) and value else [value])]
    return shlex.join(words)


def _is_said(name: str, settings: Mapping[str, Any]) -> bool:
    """Folders have no word for None; any option of checkpoints asks for some."""
    if name == "data_dir":
        return settings[name] is not None
    return bool(settings.get("checkpoint_every")) or not name.startswith("checkpoint_")
