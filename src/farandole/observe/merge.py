"""All ranks' parts into the one file that Chrome and Perfetto open.

    python -m farandole.observe.merge trace.json     # after a crash that nobody was left to tidy up

Merging goes in four phases: read the parts' headers and find the common origin of time; copy the events part
by part, shifted to that origin; say at the end what is missing; put the file in place and the parts away.
Parts of killed ranks may be torn at their end: every whole event is kept. Memory stays at a few megabytes.
Parts that are too large together for one file that opens are condensed on the way (condense.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from farandole.errors import FarandoleError
from farandole.observe.chrome import arguments, metadata, quoted
from farandole.observe.part import CALENDAR, CLOSING_BYTES, HEADER, NOTE, parts_folder

if TYPE_CHECKING:
    from farandole.observe.condense import Condensing

__all__ = ["LIMIT_BYTES", "discard_parts", "merge_parts"]

LIMIT_BYTES = 48_000_000
"""What viewers open without trouble, at any number of ranks."""

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
    host: str
    start_ns: int  # on the clock common to all ranks
    start_monotonic_ns: int  # on its host's own
    start_epoch_us: int
    clock: str
    residual_ns: int | None
    drift: float = 0.0
    """Nanoseconds by which this rank's clock falls behind in one of its own."""
    drift_known: bool = False


@dataclass(kw_only=True, slots=True)
class _Gaps:
    """What is missing from a merged timeline."""

    missing_ranks: list[int] = field(default_factory=list)
    ignored_parts: dict[str, str] = field(default_factory=dict)
    unfinished_ranks: list[int] = field(default_factory=list)
    cut_bytes_by_rank: Counter[int] = field(default_factory=Counter)
    dropped_by_rank: dict[int, dict[str, Any]] = field(default_factory=dict)
    condensed: dict[str, object] | None = None


def merge_parts(path: Path, limit_bytes: int = LIMIT_BYTES, *, keep_parts: bool = False) -> Path | None:
    """Make `path` of its parts and remove them; None where there are none. One process calls it, after the last stop.

    Safe to repeat: the parts go only when the merged file is in place. It has `limit_bytes` at most, about.
    `keep_parts` is for parts that other ranks may still write.
    """
    path = Path(path).absolute()
    folder = parts_folder(path)
    found = sorted(folder.glob("rank.*.json"))
    if not found:
        return None
    unfinished = folder / f"merged.{os.getpid()}.tmp"
    try:
        with unfinished.open("wb", buffering=_CHUNK_BYTES) as out:
            _merge_into(out, found, limit_bytes)
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
    if not keep_parts:
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


def _merge_into(out: BinaryIO, found: list[Path], limit_bytes: int) -> None:
    gaps = _Gaps()
    parts = _of_one_run(_readable(found, gaps), gaps)
    first = min(parts, key=lambda part: part.start_ns, default=None)
    size = first.size if first else 0
    present = {part.rank for part in parts}
    gaps.missing_ranks = [rank for rank in range(size) if rank not in present]
    opening = {
        "start_time_since_epoch_in_micros": first.start_epoch_us if first else None,
        "start_monotonic_ns": first.start_monotonic_ns if first else None,
        "size": size,
        "ranks": sorted(present),
        **_clocks(parts),
    }
    out.write(f"[\n{metadata(_MERGED, 0, opening)}".encode("ascii"))
    origin_ns = first.start_ns if first else 0
    plan = _condensing(parts, origin_ns, limit_bytes)
    for part in parts:
        _copy(part, out, part.start_ns - origin_ns, gaps, plan)
    gaps.condensed = plan.told(limit_bytes) if plan else None
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
        file.seek(max(path.stat().st_size - CLOSING_BYTES, 0))
        closing = file.read(CLOSING_BYTES)
    try:
        told = json.loads(opening[1].rstrip().removesuffix(b","))["args"]
        part = _Part(
            path=path,
            rank=told["rank"],
            size=told["size"],
            host=told["host"],
            start_ns=told["start_monotonic_ns"] + told["clock_offset_ns"],
            start_monotonic_ns=told["start_monotonic_ns"],
            start_epoch_us=told["start_time_since_epoch_in_micros"],
            clock=told["clock"],
            residual_ns=told["clock_residual_ns"],
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    _note_drift(part, told, closing)
    return part


def _note_drift(part: _Part, told: dict[str, Any], closing: bytes) -> None:
    """Where clocks were compared at the end as well: how much they have come apart, which is taken for even."""
    for line in closing.splitlines():
        if line.startswith(_NOTE_LINE):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                at_ns, offset_ns, residual_ns = json.loads(line)["args"]["last_clock"]
                part.drift = (offset_ns - told["clock_offset_ns"]) / max(at_ns - told["start_monotonic_ns"], 1)
                part.residual_ns = max(part.residual_ns or 0, residual_ns)
                part.drift_known = True


def _clocks(parts: list[_Part]) -> dict[str, object]:
    """By how much clocks may be apart, and how that is known."""
    hosts = {part.host for part in parts}
    residuals = [part.residual_ns for part in parts]
    known = [residual for residual in residuals if residual is not None]
    how = next((part.clock for part in parts if known and part.residual_ns == max(known)), "")
    if any(part.drift_known for part in parts):
        how += ", at the begin and at the end"
    if how == CALENDAR and len(hosts) > 1:
        known, how = [], f"{CALENDAR}s of {len(hosts)} hosts: nobody has compared them"
    exact = len(known) == len(residuals)
    return {"clock_residual_us": max(known, default=0) / 1000 if exact and parts else None, "clock": how}


def _condensing(parts: list[_Part], origin_ns: int, limit_bytes: int) -> Condensing | None:
    """How to condense, where the parts do not fit as they are."""
    if sum(part.path.stat().st_size - CLOSING_BYTES for part in parts) <= limit_bytes:
        return None
    from farandole.observe.condense import Condensing, look

    looked = [look(part.path) for part in parts]
    last_ready_s: dict[int, float] = {}
    for part, found in zip(parts, looked):
        for step, ready_ns in found.ready_ns.items():
            at_s = (_common_ns(ready_ns, part.start_ns - origin_ns, part.drift)) * 1e-9
            last_ready_s[step] = max(last_ready_s.get(step, at_s), at_s)
    return Condensing.planned(looked, limit_bytes, last_ready_s)


def _copy(part: _Part, out: BinaryIO, shift_ns: int, gaps: _Gaps, plan: Condensing | None) -> None:
    note: dict[str, Any] = {"closed": False}
    events = _events(part, shift_ns, gaps, note)
    lines: Iterator[bytes] = (line for line, _ in events)
    if plan is not None:
        from farandole.observe.condense import condensed

        lines = condensed(events, part.rank, plan)
    for line in lines:
        out.write(b",\n" + line)
    if not note["closed"]:
        gaps.unfinished_ranks.append(part.rank)
    if note.get("dropped"):
        gaps.dropped_by_rank[part.rank] = {key: value for key, value in note.items() if key.startswith("dropped")}
        out.write(_cut_mark(part.rank, note, shift_ns))


def _events(
    part: _Part, shift_ns: int, gaps: _Gaps, note: dict[str, Any]
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """A part's events on the common clock, as text and as read; what it says of itself goes to `note`."""
    with part.path.open("rb") as file:
        for lines in _chunks(file):
            whole, cut_bytes = _whole(lines)
            if cut_bytes:
                gaps.cut_bytes_by_rank[part.rank] += cut_bytes
            for line, event in whole:
                if line.startswith(_NOTE_LINE):
                    note.update(event["args"])
                elif not line.startswith(_HEADER_LINE):
                    yield _shifted(line, event, shift_ns, part.drift)


def _chunks(file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that hold something, a few thousand at a time."""
    while lines := file.readlines(_CHUNK_BYTES):
        bare = (line.rstrip().removesuffix(b",") for line in lines)
        yield [line for line in bare if line not in (b"", b"[", b"]")]


def _whole(lines: list[bytes]) -> tuple[list[tuple[bytes, dict[str, Any]]], int]:
    """The lines that are JSON objects, and how many bytes are not. All at once is 3 times as fast as one by one."""
    read = _objects(b",".join(lines), len(lines))
    if read is not None:
        return list(zip(lines, read)), 0
    # A host that lost power may leave zeros where the file was still being written.
    bare = [line.rstrip(b" \0").removesuffix(b",") for line in lines]
    whole = [(line, found[0]) for line in bare if (found := _objects(line, 1)) is not None]
    return whole, sum(map(len, bare)) - sum(len(line) for line, _ in whole)


def _objects(text: bytes, count: int) -> list[dict[str, Any]] | None:
    """The events in a text that should hold `count` of them; None where it does not."""
    try:
        values: list[Any] = json.loads(b"[" + text + b"]")
    except ValueError:
        return None
    whole = len(values) == count and all(type(value) is dict and "ph" in value for value in values)
    return values if whole else None


def _common_ns(own_ns: int, shift_ns: int, drift: float) -> int:
    """A part's time on the common clock."""
    return max(own_ns + shift_ns + round(own_ns * drift), 0)


def _shifted(
    line: bytes, event: dict[str, Any], shift_ns: int, drift: float
) -> tuple[bytes, dict[str, Any]]:
    """An event on the common clock; times have three decimals: whole nanoseconds."""
    if not (shift_ns or drift) or not line.startswith(_EVENT):
        return line, event
    dot = line.index(b".")
    own_ns = int(line[len(_EVENT) : dot]) * 1000 + int(line[dot + 1 : dot + 4])
    at_ns = _common_ns(own_ns, shift_ns, drift)
    event["ts"] = at_ns / 1000
    return b"%b%d.%03d%b" % (_EVENT, at_ns // 1000, at_ns % 1000, line[dot + 4 :]), event


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
        "condensed": gaps.condensed,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(merge_parts(Path(name)) or f"{name} has no parts")
