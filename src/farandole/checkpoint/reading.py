"""A checkpoint read by a program that trains nothing: evaluation, export, another framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farandole.checkpoint.folder import Entry, entries, load
from farandole.checkpoint.tensorfile import Damaged
from farandole.checkpoint.tree import unflatten, without_tensors
from farandole.errors import CheckpointError

__all__ = ["read"]


def read(folder: str | Path) -> dict[str, Any]:
    """The parts of a checkpoint, or of the newest in a folder of them, with NumPy arrays; every byte is checked."""
    path = Path(folder).absolute()
    entry = next((found for found in entries(path.parent) if found.path == path), None) or _newest(path)
    try:
        loaded = load(entry)
    except Damaged as why:
        raise CheckpointError(f"{entry.path} is damaged: {why}. `farandole checkpoint ls {entry.path.parent}` lists others") from why
    parts: dict[str, Any] = without_tensors(unflatten(loaded.state["parts"], loaded.arrays))
    return parts


def _newest(folder: Path) -> Entry:
    finished = [entry for entry in entries(folder) if not entry.kind]
    if not finished:
        raise CheckpointError(f"{folder} is no checkpoint, and has none")
    return finished[-1]
