"""Folders as `farandole study` and `farandole run` leave them, made by arithmetic: the same on every machine."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from farandole.observe import timeline
from farandole.observe.merge import LIMIT_BYTES

__all__ = ["Shape", "changed", "large_study", "make_loaders", "make_run", "make_study", "record_timeline"]

ENVIRONMENT = {
    "cpu": "Example 9000 Processor",
    "cores": 8,
    "memory_bytes": 64_000_000_000,
    "system": "Linux 6.1 x86_64",
    "python": "3.11.7",
    "packages": {"farandole": "0.1.0", "numpy": "2.4.6", "mpi4py": "4.1.2", "keras": "3.15.1", "torch": "2.13.0"},
    "load_average": [0.41, 0.5, 0.6],
}
GIT = {"commit": "5b8bafb0c3d2e1f40516273849506a7b8c9d0e1f", "changed": False}
PHASES = ("start", "load", "preprocess", "build", "broadcast", "train", "evaluate", "save")


@dataclass(kw_only=True, slots=True)
class Shape:
    """What a made-up study is of, and what it lacks."""

    kind: str = "strong"
    ranks: Sequence[int] = (1, 2, 4, 8, 16)
    loaders: Sequence[str] = ("fast",)
    batch_sizes: Sequence[int] = (20,)
    rates: Sequence[float] = (0.001,)
    repeats: int = 3
    failures: Sequence[tuple[int, int]] = ()
    """Ranks and repeats of the points that fail."""
    power: str = "modelled"
    idle_w: float | None = None
    """Of an idle node, where it was measured."""
    accuracy: bool = True
    trace: bool = True
    """Of the last run on most ranks."""
    schema: int = 2
    cores: int = 8
    threads: int = 1
    title: str = "NT3, strong scaling"


def make_study(folder: Path, shape: Shape | None = None) -> Path:
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    points = list(_points(shape))
    lines = [_line(folder, shape, point) for point in points]
    about = {
        "schema": shape.schema,
        "kind": shape.kind,
        "title": shape.title,
        "benchmark": "nt3",
        "preset": "demo",
        "command": f"farandole study {shape.kind} nt3 --ranks {','.join(map(str, shape.ranks))} --repeats {shape.repeats}",
        "base": {"ranks": shape.ranks[0], "batch_size": shape.batch_sizes[0], "loader": shape.loaders[0]},
        "points": points,
        "environment": {**ENVIRONMENT, "cores": shape.cores},
        "git": GIT,
        "created": "2026-03-02T09:30:00+00:00",
    }
    (folder / "study.json").write_text(json.dumps(about, indent=1))
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


_LOADERS = {"pandas": 85.0, "pandas-chunked": 70.0, "polars": 65.0, "fast": 600.0, "fast-storing": 420.0, "fast-cached": 3000.0}
"""MB/s."""
_FILES = {
    "nt3": {"train": ("nt_train2.csv", 591_000_000), "test": ("nt_test2.csv", 148_000_000)},
    "p1b2": {"train": ("P1B2.train.csv", 162_000_000), "test": ("P1B2.test.csv", 55_000_000)},
}


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The study with its results as `change` leaves them."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_loaders(
    folder: Path,
    *,
    benchmarks: Sequence[str] = ("nt3",),
    loaders: Sequence[str] = tuple(_LOADERS),
    repeats: int = 3,
    failing: Sequence[str] = (),
    cores: int = 8,
    schema: int = 2,
) -> Path:
    """A folder as `farandole study loaders` leaves it: alone and, of the training file, two at once."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for benchmark in benchmarks:
        for role, ranks in (("train", 1), ("train", 2), ("test", 1)):
            for loader in loaders:
                for state in ("cold", "warm"):
                    settings = (_settings_of_reading if schema > 1 else _settings_of_reading_1)(benchmark, role, ranks, loader, state)
                    lines += [{"schema": schema, **_reading(settings, repeat, loader in failing)} for repeat in range(repeats)]
    about = {
        "schema": schema, "kind": "loaders", "benchmark": None, "preset": None, "fixed": {}, "title": "Loaders compared",
        "command": f"farandole study loaders {' '.join(benchmarks)} --preset paper --repeats {repeats}",
        "base": lines[0]["settings"] if schema > 1 else {"loader": "pandas"},
        "points": [{name: line[name] for name in ("key", "settings", "repeat")} for line in lines],
        "environment": {**ENVIRONMENT, "cores": cores, "packages": {"farandole": "0.1.0", "pandas": "2.3.1"}},
        "git": GIT, "created": "2026-03-02T09:30:00+00:00",
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(about, indent=1))
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _settings_of_reading(benchmark: str, role: str, ranks: int, loader: str, state: str) -> dict[str, Any]:
    name, size = _FILES[benchmark][role]
    return {
        "ranks": ranks, "nodes": 1, "command": "{python} -m farandole.study.reading {benchmark}/{role} {path}", "benchmark": benchmark,
        "role": role, "file": name, "path": f"/data/{name}", "bytes": size, "data": "0123456789ab", "state": state, "loader": loader,
    }  # fmt: skip


def _settings_of_reading_1(benchmark: str, role: str, ranks: int, loader: str, state: str) -> dict[str, Any]:
    """As the schema before had them."""
    name, size = _FILES[benchmark][role]
    return {
        "ranks": ranks, "benchmark": benchmark, "role": role, "path": f"/data/{name}", "bytes": size, "mtime_ns": size, "inode": size,
        "loader": loader, "version": f"{len(loader)}.1", "state": state,
    }  # fmt: skip


def _reading(settings: dict[str, Any], repeat: int, failed: bool) -> dict[str, Any]:
    size, loader, ranks = settings["bytes"], settings["loader"], settings["ranks"]
    load_s = size / 1e6 / _LOADERS[loader] * (1.0 + 0.02 * repeat) * (1.2 if settings["state"] == "cold" else 1.0) * (1.6 if ranks > 1 else 1.0)
    figures = {
        "load_s": load_s, "mb_per_s": size / 1e6 / load_s, "safe_s": None, "peak_bytes": 2 * size, "resident_peak_bytes": 2 * size,
        "held_bytes": size * (1 if "fast" in loader else ranks), "rows": 1120, "columns": 60483,
    }  # fmt: skip
    # Starting a process takes much longer than most readings, and varies more.
    figures |= {"total_s": load_s + 3.0 + 0.7 * ((repeat + len(loader)) % 3)} if "file" in settings else {}
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    line = {
        "study": "loaders", "key": key, "settings": settings, "repeat": repeat, "status": "ok", "reason": None,
        "started": "2026-03-02T09:31:00+00:00", "wall_s": load_s, "run": None, "marks": [], "figures": figures, "reasons": {},
    }  # fmt: skip
    return line | {"status": "failed", "reason": f"{loader} ran out of memory", "figures": {}} if failed else line


def large_study(folder: Path) -> Path:
    """200 points: 5 rank counts, 2 loaders, 4 batch sizes, 5 repeats."""
    return make_study(
        folder,
        Shape(ranks=(4, 8, 16, 32, 64), loaders=("pandas", "fast"), batch_sizes=(10, 20, 40, 80), repeats=5, cores=128, trace=False),
    )


def _points(shape: Shape) -> Iterable[dict[str, Any]]:
    for loader in shape.loaders:
        for batch in shape.batch_sizes:
            for rate in shape.rates:
                for ranks in shape.ranks:
                    settings = {
                        "ranks": ranks, "nodes": max(1, ranks // 8), "batch_size": batch, "rate": rate * ranks,
                        "loader": loader, "seed": 2017,
                    } | _threads(shape)  # fmt: skip
                    if shape.kind == "lr":
                        settings["rate"] = rate
                    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
                    for repeat in range(shape.repeats):
                        yield {"key": key, "settings": settings, "repeat": repeat}


def _threads(shape: Shape) -> dict[str, int]:
    """Of a rank; the schema before did not say."""
    return {"threads": shape.threads} if shape.schema > 1 else {}


def _line(folder: Path, shape: Shape, point: dict[str, Any]) -> dict[str, Any]:
    settings, repeat = point["settings"], point["repeat"]
    run = f"points/{point['key']}-{repeat}"
    (folder / run).mkdir(parents=True, exist_ok=True)
    (folder / run / "console.txt").write_text("rank 0: epoch 1\n")
    line = {
        "schema": shape.schema, "study": shape.kind, **point, "status": "ok", "reason": None, "started": "2026-03-02T09:31:00+00:00",
        "run": run, "marks": _marks(shape, settings), "figures": {}, "reasons": {},
    }  # fmt: skip
    if (settings["ranks"], repeat) in shape.failures:
        return line | {"status": "failed", "reason": f"rank 1 of {settings['ranks']} was killed (signal 9)", "wall_s": 3.2}
    figures = _figures(shape, settings, Random(f"{point['key']}-{repeat}"))
    reasons = {} if figures["energy_j"] is not None else {"energy_j": "no sensor was found and no model was asked for"}
    if not shape.accuracy:
        reasons["test_accuracy"] = "the command is a script of the user, which reports no accuracy"
    if shape.power != "none":
        (folder / run / "power.json").write_text(json.dumps(_power(figures, shape)))
    if shape.trace and repeat == shape.repeats - 1 and settings["ranks"] == max(shape.ranks):
        record_timeline(folder / run / "timeline.json", ranks=settings["ranks"], phases=figures, power=shape.power)
    return line | {"wall_s": figures["total_s"] + 1, "figures": figures, "reasons": reasons}


def _marks(shape: Shape, settings: dict[str, Any]) -> list[str]:
    marks = ["oversubscribed"] if settings["ranks"] > shape.cores * settings["nodes"] else []
    return marks + (["modelled power"] if shape.power == "modelled" else [])


def _figures(shape: Shape, settings: dict[str, Any], random: Random) -> dict[str, Any]:
    ranks, batch = settings["ranks"], settings["batch_size"]
    noise = random.gauss(1.0, 0.012)
    doublings = math.log2(ranks)
    load_s = {"pandas": 31.0, "fast": 5.2}.get(settings["loader"], 12.0) * (1 + 0.015 * ranks) * noise
    share = 1 if shape.kind == "weak" else ranks
    compute_s = 190.0 / share * (20 / batch) ** 0.35 * noise
    wait_s = 0.35 * doublings * noise
    exposed_s = wait_s + (0.4 * doublings + 0.05 * ranks) * random.gauss(1.0, 0.05)
    stall_s = 0.12 * noise
    train_s = compute_s + exposed_s + stall_s
    broadcast_s = (0.02 if ranks == 1 else 0.2 + 0.06 * load_s * doublings / 4) * noise
    evaluate_s, preprocess_s = 1.1 * noise, 0.5 * noise
    total_s = train_s + load_s + broadcast_s + evaluate_s + preprocess_s + 2.4
    epochs = 384 if shape.kind == "weak" else max(1, 384 // ranks)
    samples = 1120 * 384 / share * ranks
    watts = (95 + 12 * min(ranks, 8)) * settings["nodes"] if shape.power != "none" else None
    energy_j = None if watts is None else watts * total_s
    accuracy = min(0.99, 1 - 0.008 * 1.75**doublings * (0.5 + batch / 40)) + random.gauss(0, 0.003)
    return _threads(shape) | {
        "total_s": total_s, "load_s": load_s, "preprocess_s": preprocess_s, "broadcast_s": broadcast_s, "train_s": train_s,
        "evaluate_s": evaluate_s, "epoch_s": train_s / epochs, "step_s": train_s / epochs / 56,
        "samples_per_s": samples / train_s, "comm_bytes": 62_000_000 * 56 * epochs, "comm_s": exposed_s * 2.1,
        "exposed_s": exposed_s, "wait_s": wait_s, "data_stall_s": stall_s, "peak_bytes": 1_900_000_000,
        "energy_j": energy_j, "power_w": watts, "energy_per_sample_j": None if energy_j is None else energy_j / samples,
        "edp_js": None if energy_j is None else energy_j * total_s, "power_provenance": shape.power,
        "idle_w": shape.idle_w, "above_idle_j": _above_idle_j(shape, settings["nodes"], total_s, energy_j),
        "loss": 0.02 * 1.5**doublings if shape.accuracy else None, "accuracy": min(1.0, accuracy + 0.01) if shape.accuracy else None,
        "test_loss": 0.03 * 1.5**doublings if shape.accuracy else None, "test_accuracy": accuracy if shape.accuracy else None,
        "global_batch": batch * ranks, "local_batch": batch, "epochs": epochs, "parameters": 15_482_222,
    }  # fmt: skip


def _above_idle_j(shape: Shape, nodes: int, total_s: float, energy_j: float | None) -> float | None:
    return None if energy_j is None or shape.idle_w is None else energy_j - shape.idle_w * nodes * total_s


def _power(figures: dict[str, Any], shape: Shape) -> dict[str, Any]:
    total = {
        "energy_j": figures["energy_j"], "mean_w": figures["power_w"], "provenance": shape.power, "reason": "",
        "duration_s": figures["total_s"], "bridged_s": 0.004 * figures["total_s"],
        "idle_w": figures["idle_w"], "above_idle_j": figures["above_idle_j"],
        "source": "model 80 W (a guess: 10 W a core, 8 cores)" if shape.power == "modelled" else "RAPL package-0 + RAPL dram",
    }  # fmt: skip
    return {"total": total, "phases": {}, "nodes": [{"host": "n1", "sampler": {"share_of_a_core": 0.0031, "interval_s": 0.1}}]}


def make_run(folder: Path, *, ranks: int = 4, epochs: int = 8, trace: bool = True, schema: int = 2) -> Path:
    """A run directory, as `farandole run nt3` leaves it, without power."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(ranks)
    shape = Shape(power="none")
    figures = _figures(shape, {"ranks": ranks, "nodes": 1, "batch_size": 20, "loader": "fast", "rate": 0.001}, random)
    phases = {name: figures.get(f"{name}_s", {"start": 2.0, "build": 0.25}.get(name, 0.15)) for name in PHASES}
    seconds = {name: [value * random.gauss(1.0, 0.02) for _ in range(ranks)] for name, value in phases.items()}
    threads = {"threads": 2, "startup_s": 0.4} if schema > 1 else {}
    seconds["total"] = [sum(seconds[name][rank] for name in PHASES) for rank in range(ranks)]
    record = {
        "schema": schema, **threads, "farandole": "0.1.0", "benchmark": "nt3", "preset": "demo", "framework": "torch", "ranks": ranks,
        "trained_as": ranks, "started": "2026-03-02T09:31:00+00:00", "settings": SETTINGS,
        "plan": {"ranks": ranks, "epochs": epochs, "steps": 56, "local_batch": 20, "rate": 0.001 * ranks,
                 "samples_per_epoch": 1120, "global_batch": 20 * ranks},
        "notes": [], "parameters": 125_574,
        "seconds": {name: _summary(values) | {"ranks": values} for name, values in seconds.items()},
        "epoch_s": _summary([figures["train_s"] / epochs]), "step_s": _summary([figures["train_s"] / epochs / 56]),
        "samples_per_s": 3211.4,
        "epochs": [
            {"epoch": epoch, "seconds": 2.0, "validation_s": 0.1, "rate": 0.002, "loss": 0.7 * 0.6**epoch, "accuracy": 1 - 0.4 * 0.55**epoch,
             "val_loss": 0.75 * 0.66**epoch, "val_accuracy": 1 - 0.45 * 0.6**epoch}
            for epoch in range(1, epochs + 1)
        ],
        "final": {"train": {"loss": 0.02, "accuracy": 0.99}, "validation": {}, "test": {"loss": 0.06, "accuracy": 0.981}},
        "communication": {"bytes": [129_092_128] * ranks, "seconds": [1.6] * ranks, "exposed_s": [0.9] * ranks},
        "memory": {"peak_bytes": [717_676_544] * ranks}, "hosts": ["n1"] * ranks, "environment": ENVIRONMENT, "git": GIT,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    if trace:
        record_timeline(folder / "timeline.json", ranks=ranks, phases=figures, power="none")
    return folder


SETTINGS: dict[str, Any] = {
    "benchmark": "nt3", "preset": "demo", "framework": "torch", "data_dir": "out/data/nt3-demo", "make_data": False,
    "output_dir": "out/nt3", "parallel": "epochs", "work": "strong", "lr_scaling": "linear", "batch_scaling": "none",
    "warmup_epochs": 0, "emulate_ranks": 0, "epochs": 32, "batch_size": 20, "learning_rate": 0.001, "optimizer": "adam",
    "dense": [200, 20], "shuffle": True, "dropout": 0.1,
}  # fmt: skip


def _summary(values: Sequence[float]) -> dict[str, float]:
    middle = sorted(values)[len(values) // 2]
    return {"min": min(values), "median": middle, "max": max(values)}


_RECORDED = ("load", "preprocess", "broadcast", "train", "evaluate")


def record_timeline(
    path: Path, *, ranks: int, steps: int = 40, phases: Mapping[str, float] | None = None, power: str = "measured-component",
    limit_bytes: int = LIMIT_BYTES,
) -> None:  # fmt: skip
    """A timeline as ranks record and merge it: steps in which rank 1 is late and the others wait for it.

    `phases` has seconds such as `train_s`; without them, steps take 10 ms.
    """
    seconds = [(name, phases[f"{name}_s"]) for name in _RECORDED] if phases else [("load", 0.1), ("train", 0.01 * steps)]
    origin_ns, total_s = time.monotonic_ns(), sum(taken for _, taken in seconds)
    for rank in range(ranks):
        timeline.start(path, rank=rank, size=ranks, host="n1", origin_ns=origin_ns)
        at_ns = origin_ns
        for name, taken_s in seconds:
            end_ns = at_ns + round(1e9 * taken_s)
            timeline.span("phases", name, at_ns, end_ns)
            if name == "broadcast":
                timeline.span("broadcast", "BROADCAST", at_ns, end_ns)
            elif name == "train":
                _record_steps(rank, steps, at_ns, end_ns)
            at_ns = end_ns
        if rank == 0 and power != "none":
            _record_power(power, steps + 10, origin_ns, round(1e9 * total_s / (steps + 10)))
        timeline.stop()
    timeline.merge_parts(path, limit_bytes)


def _record_steps(rank: int, steps: int, start_ns: int, end_ns: int) -> None:
    timeline.span("steps", "FIT", start_ns, end_ns)
    step_ns = (end_ns - start_ns) // steps
    for step in range(steps):
        began = start_ns + step * step_ns
        ready = began + step_ns * (8 if rank == 1 else 5) // 10
        timeline.span("training", "BACKWARD", began, ready)
        timeline.span("training", "WAIT_FOR_GRADIENTS", ready, began + step_ns * 9 // 10, {"step": step})
        timeline.span("steps", "STEP", began, began + step_ns, {"step": step})


def _record_power(provenance: str, points: int, start_ns: int, each_ns: int) -> None:
    told = {"node": "n1", "provenance": provenance, "parts": {"cpu": provenance, "memory": provenance}}
    timeline.instant("power", "POWER", start_ns, told)
    for at in range(points):
        watts = {"cpu": 40.0 if at < points // 5 else 80.0 + at % 3, "memory": 5.0 + at % 2}
        timeline.counter("power of parts n1", start_ns + at * each_ns, watts)
