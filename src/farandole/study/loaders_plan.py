"""What a study of loaders would read, before anything is made or measured."""

from __future__ import annotations

from pathlib import Path

from farandole.data.make.sets import about_bytes
from farandole.report.loaders import STATES
from farandole.report.numbers import count
from farandole.study.estimate import reading_s
from farandole.study.folder import StudyFolder
from farandole.study.formats import have
from farandole.study.loaders import LoaderStudy, Source, Unit, check_folder, left_of, planned, units_of
from farandole.study.points import usable_cores
from farandole.train.progress import duration

__all__ = ["plan_text"]


def plan_text(study: LoaderStudy) -> str:
    """Files with their sizes, what reads them, how much text that is in all, and how long it may take; nothing is written."""
    check_folder(study, StudyFolder(study.out))
    sources = [source for name in study.benchmarks for source in planned(study, name)]
    sizes = _sizes(study, sources)
    units = units_of(study, sources, sizes.__getitem__)
    left = _left(study, units)
    left_bytes = sum(unit.ranks * readings * sizes[unit.source.path] for unit, readings in left)
    left_s = sum(readings * reading_s(unit.method, unit.ranks, sizes[unit.source.path]) for unit, readings in left)
    lines = [f"{study.title}: {count(len(units), 'measurement')}, {have(len(units) - len(left))} a result already", ""]
    lines += [f"  {source.benchmark}  {source.path}  {_told(source, sizes[source.path])}" for source in sources]
    lines += ["", f"read with {', '.join(study.methods)}"]
    if max(study.ranks) > 1:
        lines.append(f"by {', '.join(map(str, sorted(set(study.ranks))))} at once; several read the largest file of each benchmark alone")
    if max(study.ranks) > usable_cores():
        lines.append(f"oversubscribed: {count(usable_cores(), 'core')}")
    how_often = f"each {' and '.join(STATES)}, {study.repeats} time{'s' * (study.repeats > 1)}"
    how_long = f"about {duration(left_s)} in all (a guess, good for a factor of 3; to make files is not in it)"
    return "\n".join([*lines, f"{how_often}: {_size(left_bytes)} of text to read, {how_long}; results: {study.out}"])


def _sizes(study: LoaderStudy, sources: list[Source]) -> dict[Path, int]:
    """As they are, or as they would be made."""
    sizes: dict[Path, int] = {}
    for name in study.benchmarks:
        own = [source.path for source in sources if source.benchmark == name]
        made = {} if all(path.is_file() for path in own) else about_bytes(name, study.preset or "test")
        sizes |= {path: path.stat().st_size if path.is_file() else made[path.name] for path in own}
    return sizes


def _left(study: LoaderStudy, units: list[Unit]) -> list[tuple[Unit, int]]:
    """Units, and how many readings of each there will be."""
    there = [unit for unit in units if unit.source.path.is_file()]
    known = [(unit, len(points)) for unit, points in left_of(study, StudyFolder(study.out), there)]
    return known + [(unit, len(STATES) * unit.repeats) for unit in units if unit not in there]


def _told(source: Source, size: int) -> str:
    return _size(size) if source.path.is_file() else f"about {_size(size)}, to be made"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
