"""Timelines that would be too large to open: some steps in full, the same on all ranks, and sums of the others.

1. Look. Every part is searched for its steps, and for when each rank was ready for each step's gradients.
2. Plan. The room that the merged file has is divided among the ranks: some for whole steps, spread evenly over the run,
   some for spans that sum up several steps, some for what is outside of steps.
3. Condense. Part by part, what does not fit is left out, and its figures are kept: an analysis of the merged file
   has the sums of all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.observe.analysis.components import Tally, tally
from farandole.observe.analysis.reading import CONDENSED
from farandole.observe.analysis.seconds import Kinds, RankSeconds
from farandole.observe.analysis.spans import Span
from farandole.observe.chrome import arguments, metadata

__all__ = ["Condensing", "Looked", "condensed", "look"]

_CHUNK_BYTES = 1 << 20
_STEP = b'"name":"STEP"'
_POINT = b'"ph":"C"'
_WAIT = re.compile(rb'\{"ts":(\d+)\.(\d+),[^\n]*?"name":"WAIT_FOR_GRADIENTS","args":\{"step":(\d+)')
_BIN_BYTES = 190  # of a span that sums up steps
_POINT_BYTES = 110
_MOST_ALWAYS = 400  # phases and instants of a rank
_LARGEST_GROUP = 20_000  # spans between two steps
_ALWAYS = frozenset(("FIT",))


@dataclass(kw_only=True, slots=True)
class Looked:
    """What a first look at a part has found."""

    steps: int = 0
    points: int = 0
    nbytes: int = 0
    ready_ns: dict[int, int] = field(default_factory=dict)
    """When this rank was ready for each step's gradients, from the begin of its part."""


@dataclass(kw_only=True, slots=True)
class Condensing:
    """What is kept of every rank."""

    kept_steps: frozenset[int]
    steps_per_span: int
    detail_bytes: int
    outside_bytes: int
    point_stride: int
    last_ready_s: dict[int, float]
    """When the last rank was ready for each step's gradients, on the common clock."""
    dropped: int = 0

    @classmethod
    def planned(cls, found: Sequence[Looked], limit_bytes: int, last_ready_s: dict[int, float]) -> Condensing:
        """Half of the room for whole steps, the rest for sums, for what is outside of steps, and for power."""
        room = limit_bytes // max(len(found), 1)
        steps = max((one.steps for one in found), default=0)
        step_bytes = max(sum(one.nbytes for one in found) // max(sum(one.steps for one in found), 1), 1)
        whole = min(int(0.5 * room) // step_bytes, steps)
        points = sum(one.points for one in found)
        return cls(
            kept_steps=frozenset(number * steps // whole for number in range(whole)),
            steps_per_span=max(-(-steps * _BIN_BYTES // max(int(0.15 * room), 1)), 1),
            detail_bytes=int(0.55 * room),
            outside_bytes=int((0.1 if steps else 0.7) * room),
            point_stride=max(-(-points * _POINT_BYTES // max(int(0.1 * limit_bytes), 1)), 1),
            last_ready_s=last_ready_s,
        )

    def told(self, limit_bytes: int) -> dict[str, object]:
        kept = len(self.kept_steps)
        return {
            "what": f"the parts were larger than {limit_bytes / 1e6:g} MB: {kept} steps are whole, all others summed up, "
            f"{self.steps_per_span} a span; {self.dropped:,} spans and points are left out, their sums are kept",
            "whole_steps": sorted(self.kept_steps)[:1000],
            "steps_per_span": self.steps_per_span,
            "left_out": self.dropped,
        }


def look(path: Path) -> Looked:
    found = Looked()
    with path.open("rb") as file:
        while lines := file.readlines(_CHUNK_BYTES):
            text = b"".join(lines)
            found.nbytes += len(text)
            found.steps += text.count(_STEP)
            found.points += text.count(_POINT)
            for whole, decimals, step in _WAIT.findall(text):
                found.ready_ns.setdefault(int(step), int(whole) * 1000 + int(decimals))
    return found


def condensed(
    lines: Iterable[tuple[bytes, dict[str, Any]]], pid: int, plan: Condensing
) -> Iterator[bytes]:
    """The lines of one rank that stay, and those that sum up the others; times are on the common clock already."""
    rank = _Rank(pid, plan)
    for line, event in lines:
        yield from rank.take(line, event)
    yield from rank.end()


class _Rank:
    def __init__(self, pid: int, plan: Condensing) -> None:
        self._pid, self._plan = pid, plan
        self._tracks: dict[int, str] = {}
        self._announcements: dict[int, list[bytes]] = {}
        self._group: list[tuple[bytes, Span, int]] = []
        self._always = self._points = 0
        self._detail_left, self._outside_left = plan.detail_bytes, plan.outside_bytes
        self._sum = _Sum()
        self._outside = RankSeconds()
        self._components: dict[str, Tally] = {}

    def take(self, line: bytes, event: dict[str, Any]) -> Iterator[bytes]:
        phase, tid = event["ph"], event.get("tid", 0)
        if phase == "X":
            yield from self._take_span(line, event, tid)
        elif phase == "M" and tid:
            self._tracks.setdefault(tid, "")
            if event["name"] == "thread_name":
                self._tracks[tid] = event["args"]["name"]
            self._announcements.setdefault(tid, []).append(line)
        elif phase == "C":
            self._points += 1
            if self._points % self._plan.point_stride == 0:
                yield line
            else:
                self._plan.dropped += 1
        elif phase == "i":
            yield from self._keep_few(line, tid)
        else:
            yield line

    def _take_span(self, line: bytes, event: dict[str, Any], tid: int) -> Iterator[bytes]:
        start_s = event["ts"] * 1e-6
        track = self._tracks.get(tid, "")
        span = Span(track, event["name"], start_s, start_s + event["dur"] * 1e-6, event.get("args", {}))
        if track == "phases" or span.name in _ALWAYS:
            yield from self._keep_few(line, tid)
        elif track == "steps" and span.name == "STEP":
            yield from self._end_step(line, span, tid)
        else:
            self._group.append((line, span, tid))
            if len(self._group) >= _LARGEST_GROUP:
                yield from self._put_outside(self._group)
                self._group = []

    def _keep_few(self, line: bytes, tid: int) -> Iterator[bytes]:
        self._always += 1
        if self._always <= _MOST_ALWAYS:
            yield from self._written(line, tid)
        else:
            self._plan.dropped += 1

    def _written(self, line: bytes, tid: int) -> Iterator[bytes]:
        """A track has its name before its first event."""
        yield from self._announcements.pop(tid, [])
        yield line

    def _end_step(self, line: bytes, step: Span, tid: int) -> Iterator[bytes]:
        inside = [one for one in self._group if one[1].end_s > step.start_s]
        yield from self._put_outside([one for one in self._group if one[1].end_s <= step.start_s])
        self._group = []
        number = int(step.args.get("step", -1))
        size = len(line) + sum(len(one[0]) for one in inside)
        if number in self._plan.kept_steps and size <= self._detail_left:
            self._detail_left -= size
            yield from self._flush(tid)
            for kept, _, track in [*inside, (line, step, tid)]:
                yield from self._written(kept, track)
            return
        self._leave_out([span for _, span, _ in inside])
        self._plan.dropped += 1
        self._sum.add(step, number, self._figures(step, [span for _, span, _ in inside]))
        if self._sum.steps >= self._plan.steps_per_span:
            yield from self._flush(tid)

    def _figures(self, step: Span, inside: Sequence[Span]) -> RankSeconds:
        figures = Kinds.of(inside).whole()
        for span in inside:
            if span.name == "WAIT_FOR_GRADIENTS":
                last_s = self._plan.last_ready_s.get(int(span.args.get("step", -1)), span.start_s)
                figures.wait_s += max(min(span.end_s, last_s) - span.start_s, 0.0)
        return figures

    def _flush(self, tid: int) -> Iterator[bytes]:
        if self._sum.steps:
            yield from self._written(self._sum.line(self._pid, tid), tid)
            self._sum = _Sum()

    def _put_outside(self, group: Sequence[tuple[bytes, Span, int]]) -> Iterator[bytes]:
        left_out = []
        for line, span, tid in group:
            if len(line) <= self._outside_left:
                self._outside_left -= len(line)
                yield from self._written(line, tid)
            else:
                left_out.append(span)
        if left_out:
            self._outside += Kinds.of(left_out).whole()
            self._leave_out(left_out)

    def _leave_out(self, spans: Sequence[Span]) -> None:
        self._plan.dropped += len(spans)
        for name, left_out in tally(spans).items():
            self._components.setdefault(name, Tally()).add(left_out)

    def end(self) -> Iterator[bytes]:
        yield from self._put_outside(self._group)
        steps = next((tid for tid, track in self._tracks.items() if track == "steps"), 0)
        yield from self._flush(steps)
        components = {name: left_out.as_list() for name, left_out in self._components.items()}
        told = {"outside": self._outside.as_list(), "components": components}
        yield metadata(CONDENSED, self._pid, told).encode("ascii")


class _Sum:
    """Steps that are shown as one span."""

    def __init__(self) -> None:
        self.steps = 0
        self._first = 0
        self._start_s = self._end_s = self._seconds = 0.0
        self._figures = RankSeconds()

    def add(self, step: Span, number: int, figures: RankSeconds) -> None:
        if not self.steps:
            self._first, self._start_s = number, step.start_s
        self.steps += 1
        self._end_s = step.end_s
        self._seconds += step.seconds
        self._figures += figures

    def line(self, pid: int, tid: int) -> bytes:
        told = {
            "step": self._first, "steps": self.steps, "sum_s": round(self._seconds, 6), "s": self._figures.as_list()
        }  # fmt: skip
        times = f'"ts":{self._start_s * 1e6:.3f},"dur":{(self._end_s - self._start_s) * 1e6:.3f}'
        return f'{{{times},"ph":"X","pid":{pid},"tid":{tid},"name":"STEPS","args":{arguments(told)}}}'.encode("ascii")
