"""Two studies side by side, case by case: ours beside a paper's. What only one of them has is shown as well."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.results.cases import Case, cases_of, judged_on, varying
from farandole.results.formats import typed
from farandole.results.numbers import number
from farandole.results.reading import Study, read_folder
from farandole.results.schema import MEASURES, OF_POWER
from farandole.results.table import power_notes
from farandole.study.importing import paper_study, papers_tables

__all__ = ["compare"]

_ONE_SIDED = ("ranks", "nodes", "emulate_ranks", "seed", "data")
"""Told by `trained_as`, or of no use to compare."""
_JUDGED = ("accuracy", "test_accuracy")
"""Figures whose meaning is the benchmark's: `metric` says which."""

_NEAR = 1.1
"""Nodes of theirs and cores of ours divide by different numbers: ranks this close are compared where none are equal."""

Key = tuple[Any, ...]
"""Ranks, and the settings of cases that meet."""


def compare(ours: Path, theirs: str, names: Sequence[str]) -> str:
    """A Markdown table. `theirs` is a folder or the name of a paper's table; cases meet by ranks, equal or near, and settings."""
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise SettingsError(f"unknown figure {', '.join(unknown)}; known: {', '.join(MEASURES)}")
    mine, source = _cases(str(ours))
    other, their_source = _cases(theirs)
    for name in names:
        _check_metric(name, mine, other)
    settings = _shared(mine, other)
    tables = _by_key(other, settings), _by_key(mine, settings)
    pairs = _pairs(*tables)
    head = ["ranks", *settings, *(f"{name}{_measure(name, cases)}, {whose}" for name in names for whose, cases in (("theirs", other), ("ours", mine)))]
    rows = [
        [_ranks(*pair), *map(str, pair[1][1:]), *(_cell(table.get(key), name) for name in names for table, key in zip(tables, pair))]
        for pair in pairs
    ]
    lines = [_line(head), f"|{'---:|' * len(head)}", *map(_line, rows), "", f"- theirs: {their_source}", f"- ours: {source}"]
    only = [name for name in varying(case.settings for case in other) if name not in (*settings, *_ONE_SIDED, "epochs")]
    chosen = [f"- theirs differ in {', '.join(only)} as well: the first of each is shown"] if len(tables[0]) < len(other) else []
    known = {"theirs": power_notes(other), "ours": power_notes(mine)} if {*names} & {*OF_POWER} else {}
    return typed("\n".join([*lines, *_met(pairs, *tables, settings), *chosen, *_notes(mine), *(f"- {whose}: {note}" for whose, notes in known.items() for note in notes)]))


def _cases(name: str) -> tuple[list[Case], str]:
    if name in papers_tables():
        table = papers_tables()[name]
        return cases_of(paper_study(table)), f"{table['source']}; {table['where']}"
    study: Study = read_folder(Path(name))
    return cases_of(study), str(study.about.get("source") or f"`{study.command}`")


def _metrics(name: str, cases: Sequence[Case]) -> list[str]:
    """What a figure is in these cases; empty where none has it."""
    return sorted({case.metric if name in _JUDGED else name for case in cases if case.values(name)})


def _check_metric(name: str, mine: Sequence[Case], other: Sequence[Case]) -> None:
    ours, theirs = _metrics(name, mine), _metrics(name, other)
    if ours and theirs and ours != theirs:
        raise SettingsError(
            f"{name} is {', '.join(ours)} in ours and {', '.join(theirs)} in theirs, which do not compare. Leave it out of "
            "--figures, or give what both have, e.g. loss, total_s; P1B3's accuracy of signs is sign_accuracy."
        )


def _measure(name: str, cases: Sequence[Case]) -> str:
    """A heading's word for what goes by another name."""
    other = [metric for metric in _metrics(name, cases) if metric not in name]
    return f" ({', '.join(other)})" if other else ""


def _shared(mine: Sequence[Case], other: Sequence[Case]) -> list[str]:
    """Settings that vary in one of them and of which both have a value: by others, no case would meet another."""
    found = [*varying(case.settings for case in other), *varying(case.settings for case in mine)]
    return [name for name in dict.fromkeys(found) if name not in (*_ONE_SIDED, "epochs") and _meet(name, mine, other)]


def _meet(name: str, mine: Sequence[Case], other: Sequence[Case]) -> bool:
    ours, theirs = ([case.settings[name] for case in cases if name in case.settings] for cases in (mine, other))
    return any(value in theirs for value in ours)


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, before names."""
    is_number = isinstance(value, (int, float))
    return not is_number, value if is_number else 0.0, str(value)


def _by_key(cases: Sequence[Case], settings: Sequence[str]) -> Mapping[Key, Case]:
    """Of cases that differ in a setting which only one side knows, the first."""
    found: dict[Key, Case] = {}
    for case in cases:
        found.setdefault((case.trained_as, *(case.settings.get(name) for name in settings)), case)
    return found


def _pairs(theirs: Collection[Key], ours: Collection[Key]) -> list[tuple[Key, Key]]:
    """Every case once: with its equal, with the nearest that has no equal, or by itself, as a pair of the same."""
    near = _near([key for key in theirs if key not in ours], [key for key in ours if key not in theirs])
    alone = {*theirs, *ours} - {*near, *near.values()}
    pairs = [*near.items(), *((key, key) for key in alone)]
    return sorted(pairs, key=lambda pair: (tuple(map(_order, pair[1][1:])), pair[1][0]))


def _near(theirs: Sequence[Key], ours: Sequence[Key]) -> dict[Key, Key]:
    """The closest first; each is taken once."""
    apart = {(a, b): abs(math.log(a[0] / b[0])) for a in theirs for b in ours if a[1:] == b[1:]}
    found: dict[Key, Key] = {}
    for (a, b), distance in sorted(apart.items(), key=lambda one: one[1]):
        if distance <= math.log(_NEAR) and a not in found and b not in found.values():
            found[a] = b
    return found


def _ranks(theirs: Key, ours: Key) -> str:
    return str(ours[0]) if ours == theirs else f"{ours[0]} beside {theirs[0]}"


def _met(
    pairs: Sequence[tuple[Key, Key]], theirs: Mapping[Key, Case], ours: Mapping[Key, Case], settings: Sequence[str]
) -> list[str]:
    """What to know of how cases were brought together."""
    if any(a != b for a, b in pairs):
        return ["- N beside M: N ranks of ours, M of theirs; where the other side has no case of as many, the nearest within 10%"]
    if any(key in ours for key in theirs) or not ours:
        return []
    told = [", ".join(map(str, sorted({key[0] for key in keys}))) for keys in (ours, theirs)]
    by = ", ".join(["ranks (within 10%)", *settings])
    return [f"- no case of ours meets one of theirs by {by}: ours have {told[0]} rank{'s' * (told[0] != '1')}, theirs {told[1]}"]


def _cell(case: Case | None, name: str) -> str:
    value = None if case is None else case.median(name)
    if case is None or value is None:
        return "failed" if case is not None and case.failed and not case.runs else "-"
    mark = "~" if case.modelled and name in OF_POWER else ""
    ends = case.spread(name)
    known = ", ".join([*(["–".join(map(number, ends))] if ends else []), *([partly] if (partly := case.partly(name)) else [])])
    return f"{mark}{number(value)}" + (f" ({known})" if known else "")


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _notes(cases: Sequence[Case]) -> list[str]:
    runs = sorted({case.runs for case in cases if case.runs})
    counted = f"- ours: medians of {runs[0]}" + (f" to {runs[-1]}" if len(runs) > 1 else "") + " runs (smallest..largest)"
    marks = sorted({mark for case in cases for mark in case.marks} - {"modelled power"})
    marked = [f"- ours: {', '.join(marks)}"] if marks else []
    return [*([counted] if runs and runs[-1] > 1 else []), *marked, *(f"- ours: {words}" for words in judged_on(cases))]
