"""What a node took, and what a job of several nodes did: each machine counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.observe.power.figures import Figure, add
from farandole.observe.power.phases import PhaseEnergy, measure, measure_phases, merged
from farandole.observe.power.recording import Phase, Recording, SamplerCost

__all__ = ["JobEnergy", "NodeEnergy", "combine", "node_energy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnergy:
    """One node: every phase, and the time in which any phase was under way."""

    host: str
    machine: str
    phases: Sequence[PhaseEnergy]
    whole: PhaseEnergy
    idle: PhaseEnergy | None
    interval_s: float
    cost: SamplerCost

    def as_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "machine": self.machine,
            "whole": self.whole.as_dict(),
            "phases": [phase.as_dict() for phase in self.phases],
            "idle": None if self.idle is None else self.idle.as_dict(),
            "sampler": asdict(self.cost) | {"interval_s": self.interval_s, "share_of_a_core": self.cost.share_of_a_core},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnergy:
    """All nodes of a job."""

    nodes: Sequence[NodeEnergy]
    phases: dict[str, Figure]
    """The total of each phase over the nodes that had it."""
    total: Figure

    def as_dict(self) -> dict[str, Any]:
        return {
            "total": self.total.as_dict(),
            "phases": {name: figure.as_dict() for name, figure in self.phases.items()},
            "nodes": [node.as_dict() for node in self.nodes],
        }


def node_energy(
    recording: Recording, *, whole: Phase | None = None, idle: PhaseEnergy | None = None
) -> NodeEnergy:
    """`whole` is the phase that has all others in it; by default the time in which any was under way.

    `idle` is what the idle node took, where that is in another recording.
    """
    if recording.idle is not None:
        idle = measure(recording, "idle", [recording.idle])
    windows = merged(recording.phases if whole is None else [whole])
    return NodeEnergy(
        host=recording.host,
        machine=recording.machine,
        phases=measure_phases(recording, [phase for phase in recording.phases if phase is not whole], idle),
        whole=measure(recording, "all phases" if whole is None else whole.name, windows, idle),
        idle=idle,
        interval_s=recording.interval_s,
        cost=recording.cost,
    )


def combine(nodes: Sequence[NodeEnergy | None]) -> JobEnergy:
    """Of the nodes' figures, those of the job. Nodes that are the same machine have read the same meters."""
    machines = {node.machine: node for node in reversed([node for node in nodes if node is not None])}
    counted = list(reversed(machines.values()))
    names = dict.fromkeys(phase.name for node in counted for phase in node.phases)
    phases = {
        name: _sum([phase for node in counted for phase in node.phases if phase.name == name]) for name in names
    }
    return JobEnergy(nodes=counted, phases=phases, total=_sum([node.whole for node in counted]))


def _sum(phases: Sequence[PhaseEnergy]) -> Figure:
    """Nodes work at the same time: the sum lasts as long as the longest."""
    return add([phase.total for phase in phases], duration_s=max((phase.duration_s for phase in phases), default=0.0))
