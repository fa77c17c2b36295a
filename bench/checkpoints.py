"""Checkpoints: writing against the disk, reading back against reading, and what a save makes training wait.

A disk's own speed is what writing the same bytes into one new file and flushing it takes, through the system's cache or
past it (O_DIRECT, from memory that lies at pages already), and reading such a file into new memory. Reading is from the disk: pages are dropped before each turn. What a save in the background costs is
told from some steps of training with one save at their beginning, against the same steps without.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import farandole.torch as hvd
from bench.cases import Case
from bench.contest import Contestant, Ranks, contest
from farandole.checkpoint.folder import entries, load
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store

__all__ = ["ASYNC", "DISK_DIRECT", "DISK_READ", "DISK_WRITE", "NO_SAVE", "OURS", "SYNC", "measure"]

OURS, DISK_WRITE, DISK_READ, TORCH = "farandole", "write + fsync", "read", "torch.save + fsync"
DISK_DIRECT = "O_DIRECT write + fsync"
NO_SAVE, SYNC, ASYNC = "no save", "save()", "async_save()"
_BLOCK = 4 << 20
_WIDTH = 4096
_BATCH = 64


def measure(ranks: Ranks, *, parameters: int, steps: int, budget_s: float, training_s: float) -> list[Case]:
    ranks.say(f"checkpoints: {parameters:,} parameters")
    arrays = _arrays(parameters)
    what = f"{sum(array.nbytes for array in arrays.values()) / 1e6:,.0f} MB"
    cases = [
        Case(what=f"checkpoint of {what}, written", samples=_writing(ranks, arrays, budget_s)),
        Case(what=f"checkpoint of {what}, read back", samples=_reading(ranks, arrays, budget_s)),
    ]
    arrays.clear()
    exposed = _training(ranks, parameters, steps, training_s)
    return [*cases, Case(what=f"{what} saved during training", samples=exposed, notes={"steps": steps})]


def _arrays(parameters: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    count = max(1, parameters // _WIDTH**2)
    return {f"layer {i}": rng.random((_WIDTH, parameters // count // _WIDTH), np.float32) for i in range(count)}


def _writing(ranks: Ranks, arrays: dict[str, np.ndarray], budget_s: float) -> dict[str, list[float]]:
    store = Store(ranks.folder / "written", Keep(last=99), ranks.say)
    plain = ranks.folder / "plain"
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    in_pages = _in_pages(arrays)

    def clear() -> None:
        for entry in entries(store.folder):
            shutil.rmtree(entry.path)
        plain.unlink(missing_ok=True)
        os.sync()

    ways: dict[str, Callable[[], object]] = {
        OURS: lambda: store.write(_manifest(), {}, arrays),
        DISK_WRITE: lambda: _write(plain, [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays.values()]),
        DISK_DIRECT: lambda: _write(plain, [in_pages], os.O_DIRECT),
        TORCH: lambda: _torch_save(plain, tensors),
    }
    contestants = [Contestant(name=name, stages=[("", work)], tidy=clear) for name, work in ways.items()]
    samples = contest(ranks, contestants, budget_s=budget_s)
    store.close()
    return samples


def _reading(ranks: Ranks, arrays: dict[str, np.ndarray], budget_s: float) -> dict[str, list[float]]:
    store = Store(ranks.folder / "read", Keep(), ranks.say)
    entry = store.write(_manifest(), {}, arrays)
    store.close()
    files = [path for path in entry.path.iterdir() if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    torch_file = ranks.folder / "torch"
    _torch_save(torch_file, {name: torch.from_numpy(array) for name, array in arrays.items()})

    def drop() -> None:
        for path in [*files, torch_file]:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    ways: dict[str, Callable[[], object]] = {
        OURS: lambda: load(entry),
        DISK_READ: lambda: _read(largest),
        "torch.load": lambda: torch.load(torch_file),
    }
    contestants = [Contestant(name=name, stages=[("", work)], prepare=drop) for name, work in ways.items()]
    samples = contest(ranks, contestants, budget_s=budget_s)
    shutil.rmtree(store.folder)
    torch_file.unlink()
    return samples


def _training(ranks: Ranks, parameters: int, steps: int, budget_s: float) -> dict[str, list[float]]:
    layers = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(max(1, parameters // _WIDTH**2))]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(_BATCH, _WIDTH)
    checkpointer = hvd.checkpoint.Checkpointer(
        ranks.folder / "training", model=model, optimizer=optimizer, keep=hvd.checkpoint.Keep(last=1)
    )

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()

    def turn(save: Callable[[], object]) -> Callable[[], None]:
        return lambda: (save(), train(), checkpointer.wait())[1]

    ways = {NO_SAVE: lambda: None, SYNC: checkpointer.save, ASYNC: checkpointer.async_save}
    contestants = [Contestant(name=name, stages=[("", turn(save))], tidy=os.sync) for name, save in ways.items()]
    samples = contest(ranks, contestants, budget_s=budget_s)
    checkpointer.close()
    return samples


def _manifest() -> Manifest:
    return Manifest(
        step=0, epoch=0, ranks=1, saved_at=time.time(), train_s=0.0, energy_j=None, version="benchmark"
    )


def _in_pages(arrays: dict[str, np.ndarray]) -> memoryview:
    """One copy of all of them, up to the last whole page."""
    room = np.frombuffer(mmap.mmap(-1, sum(array.nbytes for array in arrays.values())), np.uint8)
    np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays.values()], out=room)
    return memoryview(room[: len(room) // mmap.PAGESIZE * mmap.PAGESIZE])


def _write(path: Path, pieces: list[memoryview], flags: int = 0) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags)
    try:
        for data in pieces:
            for start in range(0, len(data), _BLOCK):
                os.write(handle, data[start : start + _BLOCK])
        os.fsync(handle)
    finally:
        os.close(handle)


def _torch_save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    data = memoryview(np.empty(path.stat().st_size, np.uint8))
    with path.open("rb", buffering=0) as file:
        for start in range(0, len(data), _BLOCK):
            file.readinto(data[start : start + _BLOCK])
