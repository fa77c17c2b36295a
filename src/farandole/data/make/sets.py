"""A set of files in a folder: made, kept as they are, or refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from farandole.data.make.manifest import Manifest, forget, recorded, store
from farandole.data.make.sheet import Sheet
from farandole.data.make.write import write_sheets
from farandole.data.tables import Size, TableSet
from farandole.errors import DataError, SettingsError
from farandole.progress import Progress

__all__ = ["about_bytes", "make", "planned_set"]

_LARGEST_SEED = 2**63 - 1


def make(
    tables: TableSet, out: str | Path, *, preset: str = "demo", rows: int | None = None, features: int | None = None,
    seed: int = 0, force: bool = False, progress: bool = False, threads: int | None = None,
) -> Manifest:  # fmt: skip
    """Write synthetic files of `tables` into `out`.

    A complete set made with the same settings is kept. Other files under these names (yours, perhaps) are
    refused unless `force`. The same settings give the same bytes, whatever the number of threads.
    """
    folder, size = Path(out), tables.size(preset, rows, features)
    wanted = _manifest(tables.name, preset, size, seed)
    _make_folder(folder)
    if (kept := _kept(tables, folder, wanted, force)) is not None:
        if progress:
            print(f"{folder} already holds {kept.describe()}: kept.", file=sys.stderr)
        return kept
    made = _write(_sheets(tables, size, seed), folder, wanted, progress, threads)
    store(folder, made)
    return made


def planned_set(tables: TableSet, preset: str) -> Manifest:
    """What `make` would write by default, without its files."""
    return _manifest(tables.name, preset, tables.size(preset), seed=0)


def about_bytes(tables: TableSet, preset: str) -> dict[str, int]:
    """How large each file of a preset would be, by its name."""
    return {sheet.name: sheet.about_bytes for sheet in _sheets(tables, tables.size(preset), seed=0)}


def _manifest(name: str, preset: str, size: Size, seed: int) -> Manifest:
    if not 0 <= seed <= _LARGEST_SEED:
        raise SettingsError(f"seed={seed} is not between 0 and {_LARGEST_SEED}. Type e.g. --seed 1")
    return Manifest(
        name=name, preset=preset, seed=seed, rows=size.rows, test_rows=size.test_rows, features=size.features
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}. Choose another --out.") from error


def _kept(tables: TableSet, folder: Path, wanted: Manifest, force: bool) -> Manifest | None:
    """The set that is there already and need not be made; None when the way is free."""
    if force:
        return None
    there = recorded(folder).get(tables.name)
    if there is not None and there.same_settings(wanted):
        return there if there.is_complete(folder) else None
    existing = [file.name for file in tables.files.values() if (folder / file.name).exists()]
    if there is None and not existing:
        return None
    found = there.describe() if there else f"{', '.join(existing)}, not made here (real data?)"
    raise SettingsError(
        f"{folder} already holds {found}. Asked for: {wanted.describe()}. "
        "Choose another --out, or type --force to replace the files."
    )


def _sheets(tables: TableSet, size: Size, seed: int) -> list[Sheet]:
    if tables.sheets is None:
        raise SettingsError(f"there are no synthetic files of {tables.name}")
    return tables.sheets(size, seed)


def _write(sheets: list[Sheet], folder: Path, wanted: Manifest, progress: bool, threads: int | None) -> Manifest:
    total = sum(sheet.about_bytes for sheet in sheets)
    with Progress(f"making {wanted.name}", total, enabled=progress) as bar:
        written = write_sheets(
            sheets, folder, wanted.seed, threads=threads, advance=bar.advance,
            replacing=lambda: forget(folder, wanted.name),  # no manifest may vouch for files that change
        )  # fmt: skip
    return replace(wanted, files=tuple(written))
