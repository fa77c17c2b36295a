"""Commits on disk: the last two states of an elastic run, in a folder of checkpoints (docs/checkpoints.md) of its own.

    KEY                     random bytes that nobody but the job's owner can read
    run0/00000007-step-7/   the 7th commit of the script's first elastic function
      manifest.json, state.json, arrays.safetensors
                            values made of numbers, strings, arrays, and lists, tuples and dicts of them
      objects.pickle        all other values, if there are any, after a code made of them and KEY

Pickle runs what it reads: what does not have this job's code is never unpickled, whoever has put it there.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from farandole import __version__
from farandole.checkpoint.folder import OBJECTS, Loaded
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store
from farandole.checkpoint.tensorfile import takes
from farandole.checkpoint.tree import Tensor, flatten, unflatten
from farandole.errors import CheckpointError, CommitError
from farandole.launch.commits import KEY, folder_of

__all__ = ["FOLDER_VARIABLE", "Commit", "Commits"]

FOLDER_VARIABLE = "FARANDOLE_COMMIT_DIR"
"""Where commits go; unset, they stay in memory."""

_KEPT = 2
_KEY_BYTES = _CODE_BYTES = 32
_FORMER = "run*.commit"
_AS_THEY_ARE = (type(None), bool, int, float, str)


class Commit(NamedTuple):
    number: int
    ranks: int
    """How many had made it."""
    values: dict[str, Any]


class Commits:
    """Those of one elastic run. One process reads and writes them: rank 0."""

    def __init__(self, folder: Path, run: int, say: Callable[[str], object]) -> None:
        """`run`: the how-manieth elastic function of its script; `say` is told of commits that are not whole."""
        self.folder = folder
        self._place = folder_of(folder, run)
        self._say = say
        self._opened: Store | None = None

    def newest(self) -> Commit | None:
        """The newest that is whole; None without any."""
        loaded = self._store().newest()
        if loaded is None:
            return None
        values = unflatten(loaded.state["parts"], loaded.arrays)
        return Commit(loaded.entry.step, loaded.manifest.ranks, values | self._objects(loaded))

    def write(self, values: Mapping[str, Any], ranks: int) -> int:
        """Keep a state, and of the older ones the last good; its number."""
        store = self._store()
        number = max((entry.step for entry in store.finished()), default=0) + 1
        plain = flatten({name: value for name, value in values.items() if _is_plain(value)})
        others = {name: value for name, value in values.items() if not _is_plain(value)}
        manifest = Manifest(
            step=number, epoch=0, ranks=ranks, saved_at=time.time(), train_s=0.0, energy_j=None, version=__version__
        )  # fmt: skip
        with self._errors():
            store.write(manifest, {"parts": plain.skeleton}, plain.arrays, self._sealed(number, others) if others else None)
        return number

    def close(self) -> None:
        """Let another job write here."""
        if self._opened is not None:
            self._opened.close()

    def _store(self) -> Store:
        if self._opened is None:
            self._refuse_former()
            with self._errors():
                self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._opened = Store(self._place, Keep(last=_KEPT), self._say)
        return self._opened

    def _refuse_former(self) -> None:
        former = sorted(self.folder.glob(_FORMER))
        if former:
            raise CommitError(
                f"{former[-1]} was made by an earlier version of farandole, which pickled all of it: it is not read. "
                f"Remove {self.folder} to start from the beginning, or go on with that version"
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (CheckpointError, OSError) as error:
            raise CommitError(f"{error}. Another folder for commits: farandole launch --commit-dir DIR") from error

    # What only pickle can keep

    def _sealed(self, number: int, values: Mapping[str, Any]) -> bytes:
        content: bytes = cloudpickle.dumps(dict(values), protocol=5)
        return _code(self._key(), number, content) + content

    def _objects(self, loaded: Loaded) -> dict[str, Any]:
        if loaded.objects is None:
            return {}
        path = loaded.entry.path / OBJECTS
        code, content = loaded.objects[:_CODE_BYTES], loaded.objects[_CODE_BYTES:]
        if not hmac.compare_digest(code, _code(self._key(), loaded.entry.step, content)):
            raise CommitError(
                f"{path} does not have this job's code: somebody else has made it, and it is not read. "
                f"Remove {self.folder} to start from the beginning"
            )
        try:
            values: dict[str, Any] = pickle.loads(content)
        except Exception as error:  # whatever the script's own classes may raise
            raise CommitError(
                f"{path} is whole, but {Path(sys.argv[0]).name} cannot read it back: {error!r}. Has the script "
                f"changed? Remove {self.folder} to start from the beginning"
            ) from error
        return values

    def _key(self) -> bytes:
        path = self.folder / KEY
        with self._errors():
            if not path.exists():
                _make_key(path)
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status, key = os.fstat(file.fileno()), file.read()
        if status.st_uid != _own_number(self.folder) or status.st_mode & 0o077 or len(key) != _KEY_BYTES:
            raise CommitError(
                f"{path} is not this job's: somebody else has made it, or others may read it. "
                f"Remove {self.folder} to start from the beginning"
            )
        return key


def _own_number(folder: Path) -> int:
    """Whose a file is that we make there: a file system may take root for nobody."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def _make_key(path: Path) -> None:
    """Under another name first: a half one would be there for good."""
    part = path.with_name(f"{KEY}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _code(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "little") + content, "sha256")


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint gives it back exactly as it is: classes of the user's own, derived from these, do not count."""
    kind = type(value)
    if kind in (dict, Counter):
        return all(_is_plain(key) and _is_plain(content) for key, content in value.items())
    if kind in (list, tuple):
        return all(map(_is_plain, value))
    if kind is np.ndarray:
        return takes(value.dtype)
    return kind in _AS_THEY_ARE or kind is Tensor
