"""Where a rank's time went, by component, as a profiler would list it: calls and seconds, of an average rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.observe.analysis.reading import RankSpans
from farandole.observe.analysis.spans import Span

__all__ = ["components_of"]

# Component: tracks (None: any) and names of the spans that make it.
_PARTS: dict[str, tuple[str | None, frozenset[str]]] = {
    "fit": ("steps", frozenset(("FIT",))),
    "framework run": ("training", frozenset(("RUN",))),
    "forward": ("training", frozenset(("FORWARD",))),
    "backward": ("training", frozenset(("BACKWARD",))),
    "optimizer": ("training", frozenset(("OPTIMIZER",))),
    "evaluate": ("training", frozenset(("EVALUATE",))),
    "callbacks": ("training", frozenset(("CALLBACKS",))),
    "read": ("phases", frozenset(("load",))),
    "next batch": ("training", frozenset(("DATA",))),
    "broadcast": (None, frozenset(("BROADCAST",))),
    "broadcast: wait for all ranks": (None, frozenset(("NEGOTIATE_BROADCAST",))),
    "allreduce": (None, frozenset(("ALLREDUCE",))),
    "wait for gradients": (None, frozenset(("WAIT_FOR_GRADIENTS",))),
    "allgather": (None, frozenset(("ALLGATHER",))),
    "other collectives": (
        None, frozenset(("REDUCESCATTER", "ALLTOALL", "BARRIER", "SENDRECV", "WAIT_FOR_COLLECTIVE")),
    ),
}  # fmt: skip


def components_of(ranks: Sequence[RankSpans]) -> list[dict[str, Any]]:
    """Longest first; what did not happen is left out. A component inside another counts in both."""
    totals: dict[str, list[float]] = {name: [0, 0.0] for name in _PARTS}
    for rank in ranks:
        for span in rank.spans:
            _add(totals, span.track, span.name, 1, _seconds(span))
        for what, (calls, seconds) in rank.condensed.get("spans", {}).items():
            track, _, name = what.rpartition("/")
            _add(totals, track, name, calls, seconds)
    count = max(len(ranks), 1)
    found = [
        {"name": name, "calls": calls / count, "seconds": seconds / count}
        for name, (calls, seconds) in totals.items()
        if calls
    ]
    return sorted(found, key=lambda row: -float(row["seconds"]))


def _seconds(span: Span) -> float:
    return span.end_s - span.start_s


def _add(totals: dict[str, list[float]], track: str, name: str, calls: float, seconds: float) -> None:
    for component, (wanted, names) in _PARTS.items():
        if name in names and wanted in (None, track):
            totals[component][0] += calls
            totals[component][1] += seconds
            return
