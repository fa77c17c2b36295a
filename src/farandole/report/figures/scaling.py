"""Time against ranks with the ideal, and where efficiency was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farandole.report.chart import Frame, Scale, svg, x_axis, y_axis
from farandole.report.figures import Figure, missing
from farandole.report.figures.lines import Axes, Line, Mark, line_chart
from farandole.report.figures.predicted import Prediction
from farandole.report.markup import Markup, tag
from farandole.results.cases import Axis, Case, Series, main_time, metric_of, run_once, unknown_in
from farandole.results.numbers import count, number, percent, plain, seconds
from farandole.results.scaling import CAUSES, Scaling

__all__ = ["HOLLOW", "MOST_SERIES", "efficiency_figure", "joined", "mark_of", "repeats_caption", "time_figure", "unknown_caption", "words_of"]

HOLLOW = "Hollow: oversubscribed, more ranks than cores."
MOST_SERIES = 5
_PARTS = (("train_s", "training", "s1"), ("load_s", "loading", "s5"))
_LEAST_SHOWN = 0.004
_WORDS = {cause.name: cause.words for cause in CAUSES}


def time_figure(
    series: Sequence[Series], axis: Axis, scalings: Sequence[Scaling], *, weak: bool, prediction: Prediction | None = None
) -> Figure:
    found = main_time([case for one in series for case in one.cases])
    if found is None:
        return missing("time", f"Time against {axis.label}", "No run has finished, so that there is no time to show.")
    figure, title = found[0], f"{found[1]} against {axis.label}"
    drawn = [one for one in series if any(case.median(figure) for case in one.cases)][:MOST_SERIES]
    if max(len(one.cases) for one in drawn) < 2:
        return missing("time", title, f"A line needs runs with two values of {axis.label}; there is one.")
    if len(drawn) == 1 and figure == "total_s":
        lines = [_totals(part, axis, figure, "ink") for part in joined(replace(drawn[0], label="total"), axis)]
        lines += [line for name, label, kind in _PARTS for line in _parts(replace(drawn[0], label=label), axis, name, kind)]
    else:
        lines = [_totals(part, axis, figure, f"s{place}") for place, one in enumerate(drawn, 1) for part in joined(one, axis)]
    lines = [line for line in lines if line.marks]
    if axis.name == "ranks" and scalings:
        lines.append(_ideal(scalings, "ideal"))
    kinds = {repr(one.settings): "ink" if lines[0].kind == "ink" else f"s{place}" for place, one in enumerate(drawn, 1)}
    predicted = [] if prediction is None or axis.name != "ranks" else prediction.lines(figure, kinds)
    lines += predicted
    axes = Axes(
        x_label=axis.label, y_label="seconds", words=title,
        x_ticks=sorted({x for one in drawn for x, _ in one.at(axis)} | ({float(ranks) for ranks in prediction.ranks} if predicted and prediction else set())),
    )  # fmt: skip
    caption = _time_caption(series, drawn, axis, scalings, figure, weak=weak)
    return Figure(
        name="time", title=title, caption=f"{caption} {prediction.caption}" if predicted and prediction else caption,
        draw=lambda width: line_chart(lines, axes, width),
    )  # fmt: skip


def _time_caption(
    series: Sequence[Series], drawn: Sequence[Series], axis: Axis, scalings: Sequence[Scaling], figure: str, *, weak: bool
) -> str:
    words, cases = [], [case for one in drawn for case in one.cases]
    if axis.name == "ranks" and scalings:
        base = scalings[0]
        ideal = "the same time on any number" if weak else "half the time on twice the ranks"
        of = f" of {drawn[0].label}" if len(drawn) > 1 else ""
        words.append(f"Base{of}: {seconds(base.time_s)} on {count(base.ranks, 'rank')}; ideal is {ideal}.")
    words.append(repeats_caption(cases, figure))
    if any(case.oversubscribed for case in cases):
        words.append(HOLLOW)
    if len(series) > len(drawn):
        words.append(f"{len(drawn)} of {len(series)} configurations are drawn, the fastest; the table has all.")
    none_s = sum(value <= 0 for case in cases for value in case.values(figure))
    if none_s:
        words.append(f"{count(none_s, 'run')} that took 0 s {'has' if none_s == 1 else 'have'} no place on a logarithmic axis.")
    return " ".join(words)


def repeats_caption(cases: Sequence[Case], figure: str) -> str:
    return (run_once(cases) or "Medians; bars span all repeats, small dots are single runs.") + unknown_caption(cases, figure)


def unknown_caption(cases: Sequence[Case], figure: str) -> str:
    """A further sentence; empty where all runs know it."""
    runs = unknown_in(cases, figure)
    return f" Not known in {runs} and shown of the others." if runs else ""


def joined(series: Series, axis: Axis) -> list[Series]:
    """The parts of a series that a line may join, the last with its name.

    Their cases differ along the axis alone, or by numbers that follow from it, such as the global batch from the ranks.
    """
    named = {name for case in series.cases for name in case.settings} - {axis.name}
    fixed = sorted(name for name in named if not _follows(name, series, axis))
    parts: dict[str, list[Case]] = {}
    for case in series.cases:
        parts.setdefault(repr([case.settings.get(name) for name in fixed]), []).append(case)
    *rest, last = sorted(parts.values(), key=lambda cases: float(cases[-1].settings[axis.name]))
    return [*(replace(series, cases=cases, label="") for cases in rest), replace(series, cases=last)]


def _follows(name: str, series: Series, axis: Axis) -> bool:
    """Whether a setting is a number of which there is one for each value on the axis."""
    seen = {(case.settings[axis.name], repr(case.settings.get(name))) for case in series.cases}
    kinds = {type(case.settings.get(name)) for case in series.cases}
    return len(seen) == len({at for at, _ in seen}) and kinds <= {int, float, type(None)}


def _totals(series: Series, axis: Axis, figure: str, kind: str) -> Line:
    marks = [mark for x, case in series.at(axis) if (mark := mark_of(x, case, figure, axis)) is not None and mark.y > 0]
    return Line(label=series.label, kind=kind, marks=[_above_0(mark) for mark in marks])


def _above_0(mark: Mark) -> Mark:
    """As much of it as has a place on a logarithmic axis."""
    if all(value > 0 for value in mark.repeats):
        return mark
    repeats = [value for value in mark.repeats if value > 0]
    return replace(mark, repeats=repeats, spread=(min(repeats), max(repeats)))


def _parts(series: Series, axis: Axis, name: str, kind: str) -> list[Line]:
    """Of one phase; none where fewer than two cases know it."""
    if sum(bool(case.median(name)) for case in series.cases) < 2:
        return []
    return [Line(label=part.label, kind=kind, marks=_marks(part, axis, name, series.label), style="thin") for part in joined(series, axis)]


def _marks(series: Series, axis: Axis, name: str, label: str) -> list[Mark]:
    return [
        Mark(x=x, y=value, words=f"{label}: {seconds(value)} with {axis.label} {plain(x)}", hollow=case.oversubscribed)
        for x, case in series.at(axis)
        if (value := case.median(name))
    ]


def _ideal(scalings: Sequence[Scaling], label: str) -> Line:
    marks = [Mark(x=float(one.ranks), y=one.ideal_s) for one in scalings]
    return Line(label=label, kind="muted", marks=marks, style="dashed")


def mark_of(x: float, case: Case, figure: str, axis: Axis) -> Mark | None:
    value = case.median(figure)
    if value is None:
        return None
    values = case.values(figure)
    return Mark(
        x=x, y=value, spread=case.spread(figure), repeats=values if len(values) > 1 else (),
        words=words_of(case, axis), hollow=case.oversubscribed,
    )  # fmt: skip


def words_of(case: Case, axis: Axis) -> str:
    """What pointing at a case shows: a line a figure."""
    spread = case.spread("total_s")
    lines = [
        f"{axis.label} {case.settings.get(axis.name)}",
        f"total {seconds(case.median('total_s'))}" + (f" ({number(spread[0])}–{number(spread[1])})" if spread else "") + _partly(case, "total_s"),
        *(f"{label} {seconds(value)}{_partly(case, name)}" for name, label, _ in _PARTS if (value := case.median(name)) is not None),
        *(
            f"{words.format(metric=metric_of([case]))} {number(value)}{_partly(case, name)}"
            for name, words in _QUALITY
            if (value := case.median(name)) is not None
        ),
        count(case.runs, "run") + (f", {len(case.failed)} failed" if case.failed else ""),
        *case.marks,
    ]
    return "\n".join(lines)


def _partly(case: Case, figure: str) -> str:
    runs = case.partly(figure)
    return f" ({runs} runs)" if runs else ""


_QUALITY = (("test_accuracy", "test {metric}"), ("test_loss", "test loss"))


def efficiency_figure(scalings: Sequence[Scaling], label: str, *, weak: bool) -> Figure:
    title = "Efficiency and losses" + (" of training" if scalings and scalings[0].training_only else "")
    if len(scalings) < 2:
        return missing("efficiency", title, "Efficiency compares the times of rank counts, and fewer than two are known.")
    base = scalings[0]
    of, per = f"Of {label}. " if label else "", "Work of each rank's own" if weak else "Shared work"
    untold = "" if any("allreduce" in one.excess_s for one in scalings[1:]) else (
        " Communication is not told apart: no run says how long training waited for it (exposed_s)."
    )  # fmt: skip
    gained = max(scalings, key=lambda one: one.gained_s / one.time_s)
    net = (
        f" Losses are net of gains: on {count(gained.ranks, 'rank')} parts of the run took {seconds(gained.gained_s)} less than ideal."
        if gained.gained_s > 0.02 * gained.time_s
        else ""
    )
    return Figure(
        name="efficiency", title=title,
        caption=f"{of}{per}, against {seconds(base.time_s)} on {count(base.ranks, 'rank')}.{untold}{net}",
        draw=lambda width: _efficiency(scalings, width),
    )  # fmt: skip


def _efficiency(scalings: Sequence[Scaling], width: float) -> Markup:
    top = max(1.0, *(one.efficiency for one in scalings))
    frame = Frame(width=width, height=320.0, left=50.0, right=8.0)
    y = Scale(low=0.0, high=top, start=frame.y1, end=frame.top)
    ticks = [share / 5 for share in range(int(top * 5 + 1e-9) + 1)]
    x = Scale(low=-0.5, high=len(scalings) - 0.5, start=frame.left, end=frame.x1)
    thick = min(64.0, 0.72 * (frame.x1 - frame.left) / len(scalings))
    shown = {name for one in scalings for name, share in _shown(one).items() if share >= _LEAST_SHOWN / 4}
    return svg(
        frame,
        y_axis(frame, y, ticks, percent, "efficiency"),
        *(_bar(one, x(at), y, thick) for at, one in enumerate(scalings)),
        x_axis(frame, x, list(range(len(scalings))), lambda at: plain(scalings[int(at)].ranks), "ranks"),
        words="Efficiency by number of ranks, with losses by cause",
        legend=[("c-efficient", "efficient"), *((f"c-{cause.name}", cause.words) for cause in CAUSES if cause.name in shown)],
    )


def _shown(one: Scaling) -> dict[str, float]:
    """Losses in the order of causes; what is too little to be seen is with the overhead."""
    shares = {cause.name: one.losses.get(cause.name, 0.0) for cause in CAUSES}
    little = [name for name, share in shares.items() if share < _LEAST_SHOWN and name != "other"]
    shares["other"] += sum(shares.pop(name) for name in little)
    return {name: share for name, share in shares.items() if share > 1e-6}


def _bar(one: Scaling, x: float, y: Scale, thick: float) -> Markup:
    parts = [("efficient", one.efficiency, "efficient")]
    parts += [(name, share, _WORDS[name]) for name, share in _shown(one).items()]
    drawn: list[str] = []
    at = 0.0
    for name, share, words in parts:
        high, low = y(at + share), y(at)
        beyond = one.excess_s.get(name, 0.0)
        lost = f", {seconds(beyond)} beyond the ideal" if beyond > 0 else ""
        told = tag("title", f"{count(one.ranks, 'rank')}\n{words}: {percent(share, 1)}{lost}")
        drawn.append(tag("rect", told, x=x - thick / 2, y=high, width=thick, height=max(0.5, low - high - 1), class_=f"fill c-{name}"))
        text = percent(share)
        if low - high >= 18 and thick >= 34:
            drawn.append(tag("text", text, x=x, y=(low + high) / 2 + 4, class_=f"in-bar mid c-{name}"))
        at += share
    return tag("g", *drawn)
