"""What a table file looks like: its delimiter, header and columns, told from its first lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import DataError, SettingsError

__all__ = ["NA", "Layout", "ReadOptions", "Shape", "fields"]

NA = ("", "NA", "N/A", "na", "NaN", "nan", "null")
_DELIMITERS = (",", "\t", ";", "|")
_FORBIDDEN_DELIMITERS = set('.+-"\r\n\0')
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(kw_only=True, slots=True)
class ReadOptions:
    """How a file is read. Two reads with equal options of an unchanged file give equal arrays."""

    header: bool | str = "infer"
    """Whether the first line names the columns; "infer": it does where it has something that is not a number."""
    dtype: str = "float32"
    """float32 or float64."""
    columns: tuple[str | int, ...] = ()
    """Columns that are not part of the matrix, by name or position."""
    na: tuple[str, ...] = NA
    """What means "not a number"."""
    delimiter: str | None = None
    """One character; None tells it from the first line."""

    def __post_init__(self) -> None:
        self.dtype = _dtype_name(self.dtype)
        if self.header not in (True, False, "infer"):
            raise SettingsError(f"header={self.header!r}: use True, False or 'infer'")
        for column in self.columns:
            if isinstance(column, bool) or not isinstance(column, str | int):
                raise SettingsError(f"columns={self.columns!r}: give names or positions")
        if len(set(self.columns)) != len(self.columns):
            raise SettingsError(f"columns={self.columns!r}: one is given twice")
        if any(not isinstance(token, str) or "\n" in token or '"' in token for token in self.na):
            raise SettingsError(f"na={self.na!r}: give texts that have no quotes and no line breaks")
        self.na = tuple(token.strip(" ") for token in self.na)
        if self.delimiter is not None and not _separates(self.delimiter):
            raise SettingsError(f"delimiter={self.delimiter!r}: use one ASCII character that no number contains")

    def key(self) -> tuple[Any, ...]:
        return (self.header, self.dtype, self.columns, self.na, self.delimiter)


def _separates(delimiter: str) -> bool:
    usable = len(delimiter) == 1 and delimiter.isascii() and not delimiter.isalnum()
    return usable and delimiter not in _FORBIDDEN_DELIMITERS


def _dtype_name(dtype: Any) -> str:
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = str(dtype)
    if name not in ("float32", "float64"):
        raise SettingsError(f"dtype={name}: use float32 or float64")
    return name


@dataclass(frozen=True, slots=True)
class Shape:
    """Whether a column is a number (0) or a text (1), for runs of columns."""

    runs: tuple[tuple[int, int], ...]

    @property
    def numbers(self) -> int:
        return sum(count for kind, count in self.runs if kind == 0)

    @property
    def texts(self) -> int:
        return sum(count for kind, count in self.runs if kind == 1)

    @classmethod
    def of(cls, total: int, apart: Sequence[int]) -> Shape:
        """`total` columns, of which those at the positions `apart` are texts."""
        runs: list[tuple[int, int]] = []
        at = 0
        for position in sorted(apart):
            if position > at:
                runs.append((0, position - at))
            runs.append((1, 1))
            at = position + 1
        if total > at:
            runs.append((0, total - at))
        return cls(tuple(runs))


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one file."""

    path: Path
    delimiter: str
    first: int
    """Where the first row begins, in bytes."""
    all_names: tuple[str, ...] | None
    """Of every column; None without a header."""
    total: int
    apart: dict[str | int, int]
    """Column as asked for -> position."""
    shape: Shape

    @property
    def names(self) -> tuple[str, ...] | None:
        """Of the matrix's columns."""
        if self.all_names is None:
            return None
        apart = set(self.apart.values())
        return tuple(name for position, name in enumerate(self.all_names) if position not in apart)

    def column(self, position: int) -> str:
        """A column in words; positions count from 1 there."""
        name = self.all_names[position] if self.all_names and position < len(self.all_names) else None
        return f"column {position + 1}" + (f" ({name!r})" if name else "")

    @classmethod
    def read(cls, path: Path, head: bytes, options: ReadOptions) -> Layout:
        """Of a file that begins with `head`, which has its first line that says anything."""
        for mark, kind in _BOMS.items():
            if head.startswith(mark):
                raise DataError(f"{path}: this is {kind}; convert it to UTF-8 text (or gzip of it) first")
        start = len(_UTF8_BOM) if head.startswith(_UTF8_BOM) else 0
        line, first, after = _first_line(path, head, start)
        delimiter = options.delimiter or _delimiter(path, line)
        found = fields(line, delimiter)
        if found is None:
            number = head.count(b"\n", 0, first) + 1
            raise DataError(f"{path}, line {number}: a quote is not closed before the end of the line")
        has_header = _has_header(path, found, options)
        names = tuple(found) if has_header else None
        apart = {column: _position(path, column, names, len(found)) for column in options.columns}
        if len(set(apart.values())) != len(apart):
            raise SettingsError(f"{path}: columns={options.columns!r} name the same column twice")
        shape = Shape.of(len(found), list(apart.values()))
        if shape.numbers == 0:
            raise DataError(f"{path}: no column is left for the matrix; columns={options.columns!r} are all there are")
        return cls(path, delimiter, after if has_header else first, names, len(found), apart, shape)


def _first_line(path: Path, head: bytes, start: int) -> tuple[str, int, int]:
    """The first line that is not empty, where it begins, and where the next one does."""
    at = start
    while at < len(head):
        end = head.find(b"\n", at)
        end = len(head) if end < 0 else end
        line = head[at:end].removesuffix(b"\r")
        if b"\0" in line:
            raise DataError(f"{path}: NUL bytes in the first line: this is not UTF-8 text (UTF-16, or no text at all?)")
        if line:
            try:
                return line.decode(), at, min(end + 1, len(head))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: the first line is not UTF-8 text ({error.reason} at {error.start})") from None
        at = end + 1
    raise DataError(f"{path}: the file is empty")


def _delimiter(path: Path, line: str) -> str:
    outside = re.sub('"[^"]*"', "", line)
    counts = {delimiter: outside.count(delimiter) for delimiter in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda delimiter: counts[delimiter])
    if counts[best]:
        return best
    return "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","


def fields(line: str, delimiter: str) -> list[str] | None:
    """The fields of a line, as the compiled reader sees them; None where a quote is not closed."""
    if '"' not in line:
        return [field.strip(" ") for field in line.split(delimiter)]
    found, at = [], 0
    while (match := _field(delimiter).match(line, at)) is not None:
        found.append(_unquoted(match[0].strip(" ")))
        if match.end() == len(line):
            return found
        at = match.end() + 1
    return None


@cache
def _field(delimiter: str) -> re.Pattern[str]:
    other = f"[^{re.escape(delimiter)}]*+"
    spaces = "" if delimiter == " " else " *+"
    return re.compile(f'{spaces}(?:"(?:[^"]|"")*+"{other}|(?!"){other})')


def _unquoted(field: str) -> str:
    if len(field) >= 2 and field[0] == field[-1] == '"':
        field = field[1:-1].strip(" ")
    return field.replace('""', '"')


def _has_header(path: Path, fields: list[str], options: ReadOptions) -> bool:
    by_name = [column for column in options.columns if isinstance(column, str)]
    if options.header is False:
        if by_name:
            raise SettingsError(f"{path}: columns={options.columns!r} go by name, header=False says there are none")
        return False
    if options.header is True or by_name:
        return True
    total = len(fields)
    apart = {column % total for column in options.columns if isinstance(column, int)}
    return any(i not in apart and not _numeric(field, options.na) for i, field in enumerate(fields))


def _numeric(field: str, na: tuple[str, ...]) -> bool:
    if field in na:
        return True
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def _position(path: Path, column: str | int, names: tuple[str, ...] | None, total: int) -> int:
    if isinstance(column, int):
        if not -total <= column < total:
            raise DataError(f"{path}: there is no column {column}; the first line has {total} columns")
        return column % total
    assert names is not None
    found = [position for position, name in enumerate(names) if name == column]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{path}: {len(found)} columns are named {column!r}; give the position instead")
    listed = ", ".join(repr(name) for name in names[:6]) + (", ..." if total > 6 else "")
    raise DataError(f"{path}: no column is named {column!r}; there are {total}: {listed}")

