"""How long it takes to load the benchmarks' files: an ordinary study whose points run one small program, study/reading.py.

Every point reads one file in fresh processes, alone or several at once, dropped from the page cache before (cold) or just read
(warm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.data.identity import file_identity
from farandole.data.loaders import CACHED, METHODS, installed, loader_of
from farandole.data.make import make
from farandole.data.make.sets import about_bytes
from farandole.data.tables import TableSet
from farandole.errors import SettingsError
from farandole.study.settings import StudySettings
from farandole.workloads.finding import tables_of, workload_names

__all__ = ["STATES", "loaders_study"]

STATES = ("cold", "warm")
_PRESET = "test"
_USUAL = ("pandas", "pandas-chunked", "polars", "fast", CACHED)
_COMMAND = "{python} -m farandole.study.reading {benchmark}/{role} {path} --loader {loader} --state {state}"
_FILE = "benchmark,role,file,path,bytes,data,ranks"
"""What tells files apart, and how many processes read each: an axis of settings that vary together."""


def loaders_study(
    benchmarks: Sequence[str], *, out: Path, data_dir: Path | None = None, preset: str | None = None, loaders: Sequence[str] = (),
    ranks: Sequence[int] = (1, 2), repeats: int = 0, title: str = "", make_files: bool = True,
) -> StudySettings:  # fmt: skip
    """One process reads every file; several at once the largest of each benchmark, which says it all."""
    _check(benchmarks, preset, ranks)
    folder = data_dir or out / "data" / (preset or "test")
    chosen = list(loaders) or [method for method in _USUAL if installed(loader_of(method)) is not None]
    for method in chosen:
        _check_method(method)
    files = [one for name in benchmarks for one in _files(name, folder, preset, ranks, make_files)]
    return StudySettings(
        kind="loaders", command=_COMMAND, title=title or "Loaders compared", repeats=repeats, out=out,
        axes={_FILE: files, "state": STATES, "loader": chosen},
    )  # fmt: skip


def _check(benchmarks: Sequence[str], preset: str | None, ranks: Sequence[int]) -> None:
    if not benchmarks:
        raise SettingsError(f"no workload was given. Use one or more of {', '.join(workload_names())}.")
    for name in benchmarks:
        tables_of(name).size(preset or _PRESET)
    if not ranks or min(ranks) < 1:
        raise SettingsError(f"ranks={list(ranks)}: use numbers from 1 on, e.g. --ranks 1,2")


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise SettingsError(f"loader={method!r} is unknown. Use one of {', '.join(METHODS)}.")
    if installed(loader_of(method)) is None:
        extra = "data" if loader_of(method) == "fast" else "loaders"
        raise SettingsError(f"loader={method!r} is not installed. Type: pip install 'farandole[{extra}]'")


def _files(name: str, folder: Path, preset: str | None, ranks: Sequence[int], make_files: bool) -> list[list[Any]]:
    """As the axis has them; with `make_files` those that are missing are made, or else as they would be."""
    tables = tables_of(name)
    roles = [role for role in tables.files if not tables.compared or role in tables.compared]
    paths = {role: folder / tables.files[role].name for role in roles}
    if make_files and (preset is not None or not all(path.is_file() for path in paths.values())):
        make(tables, folder, preset=preset or _PRESET, progress=True)
        tables.find(folder, roles)
    sizes = _sizes(tables, paths, preset or _PRESET)
    largest = max(sizes, key=lambda role: sizes[role])
    return [
        [name, role, path.name, str(path.resolve()), sizes[role], file_identity(path) if path.is_file() else "", count]
        for role, path in paths.items()
        for count in sorted({*ranks})
        if count == 1 or role == largest
    ]


def _sizes(tables: TableSet, paths: Mapping[str, Path], preset: str) -> dict[str, int]:
    planned = {} if all(path.is_file() for path in paths.values()) else about_bytes(tables, preset)
    return {role: path.stat().st_size if path.is_file() else planned[path.name] for role, path in paths.items()}
