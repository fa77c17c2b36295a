"""Power: sensors, a sampler for each node, and joules that say how they are known.

    sensors    rapl, hwmon, cray, gpus, model    raw counts and when they were shown (meters, files, discover)
    sampler    one thread a node                 a Recording, which a trace file keeps (recording, trace)
    figures    curve, mirrors, phases, nodes     joules of phases, nodes and jobs, with provenance
    doors      session, running, command, text   `with energy("train"):` and `farandole power -- COMMAND`
"""

from farandole.observe.power.discover import Found, find_sensors
from farandole.observe.power.figures import Figure
from farandole.observe.power.meters import Meter, Provenance
from farandole.observe.power.nodes import JobEnergy, NodeEnergy, combine, node_energy
from farandole.observe.power.phases import PhaseEnergy, measure, measure_phases, power_over_time
from farandole.observe.power.recording import Phase, Recording
from farandole.observe.power.running import Measured, PowerSettings, measure_command
from farandole.observe.power.sampler import Sampler
from farandole.observe.power.text import as_text
from farandole.observe.power.trace import read_trace, write_trace

__all__ = [
    "Figure",
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
    "as_text",
    "combine",
    "find_sensors",
    "measure",
    "measure_command",
    "measure_phases",
    "node_energy",
    "power_over_time",
    "read_trace",
    "write_trace",
]
