"""A prediction as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farandole.predict.parts import WHOLES
from farandole.results.cases import label_of
from farandole.results.formats import aligned, typed
from farandole.results.numbers import UNKNOWN, number, percent, quantity, seconds, times
from farandole.results.scaling import CAUSES

if TYPE_CHECKING:
    from farandole.predict.check import Row

__all__ = ["as_text", "check_text", "next_text", "part_words"]

_WORDS = {cause.name: cause.words for cause in CAUSES} | {"train": "training, with its communication", "startup": "what the first epoch does once"}


def part_words(name: str) -> str:
    return _WORDS.get(name, name)


def as_text(document: Mapping[str, Any]) -> str:
    blocks = [line for fitted in document["fitted"] for line in _fitted(fitted, document)]
    told = document["what_ifs"]
    blocks += ["", f"what if (time {WHOLES[told[0]['whole']]}, and its ratio to the same without it)", *_what_ifs(told)] if told else []
    blocks += ["", *(f"  {line}" for line in document["warnings"])] if document["warnings"] else []
    return typed("\n".join(blocks))


def _fitted(fitted: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    mine = [one for one in document["predictions"] if one["settings"] == fitted["settings"]]
    name = " ".join([document["study"], *([f"({label_of(fitted['settings'])})"] if fitted["settings"] else [])])
    yield f"{name}: {fitted['work']} scaling, fitted on {', '.join(map(str, fitted['ranks']))} ranks; collective: {fitted['collective'] or 'any'}, {fitted['collective_from']}"
    yield _held_out(fitted["held_out"])
    yield ""
    whole = fitted["whole"]
    head = ["ranks", "beyond", *([f"time {WHOLES[whole]}"] if whole not in ("epoch_s", "total_s") else []), "an epoch", "in all", "measured", "efficiency", "energy", "limited by"]
    yield from aligned(_known([head, *(_row(one, whole) for one in mine)]))
    parts = list(dict.fromkeys(part for one in mine for part in one["parts"]))
    if len(parts) > 1:
        yield ""
        yield from aligned([["ranks", *parts], *([str(one["ranks"]), *(_interval(one["parts"].get(part), seconds) for part in parts)] for one in mine)])
    reasons = dict.fromkeys(f"{', '.join(name for name in one['reasons'] if one['reasons'][name] == why)}: {why}" for one in mine for why in one["reasons"].values())
    yield from ([""] if reasons else [])
    yield from (f"  {reason}" for reason in reasons)
    yield f"  median [low, high] of {percent(document['level'])} intervals"


def _known(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Without columns in which nothing is known."""
    columns = [column for column in zip(*lines) if any(cell != UNKNOWN for cell in column[1:])]
    return [list(row) for row in zip(*columns)]


def _held_out(held: Mapping[str, Any] | None) -> str:
    if held is None:
        return "  largest run held out: not possible with so few rank counts"
    where = "inside" if held["inside"] else "outside"
    return f"  largest run held out: {held['error']:+.1%}, {where} ({_interval(held['predicted_s'], seconds)} on {held['ranks']} ranks, measured {seconds(held['measured_s'])})"


def _row(one: Mapping[str, Any], whole: str) -> list[str]:
    limit = one["limited_by"]
    known = "" if one["energy_j"] is None else f" {one['energy_provenance']}"
    return [
        f"{one['ranks']:,}", times(one["beyond"]), *([_interval(one["whole_s"], seconds)] if whole not in ("epoch_s", "total_s") else []),
        _interval(one["epoch_s"], seconds), _interval(one["total_s"], seconds), seconds(one["measured_s"]), _interval(one["efficiency"], percent),
        _interval(one["energy_j"], lambda value: quantity(value, "J")) + known,
        f"{part_words(limit['part'])} ({percent(limit['share'])} of what is lost)" if limit else UNKNOWN,
    ]  # fmt: skip


def _interval(found: Mapping[str, float] | None, text: Any) -> str:
    return UNKNOWN if found is None else f"{text(found['median'])} [{text(found['low'])}, {text(found['high'])}]"


def _what_ifs(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Side by side, with the intervals of their ratio."""
    rows = [
        [f"{one['ranks']:,}", label_of(one["settings"]), one["what_if"], _interval(one["whole_s"], seconds), _interval(one["ratio"], times),
         _interval(one["energy_j"], lambda value: quantity(value, "J"))]
        for one in found
    ]  # fmt: skip
    return aligned([["ranks", "series", "what if", "time", "ratio", "energy"], *rows])


def next_text(found: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in found:
        best = one["candidates"][0] if one["candidates"] else None
        of = f" ({label_of(one['settings'])})" if one["settings"] else ""
        lines.append(f"{one['ranks']:,} ranks{of}: the interval is {number(one['width'])} times as high as low.")
        lines += [f"  a run on {candidate['ranks']:,} ranks would leave {number(candidate['width'])}" for candidate in one["candidates"][:5]]
        lines += [f"  next: --ranks {best['ranks']}"] if best else ["  nothing below it is left to measure"]
    return "\n".join(lines)


def check_text(row: Row) -> str:
    verdict = "met " if row.met else "MISS"
    return "\n".join([f"{verdict}  {row.what}", f"      must show  {row.bar}", f"      found      {row.found}", *(f"        {line}" for line in row.details)])
