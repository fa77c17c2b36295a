"""A folder of checkpoints as it lies on disk: names, what is whole, what is not. Looks, and changes nothing.

    run1/
      LATEST                          the name of the newest
      LOCK                            held by the job that writes here
      00000007-step-1200/             the 7th that was saved
        manifest.json                 step, ranks, metrics, and a checksum of every block of the other files
        state.json                    the state, with holes where arrays were
        arrays.safetensors            the arrays, by name
        objects.pickle                of elastic commits only: what is neither, which elastic/commits.py alone reads
      unfinished-00000008-step-1400/  being written, or left by a job that was killed meanwhile
      damaged-00000006-step-1000/     set aside: not what was written
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from farandole.checkpoint.blocks import Damaged, check_file
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.tensorfile import read_arrays, read_header
from farandole.checkpoint.tree import ArrayInfo
from farandole.comm.bytes.transport import AnyArray

__all__ = [
    "ARRAYS",
    "LATEST",
    "MANIFEST",
    "OBJECTS",
    "SET_ASIDE",
    "STATE",
    "UNFINISHED",
    "Entry",
    "Loaded",
    "check",
    "entries",
    "load",
    "load_manifest",
    "look_into",
]

LATEST = "LATEST"
MANIFEST, STATE, ARRAYS, OBJECTS = "manifest.json", "state.json", "arrays.safetensors", "objects.pickle"
UNFINISHED, SET_ASIDE = "unfinished-", "damaged-"
_NAME = re.compile(rf"(?P<kind>{UNFINISHED}|{SET_ASIDE})?(?P<number>\d{{8,}})-step-(?P<step>\d+)")


class Entry(NamedTuple):
    """A checkpoint, or what is left of one."""

    number: int
    step: int
    kind: str
    """Empty, `unfinished-` or `damaged-`."""
    path: Path

    @classmethod
    def named(cls, folder: Path, number: int, step: int, kind: str = "") -> Entry:
        return cls(number, step, kind, folder / f"{kind}{number:08d}-step-{step}")

    def within(self, kind: str) -> Entry:
        """The same under another kind of name."""
        return Entry.named(self.path.parent, self.number, self.step, kind)


class Loaded(NamedTuple):
    entry: Entry
    manifest: Manifest
    state: Any
    arrays: dict[str, AnyArray]
    objects: bytes | None = None
    """None where there are none."""


def entries(folder: Path) -> list[Entry]:
    """What there is, oldest first."""
    return sorted(_entries(folder)) if folder.is_dir() else []


def _entries(folder: Path) -> Iterator[Entry]:
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None and path.is_dir():
            yield Entry(int(name["number"]), int(name["step"]), name["kind"] or "", path)


def load_manifest(entry: Entry) -> Manifest:
    """`Damaged` where it is not what was written, or is not there."""
    with _named(MANIFEST):
        manifest = Manifest.from_bytes((entry.path / MANIFEST).read_bytes())
        if manifest.step != entry.step or {*manifest.files} - {OBJECTS} != {STATE, ARRAYS}:
            raise Damaged("belongs to another checkpoint")
    return manifest


def check(entry: Entry) -> Manifest:
    """Read every byte; `Damaged` where one is not what was written."""
    manifest = load_manifest(entry)
    for name, sums in manifest.files.items():
        with _named(name):
            check_file(entry.path / name, sums)
    return manifest


def load(entry: Entry) -> Loaded:
    """The content, every byte checked."""
    manifest = load_manifest(entry)
    state = _load_state(entry, manifest)
    with _named(ARRAYS):
        arrays = read_arrays(entry.path / ARRAYS, manifest.files[ARRAYS])
    objects = _load_checked(entry, manifest, OBJECTS) if OBJECTS in manifest.files else None
    return Loaded(entry, manifest, state, arrays, objects)


def look_into(entry: Entry) -> tuple[Any, dict[str, ArrayInfo]]:
    """The state, and what kind of arrays there are; only the arrays themselves are not read."""
    state = _load_state(entry, load_manifest(entry))
    with _named(ARRAYS):
        return state, read_header(entry.path / ARRAYS)


def _load_state(entry: Entry, manifest: Manifest) -> Any:
    return json.loads(_load_checked(entry, manifest, STATE))


def _load_checked(entry: Entry, manifest: Manifest, name: str) -> bytes:
    with _named(name):
        check_file(entry.path / name, manifest.files[name])
        return (entry.path / name).read_bytes()


class _named:
    """Errors inside name the file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Damaged):
            raise type(error)(f"{self._name} {error}") from error
        if isinstance(error, FileNotFoundError):
            raise Damaged(f"{self._name} is missing") from error
