"""From a merged timeline to figures, rank by rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from farandole.observe.analysis.components import components_of
from farandole.observe.analysis.reading import MergedTrace, RankSpans, read
from farandole.observe.analysis.seconds import Kinds, RankSeconds, Wait, awaited, is_of_gradients, waits_of
from farandole.observe.analysis.spans import Span, spread_out, union
from farandole.observe.phases import START

__all__ = ["analyse"]

_MOST_DRAWN = 2_000  # stretches of communication of a rank: more than a screen has
_RANKS_DRAWN = 64
_GAPS: dict[str, Any] = {
    "missing_ranks": [], "unfinished_ranks": [], "dropped_by_rank": {}, "cut_bytes_by_rank": {}, "ignored_parts": {}, "condensed": None
}  # fmt: skip
_PARTS_OF_STEPS = {
    "DATA": "data_stall_s", "FORWARD": "forward_s", "BACKWARD": "backward_s", "OPTIMIZER": "optimizer_s"
}  # fmt: skip


def analyse(trace: Path) -> dict[str, Any]:
    """The figures of docs/traces.md, of a file that `farandole timeline merge` or a run has made."""
    found = read(Path(trace))
    ranks = {pid: found.ranks[pid] for pid in sorted(found.ranks) if pid in _numbers(found)}
    waits = {pid: waits_of(rank.spans) for pid, rank in ranks.items()}
    last = _last_ready(waits.values())
    drawn = spread_out(list(ranks), _RANKS_DRAWN)
    return {
        "ranks": [_rank(pid, rank, waits[pid], last) for pid, rank in ranks.items()],
        "residual_s": _seconds(found.opening.get("clock_residual_us")),
        "clock": found.opening.get("clock"),
        "power": [_power(node, told) for node, told in sorted(found.power.items())],
        "bands": [band for pid, rank in ranks.items() for band in _bands(pid, rank.spans)],
        "communication": [stretch for pid in drawn for stretch in _communication(pid, ranks[pid].spans)],
        "communication_ranks": drawn,
        "components": components_of(list(ranks.values())),
        **{name: found.gaps.get(name, empty) for name, empty in _GAPS.items()},
    }


def _numbers(found: MergedTrace) -> set[int]:
    return set(found.opening.get("ranks", ()))


def _seconds(micros: float | None) -> float | None:
    return None if micros is None else micros * 1e-6


def _last_ready(waits: Iterable[Sequence[Wait]]) -> dict[tuple[str, int], float]:
    """When the last rank was ready for each collective."""
    last: dict[tuple[str, int], float] = {}
    for found in waits:
        for key, ready_s, _ in found:
            last[key] = max(last.get(key, ready_s), ready_s)
    return last


def _rank(number: int, rank: RankSpans, waits: Sequence[Wait], last: dict[tuple[str, int], float]) -> dict[str, Any]:
    steps = sorted((span for span in rank.spans if _is_step(span)), key=lambda span: span.start_s)
    figures = Kinds.of(rank.spans).whole()
    figures.wait_s = sum(_waited(wait, last) for wait in waits)
    gradient_wait_s = sum(_waited(wait, last) for wait in waits if is_of_gradients(wait))
    for summed in [rank.condensed.get("outside"), *(step.args.get("s") for step in steps)]:
        if summed:
            figures += RankSeconds(*summed)
            gradient_wait_s += RankSeconds(*summed).wait_s  # merging sums up no other waits
    unseen = _unseen(rank.spans)
    return {
        "rank": number,
        "name": rank.name,
        "phases": _phases(rank.spans),
        "steps": [step.args.get("sum_s", step.seconds) / step.args.get("steps", 1) for step in steps],
        "step_counts": [step.args.get("steps", 1) for step in steps],
        "step_wait_s": _waits_by_step(steps, waits, last),
        "comm_s": figures.comm_s,
        "exposed_s": figures.exposed_s,
        "hidden_s": figures.hidden_s,
        "wait_s": figures.wait_s,
        "gradient_wait_s": gradient_wait_s,
        **{figure: None if figure in unseen else getattr(figures, figure) for figure in _PARTS_OF_STEPS.values()},
        "reasons": unseen,
        "total_s": _extent(rank.spans),
        "training_s": _extent(steps) if steps else None,
    }


def _unseen(spans: Iterable[Span]) -> dict[str, str]:
    """RankSeconds that a framework does not show, and why."""
    told = [span.args for span in spans if span.name == "FIT" and span.args.get("unseen")]
    return {
        _PARTS_OF_STEPS[name]: f"inside of the step that Keras compiles with {args['backend']}"
        for args in told
        for name in args["unseen"]
    }


def _waited(wait: Wait, last: dict[tuple[str, int], float]) -> float:
    key, ready_s, done_s = wait
    return max(min(done_s, last[key]) - ready_s, 0.0)


def _waits_by_step(steps: Sequence[Span], waits: Sequence[Wait], last: dict[tuple[str, int], float]) -> list[float]:
    """How long this rank waited for others within each of its steps."""
    found = [RankSeconds(*step.args.get("s", ())).wait_s / step.args.get("steps", 1) for step in steps]
    starts = [step.start_s for step in steps]
    for wait in waits:
        at = bisect_right(starts, wait[1]) - 1
        if at >= 0 and wait[1] < steps[at].end_s:
            found[at] += _waited(wait, last)
    return found


def _is_step(span: Span) -> bool:
    return span.track == "steps" and span.name in ("STEP", "STEPS")


def _extent(spans: Sequence[Span]) -> float:
    return max((span.end_s for span in spans), default=0.0) - min((span.start_s for span in spans), default=0.0)


def _phases(spans: Sequence[Span]) -> dict[str, float]:
    """A phase stands still while another one inside it runs."""
    seconds: dict[str, float] = {}
    open_phases: list[Span] = []
    for span in _marked(spans) if any(span.track == "phases" for span in spans) else ():
        if span.track != "phases":  # of another thread
            continue
        while open_phases and open_phases[-1].end_s <= span.start_s:
            open_phases.pop()
        if open_phases:  # a region may be open when the start ends, and go on
            seconds[open_phases[-1].name] -= min(span.end_s, open_phases[-1].end_s) - span.start_s
        seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
        open_phases.append(span)
    return seconds


def _marked(spans: Sequence[Span]) -> list[Span]:
    """Phases in the order in which they began; training is one where the script marks none, which has a start alone."""
    phases = [span for span in spans if span.track.startswith("phases")]
    steps = [span for span in spans if span.track == "steps"]
    if steps and all(span.name == START for span in phases):
        phases.append(Span("phases", "train", min(s.start_s for s in steps), max(s.end_s for s in steps)))
    return sorted(phases, key=lambda span: (span.start_s, -span.end_s))


def _bands(number: int, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Phases over time, those of other threads included."""
    return [
        {"rank": number, "name": span.name, "start_s": span.start_s, "end_s": span.end_s} for span in _marked(spans)
    ]


def _communication(number: int, spans: Iterable[Span]) -> list[dict[str, Any]]:
    """When training waited for which collective; stretches closer than a pixel are drawn as one."""
    found: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        name = awaited(span)
        if name is not None:
            found.setdefault(name, []).append((span.start_s, span.end_s))
    if not found:
        return []
    ends = [end for stretches in found.values() for stretch in stretches for end in stretch]
    pixel_s = (max(ends) - min(ends)) / _MOST_DRAWN
    return [
        {"rank": number, "name": name, "start_s": start, "end_s": end - pixel_s}
        for name, stretches in found.items()
        for start, end in union((start, end + pixel_s) for start, end in stretches)
    ]


def _with_gaps(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float | None]]:
    """Curves have equal steps; those that are not there were not seen."""
    step_s = median_low(later[0] - at_s for (at_s, _), later in pairwise(points)) if len(points) > 1 else 0.0
    for (at_s, watts), (later_s, _) in pairwise([*points, *points[-1:]]):
        yield at_s, watts
        for number in range(1, round((later_s - at_s) / step_s) if step_s else 0):
            yield at_s + number * step_s, None


def _power(node: str, told: dict[str, Any]) -> dict[str, Any]:
    """The node where it is measured as a whole, otherwise its parts together, where all of them were seen."""
    whole = [(at_s, watts["node"]) for at_s, watts in told["points"] if "node" in watts]
    parts = {part for _, watts in told["points"] for part in watts}
    summed = [(at_s, sum(watts.values())) for at_s, watts in told["points"] if watts.keys() == parts]
    return {
        "node": node,
        **_curve(whole or summed),
        "parts": _parts(told),
        "provenance": told.get("provenance", "none"),
        "energy_j": told.get("energy_j"),
        "reason": told.get("reason", ""),
        "window": told.get("window"),
        "window_reason": told.get("window_reason", ""),
        "source": told.get("source", ""),
        "remarks": told.get("remarks", []),
    }


def _parts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The curve of each part; none where there is one alone, which is then the whole."""
    names = dict.fromkeys(name for _, watts in told["points"] for name in watts)
    return [
        {
            "part": name,
            **_curve([(at_s, watts[name]) for at_s, watts in told["points"] if name in watts]),
            "provenance": told.get("parts", {}).get(name, "none"),
        }
        for name in names
        if name != "node" and len(names) > 1
    ]


def _curve(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    found = list(_with_gaps(sorted(points)))
    return {"t_s": [at_s for at_s, _ in found], "w": [watts for _, watts in found]}
