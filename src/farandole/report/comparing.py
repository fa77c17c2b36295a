"""Before and after: variants of one experiment side by side, from two studies or from one that varies, say, the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from farandole.errors import SettingsError
from farandole.report.groups import Axis, Point, Series, label_of, series_of
from farandole.report.numbers import plain
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
    label: str = ""
    """Of its series, where both sides have several."""

    @property
    def oversubscribed(self) -> bool:
        return self.before.oversubscribed or self.after.oversubscribed

    def saved(self, figure: str) -> float | None:
        """The share of a figure that is gone; negative where it grew, None where there was none of it."""
        before, after = self.before.median(figure), self.after.median(figure)
        return None if before is None or before <= 0 or after is None else 1 - after / before

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
    """Pairs along the axis, series by series, and the words for both sides."""

    before: str
    after: str
    axis: Axis
    pairs: Sequence[Pair]
    settings: Sequence[str] = ()
    """The names of those in which the sides differ."""
    of_folders: bool = False
    """Whether the words for both sides are names of folders."""

    def where(self, pair: Pair) -> str:
        """On the axis, for sentences."""
        value = plain(pair.value) if isinstance(pair.value, (int, float)) else str(pair.value)
        return f"on {value} rank{'' if value == '1' else 's'}" if self.axis.name == "ranks" else f"with {self.axis.label} {value}"

    @property
    def first_series(self) -> list[Pair]:
        """What lines and a sentence are of."""
        return [pair for pair in self.pairs if pair.label == self.pairs[0].label]


def compare_studies(first: tuple[Study, Sequence[Point]], second: tuple[Study, Sequence[Point]], axis: Axis) -> Comparison:
    """Points are matched by every setting but those that tell the two studies apart."""
    (study, points), (other, other_points) = first, second
    apart = _apart(points, other_points)
    before, after = _by_match(points, apart), _by_match(other_points, apart)
    both = [match for match in before if match in after]
    for one, found in ((study, before), (other, after)):
        _check_one_each(one, [found[match] for match in both], apart)
    series = series_of([before[match][0] for match in both], axis)
    pairs = [
        Pair(value=point.settings[axis.name], before=point, after=after[_match(point, apart)][0], label=one.label)
        for one in series
        for point in one.points
    ]
    labels = [label_of(_alike(found, apart)) for found in (points, other_points)]
    of_folders = "" in labels or labels[0] == labels[1]
    if of_folders:
        labels = [study.name, other.name] if study.name != other.name else [str(study.folder), str(other.folder)]
    return Comparison(before=labels[0], after=labels[1], axis=axis, pairs=pairs, settings=apart, of_folders=of_folders)


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
    return Comparison(before=first.label, after=last.label, axis=axis, pairs=pairs, settings=[name]) if pairs else None


def _time(series: Series) -> float:
    """The mean of its medians, by which variants are ordered."""
    known = [time for point in series.points if (time := point.median("total_s")) is not None]
    return sum(known) / len(known) if known else 0.0


def _apart(points: Sequence[Point], others: Sequence[Point]) -> list[str]:
    names = dict.fromkeys(name for point in (*points, *others) for name in point.settings)

    def values(among: Sequence[Point], name: str) -> set[str]:
        return {repr(point.settings.get(name)) for point in among}

    return [
        name for name in names if name not in _NEVER_MATCHED and not values(points, name) & values(others, name)
    ]  # fmt: skip


def _by_match(points: Sequence[Point], apart: Sequence[str]) -> dict[str, list[Point]]:
    """Those that have finished."""
    found: dict[str, list[Point]] = {}
    for point in points:
        if point.attempts:
            found.setdefault(_match(point, apart), []).append(point)
    return found


def _check_one_each(study: Study, matched: Sequence[Sequence[Point]], apart: Sequence[str]) -> None:
    """Of several that differ in what tells the studies apart, none is the one to compare."""
    for points, name in product(matched, apart):
        values = list(dict.fromkeys(str(point.settings.get(name)) for point in points))
        if len(values) > 1:
            raise SettingsError(
                f"{study.folder} has {name}={', '.join(values)}, and the other folder has none of these: which to compare is not known. "
                f"Make a study of one of them, with --set {name}={values[0]}, and compare that. For a page of all type: farandole report {study.folder}"
            )


def _alike(points: Sequence[Point], names: Sequence[str]) -> dict[str, Any]:
    """Of these settings those that all points have in common."""
    found = {name: [point.settings.get(name) for point in points] for name in names}
    return {name: values[0] for name, values in found.items() if values and all(value == values[0] for value in values)}


def _match(point: Point, apart: Sequence[str]) -> str:
    left_out = {*apart, *_NEVER_MATCHED}
    return repr(sorted((name, repr(value)) for name, value in point.settings.items() if name not in left_out))
