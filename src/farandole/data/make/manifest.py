"""`manifest.json`: which sets of files a folder holds, how each was made, and the checksums of its files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from farandole.data.make.write import Written
from farandole.errors import DataError

__all__ = ["GENERATOR", "MANIFEST", "Manifest", "forget", "made_set", "recorded", "store", "verify"]

MANIFEST = "manifest.json"
GENERATOR = 1
"""Goes up whenever the same settings give other bytes."""

_HASH_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One set of files: the settings that made it, and what they made."""

    name: str
    preset: str
    seed: int
    rows: int
    test_rows: int
    features: int
    generator: int = GENERATOR
    files: tuple[Written, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def same_settings(self, other: Manifest) -> bool:
        """Whether both name the same bytes: the preset's name is not part of it, the numbers are."""
        return self._settings() == other._settings()

    def is_complete(self, folder: Path) -> bool:
        paths = [(folder / file.name, file.bytes) for file in self.files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def describe(self) -> str:
        shape = f"{self.rows:,} rows x {self.features:,} features"
        return f"{self.name}, preset {self.preset}, {shape}, seed {self.seed}, generator {self.generator}"

    def _settings(self) -> tuple[object, ...]:
        return self.name, self.seed, self.rows, self.test_rows, self.features, self.generator


def recorded(folder: Path) -> dict[str, Manifest]:
    """The sets that the folder's manifest names; none where there is no manifest."""
    path = folder / MANIFEST
    try:
        sets = json.loads(path.read_text())["sets"]
        return {name: _parse(entry) for name, entry in sets.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a manifest that can be read ({error}). Remove it and make the files anew.") from error


def _parse(entry: dict[str, Any]) -> Manifest:
    return Manifest(**{**entry, "files": tuple(Written(**file) for file in entry["files"])})


def store(folder: Path, manifest: Manifest) -> None:
    """Add the set to the folder's manifest."""
    with _locked(folder):
        _replace(folder, {**recorded(folder), manifest.name: manifest})


def forget(folder: Path, name: str) -> None:
    """Take the set out: its files are about to change."""
    with _locked(folder):
        sets = recorded(folder)
        if sets.pop(name, None) is not None:
            _replace(folder, sets)


def made_set(folder: Path, name: str) -> Manifest | None:
    """The set that was made there, by its manifest and its files' sizes; None where files are somebody's own."""
    with contextlib.suppress(DataError):
        found = recorded(folder).get(name)
        if found is not None and found.is_complete(folder):
            return found
    return None


def verify(folder: str | Path) -> list[Manifest]:
    """Compare every file with its checksum; the sets that were checked. What differs is an error."""
    folder = Path(folder)
    sets = list(recorded(folder).values())
    if not sets:
        raise DataError(f"{folder} has no {MANIFEST}: nothing was made there. Type: farandole data make nt3 --out {folder}")
    wrong = [fault for manifest in sets for file in manifest.files if (fault := _fault(folder, file))]
    if wrong:
        raise DataError(f"{folder}: {'; '.join(wrong)}. Make the files anew with --force.")
    return sets


def _fault(folder: Path, file: Written) -> str | None:
    path = folder / file.name
    if not path.is_file():
        return f"{file.name} is missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{file.name} has {size:,} bytes, {file.bytes:,} were written"
    return None if _sha256(path) == file.sha256 else f"{file.name} has changed: its checksum differs"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Several benchmarks may be made in one folder at a time: one after the other adds its entry."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(folder: Path, sets: dict[str, Manifest]) -> None:
    temporary = folder / f".{MANIFEST}.{os.getpid()}"
    try:
        with temporary.open("w") as file:
            json.dump({"sets": {name: asdict(manifest) for name, manifest in sets.items()}}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / MANIFEST)
    except OSError as error:
        raise DataError(f"{folder / MANIFEST} cannot be written: {error.strerror}.") from error
    finally:
        temporary.unlink(missing_ok=True)
