"""Where the ranks' output goes: lines of the terminal that name their rank, or a file for each."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

from farandole.errors import LaunchError

__all__ = ["Files", "OutputSink", "Terminal", "has_room"]

_LONGEST_LINE = 1 << 20
_MOST_UNWRITTEN = 64 << 20
_AT_ONCE = select.PIPE_BUF
"""Bytes that a pipe or a terminal with room takes without making anybody wait."""
_PROGRESS_S = 0.5
_SUFFIXES = {"stdout": "out", "stderr": "err"}
_COLOURS = (36, 33, 35, 32, 34, 31)


class OutputSink(Protocol):
    def write(self, rank: int, stream: str, data: bytes) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """Whole lines, each after its rank: `[1] loss 0.3`.

    A line that is redrawn (`\\r`, as progress bars do) is shown twice a second at most, in its latest state.
    Where nobody reads what is shown (a pager, Ctrl-S), it is kept: whoever writes goes on, and calls `pump()` now and then.
    """

    def __init__(self) -> None:
        self._streams: dict[str, BinaryIO] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._coloured = {name: _takes_colour(stream) for name, stream in self._streams.items()}
        self._begun: dict[tuple[int, str], bytes] = {}
        self._redrawn_at: dict[tuple[int, str], float] = {}
        self._unwritten = {name: bytearray() for name in self._streams}

    @property
    def waiting(self) -> list[int]:
        """Descriptors for which `pump()` has something once they have room."""
        return [self._streams[name].fileno() for name, data in self._unwritten.items() if data]

    @property
    def full(self) -> bool:
        """More is kept than there should be."""
        return sum(map(len, self._unwritten.values())) > _MOST_UNWRITTEN

    def write(self, rank: int, stream: str, data: bytes) -> None:
        *lines, rest = (self._begun.pop((rank, stream), b"") + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
            rest = b""
        elif b"\r" in rest:
            rest = self._redraw(rank, stream, rest, lines)
        if rest:
            self._begun[rank, stream] = rest
        self._print(rank, stream, lines)

    def close(self) -> None:
        for rank, stream in list(self._begun):
            self._print(rank, stream, [self._begun.pop((rank, stream))])

    def _redraw(self, rank: int, stream: str, rest: bytes, lines: list[bytes]) -> bytes:
        """Keep only the latest state of a redrawn line, and show the one before it if it is time to."""
        complete, _, latest = rest.rpartition(b"\r")
        now = time.monotonic()
        if _visible(complete) and now - self._redrawn_at.get((rank, stream), 0.0) >= _PROGRESS_S:
            self._redrawn_at[rank, stream] = now
            lines.append(complete)
        return latest

    def _print(self, rank: int, stream: str, lines: list[bytes]) -> None:
        if not lines:
            return
        prefix = self._prefix(rank, stream)
        self._unwritten[stream] += b"".join(prefix + _visible(line) + b"\n" for line in lines)
        self.pump()

    def pump(self) -> None:
        """Write what there is room for."""
        for name, data in self._unwritten.items():
            try:
                _write_some(self._streams[name], data)
            except BrokenPipeError:
                data.clear()
                _discard(self._streams[name])
                raise

    def _prefix(self, rank: int, stream: str) -> bytes:
        if self._coloured[stream]:
            return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[{rank}]\x1b[0m ".encode()
        return f"[{rank}] ".encode()


class Files:
    """`rank.0.out` and `rank.0.err` for every rank, byte for byte."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self.paths = {
            (rank, stream): directory / f"rank.{rank}.{suffix}"
            for rank in range(ranks)
            for stream, suffix in _SUFFIXES.items()
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in self.paths.values():
                path.write_bytes(b"")
        except OSError as error:
            raise LaunchError(
                f"the ranks' output cannot be written to {directory}: {error.strerror}. Give another folder: --output-dir"
            ) from None

    def write(self, rank: int, stream: str, data: bytes) -> None:
        # Opened for each chunk: thousands of ranks would exceed the limit on open files.
        with self.paths[rank, stream].open("ab") as file:
            file.write(data)

    def close(self) -> None:
        """Nothing is held open."""


def _visible(line: bytes) -> bytes:
    """What a terminal would show of a line that was redrawn."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _write_some(stream: BinaryIO, left: bytearray) -> None:
    """Past the stream's buffer, where it has one, without waiting; what was written is removed from `left`."""
    raw = getattr(stream, "raw", stream)
    while left and has_room(stream):
        stream.flush()
        written = raw.write(left[:_AT_ONCE])
        if written is None:  # it does not block, and has less room than that
            return
        del left[:written]


def has_room(stream: IO[Any], within_s: float = 0.0) -> bool:
    """Whether writing a little does not make this process wait; also where it fails."""
    try:
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        return bool(poll.poll(within_s * 1000))
    except (OSError, ValueError, TypeError):  # no file: a test's, or a notebook's
        return True


def _takes_colour(stream: BinaryIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _discard(stream: BinaryIO) -> None:
    """Let what is still in the stream's buffer go nowhere instead of failing once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
