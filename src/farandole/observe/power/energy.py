"""Energy: joules and watts of a part of a node over a stretch of time, each with how it is known.

A part is measured by one sensor, never by two at once. A figure whose parts are not all known is null, with the reason.
Node and components are never added; what contains anything modelled is modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from farandole.observe.power.meters import Provenance

__all__ = ["Energy", "Window", "add", "unknown"]


class Window(StrEnum):
    """Which time a total is of."""

    RANKS = "ranks"
    INIT_TO_END = "init to end"
    WHOLE_JOB = "whole job"
    REGIONS = "regions"

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    Window.RANKS: "from the start of the ranks to the end of the last",
    Window.INIT_TO_END: "from init() to the end: ranks sample, and cannot measure the start of Python, which came before",
    Window.WHOLE_JOB: "from the start of the command or job to its end, with what it did besides its ranks, if it started any",
    Window.REGIONS: "the time in which a region was open that the program has marked",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy, and how it is known."""

    provenance: Provenance
    source: str
    """Which meters, or what a model assumes."""
    duration_s: float
    energy_j: float | None
    reason: str = ""
    """Why `energy_j` is null."""
    seen_j: float = 0.0
    """What meters showed of it; `energy_j` less the estimate for short gaps."""
    bridged_s: float = 0.0
    """How much of the time is estimated from what came before and after."""
    remarks: tuple[str, ...] = ()
    idle_w: float | None = None
    """Mean power when nothing ran, where it was measured."""
    above_idle_j: float | None = None
    """What is left of `energy_j` without what an idle machine takes in the same time; of several, in the time of each."""

    @property
    def mean_w(self) -> float | None:
        return None if self.energy_j is None or not self.duration_s else self.energy_j / self.duration_s

    def with_idle(self, idle: Energy | None) -> Energy:
        """The same with `idle`, which only counts where it is known in the same way."""
        if idle is None or (idle.provenance, idle.source) != (self.provenance, self.source):
            return self
        if self.energy_j is None or idle.mean_w is None:
            return replace(self, idle_w=idle.mean_w)
        return replace(self, idle_w=idle.mean_w, above_idle_j=self.energy_j - idle.mean_w * self.duration_s)

    def as_dict(self) -> dict[str, Any]:
        told = asdict(self) | {"provenance": str(self.provenance), "modelled": self.provenance is Provenance.MODELLED}
        return told | {"mean_w": self.mean_w, "remarks": list(self.remarks)}

    def __str__(self) -> str:
        if self.energy_j is None:
            return f"unknown ({self.reason})"
        mark = "~" if self.provenance is Provenance.MODELLED else ""
        return f"{mark}{self.energy_j:,.1f} J, {mark}{self.mean_w or 0.0:,.1f} W, {self.provenance} ({self.source})"


def unknown(reason: str, *, duration_s: float = 0.0, remarks: tuple[str, ...] = ()) -> Energy:
    return Energy(
        provenance=Provenance.NONE, source="", duration_s=duration_s, energy_j=None, reason=reason, remarks=remarks
    )


def add(figures: Sequence[Energy], *, duration_s: float, nothing: str = "nothing was measured") -> Energy:
    """Of meters, parts or nodes that share no joule; null where one is missing or they cannot be added."""
    if not figures:
        return unknown(nothing, duration_s=duration_s)
    remarks = tuple(dict.fromkeys(remark for figure in figures for remark in figure.remarks))
    seen_j, bridged_s = sum(figure.seen_j for figure in figures), max(figure.bridged_s for figure in figures)
    reason = next((figure.reason for figure in figures if figure.energy_j is None), "") or _why_not(figures)
    provenance = _least({figure.provenance for figure in figures})
    idles = [figure.idle_w for figure in figures if figure.idle_w is not None]
    above = [figure.above_idle_j for figure in figures if figure.above_idle_j is not None]
    return Energy(
        provenance=provenance,
        source=" + ".join(dict.fromkeys(figure.source for figure in figures if figure.source)),
        duration_s=duration_s,
        energy_j=None if reason else sum(figure.energy_j or 0.0 for figure in figures),
        reason=reason,
        seen_j=seen_j,
        bridged_s=bridged_s,
        remarks=remarks,
        idle_w=sum(idles) if len(idles) == len(figures) else None,
        above_idle_j=sum(above) if len(above) == len(figures) and not reason else None,
    )


def _why_not(figures: Sequence[Energy]) -> str:
    kinds = {figure.provenance for figure in figures}
    if {Provenance.NODE, Provenance.COMPONENT} <= kinds:
        return "whole nodes cannot be added to parts of nodes"
    return ""


def _least(kinds: set[Provenance]) -> Provenance:
    """A sum is as well known as the least of what it is made of."""
    for kind in (Provenance.NONE, Provenance.MODELLED, Provenance.COMPONENT):
        if kind in kinds:
            return kind
    return Provenance.NODE
