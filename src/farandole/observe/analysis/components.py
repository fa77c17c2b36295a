"""Where a rank's time went, by component, as a profiler would list it: calls and seconds, of an average rank.

One component lies within another where its spans do: `seconds` are those from begin to end, `self_s` those in which none that is
listed ran within. What goes on beside training, on the engine's threads or unwaited for, lies within nothing: `beside_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from farandole.observe.analysis.reading import RankSpans
from farandole.observe.analysis.seconds import is_beside
from farandole.observe.analysis.spans import Span

__all__ = ["Tally", "components_of", "tally"]

# Component: track (empty: any) and names of the spans that make it.
_PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fit": ("steps", ("FIT",)),
    "framework run": ("training", ("RUN",)),
    "forward": ("training", ("FORWARD",)),
    "backward": ("training", ("BACKWARD",)),
    "optimizer": ("training", ("OPTIMIZER",)),
    "evaluate": ("training", ("EVALUATE",)),
    "callbacks": ("training", ("CALLBACKS",)),
    "read": ("phases", ("load",)),
    "next batch": ("training", ("DATA",)),
    "broadcast": ("", ("BROADCAST",)),
    "broadcast: wait for all ranks": ("", ("NEGOTIATE_BROADCAST",)),
    "allreduce": ("", ("ALLREDUCE",)),
    "wait for gradients": ("", ("WAIT_FOR_GRADIENTS",)),
    "allgather": ("", ("ALLGATHER",)),
    "send and receive": ("", ("SEND", "RECEIVE", "SENDRECV")),
    "other collectives": ("", ("REDUCESCATTER", "ALLTOALL", "BARRIER", "WAIT_FOR_COLLECTIVE")),
}
_COMPONENTS = {name: (component, track) for component, (track, names) in _PARTS.items() for name in names}
_IN_FIT = frozenset(component for component, (track, _) in _PARTS.items() if track == "training") | {"wait for gradients"}
_ROUNDED_S = 2e-9  # times in a file are whole nanoseconds


@dataclass(slots=True)
class Tally:
    """One component of one rank."""

    calls: float = 0
    seconds: float = 0.0
    self_s: float = 0.0
    beside_s: float = 0.0
    within: dict[str, float] = field(default_factory=dict)
    """Seconds by the component that it was called in."""

    def add(self, other: Tally) -> None:
        self.calls += other.calls
        self.seconds += other.seconds
        self.self_s += other.self_s
        self.beside_s += other.beside_s
        for name, seconds in other.within.items():
            self.within[name] = self.within.get(name, 0.0) + seconds

    def as_list(self) -> list[Any]:
        numbers = [round(number, 6) for number in (self.seconds, self.self_s, self.beside_s)]
        return [self.calls, *numbers, {name: round(seconds, 6) for name, seconds in self.within.items()}]


def tally(spans: Iterable[Span]) -> dict[str, Tally]:
    """The components of one rank's spans."""
    found: dict[str, Tally] = {}
    inline = []
    for span in spans:
        component = _component(span.track, span.name)
        if component and is_beside(span):
            found.setdefault(component, Tally()).add(Tally(1, span.seconds, span.seconds, span.seconds))
        elif component:
            inline.append((span.start_s, -span.end_s, component))
    for (component, around, again), (calls, seconds) in _nested(sorted(inline)).items():
        found.setdefault(component, Tally()).add(Tally(calls, 0.0 if again else seconds, seconds))
        if around:
            found.setdefault(around, Tally()).self_s -= seconds
            if not again:
                found[component].add(Tally(within={around: seconds}))
    return found


@lru_cache(maxsize=4096)
def _component(track: str, name: str) -> str:
    """Empty where a span is of none that is listed."""
    component, wanted = _COMPONENTS.get(name, ("", ""))
    return component if wanted in ("", track) else ""


def _nested(inline: Sequence[tuple[float, float, str]]) -> dict[tuple[str, str, bool], list[float]]:
    """Calls and seconds of (component, what it was called in, whether one of its own was open), of one thread's spans."""
    sums: dict[tuple[str, str, bool], list[float]] = {}
    around: list[tuple[float, str]] = []  # (end, component) of what is open, the innermost last
    for start_s, minus_end_s, component in inline:
        end_s = -minus_end_s
        while around and (around[-1][0] <= start_s or around[-1][0] < end_s - _ROUNDED_S):
            around.pop()
        again = component in [name for _, name in around]
        summed = sums.setdefault((component, around[-1][1] if around else "", again), [0, 0.0])
        summed[0] += 1
        summed[1] += end_s - start_s
        around.append((end_s, component))
    return sums


def components_of(ranks: Sequence[RankSpans]) -> list[dict[str, Any]]:
    """Each below the one it lies within, mostly, the longest first; what did not happen is left out."""
    whole: dict[str, Tally] = {}
    for rank in ranks:
        for name, mine in _of_rank(rank).items():
            whole.setdefault(name, Tally()).add(mine)
    return list(_rows(whole, _parents(whole), None, 0, max(len(ranks), 1)))


def _of_rank(rank: RankSpans) -> dict[str, Tally]:
    """With the sums of what merging has left out."""
    found = tally(rank.spans)
    for name, told in rank.condensed.get("components", {}).items():
        found.setdefault(name, Tally()).add(_in_fit(Tally(*told), found.get("fit")) if name in _IN_FIT else Tally(*told))
    for what, (calls, seconds) in rank.condensed.get("spans", {}).items():  # as files were written before
        track, _, name = what.rpartition("/")
        if component := _component(track, name):
            found.setdefault(component, Tally()).add(Tally(calls, seconds, seconds))
    return found


def _in_fit(left_out: Tally, fit: Tally | None) -> Tally:
    """Steps are left out while fit() goes on, whose span comes last: sums do not say that they lie within."""
    alone_s = left_out.seconds - left_out.beside_s - sum(left_out.within.values())
    if fit is not None and 0 < alone_s <= fit.self_s:
        fit.self_s -= alone_s
        left_out.within["fit"] = alone_s
    return left_out


def _parents(whole: Mapping[str, Tally]) -> dict[str, str | None]:
    """What each component lies within for the most part of its time; None: in nothing that is listed."""
    parents: dict[str, str | None] = {}
    for name in sorted(whole, key=lambda name: -whole[name].seconds):
        mine = whole[name]
        most = max(mine.within, key=lambda around: mine.within[around], default=None)
        alone_s = mine.seconds - sum(mine.within.values())
        parent = most if most is not None and mine.within[most] > alone_s else None
        parents[name] = None if name in _above(parent, parents) else parent
    return parents


def _above(name: str | None, parents: Mapping[str, str | None]) -> Iterator[str]:
    while name is not None:
        yield name
        name = parents.get(name)


def _rows(
    whole: Mapping[str, Tally], parents: Mapping[str, str | None], parent: str | None, depth: int, ranks: int
) -> Iterator[dict[str, Any]]:
    for name in parents:  # the longest first
        if parents[name] == parent:
            mine = whole[name]
            yield {
                "name": name, "parent": parent, "depth": depth, "calls": mine.calls / ranks, "seconds": mine.seconds / ranks,
                "self_s": max(mine.self_s, 0.0) / ranks, "beside_s": mine.beside_s / ranks,
            }  # fmt: skip
            yield from _rows(whole, parents, name, depth + 1, ranks)
