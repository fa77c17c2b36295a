"""Before and after: variants of one experiment side by side, from two studies or from one that varies, say, the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from farandole.errors import SettingsError
from farandole.results.cases import Axis, Case, Series, as_word, label_of, main_time, series_of
from farandole.results.reading import Study
from farandole.results.statistics import Difference, compare

__all__ = ["Comparison", "Pair", "compare_series", "compare_studies"]

_NEVER_MATCHED = frozenset({"seed", "repeat"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The same configuration but for what is compared."""

    value: Any
    """On the axis."""
    before: Case
    after: Case
    label: str = ""
    """Of its series, where both sides have several."""

    @property
    def oversubscribed(self) -> bool:
        return self.before.oversubscribed or self.after.oversubscribed

    def difference(self, measure: str, among: int = 1) -> Difference | None:
        """Of after from before, as a ratio; None where a side has none of it."""
        sides = [case.repeats(measure) or ([] if (value := case.median(measure)) is None else [value]) for case in (self.before, self.after)]
        return compare(*sides, among=among)

    def saved(self, measure: str) -> float | None:
        """The share of it that is gone; negative where it grew, None where there was none of it."""
        found = self.difference(measure)
        return None if found is None else 1 - found.value

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
        value = as_word(pair.value)
        return f"on {value} rank{'' if value == '1' else 's'}" if self.axis.name == "ranks" else f"with {self.axis.label} {value}"

    @property
    def measure(self) -> tuple[str, str]:
        """The time that is compared, and the words for it."""
        return main_time([case for pair in self.pairs for case in (pair.before, pair.after)]) or ("total_s", "Time")

    @property
    def first_series(self) -> list[Pair]:
        """What lines and a sentence are of."""
        return [pair for pair in self.pairs if pair.label == self.pairs[0].label]


def compare_studies(first: tuple[Study, Sequence[Case]], second: tuple[Study, Sequence[Case]], axis: Axis) -> Comparison:
    """Cases are matched by every setting but those that tell the two studies apart."""
    (study, cases), (other, other_cases) = first, second
    _check_alike(study, other)
    apart = _apart(cases, other_cases)
    before, after = _by_match(cases, apart), _by_match(other_cases, apart)
    both = [match for match in before if match in after]
    for one, found in ((study, before), (other, after)):
        _check_one_each(one, [found[match] for match in both], apart)
    series = series_of([before[match][0] for match in both], axis)
    pairs = [
        Pair(value=case.settings[axis.name], before=case, after=after[_match(case, apart)][0], label=one.label)
        for one in series
        for case in one.cases
    ]
    labels = [label_of(_alike(found, apart)) for found in (cases, other_cases)]
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
    found = {repr(case.settings[axis.name]): case for case in last.cases}
    pairs = [
        Pair(value=case.settings[axis.name], before=case, after=found[repr(case.settings[axis.name])])
        for case in first.cases
        if repr(case.settings[axis.name]) in found
    ]
    return Comparison(before=first.label, after=last.label, axis=axis, pairs=pairs, settings=[name]) if pairs else None


def _time(series: Series) -> float:
    """The mean of its medians, by which variants are ordered."""
    known = [time for case in series.cases if (time := case.median("total_s")) is not None]
    return sum(known) / len(known) if known else 0.0


def _apart(cases: Sequence[Case], others: Sequence[Case]) -> list[str]:
    names = dict.fromkeys(name for case in (*cases, *others) for name in case.settings)

    def values(among: Sequence[Case], name: str) -> set[str]:
        return {repr(case.settings.get(name)) for case in among}

    return [
        name for name in names if name not in _NEVER_MATCHED and not values(cases, name) & values(others, name)
    ]  # fmt: skip


def _by_match(cases: Sequence[Case], apart: Sequence[str]) -> dict[str, list[Case]]:
    """Those that have finished."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.results:
            found.setdefault(_match(case, apart), []).append(case)
    return found


def _check_alike(study: Study, other: Study) -> None:
    if (study.kind == "loaders") != (other.kind == "loaders"):
        raise SettingsError(
            f"{study.folder} and {other.folder} do not compare: only one is a study of loaders, whose times are of reading a file alone. "
            f"For a page of one type: farandole report {study.folder}"
        )


def _check_one_each(study: Study, matched: Sequence[Sequence[Case]], apart: Sequence[str]) -> None:
    """Of several that differ in what tells the studies apart, none is the one to compare."""
    for cases, name in product(matched, apart):
        values = list(dict.fromkeys(str(case.settings.get(name)) for case in cases))
        if len(values) > 1:
            raise SettingsError(
                f"{study.folder} has {name}={', '.join(values)}, and the other folder has none of these: which to compare is not known. "
                f"Make a study of one of them, with --set {name}={values[0]}, and compare that. For a page of all type: farandole report {study.folder}"
            )


def _alike(cases: Sequence[Case], names: Sequence[str]) -> dict[str, Any]:
    """Of these settings those that all cases have in common; older versions did not tell all."""
    found = {name: [case.settings.get(name) for case in cases] for name in names}
    return {name: values[0] for name, values in found.items() if values and values[0] is not None and all(value == values[0] for value in values)}


def _match(case: Case, apart: Sequence[str]) -> str:
    left_out = {*apart, *_NEVER_MATCHED}
    return repr(sorted((name, repr(value)) for name, value in case.settings.items() if name not in left_out))
