"""Meters that are files: each is opened once and read from its beginning every time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from farandole.observe.power.meters import Clocks, Meter, Reading

__all__ = ["FileSensor", "ValueFile", "number", "read_number", "read_text"]

_LONGEST_VALUE = 256


class ValueFile:
    """A small file of /sys or /proc that is kept open; OSError where it cannot be opened."""

    def __init__(self, path: Path, *, most_bytes: int = _LONGEST_VALUE) -> None:
        self._most_bytes = most_bytes
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        return os.pread(self._fd, self._most_bytes, 0).decode("ascii", "replace")

    def close(self) -> None:
        os.close(self._fd)


class FileSensor:
    """Meters with a file each. `parse` gives the raw count and, where the file tells, its time on the calendar."""

    def __init__(
        self,
        name: str,
        files: Sequence[tuple[Meter, Path]],
        parse: Callable[[str], tuple[int, int | None]] | None = None,
    ) -> None:
        self.name = name
        self.meters = [meter for meter, _ in files]
        self._parse = parse or number
        self._files: list[ValueFile] = []
        try:
            for _, path in files:
                self._files.append(ValueFile(path))
        except OSError:
            self.close()
            raise

    def read(self, clock: Clocks) -> list[Reading]:
        return [self._read(file, clock) for file in self._files]

    def close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _read(self, file: ValueFile, clock: Clocks) -> Reading:
        monotonic_ns, realtime_ns = clock.monotonic_ns(), clock.realtime_ns()
        try:
            raw, shown_ns = self._parse(file.read())
        except OSError as error:
            return Reading(monotonic_ns, realtime_ns, None, error.strerror or str(error))
        except ValueError:
            return Reading(monotonic_ns, realtime_ns, None, "not a number")
        if shown_ns is None:
            return Reading(monotonic_ns, realtime_ns, raw)
        return Reading(monotonic_ns - (realtime_ns - shown_ns), shown_ns, raw)


def number(text: str) -> tuple[int, None]:
    """The parser of files that hold one count; ValueError where it is none."""
    raw = int(text)
    if raw < 0:
        raise ValueError(text)
    return raw, None


def read_text(path: Path) -> str | None:
    """A file that describes a meter; None where it is missing or locked."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.isdecimal() else None
