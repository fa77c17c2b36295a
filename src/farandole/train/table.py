"""The end of a run, on screen: what each phase cost, as in the papers, and how good the model is."""

from __future__ import annotations

from typing import Any

from farandole.train.record import PHASES

__all__ = ["table"]


def table(record: dict[str, Any]) -> str:
    return "\n".join([*_phases(record), "", *_quality(record), "", *_speed(record)])


def _phases(record: dict[str, Any]) -> list[str]:
    seconds, total = record["seconds"], record["seconds"]["total"]["max"]
    lines = [f"{'phase':<12}{'min s':>10}{'median s':>10}{'max s':>10}{'share':>8}"]
    for name in (*PHASES, "total"):
        found = seconds[name]
        share = found["median"] / total if total else 0.0
        lines.append(
            f"{name:<12}{found['min']:>10.2f}{found['median']:>10.2f}{found['max']:>10.2f}{share:>8.1%}"
        )
    return lines


def _quality(record: dict[str, Any]) -> list[str]:
    final = record["final"]
    names = list(final["test"])
    lines = [f"{'':<12}" + "".join(f"{name:>13}" for name in names)]
    for part in ("train", "validation", "test"):
        values = [final[part].get(name) for name in names]
        lines.append(
            f"{part:<12}" + "".join(f"{'-' if value is None else f'{value:.4f}':>13}" for value in values)
        )
    return lines


def _speed(record: dict[str, Any]) -> list[str]:
    step, epoch, sent = record["step_s"], record["epoch_s"], record["communication"]
    per_s = record["samples_per_s"]
    if per_s is None:
        return ["nothing was trained"]
    waited, busy = max(sent["exposed_s"]), max(sent["seconds"])
    lines = [
        f"{epoch['median']:.2f} s an epoch, {_milliseconds(step['median'])} a step, {per_s:,.0f} samples/s",
        f"gradients: {sent['bytes'][0] / 2**20:,.0f} MiB a rank in {busy:.2f} s, of which training waited {waited:.2f} s",
        f"memory: at most {max(record['memory']['peak_bytes']) / 2**20:,.0f} MiB a rank",
    ]
    return [*lines, *(f"note: {note}" for note in record["notes"])]


def _milliseconds(seconds: float | None) -> str:
    """None: all of them were those of a part before, by an older version."""
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
