"""The end of a run, on screen: what each phase cost, as in the papers, and how good the model is."""

from __future__ import annotations

from typing import Any

from farandole.results.runs import training_api
from farandole.results.schema import RUN_PHASES

__all__ = ["table"]


def table(record: dict[str, Any]) -> str:
    return "\n".join([*_phases(record), "", *_quality(record), "", *_speed(record)])


def _phases(record: dict[str, Any]) -> list[str]:
    seconds, total = record["seconds"], record["seconds"]["total"]["max"]
    lines = [f"{'phase':<12}{'min s':>10}{'median s':>10}{'max s':>10}{'share':>8}"]
    for name in (*RUN_PHASES, "total"):
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
    step, epoch, per_s = record["step_s"], record["epoch_s"], record["samples_per_s"]
    if epoch["median"] is None:
        return ["nothing was trained"]
    lines = [
        f"{epoch['median']:.2f} s an epoch, {_milliseconds(step['median'])} a step, {_plain(per_s)} samples/s (median step{_where(record)})",
        *_startup(record["startup_s"]),
        f"{_ranks(record)}, {_several(record['nodes'], 'node')}, {_several(record['cores'], 'core')}; trained by {training_api(record)}",
        *_gradients(record["communication"]),
        *_images(record["data"]),
        f"memory: at most {max(record['memory']['peak_bytes']) / 2**20:,.0f} MiB a rank",
        *(f"busy machine: {why}" for why in record["machine"]["why"]),
    ]
    return [*lines, *(f"note: {note}" for note in record["notes"])]


def _where(record: dict[str, Any]) -> str:
    return " after the first epoch" if len(record["epochs"]) > 1 else " after the first tenth"


def _startup(seconds: float | None) -> list[str]:
    return [] if seconds is None or seconds <= 0 else [f"the first epoch took {seconds:.2f} s more than the others"]


def _ranks(record: dict[str, Any]) -> str:
    threads = record["threads"]
    each = "different numbers of threads" if threads is None else _several(threads, "thread")
    return f"{_several(record['ranks'], 'rank')} with {each}{' each' if record['ranks'] > 1 else ''}"


def _gradients(sent: dict[str, Any]) -> list[str]:
    """What their communication took and what training waited are two figures: ranks also wait for slower ones."""
    if sent["collective"] is None:
        return []
    a_step = f"{sent['bytes_per_step'] / 2**20:,.2f} MiB a step in {_several(sent['messages_per_step'], 'message')}"
    return [
        f"gradients: {a_step} ({sent['collective']}), {sent['bytes'][0] / 2**20:,.0f} MiB a rank in all",
        f"communication took {max(sent['seconds']):.2f} s; training waited {max(sent['exposed_s']):.2f} s for it and for slower ranks",
    ]


def _images(data: dict[str, Any]) -> list[str]:
    """Of samples that are made of image files."""
    if "images" not in data:
        return []
    parts = ", ".join(f"{what} {sum(data[name]):.2f} s" for what, name in (("reading", "read_s"), ("decoding", "decode_s"), ("cropping", "view_s")))
    waited = f"training waited {max(data['stall_s']):.2f} s for them"
    return [f"{sum(data['images']):,.0f} training images made, by all threads together: {parts}; {waited}"]


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
