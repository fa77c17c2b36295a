"""Workloads by what people type: `nt3`, `my_model.py:WORKLOAD`, `package.module:NAME`, or the name of an entry point.

A package in this folder is a workload of ours; other packages that are installed offer theirs as entry points:

    [project.entry-points."farandole.workloads"]
    mine = "package.module:WORKLOAD"
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from farandole.data.tables import TableSet
from farandole.errors import SettingsError
from farandole.workloads.workload import Workload

__all__ = ["GROUP", "find_workload", "is_reference", "source_of", "tables_of", "workload_names"]

GROUP = "farandole.workloads"
NAME = "WORKLOAD"
"""What a workload is called in its module where nobody says."""


def _ours() -> tuple[str, ...]:
    folder = Path(__file__).parent
    return tuple(sorted(found.name for found in pkgutil.iter_modules([str(folder)]) if found.ispkg))


@functools.cache
def _offered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """By name; of several of one name none can be meant. An installation may list one twice."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, {})[point.value] = point
    return {name: tuple(points.values()) for name, points in found.items()}


def workload_names() -> tuple[str, ...]:
    """Of those that need no file: ours, and those of other packages."""
    return (*_ours(), *sorted(name for name in _offered() if name not in _ours()))


def is_reference(word: str) -> bool:
    """Whether it can only be a workload: a name that is known, a file, or a module."""
    return word in workload_names() or word.endswith(".py") or (":" in word and not word.startswith("-"))


def find_workload(reference: str) -> Workload:
    """A SettingsError says what there is where it is none."""
    path, _, name = reference.partition(":")
    if path.endswith(".py"):
        return _apart(_in_module(_from_file(Path(path)), name, reference), reference)
    if ":" in reference:
        return _apart(_in_module(_from_module(path), name, reference), reference)
    if len(points := _offered().get(reference, ())) > bool(reference not in _ours()):
        values = [point.value for point in points] + ([f"farandole.workloads.{reference}"] if reference in _ours() else [])
        raise SettingsError(f"{reference!r} names several workloads: {' and '.join(values)}. Type the one you mean, e.g. {points[0].value}.")
    if reference in _ours():
        return _in_module(importlib.import_module(f"farandole.workloads.{reference}"), NAME, reference)
    if points:
        module, _, name = points[0].value.partition(":")
        return _apart(_in_module(_from_module(module), name, reference), reference)
    raise SettingsError(
        f"no workload is called {reference!r}. Use one of {', '.join(workload_names())}, a file such as my_model.py:WORKLOAD, or a "
        "module such as package.module:WORKLOAD."
    )


def tables_of(reference: str) -> TableSet:
    """The files of a workload that has some; an error otherwise."""
    tables = find_workload(reference).files
    if tables is None:
        raise SettingsError(f"{reference} has no tables whose layout is known, only data of its own")
    return tables


def source_of(reference: str) -> str | None:
    """A short word that changes with the module of a workload; None for ours, which Farandole's version tells apart."""
    if reference in _ours():
        return None
    points = _offered().get(reference, ())
    place = points[0].value if points else reference
    path = place.partition(":")[0]
    module = _from_file(Path(path)) if path.endswith(".py") else _from_module(path)
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else None


def _apart(found: Workload, reference: str) -> Workload:
    """Refuse a name of ours: folders of data and runs go by it."""
    if found.name in _ours():
        raise SettingsError(f"{reference}: its workload is called {found.name!r}, as one of Farandole's is. Give it another name.")
    return found


def _in_module(module: ModuleType, name: str, reference: str) -> Workload:
    there = {one: value for one, value in vars(module).items() if isinstance(value, Workload)}
    if not name:
        different = {id(value) for value in there.values()}
        name = next(iter(there)) if len(different) == 1 else NAME
    if not hasattr(module, name):
        first = next(iter(there), "")
        has = (
            f"Its workloads are {', '.join(there)}: type e.g. {reference.partition(':')[0]}:{first}" if there
            else "It has no Workload. To write one to begin with, type: farandole run --new my_model.py"
        )  # fmt: skip
        raise SettingsError(f"{reference}: there is no {name} in {module.__file__}. {has}")
    found = getattr(module, name)
    if not isinstance(found, Workload):
        raise SettingsError(f"{reference}: {name} is {_described(found)}, expected a farandole.workloads.Workload")
    return found


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _from_module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as for `python -m`
    try:
        return importlib.import_module(name)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"module {name} cannot be imported: {_told(error)}") from error


def _from_file(path: Path) -> ModuleType:
    """Under a name of its own: once, so that its classes are the same for all who ask."""
    resolved = path.resolve()
    name = f"farandole_file_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not resolved.is_file():
        raise SettingsError(f"{path}: there is no such file. To write one to begin with, type: farandole run --new {path}")
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))  # as for `python my_model.py`: it may import its neighbours
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SettingsError) or not isinstance(error, (Exception, SystemExit)):
            raise
        raise SettingsError(f"{path} cannot be imported: {_told(error, resolved)}") from error
    return module


def _told(error: BaseException, path: Path | None = None) -> str:
    """With the line of the file where there is one."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path and frame.filename == str(path)]
    told = f"{type(error).__name__}: {error}"
    return f"{told} (line {lines[-1]})" if lines and not isinstance(error, SyntaxError) else told
