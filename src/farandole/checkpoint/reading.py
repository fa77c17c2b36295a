"""A checkpoint read by a program that trains nothing: evaluation, export, another framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farandole.checkpoint.blocks import Damaged
from farandole.checkpoint.folder import Entry, entries, load
from farandole.checkpoint.tree import unflatten, without_tensors
from farandole.errors import CheckpointError

__all__ = ["entry_at", "read"]


def read(folder: str | Path) -> dict[str, Any]:
    """The parts of a checkpoint, or of the newest in a folder of them, with NumPy arrays; every byte is checked."""
    entry = entry_at(Path(folder))
    try:
        loaded = load(entry)
    except Damaged as why:
        raise CheckpointError(f"{entry.path} is damaged: {why}. `farandole checkpoint ls {entry.path.parent}` lists others") from why
    parts: dict[str, Any] = without_tensors(unflatten(loaded.state["parts"], loaded.arrays))
    return parts


def entry_at(folder: Path) -> Entry:
    """The checkpoint a folder is, or the newest it has."""
    path = folder.absolute()
    itself = [entry for entry in entries(path.parent) if entry.path == path]
    found = itself or [entry for entry in entries(path) if not entry.kind]
    if not found:
        raise CheckpointError(f"{folder} is no checkpoint, and has none")
    return found[-1]
