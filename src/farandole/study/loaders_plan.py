"""What a study of loaders would read, before anything is made or measured."""

from __future__ import annotations

from pathlib import Path

from farandole.data.make.sets import about_bytes
from farandole.study.loaders import STATES, LoaderStudy, Source, Unit, planned, units_of
from farandole.study.record import Record

__all__ = ["plan_text"]


def plan_text(study: LoaderStudy, title: str = "loaders") -> str:
    """Files with their sizes, what reads them, and how much text that is in all; nothing is written."""
    sources = [source for name in study.benchmarks for source in planned(study, name)]
    sizes = _sizes(study, sources)
    units = units_of(study, sources, sizes.__getitem__)
    done = _done(study, units)
    left_bytes = sum(unit.ranks * len(STATES) * unit.repeats * sizes[unit.source.path] for unit in units if unit not in done)
    lines = [f"{title}: {len(units)} measurements, {len(done)} have a result already", ""]
    lines += [f"  {source.benchmark}  {source.path}  {_told(source, sizes[source.path])}" for source in sources]
    lines += ["", f"read with {', '.join(study.methods)}"]
    if max(study.ranks) > 1:
        lines.append(f"by {', '.join(map(str, sorted(set(study.ranks))))} at once; several read the largest file of each benchmark alone")
    how_often = f"each {' and '.join(STATES)}, {study.repeats} time{'s' * (study.repeats > 1)}"
    return "\n".join([*lines, f"{how_often}: {_size(left_bytes)} of text to read; results: {study.out}"])


def _sizes(study: LoaderStudy, sources: list[Source]) -> dict[Path, int]:
    """As they are, or as they would be made."""
    sizes: dict[Path, int] = {}
    for name in study.benchmarks:
        own = [source.path for source in sources if source.benchmark == name]
        made = {} if all(path.is_file() for path in own) else about_bytes(name, study.preset or "test")
        sizes |= {path: path.stat().st_size if path.is_file() else made[path.name] for path in own}
    return sizes


def _done(study: LoaderStudy, units: list[Unit]) -> list[Unit]:
    if study.force:
        return []
    record = Record(study.out / "loaders.json", environment={})
    return [unit for unit in units if unit.source.path.is_file() and record.has(unit.key, STATES)]


def _told(source: Source, size: int) -> str:
    return _size(size) if source.path.is_file() else f"about {_size(size)}, to be made"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
