"""Power over time under phase bands, with the communication below: three panels on one clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from farandole.observe.analysis import spread_out
from farandole.report.chart import Frame, Scale, inside, linear_ticks, svg, text_width, x_axis
from farandole.report.figures import Figure, missing
from farandole.report.markup import Markup, tag
from farandole.report.raster import binned, cells, shares
from farandole.report.traces import Trace
from farandole.results.numbers import number, plain, quantity, seconds
from farandole.results.schema import PHASES

__all__ = ["timeline_figure"]

_TITLE = "Power over time, phases and communication"
_MOST_RANKS = 8
_BAND, _LANE, _POWER = 18.0, 14.0, 130.0
_MOST_CURVES = 5
"""There are as many colours: with more nodes than these, lines of power are drawn alike."""
_MOST_APART = 4.0
"""Runs of which one took more than so many times as long have scales of their own."""
_OWN = ("s1", "s3", "s4", "s5", "s2")
"""For phases that a script has named; waits for allreduce have the colour of the last."""
_PARTS = {"cpu": "CPU", "memory": "memory", "gpu": "GPU"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    rank: int
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What a trace has to draw; each moment of a rank is in one phase."""

    phases: Sequence[_Span]
    sent: Sequence[_Span]
    power: Sequence[Mapping[str, Any]]

    @property
    def end_s(self) -> float:
        spans = [span.end_s for span in (*self.phases, *self.sent)]
        return max(spans + [max(series["t_s"]) for series in self.power], default=0.0)

    @property
    def top_w(self) -> float:
        return max((watt for curve in _curves(self.power) for watt in _watts(curve)), default=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """What runs that are compared have in common: scales, where they can, and colours."""

    end_s: float
    top_w: float
    kinds: Mapping[str, str]
    """Classes of colours by phase."""


def timeline_figure(trace: Trace, no_power: str, beside: Trace | None = None) -> Figure:
    """`beside` is of the run that this one is compared with."""
    shown, other = _shown_of(trace), _shown_of(beside or Trace())
    if not (shown.phases or shown.sent or shown.power):
        reason = trace.reason or f"The trace of the run on {trace.of} has neither phases nor power."
        return missing("timeline", _TITLE, reason, full=True)
    ranks = _chosen({span.rank for span in (*shown.phases, *shown.sent)}, trace.communication_ranks)
    look = _Look(
        end_s=_common(shown.end_s, other.end_s), top_w=_common(shown.top_w, other.top_w), kinds=_kinds([*shown.phases, *other.phases])
    )
    words = [*_clock(trace), *_scale(shown, other), *_lacks(shown, no_power, condensed=bool(trace.condensed))]
    title = _TITLE if shown.power else "Phases and communication over time"
    return Figure(
        name="timeline", title=title, caption=" ".join(words), full=True, draw=lambda width: _timeline(ranks, shown, look, width)
    )


def _shown_of(trace: Trace) -> _Shown:
    return _Shown(
        phases=_flat([_span(band) for band in trace.bands]),
        sent=[_span(band) for band in trace.communication],
        power=[series for series in trace.power if series.get("t_s")],
    )


def _common(own: float, other: float) -> float:
    """The end of a scale for both; its own where one would be too small on the other's."""
    return max(own, other) if own and other and max(own, other) <= _MOST_APART * min(own, other) else own


def _clock(trace: Trace) -> list[str]:
    error = f", right to ±{quantity(trace.residual_s, 's')}" if trace.residual_s else ", that of the host" if trace.residual_s == 0 else ""
    return [f"The run on {trace.of}; one clock for all panels{error}."]


def _scale(shown: _Shown, other: _Shown) -> list[str]:
    if not other.end_s:
        return []
    if _common(shown.end_s, other.end_s) == _common(other.end_s, shown.end_s):
        return ["On one scale with the other: lengths compare."]
    return [f"Not on one scale with the other, which took {seconds(other.end_s)}."]


def _lacks(shown: _Shown, no_power: str, *, condensed: bool) -> list[str]:
    """What a reader would take for something else."""
    words = {
        "Power is modelled (TDP × utilisation), not measured.": any(series.get("provenance") == "modelled" for series in shown.power),
        f"No power: {no_power}.": not shown.power,
        "No wait for communication was recorded.": not shown.sent,
        "The trace is condensed: of the waits for gradients, those in steps that are whole are drawn.": shown.sent and condensed,
        "No phase was recorded.": not shown.phases,
    }
    return [word for word, so in words.items() if so]


def _span(band: Mapping[str, Any]) -> _Span:
    return _Span(
        rank=int(band["rank"]), name=str(band.get("name") or ""), start_s=float(band["start_s"]), end_s=float(band["end_s"])
    )


def _flat(phases: Sequence[_Span]) -> list[_Span]:
    """A phase stands still while another one inside it runs: each moment of a rank is in one phase."""
    ranks: dict[int, list[_Span]] = {}
    for span in sorted(phases, key=lambda one: (one.rank, one.start_s, -one.end_s)):
        before = ranks.get(span.rank, [])
        ranks[span.rank] = [*(part for other in before for part in _without(other, span)), span]
    return [span for found in ranks.values() for span in sorted(found, key=lambda one: one.start_s)]


def _without(span: _Span, other: _Span) -> Iterator[_Span]:
    if other.start_s >= span.end_s or other.end_s <= span.start_s:
        yield span
        return
    if other.start_s > span.start_s:
        yield replace(span, end_s=other.start_s)
    if other.end_s < span.end_s:
        yield replace(span, start_s=other.end_s)


def _timeline(ranks: Sequence[int], shown: _Shown, look: _Look, width: float) -> Markup:
    phases, sent, power = shown.phases, shown.sent, shown.power
    ticks_w = linear_ticks(0.0, look.top_w, 4) if power else []
    names = [f"rank {rank}" for rank in ranks] + [plain(tick) for tick in ticks_w]
    left = 14 + max(map(text_width, names), default=40.0)
    power_top = 8 + (len(ranks) * _BAND + 30 if phases else 16)
    lanes_top = power_top + (_POWER + 34 if power else 0)
    height = lanes_top + (len(ranks) * _LANE if sent else 0) + 44
    frame = Frame(width=width, height=height, left=left, right=10.0, top=4.0)
    x = Scale(low=0.0, high=look.end_s, start=frame.left, end=frame.x1)
    parts = [
        *(_bands(phases, ranks, x, look.kinds) if phases else ()),
        *(_power(shown, look.kinds, x, frame, power_top, ticks_w) if power else ()),
        *(_lanes(shown, ranks, x, lanes_top) if sent else ()),
        x_axis(frame, x, inside(linear_ticks(0.0, look.end_s, 8), 0.0, look.end_s), plain, "seconds since the start"),
        tag("line", x1=0, x2=0, y1=4, y2=frame.y1, class_="cursor", visibility="hidden"),
    ]
    return svg(
        frame, *parts, words=_TITLE, legend=[*_entries(shown, look.kinds), *_power_entries(power)],
        data_time=f"{frame.left:g} {frame.x1 - frame.left:g} {look.end_s:g}",
    )  # fmt: skip


def _chosen(ranks: set[int], looked_at: Sequence[int]) -> list[int]:
    """As many as there is room for, of those whose communication is known: another would look as if it never waited."""
    return spread_out(sorted(ranks & set(looked_at or ranks)), _MOST_RANKS)


def _entries(shown: _Shown, kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    seen = {span.name for span in shown.phases}
    entries = [(kind, PHASES.get(name, name)) for name, kind in kinds.items() if name in seen]
    waits = dict.fromkeys(_wait(span.name) for span in sorted(shown.sent, key=lambda span: span.start_s))
    return entries + [(kind, f"training waits for {words}") for kind, words in waits]


def _power_entries(power: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if len(power) > _MOST_CURVES:
        return [("s1 thin", f"power of {len(power)} nodes")]
    return [(f"s{at} {_style(curve)}", _named(curve)) for at, curve in enumerate(_curves(power), 1)]


def _curves(power: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Nodes, and the parts of the first one where there are colours left for them."""
    parts = [{"node": node.get("node"), **part} for node in power[:1] for part in node.get("parts") or ()]
    return [*power, *parts] if len(power) + len(parts) <= _MOST_CURVES else [*power]


def _style(curve: Mapping[str, Any]) -> str:
    return "fine" if "part" in curve else "thin"


def _named(curve: Mapping[str, Any]) -> str:
    part = curve.get("part", "power")
    return f"{_PARTS.get(part, part)} of {curve.get('node')}"


def _kinds(phases: Sequence[_Span]) -> dict[str, str]:
    """Classes of colours by phase; phases that a script has named itself get those of series, in the order they begin."""
    names = dict.fromkeys(span.name for span in sorted(phases, key=lambda span: (span.start_s, span.name)))
    own = [name for name in names if name not in PHASES]
    return {name: f"p-{name}" for name in PHASES if name in names} | {name: _OWN[at % len(_OWN)] for at, name in enumerate(own)}


def _bands(phases: Sequence[_Span], ranks: Sequence[int], x: Scale, kinds: Mapping[str, str]) -> Iterator[str]:
    rows = {rank: at for at, rank in enumerate(ranks)}
    for rank, at in rows.items():
        yield tag("text", f"rank {rank}", x=x.start - 8, y=8 + at * _BAND + 12, class_="tick end")
    for span in phases:
        if span.rank not in rows:
            continue
        low, high, y = x(span.start_s), x(span.end_s), 8 + rows[span.rank] * _BAND
        name = PHASES.get(span.name, span.name)
        words = f"rank {span.rank}: {name}\n{seconds(span.end_s - span.start_s)}, from {number(span.start_s)} to {number(span.end_s)} s"
        yield tag(
            "rect", tag("title", words),
            x=low, y=y, width=max(0.5, high - low - 0.5), height=_BAND - 3, class_=f"fill {kinds[span.name]}",
        )  # fmt: skip
        if high - low > text_width(name) + 10:
            yield tag("text", name, x=(low + high) / 2, y=y + 11.5, class_=f"in-bar mid {kinds[span.name]}")


def _power(
    shown: _Shown, kinds: Mapping[str, str], x: Scale, frame: Frame, top: float, ticks: Sequence[float]
) -> Iterator[str]:
    power = shown.power
    y = Scale(low=0.0, high=ticks[-1], start=top + _POWER, end=top)
    first = min((span.rank for span in shown.phases), default=0)
    for span in shown.phases:
        if span.rank == first:
            yield tag(
                "rect", x=x(span.start_s), y=top, width=max(0.0, x(span.end_s) - x(span.start_s)), height=_POWER,
                class_=f"wash {kinds[span.name]}",
            )  # fmt: skip
    unit = "watts (modelled)" if any(one.get("provenance") == "modelled" for one in power) else "watts"
    yield tag("text", unit, x=0, y=top - 8, class_="axis-name")
    for tick in ticks:
        yield tag("line", x1=frame.left, x2=frame.x1, y1=y(tick), y2=y(tick), class_="grid")
        yield tag("text", plain(tick), x=frame.left - 8, y=y(tick) + 4, class_="tick end")
    for at, curve in reversed([*enumerate(_curves(power), 1)]):
        kind = f"s{at}" if len(power) <= _MOST_CURVES else "s1 faint"
        yield tag("g", tag("path", tag("title", _told(curve)), d=_path(curve, x, y), class_=f"line {_style(curve)}"), class_=kind)


def _told(curve: Mapping[str, Any]) -> str:
    watts = _watts(curve)
    return f"{_named(curve)}\n{number(min(watts))} to {number(max(watts))} W, {str(curve.get('provenance')).replace('-', ' ')}"


def _watts(series: Mapping[str, Any]) -> list[float]:
    return [watt for watt in series["w"] if watt is not None and math.isfinite(watt)] or [0.0]


def _path(series: Mapping[str, Any], x: Scale, y: Scale) -> str:
    """A gap in what is known is a gap in the line."""
    bins = max(60, int((x.end - x.start) / 1.5))
    known = [None if watt is None or not math.isfinite(watt) else float(watt) for watt in series["w"]]
    path, pen = [], "M"
    for time_s, watt in zip(binned(list(series["t_s"]), bins), binned(known, bins)):
        if watt is None or time_s is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(time_s):.1f} {y(watt):.1f}")
        pen = "L"
    return "".join(path)


_WAITS = {
    "ALLREDUCE": ("c-allreduce", "allreduce"),
    "BROADCAST": ("c-straggler", "broadcast"),
    "ALLGATHER": ("c-stall", "allgather"),
    "BARRIER": ("c-evaluate", "barrier"),
}
"""Collectives that training waits for: the class of the colour, and the name."""


def _wait(name: str) -> tuple[str, str]:
    return _WAITS.get(name, ("c-other", "other collectives"))


def _lanes(shown: _Shown, ranks: Sequence[int], x: Scale, top: float) -> Iterator[str]:
    """As long as the run, also on the scale of a longer one."""
    sent, across = shown.sent, x(shown.end_s) - x.start
    yield tag("text", "communication", x=0, y=top - 8, class_="axis-name")
    bins = int((x.end - x.start) / 1.5)
    for at, rank in enumerate(ranks):
        spans = [(span.start_s, span.end_s, _wait(span.name)[0]) for span in sent if span.rank == rank]
        row = [_cell(share) for share in shares(spans, end_s=x.high, bins=bins)]
        waits = [_wait(name) for name in dict.fromkeys(span.name for span in sent if span.rank == rank)]
        told = {f"{kind} d{depth}": f"rank {rank} waits for {words}" for kind, words in waits for depth in range(1, 5)}
        yield tag("text", f"rank {rank}", x=x.start - 8, y=top + at * _LANE + 11, class_="tick end")
        yield tag("rect", x=x.start, y=top + at * _LANE + 1, width=across, height=_LANE - 2, class_="lane")
        yield cells([row], x=x.start, y=top + at * _LANE, width=x.end - x.start, height=_LANE, words=told)


def _cell(share: Mapping[str, float]) -> str | None:
    """What fills most of it, the paler the less it is."""
    if not share:
        return None
    kind = max(share, key=lambda name: share[name])
    return f"{kind} d{max(1, math.ceil(4 * share[kind]))}"
