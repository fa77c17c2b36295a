"""When a difference of two configurations may be told: it is more than runs differ by themselves, and what was changed can be its cause.

    same          less than a few runs could tell
    lost          what one side's runs took lies within what the other's did
    unexplained   the setting that differs can change some phases only, and others account for more than a third of it
    told          none of these
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farandole.report.groups import Point

__all__ = ["SAME", "Change", "changes_of", "difference", "explained", "overlap", "phases_changed_by"]

SAME = 0.03
"""A smaller change of a time is none that a few runs could tell."""
_MOST_UNEXPLAINED = 1 / 3
_CHANGED_BY = {"loader": ("load", "preprocess", "broadcast")}
"""Settings that leave some phases as they are, and the others. A broadcast waits for whoever loads longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Of a phase."""

    phase: str
    before_s: float
    after_s: float

    @property
    def more_s(self) -> float:
        return self.after_s - self.before_s


def changes_of(before: Point, after: Point, phases: Iterable[str]) -> list[Change]:
    """The largest first, of phases that both know."""
    found = [
        Change(phase=name, before_s=first, after_s=second)
        for name in phases
        if (first := before.median(f"{name}_s")) is not None and (second := after.median(f"{name}_s")) is not None
    ]
    return sorted(found, key=lambda change: -abs(change.more_s))


def difference(before: Point, after: Point, figure: str, settings: Sequence[str]) -> str:
    """Of a figure that both know, more than 0 before; `settings` are the names of those that differ."""
    first, second = before.median(figure) or 0.0, after.median(figure) or 0.0
    if abs(second - first) < SAME * first:
        return "same"
    if len(before.values(figure)) + len(after.values(figure)) > 2 and overlap(_reach(before, figure), _reach(after, figure)):
        return "lost"
    return "unexplained" if figure == "total_s" and abs(1 - explained(before, after, settings)) > _MOST_UNEXPLAINED else "told"


def phases_changed_by(settings: Sequence[str]) -> tuple[str, ...]:
    """Empty where they may change any."""
    if not settings or any(name not in _CHANGED_BY for name in settings):
        return ()
    return tuple(dict.fromkeys(phase for name in settings for phase in _CHANGED_BY[name]))


def overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _reach(point: Point, figure: str) -> tuple[float, float]:
    """Of its runs; a single one may lie within what the other side's took."""
    values = point.values(figure)
    return min(values), max(values)


def explained(before: Point, after: Point, settings: Sequence[str]) -> float:
    """The share of a total's change that is of phases which could change; 1 where nothing is known of these."""
    changes = changes_of(before, after, phases_changed_by(settings))
    total_s = (after.median("total_s") or 0.0) - (before.median("total_s") or 0.0)
    return sum(change.more_s for change in changes) / total_s if changes and total_s else 1.0
