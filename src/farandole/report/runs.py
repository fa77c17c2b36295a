"""Run directories: `run.json` as a line of results, and what `power.json` says of the sampler."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Sampling", "attempt_of_run", "command_of", "read_json", "sampling_of"]


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def attempt_of_run(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """A single run as a study of one point."""
    power = read_json(folder / "power.json")
    figures = _times(record) | _quality(record) | _energy(power, record)
    return {
        "schema": 1,
        "study": "run",
        "key": "run",
        "settings": _settings(record),
        "repeat": 0,
        "status": "ok",
        "started": record.get("started"),
        "run": ".",
        "marks": _marks(record, figures),
        "figures": figures,
        "reasons": {} if figures["energy_j"] is not None else {"energy_j": _why_no_energy(power, record)},
    }


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    plan = record.get("plan") or {}
    return {
        "ranks": record.get("ranks"),
        "nodes": len(set(record.get("hosts") or [])) or None,
        "batch_size": plan.get("local_batch"),
        "rate": plan.get("rate"),
    }


def _times(record: Mapping[str, Any]) -> dict[str, Any]:
    seconds, sent = record.get("seconds") or {}, record.get("communication") or {}
    found = {f"{name}_s": _mean((summary or {}).get("ranks")) for name, summary in seconds.items()}
    return found | {
        "total_s": (seconds.get("total") or {}).get("max"),
        "epoch_s": (record.get("epoch_s") or {}).get("median"),
        "step_s": (record.get("step_s") or {}).get("median"),
        "samples_per_s": record.get("samples_per_s"),
        "comm_bytes": _mean(sent.get("bytes")),
        "comm_s": _mean(sent.get("seconds")),
        "exposed_s": _mean(sent.get("exposed_s")),
        "peak_bytes": max((record.get("memory") or {}).get("peak_bytes") or [0]) or None,
        "parameters": record.get("parameters"),
        "epochs": len(record.get("epochs") or []),  # fewer than planned where a timeout has ended it
        "global_batch": (record.get("plan") or {}).get("global_batch"),
        "local_batch": (record.get("plan") or {}).get("local_batch"),
    }


def _quality(record: Mapping[str, Any]) -> dict[str, Any]:
    final, metric = record.get("final") or {}, str(record.get("metric") or "accuracy")
    train, test = final.get("train") or {}, final.get("test") or {}
    return {
        "loss": train.get("loss"),
        "accuracy": train.get(metric),
        "test_loss": test.get("loss"),
        "test_accuracy": test.get(metric),
        "metric": metric,
    }


def _energy(power: Mapping[str, Any] | None, record: Mapping[str, Any]) -> dict[str, Any]:
    if power is None:
        return {"energy_j": None, "power_w": None, "power_provenance": "none"}
    total = _total(power)
    plan, whole = record.get("plan") or {}, not _is_resumed(record)
    energy_j, duration_s = total.get("energy_j") if whole else None, total.get("duration_s")
    samples = (plan.get("samples_per_epoch") or 0) * len(record.get("epochs") or [])
    return {
        "energy_j": energy_j,
        "power_w": total.get("mean_w") if whole else None,
        "above_idle_j": total.get("above_idle_j") if whole else None,
        "energy_per_sample_j": energy_j / samples if energy_j is not None and samples else None,
        "edp_js": energy_j * duration_s if energy_j is not None and duration_s else None,
        "power_provenance": total.get("provenance") or "none",
    }


def _is_resumed(record: Mapping[str, Any]) -> bool:
    """Its seconds and epochs are then those of all starts, its meters were read since the last one."""
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


def _marks(record: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    ranks, hosts = record.get("ranks") or 1, len(set(record.get("hosts") or [])) or 1
    cores = (record.get("environment") or {}).get("cores")
    marks = ["oversubscribed"] if cores and ranks > cores * hosts else []
    marks += ["emulated ranks"] if (record.get("trained_as") or ranks) != ranks else []
    return marks + (["modelled power"] if figures["power_provenance"] == "modelled" else [])


def _mean(values: Any) -> float | None:
    return sum(values) / len(values) if values else None


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
    words = ["farandole", "run", str(record["benchmark"]), "-n", str(record.get("ranks") or 1), f"--{settings.get('work') or 'strong'}"]
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
