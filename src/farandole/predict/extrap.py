"""A study in the text format of Extra-P, which makes models of its own of it: seconds of the whole and of every part."""

from __future__ import annotations

import re
from collections.abc import Sequence

from farandole.predict.parts import WHOLES, Measured

__all__ = ["as_extrap"]


def as_extrap(found: Sequence[Measured]) -> str:
    """Of series with the same rank counts as the first: the format has one list of points."""
    points = [point.ranks for point in found[0].points]
    alike = [measured for measured in found if [point.ranks for point in measured.points] == points]
    lines = ["# written by farandole predict", "PARAMETER ranks", f"POINTS {' '.join(f'({ranks})' for ranks in points)}", "METRIC seconds"]
    for measured in alike:
        head = f"{_name(measured.series.label) or 'run'}"
        lines += [f"REGION {head}->{measured.whole.removesuffix('_s')}", *(_data(_repeats(measured, place)) for place in range(len(points)))]
        for name in measured.names() if len(measured.names()) > 1 else ():
            lines += [f"REGION {head}->{name}", *(_data([point.parts.get(name, 0.0)]) for point in measured.points)]
    return "\n".join(lines) + "\n"


def _repeats(measured: Measured, place: int) -> list[float]:
    """Of the whole, where it was measured as it is; else its median."""
    point = measured.points[place]
    return point.case.values(measured.whole) if measured.whole in WHOLES and measured.whole != "step_s" else [point.whole_s]


def _data(values: Sequence[float]) -> str:
    return " ".join(["DATA", *(f"{value:.9f}" for value in values)])


def _name(label: str) -> str:
    """Words of one region: `->` parts them."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-")
