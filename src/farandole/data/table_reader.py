"""How the tables of a workload are read: by our reader with its cache, or, to compare, by another loader of `data.loaders`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from farandole.data.layout import NA
from farandole.data.loaders import CACHED, load
from farandole.data.matrix import Matrix, read_matrix
from farandole.observe.phases import phase

__all__ = ["read_table", "reading_with"]

_loader: ContextVar[str] = ContextVar("loader", default=CACHED)


@contextmanager
def reading_with(loader: str) -> Iterator[None]:
    """Inside, tables are read by `loader`: CACHED, or a name of `data.loaders`, which keeps no cache."""
    before = _loader.set(loader)
    try:
        yield
    finally:
        _loader.reset(before)


def read_table(
    path: Path, *, header: bool, columns: Sequence[str | int], cache: bool | Path, na: Iterable[str] = NA
) -> Matrix:
    """As `read_matrix`. Loaders other than ours know nothing of ranks: each of them reads the whole file."""
    loader = _loader.get()
    if loader == CACHED:
        return read_matrix(path, header=header, columns=columns, na=na, cache=cache)
    with phase("load"):
        return load(loader, path, header=header, columns=columns, na=na)
