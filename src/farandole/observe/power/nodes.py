"""What a node took, and what a job of several nodes did: each machine counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.observe.power.energy import Energy, Window, add
from farandole.observe.power.phases import PhaseEnergy, measure, measure_phases, merged
from farandole.observe.power.recording import COMMAND, RANKS, Phase, Recording, SamplerCost

__all__ = ["JobEnergy", "NodeEnergy", "combine", "energy_of_ranks", "node_energy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnergy:
    """One node: every phase, and the whole of them, in the time that `window` names."""

    host: str
    machine: str
    phases: Sequence[PhaseEnergy]
    whole: PhaseEnergy
    window: Window
    idle: PhaseEnergy | None
    interval_s: float
    cost: SamplerCost

    def as_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "machine": self.machine,
            "whole": self.whole.as_dict() | {"total": _with_window(self.whole.total, self.window)},
            "phases": [phase.as_dict() for phase in self.phases],
            "phase_power_w": _watts({phase.name: phase.total for phase in self.phases}),
            "idle": None if self.idle is None else self.idle.as_dict(),
            "sampler": asdict(self.cost) | {"interval_s": self.interval_s, "share_of_a_core": self.cost.share_of_a_core},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnergy:
    """All nodes of a job."""

    nodes: Sequence[NodeEnergy]
    phases: dict[str, Energy]
    """The total of each phase over the nodes that had it."""
    total: Energy
    window: Window

    def as_dict(self) -> dict[str, Any]:
        return {
            "total": _with_window(self.total, self.window),
            "phases": {name: figure.as_dict() for name, figure in self.phases.items()},
            "phase_power_w": _watts(self.phases),
            "nodes": [node.as_dict() for node in self.nodes],
        }


def _with_window(total: Energy, window: Window) -> dict[str, Any]:
    return total.as_dict() | {"window": str(window), "window_reason": window.reason}


def _watts(phases: Mapping[str, Energy]) -> dict[str, float | None]:
    """Mean watts of what the program does, phase by phase."""
    return {name: energy.mean_w for name, energy in phases.items() if name not in (COMMAND, RANKS)}


def node_energy(
    recording: Recording, *, whole: Phase | None = None, idle: PhaseEnergy | None = None, window: Window | None = None
) -> NodeEnergy:
    """`whole` is the phase that has all others in it; by default the time in which any was under way.

    `idle` is what the idle node took, where that is in another recording.
    """
    phases = [phase for phase in recording.phases if phase is not whole]
    windows = merged(phases if whole is None else [whole])
    name = "all phases" if whole is None else whole.name
    return _node(recording, phases, name, windows, idle, window or (Window.REGIONS if whole is None else Window.WHOLE_JOB))


def energy_of_ranks(recording: Recording, command: Phase, *, idle: PhaseEnergy | None = None) -> NodeEnergy:
    """In the time in which ranks ran, as their launcher has told it; where none has, in that of the whole command."""
    ranks = [phase for phase in recording.phases if phase.name == RANKS]
    if not ranks:
        return node_energy(recording, whole=command, idle=idle)
    phases = [phase for phase in recording.phases if phase is not command and phase not in ranks]
    return _node(recording, phases, RANKS, merged(ranks), idle, Window.RANKS)


def _node(
    recording: Recording, phases: Sequence[Phase], name: str, windows: Sequence[tuple[int, int]], idle: PhaseEnergy | None, window: Window
) -> NodeEnergy:
    if recording.idle is not None:
        idle = measure(recording, "idle", [recording.idle])
    return NodeEnergy(
        host=recording.host,
        machine=recording.machine,
        phases=measure_phases(recording, phases, idle),
        whole=measure(recording, name, windows, idle),
        window=window,
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
    window = counted[0].window if counted else Window.REGIONS
    return JobEnergy(nodes=counted, phases=phases, total=_sum([node.whole for node in counted]), window=window)


def _sum(phases: Sequence[PhaseEnergy]) -> Energy:
    """Nodes work at the same time: the sum lasts as long as the longest."""
    return add([phase.total for phase in phases], duration_s=max((phase.duration_s for phase in phases), default=0.0))
