"""What is on the page of a study of loaders: who is faster than pandas, seconds as bars, and every reading."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.errors import SettingsError
from farandole.report.content import Content
from farandole.report.differences import SAME, overlap
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Level, level_bars
from farandole.report.loaders import (
    BASE,
    FROM_CACHE,
    STATES,
    Reading,
    by_file,
    current,
    failures,
    is_measured,
    readings_of,
)
from farandole.report.numbers import bytes_text, number, seconds, times
from farandole.report.reading import Study
from farandole.report.table import loaders_table
from farandole.report.trust import loaders_trust, measured_beside

__all__ = ["is_of_loaders", "loaders_content"]

_COLOURS = {BASE: "s2", **dict.fromkeys(("fast", *FROM_CACHE), "s1")}
"""As of before and after: what is compared to, and Farandole's own. The others are grey."""


def is_of_loaders(study: Study, other: Study | None) -> bool:
    """SettingsError where such a study would be compared with another folder."""
    which = next((one for one in (study, other) if one is not None and is_measured(one.about)), None)
    if which is not None and other is not None:
        raise SettingsError(
            f"{which.folder} is a study of loaders, whose page compares them with each other and with no other folder. Measure further "
            f"loaders into the same one (farandole study loaders NAME --loaders a,b --out {which.folder}), or take the figures of both, "
            f"e.g. of two machines, from farandole study table DIR --format csv. For its page type: farandole report {which.folder}"
        )
    return which is not None


def loaders_content(study: Study) -> Content:
    study = current(study)
    readings = readings_of(study)
    return Content(
        study=study, other=None, verdicts=_verdicts(study, readings), trust=loaders_trust(study, [one.point for one in readings]),
        figures=_figures(study, readings), tables=[("All readings", loaders_table(readings))],
        notes=[*study.warnings, *(f"Failed: {told}" for told in failures(readings))],
    )  # fmt: skip


def _benchmarks(readings: Sequence[Reading]) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {}
    for reading in readings:
        found.setdefault(str(reading.setting("benchmark")), []).append(reading)
    return found


def _largest(readings: Sequence[Reading]) -> list[Reading]:
    """Of the largest file, which several processes read as well."""
    return max(by_file(readings).values(), key=lambda group: group[0].bytes)


def _verdicts(study: Study, readings: Sequence[Reading]) -> list[str]:
    if not study.finished:
        reasons = [attempt.reason for attempt in study.failed if attempt.reason]
        return [f"No file has been read{f': {reasons[-1]}' if reasons else ''}."]
    alone = {name: [one for one in _largest(group) if one.point.ranks == 1] for name, group in _benchmarks(readings).items()}
    first = "; ".join(f"{name.upper()}: {_fastest(group)}" for name, group in alone.items())
    cached = [told for name, group in alone.items() if (told := _from_cache(name, group))]
    rest = ["Of each benchmark the largest file, read by one process"]
    rest += [f"from the cache of a reading before, {', '.join(cached)}"] if cached else []
    rest += [f"{BASE} was not measured"] if all(one.base is None for one in readings) else []
    if not any(one.spread for one in readings):
        rest.append("each was read once: how far readings differ by themselves is not known")
    rest.append(measured_beside([one.point for group in alone.values() for one in group]))
    return [f"{first}.", f"{'; '.join(filter(None, rest))}."]


def _fastest(readings: Sequence[Reading]) -> str:
    told: list[str] = []
    before = ""
    for state in STATES:
        known = [one for one in readings if one.state == state and one.seconds is not None and one.loader not in FROM_CACHE]
        if known:
            best = min(known, key=lambda one: one.seconds or 0.0)
            told.append(_against_pandas(best, again=best.loader == before))
            before = best.loader
    return " and ".join(told) or "no loader has read it"


def _against_pandas(best: Reading, *, again: bool) -> str:
    base, took = best.base, seconds(best.seconds)
    if best.gain is None or base is None:
        return f"{'' if again else f'{best.loader} is the fastest '}{best.state} ({took})"
    if best.loader == BASE:
        return f"no loader is faster than {BASE} {best.state} ({took})"
    if best.gain < 1 + SAME or overlap(best.spread, base.spread("load_s")):
        return f"no loader is faster than {BASE} {best.state} that these readings could tell"
    if again:
        return f"{times(best.gain)} {best.state}"
    return f"{best.loader} is {times(best.gain)} as fast as {BASE} {best.state} ({took} instead of {seconds(base.median('load_s'))})"


def _from_cache(name: str, readings: Sequence[Reading]) -> str:
    known = [one for one in readings if one.loader == FROM_CACHE[-1] and one.seconds is not None]
    told = " and ".join(f"{seconds(one.seconds)} {one.state}{f' ({times(one.gain)})' if one.gain else ''}" for one in known)
    return f"{name.upper()} takes {told}" if told else ""


def _figures(study: Study, readings: Sequence[Reading]) -> list[Figure]:
    """For each benchmark cold beside warm, and several processes beside one."""
    figures = []
    for name, group in _benchmarks(readings).items():
        alone = [one for one in group if one.point.ranks == 1]
        figures += [_state_figure(study, name, state, [one for one in alone if one.state == state]) for state in STATES]
        shared = _largest(group)
        if any(one.point.ranks > 1 for one in shared):
            figures += [_shared_figure(name, state, [one for one in shared if one.state == state]) for state in STATES]
    return figures


def _state_figure(study: Study, name: str, state: str, readings: Sequence[Reading]) -> Figure:
    compile_s = study.about.get("compile_s")
    told = "Medians, one process." if any(one.spread for one in readings) else "One process."
    if compile_s is not None:
        told += f" fast had compiled its functions before, which takes {seconds(compile_s)}, once."
    levels = [_level(one, label=one.loader, group=f"{one.file}, {bytes_text(one.bytes)}") for one in readings if one.seconds is not None]
    return _bars(f"{name}-{state}", f"{name.upper()}, {state}: seconds by loader", told, levels, readings)


def _shared_figure(name: str, state: str, readings: Sequence[Reading]) -> Figure:
    """Loaders that several processes have used, each beside itself alone."""
    used = {one.loader for one in readings if one.point.ranks > 1}
    told = "The largest file. Ranks that read with fast share one parse and one copy, others read each on its own."
    shown = sorted((one for one in readings if one.loader in used), key=lambda one: (one.loader != BASE, one.loader, one.point.ranks))
    levels = [
        _level(one, label=f"{one.point.ranks} at once" if one.point.ranks > 1 else "alone", group=one.loader)
        for one in shown
        if one.seconds is not None
    ]
    return _bars(f"{name}-{state}-at-once", f"{name.upper()}, {state}: several processes at once", told, levels, shown)


def _bars(name: str, title: str, caption: str, levels: Sequence[Level], readings: Sequence[Reading]) -> Figure:
    failed = list(dict.fromkeys(one.loader for one in readings if one.failed))
    if not levels:
        return missing(name, title, "No reading has ended well; the reasons are above." if failed else "Nothing was read.")
    told = f" Failed, and not drawn: {', '.join(failed)}." if failed else ""
    return Figure(name=name, title=title, caption=f"{caption}{told}", draw=lambda width: level_bars(levels, width, "seconds", title))


def _level(reading: Reading, *, label: str, group: str) -> Level:
    took = reading.seconds or 0.0
    gain = "" if reading.gain is None or reading.loader == BASE else f"\n{times(reading.gain)} as fast as {BASE}"
    spread = reading.spread
    most = "" if spread is None else f", {number(spread[0])} to {number(spread[1])}"
    words = f"{reading.file}, {reading.loader}, {reading.state}\n{label}: {number(took)} s{most}{gain}"
    return Level(label=label, value=took, spread=spread, words=words, group=group, kind=_COLOURS.get(reading.loader, "muted"))
