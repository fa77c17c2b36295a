"""Blocks of text to rows of a matrix, on all cores.

Rows are counted first, by their ends, so that every block knows where its rows go and the matrix is
made once, at its size. Decompressed text is not kept: there, rows follow as they come.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from farandole.data.layout import Layout, fields
from farandole.data.text import Block, as_block
from farandole.errors import SettingsError
from farandole.observe.phases import phase

__all__ = ["BadRow", "Parser", "cores", "joined", "on_threads", "prepare"]

_COMPILED = ("machine.py", "decimals.py", "rows.py")
_HARD = 1024
_SHOWN = 40
_ASCII = 127
_PIECE = 1 << 16
_IDENTIFIER = re.compile(rb"^[+-]?0[0-9]|^[+-]?[0-9]{16,}$|_", re.MULTILINE)
"""What float() would read but not give back: leading zeros, more digits than it has, underscores."""


class BadRow(Exception):
    """A row that cannot be read: where in the file, and why."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(offset, why)
        self.offset, self.why = offset, why


@cache
def _kernels() -> Any:
    """The compiled functions; see rows.py."""
    with phase("compile"):
        return _import_kernels()


def _import_kernels() -> Any:
    try:
        import numba
    except ImportError as error:
        raise SettingsError(
            f"reading tables needs numba ({error}). Type: pip install 'farandole[data]'"
        ) from error
    config: Any = numba.config
    given = config.CACHE_DIR
    config.CACHE_DIR = str(_compiled_folder(given))
    try:
        from farandole.data import rows
    finally:
        config.CACHE_DIR = given
    return rows


@cache
def prepare(dtype: str, *, texts: bool) -> None:
    """Compile what reads such a table, or load what was compiled before, so that neither is a part of reading.

    Every function is called with nothing to do: it is compiled for the types that it will see.
    """
    k = _kernels()
    with phase("compile"):
        text, none, rows = as_block(b"\n", 0).text, np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
        k.count_rows(text, 0, 0)
        k.parse_rows(text, np.zeros(5, np.int64), 0, 0, rows, np.zeros(0, dtype), rows, text[:0], none, np.zeros((0, 3), np.int64))
        if texts:
            k.integers(text, none, 0, none)
            k.widest(text, none, 0)
            k.texts(text, none, 0, np.zeros((0, 1), np.uint8))


def _compiled_folder(given: str) -> Path:
    """Where numba keeps compiled code. Its own choice fails where nothing may be written.

    Named by the content of all files compiled: numba itself does not see changes in functions that are called.
    """
    here = Path(__file__).parent
    content = b"".join((here / name).read_bytes() for name in _COMPILED)
    name = f"compiled-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    for parent in (Path(given),) if given else (here / "__pycache__", Path("~/.cache/farandole").expanduser()):
        with contextlib.suppress(OSError):
            (parent / name).mkdir(parents=True, exist_ok=True)
            if os.access(parent / name, os.W_OK):
                return parent / name
    folder = Path(tempfile.mkdtemp(prefix="farandole-compiled-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


class Parser:
    """Parses blocks of one file."""

    def __init__(self, layout: Layout, na: Sequence[str], advance: Callable[[int], None]) -> None:
        """`advance` is told of bytes as they are parsed."""
        self.layout = layout
        self._advance = advance
        self._kernels = _kernels()
        encoded = [token.encode() for token in na]
        self._tokens = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([len(token) for token in encoded], dtype=np.int64)
        self._segments = np.array(layout.shape.runs, np.int64)
        self._local = threading.local()

    def count(self, block: Block) -> int:
        """Rows of a block."""
        return int(self._kernels.count_rows(block.text, block.start, block.stop))

    def parse(self, block: Block, row: int, out: Any) -> list[Any]:
        """Write a block's rows into `out` (flat) from `row` on; its text columns, as integers or bytes."""
        k = self._kernels
        hard = self._hard()
        state = np.array([block.start, 0, 0, 0, 0], np.int64)
        width = self.layout.shape.numbers
        part = out[row * width :]
        rows = self.count(block) if self.layout.shape.texts else 0
        spans = np.zeros((rows, self.layout.shape.texts), np.int64)
        delimiter = ord(self.layout.delimiter)
        while True:
            result = k.parse_rows(
                block.text, state, block.stop, delimiter, self._segments, part, spans, self._tokens, self._ends, hard
            )
            with np.errstate(over="ignore"):  # infinite as a float32, as for all other numbers
                for index, start, stop in hard[: state[4]].tolist():
                    part[index] = float(bytes(block.text[start:stop]))
            if result != k.FULL:
                break
        if result != k.DONE:
            raise self._bad(block, result, int(state[2]), int(state[3]))
        self._advance(block.size)
        return [self._column(block, np.ascontiguousarray(spans[:, i]), i) for i in range(spans.shape[1])]

    def _hard(self) -> Any:
        """This thread's list of numbers that float() has to read."""
        if not hasattr(self._local, "hard"):
            self._local.hard = np.zeros((max(_HARD, self.layout.shape.numbers), 3), np.int64)
        return self._local.hard

    def _column(self, block: Block, spans: Any, index: int) -> Any:
        """The text column `index`, as integers or bytes."""
        delimiter = ord(self.layout.delimiter)
        whole = np.zeros(len(spans), np.int64)
        if self._kernels.integers(block.text, spans, delimiter, whole):
            return whole
        length, doubled = self._kernels.widest(block.text, spans, delimiter)
        out = np.zeros((len(spans), max(length, 1)), np.uint8)
        odd = int(self._kernels.texts(block.text, spans, delimiter, out))
        column = out.view(f"S{out.shape[1]}").reshape(-1)
        if odd < 0 and out.max(initial=0) > _ASCII:
            odd = next((row for row, text in enumerate(column.tolist()) if not _is_utf8(text)), -1)
        if odd >= 0:
            where = self.layout.column(sorted(self.layout.apart.values())[index])
            raise BadRow(block.offset + int(spans[odd]), f"{where}: this is not UTF-8 text")
        return np.char.replace(column, b'""', b'"') if doubled else column

    def _bad(self, block: Block, result: int, column: int, at: int) -> BadRow:
        k = self._kernels
        line = bytes(block.text[block.start : block.stop])
        start = line.rfind(b"\n", 0, at - block.start) + 1
        end = line.find(b"\n", max(start, at - block.start))
        content = line[start : end if end >= 0 else None].decode(errors="replace").removesuffix("\r")
        field = line[at - block.start : end].split(self.layout.delimiter.encode(), 1)[0].strip()
        shown = field[:_SHOWN].decode(errors="replace")
        offset = block.offset + block.start + start
        where = self.layout.column(column)
        if result == k.QUOTE:
            return BadRow(offset, f"{where}: a quote is not closed before the end of the line")
        if result == k.NOT_A_NUMBER:
            return BadRow(
                offset,
                f"{where}: {shown!r} is not a number. Name the column in columns=[{column}] if it holds text, "
                f"or the token in na=({shown!r}, ...) if it means 'missing'",
            )
        found = len(fields(content, self.layout.delimiter) or content.split(self.layout.delimiter))
        return BadRow(
            offset,
            f"has {found} columns, expected {self.layout.total} as in the first line "
            f"(delimiter {self.layout.delimiter!r})",
        )


def on_threads(work: Callable[..., Any], *rows: Sequence[Any], threads: int) -> list[Any]:
    """As map(): on threads; the first failure in the rows' order is raised."""
    if threads <= 1:
        return list(map(work, *rows))
    with ThreadPoolExecutor(threads, thread_name_prefix="farandole-data") as pool:
        futures = deque(pool.submit(work, *row) for row in zip(*rows))
        results = []
        try:
            while futures:  # one that failed is not kept: it would hold this frame, and the file open
                results.append(futures.popleft().result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return results


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_identifiers(column: Any) -> bool:
    pieces = (column[at : at + _PIECE].tolist() for at in range(0, len(column), _PIECE))
    return any(_IDENTIFIER.search(b"\n".join(piece)) for piece in pieces)


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def joined(parts: Sequence[Any]) -> Any:
    """One column from its parts in the blocks: integers, numbers or text."""
    if all(part.dtype == np.int64 for part in parts):
        return np.concatenate([np.zeros(0, np.int64), *parts])
    column = np.concatenate([part if part.dtype.kind == "S" else part.astype("S") for part in parts])
    if len(column) and _is_number(column[0]) and not _has_identifiers(column):
        with contextlib.suppress(ValueError):
            return column.astype(np.float64)
    letters = column.view(np.uint8).reshape(len(column), -1)  # (rows, bytes)
    if letters.max(initial=0) <= _ASCII:  # then a character is a byte: widening them all is fastest
        return letters.astype(np.uint32).view(f"U{letters.shape[1]}").reshape(-1)
    return np.char.decode(column, "utf-8")
