"""Joules of a training so far, over all its starts, where somebody samples power on its nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from farandole.checkpoint.parts import Progress
from farandole.comm.named.collectives import allgather_object
from farandole.comm.named.process_sets import ProcessSet

if TYPE_CHECKING:
    from farandole.observe.power.energy import Energy

__all__ = ["Joules"]

_NOT_SAMPLED = "power was not sampled: `farandole run --power` or `farandole launch --timeline FILE --power` does it"


class Joules:
    """Adds up stretches of training, from one save to the next."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._set = process_set
        self._since_ns = time.monotonic_ns()

    def begin(self) -> None:
        """Training begins now, or goes on."""
        self._since_ns = time.monotonic_ns()

    def add_to(self, progress: Progress) -> None:
        """What all nodes have taken since the last time. Collective."""
        stretch = self._stretch()
        counted_by_script = progress.energy_j is not None and not progress.energy_provenance
        lost_before = progress.energy_j is None and progress.energy_provenance
        if counted_by_script or lost_before:
            return
        if stretch is None or stretch.energy_j is None:
            _lose(progress, _NOT_SAMPLED if stretch is None else stretch.reason)
        else:
            progress.energy_j = (progress.energy_j or 0.0) + stretch.energy_j
            progress.energy_provenance = _least(progress.energy_provenance, str(stretch.provenance))

    def _stretch(self) -> Energy | None:
        """None where nobody samples."""
        from farandole.observe.power.nodes import combine
        from farandole.observe.power.session import energy_between

        start_ns, self._since_ns = self._since_ns, time.monotonic_ns()
        nodes = allgather_object(energy_between(start_ns, self._since_ns), "checkpoint.joules", self._set)
        return combine(nodes).total if any(node is not None for node in nodes) else None


def _lose(progress: Progress, reason: str) -> None:
    """A sum of which one part is not known is not known."""
    known = "" if progress.energy_j is None else f"; {progress.energy_j:,.1f} J ({progress.energy_provenance}) are of before"
    progress.energy_j, progress.energy_provenance, progress.energy_reason = None, "none", reason + known


def _least(*provenances: str) -> str:
    """A sum is as well known as the least of what it is made of."""
    from farandole.observe.power.meters import Provenance

    order = [str(kind) for kind in (Provenance.MODELLED, Provenance.COMPONENT, Provenance.NODE)]
    return min(filter(None, provenances), key=order.index)
