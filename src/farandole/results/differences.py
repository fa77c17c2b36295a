"""Why two cases differ: whether the setting that was changed can be the cause of what changed.

    few           one run on a side: nothing tells how far runs differ by themselves
    none          the interval of the difference has 0 in it
    unexplained   the setting that differs can change some phases only, and others account for more than a third of it
    told          none of these
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farandole.results.cases import Case
from farandole.results.comparing import Pair

__all__ = ["Change", "changes_of", "explained", "kind_of", "phases_changed_by"]

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


def changes_of(before: Case, after: Case, phases: Iterable[str]) -> list[Change]:
    """The largest first, of phases that both know."""
    found = [
        Change(phase=name, before_s=first, after_s=second)
        for name in phases
        if (first := before.median(f"{name}_s")) is not None and (second := after.median(f"{name}_s")) is not None
    ]
    return sorted(found, key=lambda change: -abs(change.more_s))


def kind_of(pair: Pair, measure: str, settings: Sequence[str], among: int = 1) -> str:
    """Of a difference in a measure that both know; `settings` are the names of those that differ."""
    found = pair.difference(measure, among)
    if found is None or not found.known:
        return "few"
    if not found.claimed:
        return "none"
    strange = measure == "total_s" and abs(1 - explained(pair.before, pair.after, settings)) > _MOST_UNEXPLAINED
    return "unexplained" if strange else "told"


def phases_changed_by(settings: Sequence[str]) -> tuple[str, ...]:
    """Empty where they may change any."""
    if not settings or any(name not in _CHANGED_BY for name in settings):
        return ()
    return tuple(dict.fromkeys(phase for name in settings for phase in _CHANGED_BY[name]))


def explained(before: Case, after: Case, settings: Sequence[str]) -> float:
    """The share of a total's change that is of phases which could change; 1 where nothing is known of these."""
    changes = changes_of(before, after, phases_changed_by(settings))
    total_s = (after.median("total_s") or 0.0) - (before.median("total_s") or 0.0)
    return sum(change.more_s for change in changes) / total_s if changes and total_s else 1.0
