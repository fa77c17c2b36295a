"""A merged timeline, read: spans by rank, power by node, and what merging has summed up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.observe.analysis.spans import NOTHING, Span

__all__ = ["CONDENSED", "MERGED", "RankSpans", "MergedTrace", "read"]

MERGED = "farandole_timeline"
CONDENSED = "farandole_condensed"
_CHUNK_BYTES = 1 << 20
_NO_EVENT = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(slots=True)
class RankSpans:
    """What one rank did."""

    name: str = ""
    spans: list[Span] = field(default_factory=list)
    condensed: dict[str, Any] = field(default_factory=dict)
    """What merging left out, summed up."""
    tracks: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class MergedTrace:
    ranks: dict[int, RankSpans] = field(default_factory=dict)
    opening: dict[str, Any] = field(default_factory=dict)
    gaps: dict[str, Any] = field(default_factory=dict)
    power: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By node: how it is known, and points (seconds, watts by part)."""

    def rank(self, pid: int) -> RankSpans:
        found = self.ranks.get(pid)
        if found is None:
            found = self.ranks[pid] = RankSpans()
        return found


def read(path: Path) -> MergedTrace:
    trace = MergedTrace()
    for number, lines in _chunks(path):
        try:
            # All at once is three times as fast as one by one.
            for event in json.loads(f"[{''.join(lines).rstrip().rstrip(',')}]"):
                _take(trace, event)
        except _NO_EVENT:
            raise _wrong(path, number, lines) from None
    if not trace.opening:
        raise DataError(f"{path} is no timeline that farandole has merged. Record one with: farandole launch --timeline FILE")
    return trace


def _wrong(path: Path, number: int, lines: Sequence[str]) -> DataError:
    """Which line it is."""
    for at, line in enumerate(lines):
        try:
            _take(MergedTrace(), json.loads(line.strip().rstrip(",")))
        except _NO_EVENT:
            number, lines = number + at, [line]
            break
    return DataError(
        f"timeline {path}, line {number}: {lines[0].strip()[:60]!r} is no event of a merged timeline. Only a file that farandole has "
        "merged is read: farandole timeline merge FILE"
    )


def _take(trace: MergedTrace, event: dict[str, Any]) -> None:
    phase = event.get("ph")
    if phase == "X":
        rank = trace.rank(event["pid"])
        start_s = event["ts"] * 1e-6
        rank.spans.append(
            Span(
                rank.tracks.get(event["tid"], ""), event["name"], start_s, start_s + event["dur"] * 1e-6,
                event.get("args", NOTHING),
            )
        )  # fmt: skip
    elif phase == "M":
        _metadata(trace, event)
    elif phase == "C":
        _power_point(trace, event)
    elif phase == "i" and event["name"] == "POWER":
        trace.power.setdefault(event["args"]["node"], {"points": []}).update(event["args"])


def _chunks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines with one event each, as merging writes them, a few thousand at a time, and the number of the first."""
    opened = gzip.open if path.suffix == ".gz" else open
    number = 1
    try:
        with opened(path, "rt", encoding="ascii") as file:
            while lines := file.readlines(_CHUNK_BYTES):
                first = 1 if number == 1 and lines[0] == "[\n" else 0
                last = -1 if lines[-1].strip() == "]" else len(lines)
                if lines[first:last]:
                    yield number + first, lines[first:last]
                number += len(lines)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"timeline {path}: cannot be read ({error})") from error


def _metadata(trace: MergedTrace, event: dict[str, Any]) -> None:
    name, args, pid = event["name"], event.get("args", {}), event.get("pid", 0)
    if name == MERGED:
        trace.opening = args
    elif name == f"{MERGED}_gaps":
        trace.gaps = args
    elif name == CONDENSED:
        trace.rank(pid).condensed = args
    elif name == "thread_name":
        trace.rank(pid).tracks[event["tid"]] = args["name"]
    elif name == "process_name":
        trace.rank(pid).name = args["name"]


def _power_point(trace: MergedTrace, event: dict[str, Any]) -> None:
    words = event["name"].split(" ")
    if words[0] == "power":
        node = trace.power.setdefault(words[-1], {"points": []})
        node["points"].append((event["ts"] * 1e-6, event["args"]))
