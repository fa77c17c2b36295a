"""A merged timeline, read: spans by rank, power by node, and what merging has summed up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.observe.analysis.spans import NOTHING, Span

__all__ = ["CONDENSED", "MERGED", "RankSpans", "Trace", "read"]

MERGED = "farandole_timeline"
CONDENSED = "farandole_condensed"


@dataclass(slots=True)
class RankSpans:
    """What one rank did."""

    name: str = ""
    spans: list[Span] = field(default_factory=list)
    condensed: dict[str, Any] = field(default_factory=dict)
    """What merging left out, summed up."""
    tracks: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    ranks: dict[int, RankSpans] = field(default_factory=dict)
    opening: dict[str, Any] = field(default_factory=dict)
    gaps: dict[str, Any] = field(default_factory=dict)
    power: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By node: how it is known, and points (seconds, watts by part)."""

    def rank(self, pid: int) -> RankSpans:
        return self.ranks.setdefault(pid, RankSpans())


def read(path: Path) -> Trace:
    trace = Trace()
    for number, text in _lines(path):
        try:
            _take(trace, json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(
                f"timeline {path}, line {number}: {text[:60]!r} is no event of a merged timeline. Only a file that farandole has "
                "merged is read: farandole timeline merge FILE"
            ) from None
    if not trace.opening:
        raise DataError(f"{path} is no timeline that farandole has merged. Record one with: farandole launch --timeline FILE")
    return trace


def _take(trace: Trace, event: dict[str, Any]) -> None:
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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """One event a line, as merging writes them."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                text = line.strip().rstrip(",")
                if text not in ("[", "]", ""):
                    yield number, text
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"timeline {path}: cannot be read ({error})") from error


def _metadata(trace: Trace, event: dict[str, Any]) -> None:
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


def _power_point(trace: Trace, event: dict[str, Any]) -> None:
    words = event["name"].split(" ")
    if words[0] == "power":
        node = trace.power.setdefault(words[-1], {"points": []})
        node["points"].append((event["ts"] * 1e-6, event["args"]))
