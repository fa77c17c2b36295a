"""Many small cells in little text: one path a colour, one stroke a run of equal neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from farandole.report.markup import Markup, join, tag

__all__ = ["binned", "cells", "levels_of", "shares"]

Cell = str | None
"""The class of its colour; None is left empty."""
NO_WORDS: Mapping[str, str] = {}


def cells(
    rows: Sequence[Sequence[Cell]], *, x: float, y: float, width: float, height: float, words: Mapping[str, str] = NO_WORDS
) -> Markup:
    """Rows of cells in a rectangle of `width` x (`height` a row); `words` by class, for who points at one."""
    runs: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        for start, length, kind in _runs(row):
            runs.setdefault(kind, []).append(f"M{start} {number}h{length}")
    columns = max((len(row) for row in rows), default=1)
    place = f"translate({x:g} {y + height / 2:g}) scale({width / columns:.5g} {height:.5g})"
    paths = [
        tag("path", tag("title", words[kind]) if kind in words else None, d="".join(found), class_=f"cell {kind}")
        for kind, found in runs.items()
    ]
    return tag("g", join(paths), transform=place)


def _runs(row: Iterable[Cell]) -> Iterable[tuple[int, int, str]]:
    start = 0
    for kind, same in groupby(row):
        length = sum(1 for _ in same)
        if kind is not None:
            yield start, length, kind
        start += length


def binned(values: Sequence[float | None], bins: int) -> list[float | None]:
    """The means of neighbours, so that at most `bins` are left; what is not known does not count."""
    each = -(-len(values) // bins) if values else 1
    found: list[float | None] = []
    for start in range(0, len(values), each):
        known = [value for value in values[start : start + each] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found


def levels_of(rows: Sequence[Sequence[float | None]], *, low: float, high: float, count: int) -> list[list[Cell]]:
    """Values as the classes h0, h1, ... of a colour scale; what lies beyond its ends has their colour."""
    step = (high - low) / count or 1.0

    def level(value: float | None) -> Cell:
        return None if value is None else f"h{min(count - 1, max(0, int((value - low) / step)))}"

    return [[level(value) for value in row] for row in rows]


def shares(spans: Iterable[tuple[float, float, str]], *, end_s: float, bins: int) -> Sequence[Mapping[str, float]]:
    """Of each of `bins` equal stretches from 0 to `end_s`, the share that spans of each kind fill."""
    found: list[dict[str, float]] = [{} for _ in range(bins)]
    scale = bins / end_s
    for start_s, stop_s, kind in spans:
        low, high = max(0.0, start_s * scale), min(float(bins), stop_s * scale)
        for at in range(int(low), min(bins, int(high) + 1)):
            filled = min(high, at + 1) - max(low, at)
            if filled > 0:
                found[at][kind] = min(1.0, found[at].get(kind, 0.0) + filled)
    return found
