"""Other ways to read the same tables, by name: to compare with, and to check against.

    load("pandas", "nt_train2.csv", header=False, columns=[0])

All give the same Matrix. Numbers are read as the nearest float64, as Python's float() does, then converted. Only
pandas before 3.1 (and dask on it) has by default a converter that promises less for numbers of many digits; those
of the benchmarks' files have few.

In the columns kept apart, what `na` calls missing is empty with pandas, dask and polars; fast and pyarrow keep
it as it is.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from farandole.data.layout import NA, Layout, ReadOptions
from farandole.data.matrix import Matrix, read_matrix
from farandole.data.parse import cores
from farandole.data.text import GzipText, MappedText, open_text
from farandole.errors import SettingsError

__all__ = ["CACHED", "LOADERS", "METHODS", "STORING", "VARIANTS", "installed", "library", "load", "loader_of"]

LOADERS: Mapping[str, str] = MappingProxyType(
    {
        "pandas": "pandas.read_csv as it is by default: what the papers began with",
        "pandas-chunked": "pandas.read_csv in chunks with low_memory=False: the papers' remedy",
        "dask": "dask.dataframe.read_csv",
        "polars": "polars.read_csv, told the columns' types",
        "pyarrow": "pyarrow.csv.read_csv, told the columns' types, in blocks of many rows",
        "fast": "farandole's reader, without its cache",
    }
)
VARIANTS: Mapping[str, str] = MappingProxyType(
    {
        "pandas-chunks-only": "the papers' chunks without low_memory=False",
        "pandas-low-memory-off": "low_memory=False without the chunks",
        "polars-inferring": "polars.read_csv left to tell the columns' types from the first hundred rows",
    }
)
"""The two halves of the papers' remedy, each on its own; and a library as it is when it is told nothing."""

CACHED, STORING = "fast-cached", "fast-storing"
"""Our reader with its cache: there already, or written by this reading."""
METHODS = (*LOADERS, *VARIANTS, STORING, CACHED)
"""All ways to read a file."""

_CHUNK_ROWS = 2_000_000  # as the papers have it: more than their files' rows, so that nothing is split
_ARROW_BLOCK_BYTES = 1 << 20  # its default; a wide row is most of one, and a block has a fixed cost for each column
_ARROW_BLOCK_ROWS = 128
_DASK_SAMPLE_BYTES = 256_000  # its default
_DASK_SAMPLE_ROWS = 4


@dataclass(frozen=True, slots=True)
class _Request:
    """A file, and what is known of it before it is read."""

    path: Path
    options: ReadOptions
    layout: Layout
    row_bytes: int
    """Of the longer of the first two lines."""

    @property
    def apart(self) -> set[int]:
        return set(self.layout.apart.values())

    @property
    def header(self) -> int | None:
        """As pandas and dask want it."""
        return None if self.layout.all_names is None else 0

    @property
    def labels(self) -> list[str]:
        """A name for every column, no two the same."""
        return [str(position) for position in range(self.layout.total)]


def load(
    name: str,
    path: str | os.PathLike[str],
    *,
    columns: Iterable[str | int] = (),
    header: bool | str = "infer",
    delimiter: str | None = None,
    dtype: Any = "float32",
    na: Iterable[str] = NA,
) -> Matrix:
    """Read a table with the loader of that name; the arguments mean what they mean to `read_matrix`."""
    _require(name)
    if name == "fast":
        return read_matrix(
            path, columns=columns, header=header, delimiter=delimiter, dtype=dtype, na=na, cache=False
        )
    options = ReadOptions(
        header=header, dtype=dtype, columns=tuple(columns), na=tuple(na), delimiter=delimiter
    )
    return _READERS[name](_request(Path(os.fspath(path)), options))


def library(name: str) -> str:
    """The package a loader stands on."""
    known = (*LOADERS, *VARIANTS)
    if name not in known:
        raise SettingsError(f"no loader is called {name!r}. Use one of {', '.join(known)}.")
    return "numba" if name == "fast" else name.partition("-")[0]


def loader_of(method: str) -> str:
    """What a way of reading stands on."""
    return "fast" if method in (CACHED, STORING) else method


def installed(name: str) -> str | None:
    """The version of the package a loader stands on; None where it is not installed."""
    try:
        return version(library(name))
    except PackageNotFoundError:
        return None


def _require(name: str) -> None:
    if installed(name) is None:
        extra = "data" if name == "fast" else "loaders"
        raise SettingsError(
            f"the loader {name!r} needs {library(name)}, which is not installed. "
            f"Type: pip install 'farandole[{extra}]'"
        )


def _request(path: Path, options: ReadOptions) -> _Request:
    head = _head(path)
    layout = Layout.read(path, head, options)
    lines = head.lstrip(b"\r\n").split(b"\n", 2)[:2]
    return _Request(path, options, layout, max(len(line) for line in lines) + 1)


def _head(path: Path) -> bytes:
    if open_text(path) == "plain":
        return MappedText(path).head()
    lines, _ = next(GzipText(path, lambda _: None).lines(), (b"", 0))
    return lines


def _matrix(request: _Request, values: Any, columns: Mapping[int, Any]) -> Matrix:
    """The parts as one table; `columns` by position."""
    apart = {asked: columns[position] for asked, position in request.layout.apart.items()}
    with np.errstate(over="ignore"):  # too large for float32 is infinite
        converted = np.ascontiguousarray(values, request.options.dtype)
    return Matrix(converted, request.layout.names, apart)


def _narrowed(texts: Any) -> Any:
    """Texts as integers or numbers, where all of them are."""
    column = np.asarray(texts, dtype=np.str_)
    for dtype in (np.int64, np.float64):
        try:
            return column.astype(dtype)
        except ValueError:
            continue
    return column


# pandas and what is built on it


def _pandas(request: _Request, *, chunks: bool = False, **settings: Any) -> Matrix:
    import pandas as pd

    if chunks:
        settings["chunksize"] = _CHUNK_ROWS
    frame = pd.read_csv(request.path, header=request.header, **_pandas_settings(request), **settings)
    if chunks:
        frame = pd.concat(list(frame), axis=0, ignore_index=True)
    return _from_frame(request, frame)


def _pandas_settings(request: _Request) -> dict[str, Any]:
    return {
        "sep": request.layout.delimiter,
        "na_values": list(request.options.na),
        "keep_default_na": False,
        "compression": "gzip" if open_text(request.path) == "gzip" else None,
    }


def _from_frame(request: _Request, frame: Any) -> Matrix:
    apart = {position: _plain(frame.iloc[:, position]) for position in request.apart}
    numbers = frame.drop(columns=frame.columns[sorted(apart)]) if apart else frame
    return _matrix(request, numbers.values, apart)


def _plain(series: Any) -> Any:
    column = series.to_numpy()
    return column if column.dtype.kind in "if" else np.asarray(series.fillna(""), dtype=np.str_)


def _dask(request: _Request) -> Matrix:
    """Told the numbers' type, since what a sample shows may not hold for the rest of the file."""
    frames: Any = importlib.import_module("dask.dataframe")  # imported as text: it has no types to check
    labels = request.labels
    settings = _pandas_settings(request)
    lazy = frames.read_csv(
        request.path,
        names=labels,
        header=request.header,
        sample=max(_DASK_SAMPLE_BYTES, _DASK_SAMPLE_ROWS * request.row_bytes),
        blocksize=None if settings["compression"] else "default",
        dtype={label: str if i in request.apart else "float64" for i, label in enumerate(labels)},
        **settings,
    )
    with ThreadPoolExecutor(cores()) as pool:  # dask's own would outlive the reading
        frame = lazy.compute(scheduler="threads", pool=pool)
    apart = {position: _narrowed(frame.iloc[:, position].fillna("")) for position in request.apart}
    numbers = frame.drop(columns=[labels[position] for position in apart])
    return _matrix(request, numbers.values, apart)


# polars and pyarrow


def _polars(request: _Request, *, told: bool = True) -> Matrix:
    import polars as pl

    types = {
        label: pl.String if i in request.apart else pl.Float64 for i, label in enumerate(request.labels)
    }
    frame = pl.read_csv(
        request.path,
        has_header=False,
        skip_rows=0 if request.layout.all_names is None else 1,
        separator=request.layout.delimiter,
        schema=types if told else None,
        null_values=[token for token in request.options.na if token] or None,  # it takes nothing for null anyway
    )
    # In place: drop() goes through a plan of all columns, which takes half as long as reading a wide file.
    taken = {i: frame.drop_in_place(name) for i, name in enumerate(frame.columns) if i in request.apart}
    apart = {i: _narrowed(column.cast(pl.String).fill_null("").to_list()) for i, column in taken.items()}
    return _matrix(request, frame.to_numpy(order="c"), apart)


def _pyarrow(request: _Request) -> Matrix:
    import pyarrow as pa

    csv: Any = importlib.import_module("pyarrow.csv")
    labels = request.labels
    types = {label: pa.string() if i in request.apart else pa.float64() for i, label in enumerate(labels)}
    read = csv.ReadOptions(
        column_names=labels,
        skip_rows=0 if request.layout.all_names is None else 1,
        block_size=max(_ARROW_BLOCK_BYTES, _ARROW_BLOCK_ROWS * request.row_bytes),
    )
    convert = csv.ConvertOptions(column_types=types, null_values=list(request.options.na))
    parse = csv.ParseOptions(delimiter=request.layout.delimiter)
    table = csv.read_csv(request.path, read_options=read, parse_options=parse, convert_options=convert)
    apart = {i: _narrowed(table.column(i).to_pylist()) for i in request.apart}
    return _matrix(request, _beside(request, table.columns, table.num_rows), apart)


def _beside(request: _Request, columns: Sequence[Any], rows: int) -> Any:
    numbers = [column for i, column in enumerate(columns) if i not in request.apart]
    values = np.empty((len(numbers), rows), request.options.dtype)
    for i, column in enumerate(numbers):
        values[i] = column.to_numpy()
    return values.T


_READERS: dict[str, Callable[[_Request], Matrix]] = {
    "pandas": _pandas,
    "pandas-chunked": lambda request: _pandas(request, chunks=True, low_memory=False),
    "pandas-chunks-only": lambda request: _pandas(request, chunks=True),
    "pandas-low-memory-off": lambda request: _pandas(request, low_memory=False),
    "dask": _dask,
    "polars": _polars,
    "polars-inferring": lambda request: _polars(request, told=False),
    "pyarrow": _pyarrow,
}
