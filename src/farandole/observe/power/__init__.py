"""Power: sensors, a sampler for each node, and joules that say how they are known.

    sensors    rapl, hwmon, cray, gpus, model    raw counts and when they were shown (meters, files, discover)
    sampler    one thread a node                 a Recording, which a trace file keeps (recording, trace)
    energy     curve, mirrors, phases, nodes     joules of phases, nodes and jobs, with provenance
    doors      session, running, command, text   `with energy("train"):` and `farandole power -- COMMAND`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.observe.power.discover import Found, find_sensors
    from farandole.observe.power.energy import Energy, Window
    from farandole.observe.power.meters import Meter, Provenance
    from farandole.observe.power.nodes import JobEnergy, NodeEnergy, combine, energy_of_ranks, node_energy
    from farandole.observe.power.phases import PhaseEnergy, measure, measure_phases, power_over_time
    from farandole.observe.power.recording import Phase, Recording
    from farandole.observe.power.running import Measured, PowerSettings, measure_command
    from farandole.observe.power.sampler import Sampler
    from farandole.observe.power.text import as_text
    from farandole.observe.power.trace import read_trace, write_trace

_NAMES = {
    "discover": ("Found", "find_sensors"),
    "energy": ("Energy", "Window"),
    "meters": ("Meter", "Provenance"),
    "nodes": ("JobEnergy", "NodeEnergy", "combine", "energy_of_ranks", "node_energy"),
    "phases": ("PhaseEnergy", "measure", "measure_phases", "power_over_time"),
    "recording": ("Phase", "Recording"),
    "running": ("Measured", "PowerSettings", "measure_command"),
    "sampler": ("Sampler",),
    "text": ("as_text",),
    "trace": ("read_trace", "write_trace"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Energy",
    "Found",
    "JobEnergy",
    "Measured",
    "Meter",
    "NodeEnergy",
    "Phase",
    "PhaseEnergy",
    "PowerSettings",
    "Provenance",
    "Recording",
    "Sampler",
    "Window",
    "as_text",
    "combine",
    "energy_of_ranks",
    "find_sensors",
    "measure",
    "measure_command",
    "measure_phases",
    "node_energy",
    "power_over_time",
    "read_trace",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    """Loaded when first used, so that the command's help costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
