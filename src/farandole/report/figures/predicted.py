"""What `farandole predict` has left in a study's folder: a band on the figure of time, how parts grow, what-ifs as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.report.figures import Figure
from farandole.report.figures.bars import Level, level_bars
from farandole.report.figures.lines import Axes, Line, Mark, line_chart
from farandole.results.cases import label_of
from farandole.results.numbers import count, number, percent, seconds, times
from farandole.results.runs import read_json
from farandole.results.scaling import CAUSES
from farandole.results.schema import PREDICTION

__all__ = ["Prediction", "prediction_of"]

_KIND = ("farandole predict", 1)
_WORDS = {cause.name: cause.words for cause in CAUSES} | {"train": "training", "startup": "first epoch"}
_COLOURS = {"train": "p-train", "startup": "p-start"}
_LEAST_SHOWN = 0.001
"""Of the whole, at its most: what is less would be far below all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """prediction.json, as figures."""

    document: Mapping[str, Any]

    @property
    def ranks(self) -> list[int]:
        return sorted({one["ranks"] for one in self.document["predictions"]})

    @property
    def warnings(self) -> list[str]:
        return [f"Prediction: {words}" for words in self.document["warnings"]]

    @property
    def caption(self) -> str:
        held = [_held(fitted) for fitted in self.document["fitted"] if fitted["held_out"]]
        return f"Dashed with a band: predicted from {count(len(self.document['fitted'][0]['ranks']), 'rank count')}, {percent(self.document['level'])} of outcomes. {' '.join(held[:1])}"

    def lines(self, measure: str, kinds: Mapping[str, str]) -> list[Line]:
        """Of the series that are drawn, in their colours; `kinds` by their settings."""
        known = [(kind, fitted) for fitted in self.document["fitted"] if fitted["whole"] == measure and (kind := kinds.get(repr(fitted["settings"])))]
        return [
            Line(
                label="predicted" if place == 0 else "", kind=kind, style="dashed", band=[(at["low"], at["high"]) for at in fitted["curve"]],
                marks=[Mark(x=float(at["ranks"]), y=at["median"]) for at in fitted["curve"]],
            )
            for place, (kind, fitted) in enumerate(known)
        ]  # fmt: skip

    def figures(self) -> list[Figure]:
        return [figure for figure in (self._parts(), self._what_ifs()) if figure is not None]

    def _parts(self) -> Figure | None:
        """Of the first series; None where a study does not tell parts apart."""
        fitted = self.document["fitted"][0]
        names = [*fitted["curve"][-1]["parts"]]
        lines = [line for name in names for line in _part(name, fitted, self.ranks)]
        if len(names) < 2 or not lines:
            return None
        of = f": {label_of(fitted['settings'])}" if fitted["settings"] else ""
        axes = Axes(x_label="ranks", y_label="seconds", words="How parts grow", x_ticks=sorted({*map(float, fitted["ranks"]), *map(float, self.ranks)}))
        return Figure(
            name="predicted-parts", title=f"How parts grow, predicted{of}", caption=_largest(self.document, fitted),
            draw=lambda width: line_chart(lines, axes, width),
        )  # fmt: skip

    def _what_ifs(self) -> Figure | None:
        """At the most ranks; None where nothing was supposed."""
        found = [one for one in self.document["what_ifs"] if one["ranks"] == max(self.ranks)]
        if not found:
            return None
        title = f"What if, on {max(self.ranks):,} ranks"
        levels = [
            Level(
                label=one["what_if"], value=one["ratio"]["median"], spread=(one["ratio"]["low"], one["ratio"]["high"]), group=label_of(one["settings"]),
                words="\n".join([one["what_if"], f"{times(one['ratio']['median'])} of the time", *_seconds(one["whole_s"])]),
            )
            for one in found
        ]  # fmt: skip
        caption = f"Time as a ratio to that predicted without the change; lines hold {percent(self.document['level'])} of outcomes. Below 1 it is faster."
        return Figure(name="what-ifs", title=title, caption=caption, draw=lambda width: level_bars(levels, width, "ratio of times", title))


def prediction_of(folder: Path) -> Prediction | None:
    """None where none was made, or one of a later version."""
    document = read_json(folder / PREDICTION)
    return Prediction(document=document) if document is not None and (document.get("kind"), document.get("schema")) == _KIND else None


def _seconds(found: Mapping[str, float] | None) -> list[str]:
    return [] if found is None else [f"{seconds(found['median'])} ({seconds(found['low'])}–{seconds(found['high'])})"]


def _held(fitted: Mapping[str, Any]) -> str:
    held = fitted["held_out"]
    return f"The largest run, predicted from the others: {held['error'] or 0.0:+.1%}, {'inside' if held['inside'] else 'outside'} of its interval."


def _part(name: str, fitted: Mapping[str, Any], asked: Sequence[int]) -> list[Line]:
    """The model as a dashed line; dots where it was measured, hollow ones where it was asked for. None of parts that are nowhere visible."""
    least = _LEAST_SHOWN * max(at["median"] for at in fitted["curve"])
    model = [Mark(x=float(at["ranks"]), y=at["parts"][name]) for at in fitted["curve"] if at["parts"].get(name, 0.0) > least]
    if len(model) < 2:
        return []
    kind, words = _COLOURS.get(name, f"c-{name}"), _WORDS.get(name, name)
    known = [(one["ranks"], one["parts"][name], False) for one in fitted["measured"] if one["parts"].get(name, 0.0) > least]
    known += [(mark.x, mark.y, True) for mark in model if mark.x in asked and mark.x not in fitted["ranks"]]
    dots = [Mark(x=float(x), y=y, hollow=hollow, words=f"{words}: {seconds(y)} on {number(x, 4)} ranks") for x, y, hollow in known]
    return [Line(label="" if dots else words, kind=kind, style="dashed", marks=model), Line(label=words, kind=kind, style="unjoined", marks=dots)][: 1 + bool(dots)]


def _largest(document: Mapping[str, Any], fitted: Mapping[str, Any]) -> str:
    last = [one for one in document["predictions"] if one["settings"] == fitted["settings"]][-1]
    limit = last["limited_by"]
    found = f" On {last['ranks']:,} ranks {_WORDS.get(limit['part'], limit['part'])} costs most: {percent(limit['share'])} of what is lost." if limit else ""
    return f"Dashed: medians of the model; hollow: predicted.{found}"
