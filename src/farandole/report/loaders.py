"""Studies of loaders: what each took for each file, against pandas as it is by default. Tables and the page have it from here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from farandole.report.groups import Point, points_of
from farandole.report.reading import Study

__all__ = ["BASE", "FROM_CACHE", "KIND", "STATES", "Reading", "by_file", "current", "failures", "is_measured", "readings_of"]

KIND = "loaders"
BASE = "pandas"
STATES = ("cold", "warm")
FROM_CACHE = ("fast-storing", "fast-cached")
"""They have a file beside the text, which the first writes and the second reads instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A file read in one way, as often as it was."""

    point: Point
    base: Point | None
    """With pandas: the same file, in the same state, by as many processes."""
    alone: Point | None
    """The same by one process, where this is by several."""

    def setting(self, name: str) -> Any:
        return self.point.settings[name]

    @property
    def loader(self) -> str:
        return str(self.setting("loader"))

    @property
    def state(self) -> str:
        return str(self.setting("state"))

    @property
    def file(self) -> str:
        """Its name."""
        return str(self.setting("path")).rpartition("/")[2]

    @property
    def bytes(self) -> int:
        return int(self.setting("bytes"))

    @property
    def seconds(self) -> float | None:
        return self.point.median("load_s")

    @property
    def spread(self) -> tuple[float, float] | None:
        return self.point.spread("load_s")

    @property
    def gain(self) -> float | None:
        """How many times as fast as pandas."""
        return _ratio(self.base, self.point, "load_s")

    def over_alone(self, figure: str) -> float | None:
        """So many times what one process takes."""
        return _ratio(self.point, self.alone, figure)

    def most(self, figure: str) -> float | None:
        return max(self.point.values(figure), default=None)

    @property
    def failed(self) -> bool:
        return not self.point.attempts


def _ratio(above: Point | None, below: Point | None, figure: str) -> float | None:
    a, b = (None if point is None else point.median(figure) for point in (above, below))
    return a / b if a is not None and b else None


def is_measured(plan: Mapping[str, Any]) -> bool:
    """Whether a plan is of loaders that were measured; others' figures have no files, and the ordinary table and page."""
    return plan.get("kind") == KIND and not plan.get("source")


def current(study: Study) -> Study:
    """Without files that have changed since, and loaders that have another version now: what was planned last counts."""
    files: dict[Any, Any] = {}
    versions: dict[Any, Any] = {}
    points: Sequence[Mapping[str, Any]] = study.about["points"]
    for settings in (point["settings"] for point in points):
        files[_role(settings)] = _identity(settings)
        versions[_role(settings), settings["loader"]] = settings["version"]

    def counts(settings: Mapping[str, Any]) -> bool:
        at = _role(settings)
        return bool(files[at] == _identity(settings) and versions[at, settings["loader"]] == settings["version"])

    kept = [point for point in points if counts(point["settings"])]
    return replace(
        study, about={**study.about, "points": kept}, tries=sum(counts(line["settings"]) for line in study.raw),
        attempts=[attempt for attempt in study.attempts if counts(attempt.settings)],
    )  # fmt: skip


def _role(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return settings["benchmark"], settings["role"]


def _identity(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in ("path", "bytes", "mtime_ns", "inode"))


def readings_of(study: Study) -> list[Reading]:
    """One benchmark and file after the other, each in the order in which it was read."""
    points = points_of(study)
    found = {_at(point.settings): point for point in points}

    def like(point: Point, **other: Any) -> Point | None:
        return found.get(_at({**point.settings, **other}))

    readings = [Reading(point=point, base=like(point, loader=BASE), alone=like(point, ranks=1) if point.ranks > 1 else None) for point in points]
    return [reading for group in by_file(readings).values() for reading in group]


def _at(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*_role(settings), *(settings[name] for name in ("loader", "state", "ranks")))


def by_file(readings: Iterable[Reading]) -> dict[tuple[Any, ...], list[Reading]]:
    """By benchmark and role; those of a benchmark follow each other."""
    found: dict[Any, dict[Any, list[Reading]]] = {}
    for reading in readings:
        benchmark, role = _role(reading.point.settings)
        found.setdefault(benchmark, {}).setdefault((benchmark, role), []).append(reading)
    return {at: group for files in found.values() for at, group in files.items()}


def failures(readings: Iterable[Reading]) -> list[str]:
    """What could not be measured and why, each once."""
    told = [
        f"{reading.setting('benchmark')} {reading.setting('role')}, {reading.loader}{_at_once(reading)}: {attempt.reason or 'no reason is given'}"
        for reading in readings
        for attempt in reading.point.failed
    ]
    return list(dict.fromkeys(told))


def _at_once(reading: Reading) -> str:
    return f", {reading.point.ranks} at once" if reading.point.ranks > 1 else ""
