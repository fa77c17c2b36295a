"""How long it takes to load the benchmarks' files: an ordinary study whose points run one small program, study/reading.py.

Every point reads one file in fresh processes, alone or several at once, dropped from the page cache before (cold) or just read
(warm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.data.candle.files import BENCHMARKS, PRESETS, benchmark, find
from farandole.data.identity import file_identity
from farandole.data.loaders import CACHED, METHODS, installed, loader_of
from farandole.data.make import make
from farandole.data.make.sets import about_bytes
from farandole.errors import SettingsError
from farandole.study.settings import StudySettings

__all__ = ["STATES", "loaders_study"]

STATES = ("cold", "warm")
_USUAL = ("pandas", "pandas-chunked", "polars", "fast", CACHED)
# P1B3 is nine tables: the tallest, the widest and the largest of them stand for it.
_ROLES = ("train", "test", "dose_response", "expressions", "descriptors")
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
        raise SettingsError(f"no benchmark was given. Use one or more of {', '.join(BENCHMARKS)}.")
    for name in benchmarks:
        benchmark(name)
    if preset not in (None, *PRESETS):
        raise SettingsError(f"preset={preset!r} is unknown. Use one of {', '.join(PRESETS)}.")
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
    roles = [role for role in _ROLES if role in BENCHMARKS[name].files]
    paths = {role: folder / BENCHMARKS[name].files[role].name for role in roles}
    if make_files and (preset is not None or not all(path.is_file() for path in paths.values())):
        make(name, folder, preset=preset or "test", progress=True)
        find(name, folder, roles)
    sizes = _sizes(name, paths, preset or "test")
    largest = max(sizes, key=lambda role: sizes[role])
    return [
        [name, role, path.name, str(path.resolve()), sizes[role], file_identity(path) if path.is_file() else "", count]
        for role, path in paths.items()
        for count in sorted({*ranks})
        if count == 1 or role == largest
    ]


def _sizes(name: str, paths: Mapping[str, Path], preset: str) -> dict[str, int]:
    planned = {} if all(path.is_file() for path in paths.values()) else about_bytes(name, preset)
    return {role: path.stat().st_size if path.is_file() else planned[path.name] for role, path in paths.items()}
