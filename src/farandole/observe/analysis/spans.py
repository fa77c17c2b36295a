"""Spans, and arithmetic on stretches of time. All times are seconds since the timeline began."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

__all__ = ["NOTHING", "Span", "Stretches", "length", "overlap", "spread_out", "union"]

Stretches = Sequence[tuple[float, float]]
"""In order, none touching another."""

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}


class Span(NamedTuple):
    """Something that a rank did."""

    track: str
    name: str
    start_s: float
    end_s: float
    args: Mapping[str, Any] = NOTHING

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def union(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time in which any was under way."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        elif end > start:
            found.append((start, end))
    return found


def length(stretches: Stretches) -> float:
    return sum(end - start for start, end in stretches)


def overlap(stretches: Stretches, start: float, end: float) -> float:
    """How much of them lies between two moments."""
    found = 0.0
    at = max(bisect_right(stretches, (start, float("inf"))) - 1, 0)
    while at < len(stretches) and stretches[at][0] < end:
        found += max(min(stretches[at][1], end) - max(stretches[at][0], start), 0.0)
        at += 1
    return found


def spread_out(items: Sequence[T], most: int) -> list[T]:
    """All, or `most` of them at equal distances, the first and the last included."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(at * step)] for at in range(most)]
