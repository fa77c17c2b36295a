"""One process reads one file: all of it, or some of its rows."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from farandole.data.cache import Stored
from farandole.data.layout import Layout, ReadOptions
from farandole.data.parse import BadRow, Parser, cores, joined, on_threads
from farandole.data.text import Block, GzipText, MappedText, as_block, open_text
from farandole.errors import DataError
from farandole.progress import Progress

__all__ = ["PlainFile", "progress", "read", "room"]

_HUGE = 2 << 20


def read(source: Path, options: ReadOptions, *, speak: bool = True) -> Stored:
    """Parse a file on all cores of this process."""
    with progress(source, speak=speak) as bar:
        if open_text(source) == "gzip":
            return _GzipFile(source, options, bar).read()
        return PlainFile(source, options, bar.advance).read()


def progress(source: Path, *, speak: bool = True) -> Progress:
    """Of the bytes of a file; shown where reading takes a while."""
    return Progress(f"reading {source.name}", source.stat().st_size, enabled=speak)


def room(count: int, dtype: str) -> Any:
    """Memory for numbers, on huge pages where there are any, so that parsing does not wait for page faults."""
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes < _HUGE:
        return np.empty(count, dtype)
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count)


class PlainFile:
    """Text as it lies on disk. Rows are counted, then parsed to where they belong."""

    def __init__(self, source: Path, options: ReadOptions, advance: Callable[[int], None]) -> None:
        self._source = source
        self._options = options
        self._text = MappedText(source)
        self.layout = Layout.read(source, self._text.head(), options)
        self._parser = Parser(self.layout, options.na, advance)
        self.blocks = self._text.blocks(self.layout.first)

    @property
    def width(self) -> int:
        return self.layout.shape.numbers

    def read(self) -> Stored:
        firsts = self.firsts(self.count(self.blocks, cores()))
        out = room(firsts[-1] * self.width, self._options.dtype)
        with self.told():
            parts = self.parse(self.blocks, firsts[:-1], out, cores())
        return self.table(out, parts)

    def read_rows(self, index: int, of: int) -> Stored:
        """Part `index` of `of` even parts of the rows."""
        firsts = self.firsts(self.count(self.blocks, cores()))
        start, stop = shard_bounds(firsts[-1], index, of)
        wanted = [i for i, (a, b) in enumerate(pairwise(firsts)) if a < stop and b > start]
        first = firsts[wanted[0]] if wanted else 0
        rows = firsts[wanted[-1] + 1] - first if wanted else 0
        out = room(rows * self.width, self._options.dtype)
        with self.told():
            parts = self.parse(
                [self.blocks[i] for i in wanted], [firsts[i] - first for i in wanted], out, cores()
            )
        return self.table(out, parts).rows(start - first, stop - first)

    def count(self, blocks: Sequence[Block], threads: int) -> list[int]:
        return on_threads(self._parser.count, blocks, threads=threads)

    def firsts(self, rows: Sequence[int]) -> list[int]:
        """The first row of each block, and the number of all."""
        total = int(np.sum(rows))
        if total == 0:
            raise DataError(f"{self._source}: no rows{' below the header' if self.layout.all_names else ''}")
        return [0, *np.cumsum(rows).tolist()]

    def parse(self, blocks: Sequence[Block], firsts: Sequence[int], out: Any, threads: int) -> list[list[Any]]:
        """Rows into `out` (flat); the text columns of each block. Raises BadRow."""

        def parse(block: Block, row: int) -> list[Any]:
            return self._parser.parse(block, row, out)

        return on_threads(parse, blocks, firsts, threads=threads)

    def table(self, out: Any, parts: Sequence[list[Any]]) -> Stored:
        return _table(self.layout, self._options, out, parts)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """A row that cannot be read becomes an error that says which."""
        try:
            yield
        except BadRow as bad:
            raise self.error(bad) from None

    def error(self, bad: BadRow) -> DataError:
        return DataError(f"{self._source}, line {self._text.line_number(bad.offset)}, {bad.why}")


def shard_bounds(rows: int, index: int, of: int) -> tuple[int, int]:
    """The rows of part `index` of `of`: sizes differ by one at most."""
    return rows * index // of, rows * (index + 1) // of


def _table(layout: Layout, options: ReadOptions, out: Any, parts: Sequence[list[Any]]) -> Stored:
    """Texts come in the file's order, columns in the order they were asked for."""
    positions = sorted(layout.apart.values())
    texts = {position: joined([part[i] for part in parts]) for i, position in enumerate(positions)}
    columns = [texts[layout.apart[column]] for column in options.columns]
    return Stored(out.reshape(-1, layout.shape.numbers), layout.names, columns)


class _GzipFile:
    """Compressed text: rows follow as they come, and nobody knows how many."""

    def __init__(self, source: Path, options: ReadOptions, bar: Progress) -> None:
        self._source = source
        self._options = options
        self._text = GzipText(source, bar.advance)
        self._size = source.stat().st_size
        self._rows = self._capacity = 0
        self._out: Any = None
        self._under_way: deque[Future[list[Any]]] = deque()
        self._parts: list[list[Any]] = []

    def read(self) -> Stored:
        layout: Layout | None = None
        lines = 0
        with ThreadPoolExecutor(cores(), thread_name_prefix="farandole-data") as pool:
            for data, offset in self._text.lines():
                start = 0
                if layout is None:
                    layout = Layout.read(self._source, data, self._options)
                    parser = Parser(layout, self._options.na, lambda _: None)
                    start = layout.first
                block = as_block(data, offset, start)
                row = self._take(parser.count(block), layout.shape.numbers)
                self._under_way.append(pool.submit(_parse_lines, parser, block, row, self._out, lines))
                lines += data.count(b"\n")
                self._finish(2 * cores())
            self._finish(0)
        if layout is None:
            raise DataError(f"{self._source}: the file is empty")
        if self._rows == 0:
            raise DataError(f"{self._source}: no rows{' below the header' if layout.all_names else ''}")
        return _table(layout, self._options, self._out[: self._rows * layout.shape.numbers], self._parts)

    def _take(self, rows: int, width: int) -> int:
        """Room for more rows; where they begin. What is never written to occupies no memory."""
        row, self._rows = self._rows, self._rows + rows
        if self._out is None or self._rows > self._capacity:
            self._finish(0)
            expected = self._rows * self._size / max(self._text.read, 1)
            self._capacity = int(1.25 * expected) + rows
            old, self._out = self._out, room(self._capacity * width, self._options.dtype)
            if old is not None:
                _move(old, self._out, row * width)
        return row

    def _finish(self, left: int) -> None:
        """Wait until at most `left` blocks are under way."""
        while len(self._under_way) > left:
            try:
                self._parts.append(self._under_way.popleft().result())
            except BadRow as bad:
                raise DataError(f"{self._source}, line {bad.offset}, {bad.why}") from None


def _parse_lines(parser: Parser, block: Block, row: int, out: Any, lines_before: int) -> list[Any]:
    """As Parser.parse; a bad row's place is the number of its line."""
    try:
        return parser.parse(block, row, out)
    except BadRow as bad:
        inside = bytes(block.text[: bad.offset - block.offset]).count(b"\n")
        raise BadRow(lines_before + inside + 1, bad.why) from None


def _move(old: Any, new: Any, count: int) -> None:
    """Piece by piece, so that what was copied is given back before the next is occupied."""
    memory = old.base.obj if isinstance(old.base, memoryview) else old.base
    step = _HUGE // old.itemsize
    for at in range(0, count, step):
        stop = min(at + step, count)
        new[at:stop] = old[at:stop]
        if isinstance(memory, mmap.mmap):
            memory.madvise(mmap.MADV_DONTNEED, at * old.itemsize, (stop - at) * old.itemsize)
