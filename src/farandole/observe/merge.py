"""All ranks' parts into the one file that Chrome and Perfetto open.

    python -m farandole.observe.merge trace.json     # after a crash that nobody was left to tidy up

Merging goes in four phases: read the parts' headers and find the common origin of time; copy the events part
by part, shifted to that origin; say at the end what is missing; put the file in place and the parts away.
Parts of killed ranks may be torn at their end: every whole event is kept. Memory stays at a few megabytes.
"""

import contextlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from farandole.errors import FarandoleError
from farandole.observe.chrome import arguments, metadata, quoted
from farandole.observe.part import HEADER, NOTE, parts_folder

__all__ = ["discard_parts", "merge_parts"]

_CHUNK_BYTES = 1 << 18
_EVENT = b'{"ts":'
_HEADER_LINE = f'{{"name":"{HEADER}",'.encode()
_NOTE_LINE = f'{{"name":"{NOTE}",'.encode()
_MERGED = "farandole_timeline"


@dataclass(kw_only=True, slots=True)
class _Part:
    """A part whose header is whole."""

    path: Path
    rank: int
    size: int
    start_ns: int  # on the clock common to all ranks
    start_epoch_us: int


@dataclass(kw_only=True, slots=True)
class _Gaps:
    """What is missing from a merged timeline."""

    missing_ranks: list[int] = field(default_factory=list)
    ignored_parts: dict[str, str] = field(default_factory=dict)
    unfinished_ranks: list[int] = field(default_factory=list)
    cut_bytes_by_rank: Counter[int] = field(default_factory=Counter)
    dropped_by_rank: dict[int, dict[str, Any]] = field(default_factory=dict)


def merge_parts(path: Path) -> Path | None:
    """Make `path` of its parts and remove them; None where there are none. One process calls it, after the last stop.

    Safe to repeat: the parts go only when the merged file is in place.
    """
    path = Path(path).absolute()
    folder = parts_folder(path)
    found = sorted(folder.glob("rank.*.json"))
    if not found:
        return None
    unfinished = folder / f"merged.{os.getpid()}.tmp"
    try:
        with unfinished.open("wb", buffering=_CHUNK_BYTES) as out:
            _merge_into(out, found)
        unfinished.replace(path)
    except OSError as error:
        if not folder.exists():  # another process merged them meanwhile
            return None
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise FarandoleError(
            f"timeline {path}: merging {len(found)} parts failed ({error.strerror or error}). They are kept in {folder}; "
            f"each opens by itself. To try again: python -m farandole.observe.merge {path}"
        ) from error
    discard_parts(path)
    return path


def discard_parts(path: Path) -> None:
    """Remove the parts of `path`, such as a crashed run left them; before ranks start to record anew."""
    folder = parts_folder(Path(path).absolute())
    retired = folder.with_suffix(".merged")
    shutil.rmtree(retired, ignore_errors=True)
    # Renamed first: were removal interrupted half-way, a later merge would take the rest for the whole.
    with contextlib.suppress(FileNotFoundError):
        folder.rename(retired)
    shutil.rmtree(retired, ignore_errors=True)


def _merge_into(out: BinaryIO, found: list[Path]) -> None:
    gaps = _Gaps()
    parts = _of_one_run(_readable(found, gaps), gaps)
    first = min(parts, key=lambda part: part.start_ns, default=None)
    size = first.size if first else 0
    present = {part.rank for part in parts}
    gaps.missing_ranks = [rank for rank in range(size) if rank not in present]
    opening = {
        "start_time_since_epoch_in_micros": first.start_epoch_us if first else None,
        "size": size,
        "ranks": sorted(present),
    }
    out.write(f"[\n{metadata(_MERGED, 0, opening)}".encode("ascii"))
    for part in parts:
        _copy(part, out, part.start_ns - first.start_ns if first else 0, gaps)
    out.write(f",\n{metadata(_MERGED + '_gaps', 0, _told(gaps))}\n]\n".encode("ascii"))


def _readable(found: list[Path], gaps: _Gaps) -> list[_Part]:
    parts = []
    for path in found:
        part = _read_header(path)
        if part is not None:
            parts.append(part)
        else:
            gaps.ignored_parts[path.name] = f"no readable header in {path.stat().st_size} bytes"
    return parts


def _of_one_run(parts: list[_Part], gaps: _Gaps) -> list[_Part]:
    """Without what an earlier run on another number of ranks left behind."""
    size = max(parts, key=lambda part: part.start_epoch_us).size if parts else 0
    for part in parts:
        if part.size != size:
            gaps.ignored_parts[part.path.name] = f"from another run, on {part.size} ranks and not {size}"
    return [part for part in parts if part.size == size]


def _read_header(path: Path) -> _Part | None:
    with path.open("rb") as file:
        opening = file.read(_CHUNK_BYTES).split(b"\n", 2)
    try:
        told = json.loads(opening[1].rstrip().removesuffix(b","))["args"]
        return _Part(
            path=path,
            rank=told["rank"],
            size=told["size"],
            start_ns=told["start_monotonic_ns"] + told["clock_offset_ns"],
            start_epoch_us=told["start_time_since_epoch_in_micros"],
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _copy(part: _Part, out: BinaryIO, shift_ns: int, gaps: _Gaps) -> None:
    note: dict[str, Any] = {"closed": False}
    with part.path.open("rb") as file:
        for lines in _chunks(file):
            whole, cut_bytes = _whole(lines)
            if cut_bytes:
                gaps.cut_bytes_by_rank[part.rank] += cut_bytes
            for line in whole:
                if line.startswith(_NOTE_LINE):
                    note = json.loads(line)["args"]
                elif not line.startswith(_HEADER_LINE):
                    out.write(_shifted(line, shift_ns))
    if not note["closed"]:
        gaps.unfinished_ranks.append(part.rank)
    if note.get("dropped"):
        gaps.dropped_by_rank[part.rank] = {key: value for key, value in note.items() if key != "closed"}
        out.write(_cut_mark(part.rank, note, shift_ns))


def _chunks(file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that hold something, a few thousand at a time."""
    while lines := file.readlines(_CHUNK_BYTES):
        bare = (line.rstrip().removesuffix(b",") for line in lines)
        yield [line for line in bare if line not in (b"", b"[", b"]")]


def _whole(lines: list[bytes]) -> tuple[list[bytes], int]:
    """The lines that are JSON objects, and how many bytes are not. All at once is 3 times as fast as one by one."""
    if _are_objects(b",".join(lines), len(lines)):
        return lines, 0
    # A host that lost power may leave zeros where the file was still being written.
    bare = [line.rstrip(b" \0").removesuffix(b",") for line in lines]
    whole = [line for line in bare if _are_objects(line, 1)]
    return whole, sum(map(len, bare)) - sum(map(len, whole))


def _are_objects(text: bytes, count: int) -> bool:
    try:
        values = json.loads(b"[" + text + b"]")
    except ValueError:
        return False
    return len(values) == count and all(type(value) is dict and "ph" in value for value in values)


def _shifted(line: bytes, shift_ns: int) -> bytes:
    """The line as the next element of the array, `shift_ns` later; times have three decimals: whole nanoseconds."""
    if not shift_ns or not line.startswith(_EVENT):
        return b",\n" + line
    dot = line.index(b".")
    at_ns = int(line[len(_EVENT) : dot]) * 1000 + int(line[dot + 1 : dot + 4]) + shift_ns
    return b",\n%b%d.%03d%b" % (_EVENT, at_ns // 1000, at_ns % 1000, line[dot + 4 :])


def _cut_mark(rank: int, note: dict[str, Any], shift_ns: int) -> bytes:
    """An event one sees where recording had to be cut, on a track of its own."""
    at_us = (note["dropped_since_ns"] + shift_ns) / 1000
    name = f"TIMELINE CUT: {note['dropped_because']}"
    track = metadata("thread_name", rank, {"name": "timeline"})
    mark = f'{{"ts":{at_us:.3f},"ph":"i","s":"p","pid":{rank},"tid":0,"name":{quoted(name)},"args":{arguments(note)}}}'
    return f",\n{track},\n{mark}".encode("ascii")


def _told(gaps: _Gaps) -> dict[str, object]:
    return {
        "missing_ranks": gaps.missing_ranks,
        "unfinished_ranks": gaps.unfinished_ranks,
        "cut_bytes_by_rank": gaps.cut_bytes_by_rank,
        "dropped_by_rank": gaps.dropped_by_rank,
        "ignored_parts": gaps.ignored_parts,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(merge_parts(Path(name)) or f"{name} has no parts")
