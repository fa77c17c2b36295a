"""One rank's part of a timeline: a file that is a whole JSON array after every write.

    [                            opening
    {header},                    who recorded, from when
    {event},                     body: grows at its end
    {event},      (spaces)
    {note}                       closing, always CLOSING_BYTES long: what is missing from this part, and
    ]                            whether the rank ended properly

An append is one write of new events and closing over the old closing. Because the closing never grows, it
can be rewritten in place when the disk is full, and the file stays valid.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farandole.observe.chrome import arguments, metadata, quoted

__all__ = ["CALENDAR", "CLOSING_BYTES", "HEADER", "NOTE", "ClockOffset", "PartFile", "part_path", "parts_folder"]

HEADER = "farandole_part"
NOTE = "farandole_part_note"
CLOSING_BYTES = 4096
_LONGEST_TEXT = 200  # characters of a name or reason in the note: escaped, at most six bytes each


CALENDAR = "the calendar"
"""A clock that hosts are said to share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset:
    """What to add to `time.monotonic_ns()` to get the time that all ranks share."""

    offset_ns: int = 0
    residual_ns: int | None = 0
    """By how much that may be wrong at most; None where nobody knows."""
    how: str = "one machine"
    """How it was found."""

    def as_header(self) -> dict[str, object]:
        return {"clock_offset_ns": self.offset_ns, "clock_residual_ns": self.residual_ns, "clock": self.how}


def parts_folder(path: Path) -> Path:
    return path.with_name(path.name + ".parts")


def part_path(path: Path, rank: int) -> Path:
    return parts_folder(path) / f"rank.{rank:05d}.json"


class PartFile:
    """The growing array of one rank. Not thread-safe: the writer thread owns it."""

    def __init__(self, path: Path, *, pid: int, header: Mapping[str, object], lines: list[str]) -> None:
        self.path = path
        self.body_bytes = 0
        self._pid = pid
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            self.append("[\n" + ",\n".join([metadata(HEADER, pid, header), *lines]), {"closed": False})
        except OSError:
            self.close()
            raise

    def append(self, events: str, note: Mapping[str, object]) -> None:
        """Add events (each beginning with a comma) and say `note` at the end."""
        body = events.encode("ascii")
        self._write(body + self._closing(note))
        self.body_bytes += len(body)

    def seal(self, note: Mapping[str, object]) -> None:
        """Make the array whole again after a failed append: nothing of that append remains."""
        self._write(self._closing(note))
        os.ftruncate(self._fd, self.body_bytes + CLOSING_BYTES)

    def close(self) -> None:
        """Close the file; on network file systems this, too, can report a full disk."""
        fd, self._fd = self._fd, -1  # the number may soon mean another file
        os.close(fd)

    def _write(self, data: bytes) -> None:
        at = self.body_bytes
        left = memoryview(data)
        while left:
            written = os.pwrite(self._fd, left, at)
            at, left = at + written, left[written:]

    def _closing(self, note: Mapping[str, object]) -> bytes:
        """Spaces come first, so that a write cut short by a kill runs into them and not into the note."""
        text = metadata(NOTE, self._pid, _fitting(note))
        return f",{'':{CLOSING_BYTES - len(text) - 4}}\n{text}\n]".encode("ascii")


def _fitting(note: Mapping[str, object]) -> dict[str, object]:
    """The note with as many of the most dropped names as there is room for; the rest is summed up."""
    fitted = {key: value[:_LONGEST_TEXT] if isinstance(value, str) else value for key, value in note.items()}
    dropped = fitted.pop("dropped_by_name", None)
    if isinstance(dropped, Mapping):
        room = CLOSING_BYTES - len(arguments(fitted)) - 256
        fitted["dropped_by_name"] = _most_dropped(dropped, room)
    return fitted


def _most_dropped(dropped: Mapping[str, int], room: int) -> Counter[str]:
    kept: Counter[str] = Counter()
    for name, count in sorted(dropped.items(), key=lambda item: -item[1]):
        short = name[:_LONGEST_TEXT]
        room -= len(quoted(short)) + len(str(count)) + 2
        kept[short if room > 0 else "(other names)"] += count
    return kept
