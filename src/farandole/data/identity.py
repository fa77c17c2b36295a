"""What data a result is of: a short word that is the same for the same files, wherever they lie.

Files that were made here are known by the settings that made them, also before they are; others by their names, sizes and
samples of their bytes, so that files of gigabytes are known in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from farandole.data.make.manifest import Manifest, made_set
from farandole.data.make.sets import planned_set
from farandole.data.tables import TableSet

__all__ = ["data_identity", "file_identity", "folder_identity"]

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14


def data_identity(tables: TableSet, folder: Path, roles: Collection[str] | None, preset: str) -> str:
    """Of the files of a set in `folder`, all or those of `roles`; where they are missing, of those that `preset` would make there."""
    made = made_set(folder, tables.name)
    if made is not None:
        return _of_made(made)
    paths = [folder / file.name for role, file in tables.files.items() if roles is None or role in roles]
    there = [path for path in paths if path.is_file()]
    return _hashed(map(file_identity, there)) if there else _of_made(planned_set(tables, preset))


def folder_identity(folder: Path) -> str:
    """Of files whose layout nobody here knows: their names and sizes. Empty where there are none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return _hashed(f"{path.relative_to(folder)} {path.stat().st_size}" for path in files) if files else ""


def file_identity(path: Path) -> str:
    """Of one file: its name, its size and bytes from all over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        for at in sorted({size * sample // _SAMPLES for sample in range(_SAMPLES)}):
            file.seek(at)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]


def _of_made(made: Manifest) -> str:
    return _hashed(map(str, (made.name, made.seed, made.rows, made.test_rows, made.features, made.generator)))


def _hashed(words: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]
