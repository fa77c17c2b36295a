"""Numeric tables from text files, at the speed of memory.

    table = read_matrix("nt_train2.csv", columns=[0])
    table.values        # (1120, 60483) float32, one C-contiguous array
    table.columns[0]    # the labels

A file is parsed once: the array is kept beside it and mapped into memory the next time. Where farandole is
initialised, reading is collective: the ranks of a node parse the file together and share one copy of it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farandole.data.cache import CacheFile, Stored
from farandole.data.layout import NA, ReadOptions
from farandole.data.parse import prepare
from farandole.data.reading import PlainFile, progress, read, shard_bounds
from farandole.data.text import open_text
from farandole.errors import SettingsError
from farandole.observe.phases import phase

__all__ = ["Matrix", "read_matrix"]

_ACROSS = ("auto", "parse", "broadcast")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table."""

    values: Any
    """(rows, numeric columns), one C-contiguous array. It may be changed: the file and the cache are not."""
    names: tuple[str, ...] | None
    """Of the columns of `values`; None where the file has no header."""
    columns: dict[str | int, Any]
    """The columns kept apart, by what they were asked for: integers, float64 or text."""


def read_matrix(
    path: str | os.PathLike[str],
    *,
    header: bool | str = "infer",
    dtype: Any = "float32",
    columns: Iterable[str | int] | str | int | None = None,
    na: Iterable[str] = NA,
    delimiter: str | None = None,
    cache: bool | str | os.PathLike[str] = True,
    shard: bool | tuple[int, int] = False,
    together: bool | None = None,
    across: str = "auto",
) -> Matrix:
    """Read a table of numbers from a CSV or TSV file, or a gzip of one.

    header    whether the first line has names; "infer": where it has something that is not a number
    dtype     float32 (the nearest float64, converted) or float64
    columns   labels, identifiers and texts, by name or position: they go to `.columns`
    na        texts that mean NaN; nan and inf are always understood
    cache     keep the table beside the file (True), in a folder, or not at all (False)
    shard     only this rank's rows (True), or part i of n: (i, n); the parts are even
    together  share one parse and one copy among the ranks of a node. The default where farandole is
              initialised on several ranks; collective: every rank then calls it. False reads alone.
    across    with several nodes: "parse" on each, "broadcast" from one, or "auto", by the file's size
    """
    options = ReadOptions(
        header=header,
        dtype=dtype,
        columns=() if columns is None else _several(columns),
        na=_several(na),
        delimiter=delimiter,
    )
    if across not in _ACROSS:
        raise SettingsError(f"across={across!r}: use one of {', '.join(_ACROSS)}")
    source = Path(os.fspath(path))
    part = _part(shard)
    with phase("load"):
        if part is None and _is_shared(together):
            from farandole.data.together import read_together

            stored = read_together(source, options, cache, across)
        else:
            stored = _read_alone(source, options, cache, part)
    return Matrix(stored.values, stored.names, dict(zip(options.columns, stored.columns)))


def _several(given: Any) -> tuple[Any, ...]:
    one_or_more = (given,) if isinstance(given, str) or hasattr(given, "__index__") else given
    return tuple(int(item) if isinstance(item, np.integer) else item for item in one_or_more)


def _read_alone(source: Path, options: ReadOptions, cache: Any, part: tuple[int, int] | None) -> Stored:
    kind = open_text(source)
    place = CacheFile.at(source, options, cache)
    stored = None if place is None else place.load()
    if stored is None:
        prepare(options.dtype, texts=bool(options.columns))
    if stored is None and part is not None and kind == "plain":
        with progress(source, speak=_rank() == 0) as bar:
            return PlainFile(source, options, bar.advance).read_rows(*part)
    if stored is None:
        stored = read(source, options, speak=_rank() == 0)
        if place is not None:
            place.store(stored)
    return stored if part is None else stored.rows(*shard_bounds(len(stored.values), *part))


def _part(shard: bool | tuple[int, int]) -> tuple[int, int] | None:
    if shard is False:
        return None
    if shard is True:
        from farandole.comm.world import rank, size

        return rank(), size()
    try:
        index, of = (operator.index(number) for number in shard)
    except (TypeError, ValueError):
        index, of = 0, 0
    if not 0 <= index < of:
        raise SettingsError(f"shard={shard!r}: give True, or (part, parts), e.g. (0, 4) to (3, 4)")
    return index, of


def _is_shared(together: bool | None) -> bool:
    if together is False:
        return False
    from farandole.comm.world import is_initialized, size

    return bool(is_initialized() and size() > 1)


def _rank() -> int:
    from farandole.comm.world import is_initialized, rank

    return int(rank()) if is_initialized() else 0
