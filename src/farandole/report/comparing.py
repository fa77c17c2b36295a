"""Before and after: variants of one experiment side by side, from two studies or from one that varies, say, the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.report.groups import Axis, Point, Series, label_of
from farandole.report.reading import Study

__all__ = ["Comparison", "Pair", "compare_series", "compare_studies"]

_NEVER_MATCHED = frozenset({"seed", "repeat"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The same configuration but for what is compared."""

    value: Any
    """On the axis."""
    before: Point
    after: Point

    def saved(self, figure: str) -> float | None:
        """The share of a figure that is gone; negative where it grew."""
        before, after = self.before.median(figure), self.after.median(figure)
        return None if not before or after is None else 1 - after / before

    def factor(self, figure: str) -> float | None:
        before, after = self.before.median(figure), self.after.median(figure)
        return before / after if before and after else None

    @property
    def energy_caveat(self) -> str:
        """Why joules cannot be compared; empty where both sides are measured, and in the same way."""
        kinds = (self.before.provenances | self.after.provenances) - {"none"}
        if kinds in ({"measured-node"}, {"measured-component"}):
            return ""
        return "modelled" if "modelled" in kinds else "not measured alike"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Pairs along the axis, and the words for both sides."""

    before: str
    after: str
    axis: Axis
    pairs: Sequence[Pair]


def compare_studies(first: tuple[Study, Sequence[Point]], second: tuple[Study, Sequence[Point]], axis: Axis) -> Comparison:
    """Points are matched by every setting but those that tell the two studies apart."""
    (study, points), (other, other_points) = first, second
    apart = _apart(points, other_points)
    matched = {_match(point, apart): point for point in other_points if point.attempts}
    pairs = [
        Pair(value=point.settings.get(axis.name), before=point, after=matched[_match(point, apart)])
        for point in points
        if point.attempts and _match(point, apart) in matched
    ]
    labels = [label_of({name: found[0].settings.get(name) for name in apart}) for found in (points, other_points) if found]
    if len(set(labels)) < 2:
        labels = [study.name, other.name] if study.name != other.name else [str(study.folder), str(other.folder)]
    before, after = labels
    return Comparison(before=before, after=after, axis=axis, pairs=_ordered(pairs, axis))


def compare_series(series: Sequence[Series], axis: Axis, base: Mapping[str, Any]) -> Comparison | None:
    """The variants of one study: the base's against the quickest other; None where one setting alone does not part them."""
    parting = {name for one in series for name in one.settings}
    name = next(iter(parting), "")
    if len(parting) != 1 or any(not isinstance(one.settings[name], str) for one in series) or len(series) < 2:
        return None
    first = next((one for one in series if one.settings[name] == base.get(name)), None) or max(series, key=_time)
    last = min((one for one in series if one is not first), key=_time)
    found = {repr(point.settings[axis.name]): point for point in last.points}
    pairs = [
        Pair(value=point.settings[axis.name], before=point, after=found[repr(point.settings[axis.name])])
        for point in first.points
        if repr(point.settings[axis.name]) in found
    ]
    return Comparison(before=first.label, after=last.label, axis=axis, pairs=_ordered(pairs, axis)) if pairs else None


def _time(series: Series) -> float:
    """The mean of its medians, by which variants are ordered."""
    known = [time for point in series.points if (time := point.median("total_s")) is not None]
    return sum(known) / len(known) if known else 0.0


def _ordered(pairs: Sequence[Pair], axis: Axis) -> list[Pair]:
    return sorted(pairs, key=lambda pair: float(pair.value) if axis.numeric and pair.value is not None else 0.0)


def _apart(points: Sequence[Point], others: Sequence[Point]) -> list[str]:
    names = dict.fromkeys(name for point in (*points, *others) for name in point.settings)

    def values(among: Sequence[Point], name: str) -> set[str]:
        return {repr(point.settings.get(name)) for point in among}

    return [
        name for name in names if name not in _NEVER_MATCHED and not values(points, name) & values(others, name)
    ]  # fmt: skip


def _match(point: Point, apart: Sequence[str]) -> str:
    left_out = {*apart, *_NEVER_MATCHED}
    return repr(sorted((name, repr(value)) for name, value in point.settings.items() if name not in left_out))
