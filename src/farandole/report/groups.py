"""Repeats become points: median and spread of each configuration, in series along what the study varies."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.report.numbers import plain
from farandole.report.reading import Attempt, Study

__all__ = [
    "BUSY", "BUSY_SHARE", "EMULATED", "Axis", "Point", "Series", "axis_of", "is_emulated", "label_of", "measure_of", "metric_of",
    "most_beside", "points_of", "run_once", "series_of", "unknown_in", "word_for",
]  # fmt: skip

_ALONG = {
    "strong": ("ranks",),
    "weak": ("ranks",),
    "batch": ("batch_size", "global_batch", "batch_scaling"),
    "lr": ("rate", "learning_rate", "lr_scaling"),
    "loaders": ("loader",),
}
EMULATED = "emulate_ranks"
BUSY = "busy machine"
"""The mark of a result beside which other programs ran."""
BUSY_SHARE = 0.05
"""Of a machine's processor time: where other programs took more while a run lasted, it was busy."""
_NEVER_A_SERIES = frozenset({"seed", "repeat", "nodes"})
_MEASURES = (("total_s", "Time"), ("train_s", "Training time"), ("epoch_s", "Time of an epoch"), ("load_s", "Loading time"))
_WORDS = {
    "batch_size": "batch size",
    "rate": "learning rate",
    "learning_rate": "learning rate",
    "emulate_ranks": "emulated ranks",
    "lr_scaling": "rate scaling",
    "batch_scaling": "batch scaling",
    "global_batch": "global batch",
}


@dataclass(kw_only=True, slots=True)
class Point:
    """A configuration: the attempts that finished and those that did not."""

    settings: dict[str, Any]
    attempts: list[Attempt] = field(default_factory=list)
    failed: list[Attempt] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return int(self.settings.get("ranks") or 1)

    @property
    def trained_as(self) -> int:
        """The ranks whose accuracy this is: emulated ones count."""
        return int(self.settings.get("emulate_ranks") or self.ranks)

    @property
    def marks(self) -> list[str]:
        found = [mark for attempt in self.attempts for mark in attempt.marks]
        return list(dict.fromkeys([*found, BUSY] if most_beside([self]) else found))

    @property
    def oversubscribed(self) -> bool:
        """Ranks that had to share cores: their times say nothing of a machine that has enough."""
        return "oversubscribed" in self.marks

    @property
    def imported(self) -> bool:
        """Somebody else's figures: of how many runs they are is not known."""
        return "imported" in self.marks

    @property
    def provenances(self) -> set[str]:
        """How the watts and joules of its repeats are known."""
        return {str(attempt.figures.get("power_provenance") or "none") for attempt in self.attempts}

    @property
    def provenance(self) -> str:
        """As weak as the weakest of the repeats that have power: medians are theirs."""
        order = ("modelled", "measured-component", "measured-node")
        return next((kind for kind in order if kind in self.provenances), "none")

    def values(self, figure: str) -> list[float]:
        return [value for attempt in self.attempts if (value := attempt.figure(figure)) is not None]

    def partly(self, figure: str) -> str:
        """Of how many of its runs a median is, such as `1 of 3`; empty where it is of all, or there is none."""
        known = len(self.values(figure))
        return f"{known} of {len(self.attempts)}" if 0 < known < len(self.attempts) else ""

    def median(self, figure: str) -> float | None:
        values = self.values(figure)
        return statistics.median(values) if values else None

    def spread(self, figure: str) -> tuple[float, float] | None:
        """From the least to the most, of two repeats or more."""
        values = self.values(figure)
        return (min(values), max(values)) if len(values) > 1 else None


@dataclass(kw_only=True, slots=True, frozen=True)
class Axis:
    """The setting a study varies."""

    name: str
    label: str
    numeric: bool


@dataclass(kw_only=True, slots=True)
class Series:
    """Points that differ along the axis alone."""

    label: str
    settings: dict[str, Any]
    """What tells this series from the others."""
    points: list[Point]

    def at(self, axis: Axis) -> list[tuple[float, Point]]:
        return [(float(point.settings[axis.name]), point) for point in self.points]


def points_of(study: Study) -> list[Point]:
    """In the order of the plan; seeds and repeats of one configuration are one point."""
    found: dict[str, Point] = {}
    for attempt in study.attempts:
        settings = {name: value for name, value in attempt.settings.items() if name != "seed"}
        point = found.setdefault(repr(sorted(settings.items(), key=str)), Point(settings=settings))
        (point.attempts if attempt.ok else point.failed).append(attempt)
    return list(found.values())


def axis_of(kind: str, points: Sequence[Point]) -> Axis:
    """What the kind of study varies, where it does, else the setting with most values."""
    values = _values(points)
    wanted = [name for name in _ALONG.get(kind, ()) if len(values.get(name, ())) > 1]
    if "ranks" in _ALONG.get(kind, ()) and len(values.get(EMULATED, ())) > 1:
        wanted = [EMULATED]  # on however many ranks that is done
    varied = sorted(
        (name for name in values if name not in _NEVER_A_SERIES and len(values[name]) > 1),
        key=lambda name: (name != "ranks", -len(values[name])),
    )
    name = next(iter([*wanted, *varied]), "ranks")
    return Axis(
        name=name,
        label=word_for(name),
        numeric=all(_is_number(value) for value in values.get(name, {1})),
    )


def series_of(points: Sequence[Point], axis: Axis) -> list[Series]:
    """The most complete first, of these the fastest. A setting that follows from the axis does not part series."""
    parting = [name for name in _values(points) if _parts(points, axis.name, name)]
    found: dict[str, Series] = {}
    for point in points:
        if not point.attempts or point.settings.get(axis.name) is None:
            continue
        settings = {name: point.settings.get(name) for name in parting}
        series = found.setdefault(
            repr(settings), Series(label=label_of(settings), settings=settings, points=[])
        )
        series.points.append(point)
    for series in found.values():
        series.points.sort(key=lambda point: (point.settings[axis.name] if axis.numeric else 0))
    return sorted(found.values(), key=lambda series: (-len(series.points), series.points[-1].median("total_s") or 0.0))


def measure_of(points: Sequence[Point]) -> tuple[str, str] | None:
    """The figure that says best how long runs took, and the words for it: others' tables may lack totals."""
    return next((found for found in _MEASURES if any(point.median(found[0]) for point in points)), None)


def run_once(points: Sequence[Point]) -> str:
    """A sentence where no point has repeats; empty where one has."""
    if any(len(point.attempts) > 1 for point in points):
        return ""
    if all(point.imported for point in points):
        return "As imported."
    return "One run." if len(points) == 1 else "One run each."


def unknown_in(points: Sequence[Point], figure: str) -> str:
    """In how many of their runs a figure is not known, such as `2 of 6 runs`; empty where all know it, or none does."""
    runs, known = sum(len(point.attempts) for point in points), sum(len(point.values(figure)) for point in points)
    return f"{runs - known} of {runs} runs" if 0 < known < runs else ""


def most_beside(points: Sequence[Point]) -> float | None:
    """The largest share of the machine that other programs took while one of their runs lasted; None where it was quiet."""
    shares = [share for point in points for share in point.values("others_share") if share > BUSY_SHARE]
    return max(shares, default=None)


def is_emulated(points: Sequence[Point]) -> bool:
    """Whether ranks stand for more of them: their seconds and joules are then those of emulating."""
    return any(point.settings.get(EMULATED) for point in points)


def metric_of(points: Sequence[Point]) -> str:
    """What `accuracy` is: some benchmarks have a correlation or R2 there."""
    told = [str(attempt.figures["metric"]) for point in points for attempt in point.attempts if attempt.figures.get("metric")]
    return told[0].replace("_", " ") if told else "accuracy"


def label_of(settings: dict[str, Any]) -> str:
    return ", ".join(_setting(name, value) for name, value in settings.items())


def word_for(name: str) -> str:
    """A setting's name, for people."""
    return _WORDS.get(name, name.replace("_", " "))


def _setting(name: str, value: Any) -> str:
    word = word_for(name)
    if _is_number(value):
        return f"{word} {plain(value)}"
    return str(value) if name == "loader" else f"{word} {value}"


def _values(points: Iterable[Point]) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for point in points:
        for name, value in point.settings.items():
            found.setdefault(name, set()).add(value if isinstance(value, (int, float, str)) else repr(value))
    return found


def _parts(points: Sequence[Point], axis: str, name: str) -> bool:
    if name == axis or name in _NEVER_A_SERIES:
        return False
    seen: dict[Any, set[str]] = {}
    for point in points:
        seen.setdefault(repr(point.settings.get(axis)), set()).add(repr(point.settings.get(name)))
    return any(len(values) > 1 for values in seen.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
