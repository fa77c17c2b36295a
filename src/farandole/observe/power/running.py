"""A command and the energy this node takes while it runs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import DataError, SettingsError
from farandole.observe.power.child import Ended, run_command
from farandole.observe.power.discover import find_sensors, root_from_environment
from farandole.observe.power.nodes import NodeEnergy, node_energy
from farandole.observe.power.phases import PhaseEnergy, measure
from farandole.observe.power.recording import PHASES_FILE, Phase, Recording, read_phases, this_machine
from farandole.observe.power.sampler import DEFAULT_INTERVAL_S, Sampler
from farandole.observe.power.trace import read_trace

__all__ = ["Measured", "PowerSettings", "idle_energy", "measure_command", "replay"]

_WHOLE = "command"
_SCHEMA = {"format": "farandole-power-report", "version": 1}


@dataclass(kw_only=True, slots=True)
class PowerSettings:
    """A command, and how to measure it."""

    command: Sequence[str]
    interval_s: float = DEFAULT_INTERVAL_S
    """Between two samples."""
    idle_s: float = 0.0
    """How long to measure the idle node before; 0: not at all."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        if not self.command:
            raise SettingsError("no command was given: type e.g. farandole power -- python train.py")
        if not 0 <= self.idle_s < float("inf"):
            raise SettingsError(f"--idle {self.idle_s:g}: expected seconds, e.g. --idle 10")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The figures, what they were made of, and how the command has ended."""

    node: NodeEnergy
    recording: Recording
    command: Sequence[str] | None = None
    """None where a trace was replayed."""
    ended: Ended | None = None

    def as_dict(self) -> dict[str, Any]:
        """The report of docs/power.md."""
        ended = self.ended
        return {
            **_SCHEMA,
            "command": None if self.command is None else list(self.command),
            "exit_code": None if ended is None else ended.exit_code,
            "wall_s": None if ended is None else (ended.end_ns - ended.start_ns) / 1e9,
            "cpu_s": None if ended is None else ended.cpu_s,
            "replayed_from": self.recording.replayed_from or None,
            **self.node.as_dict(),
            "meters": [asdict(meter) for meter in self.recording.meters],
            "refusals": [asdict(refusal) for refusal in self.recording.refusals],
        }


def measure_command(settings: PowerSettings) -> Measured:
    """Run it to its end; CannotStart where that cannot be. The recording has the command as its first phase."""
    sampler = Sampler(find_sensors(root_from_environment()), interval_s=settings.interval_s)
    try:
        idle = _idle(sampler, settings.idle_s) if settings.idle_s else None
        ended, marked = _run(sampler, settings)
    finally:
        sampler.close()
    recording = sampler.recording()
    recording.idle = idle
    recording.phases = [Phase(_WHOLE, ended.start_ns, ended.end_ns), *marked]
    return Measured(node=_figures(recording), recording=recording, command=settings.command, ended=ended)


def idle_energy(seconds: float) -> PhaseEnergy:
    """What this node takes while we sleep, to be subtracted from what several commands took."""
    sampler = Sampler(find_sensors(root_from_environment()))
    try:
        window = _idle(sampler, seconds)
    finally:
        sampler.close()
    return measure(sampler.recording(), "idle", [window])


def replay(trace: Path) -> Measured:
    """The figures of a recorded trace."""
    recording = read_trace(trace)
    return Measured(node=_figures(recording), recording=recording)


def _figures(recording: Recording) -> NodeEnergy:
    """With the command as the whole, where there is one; of a trace without phases, all of its readings."""
    if not recording.phases:
        return node_energy(recording, whole=_all_readings(recording))
    whole = next((phase for phase in recording.phases if phase.name == _WHOLE), None)
    return node_energy(recording, whole=whole)


def _all_readings(recording: Recording) -> Phase:
    read = [series.monotonic_ns for series in recording.series if len(series)]
    if not read:
        raise DataError(f"power trace {recording.replayed_from} has neither readings nor phases")
    return Phase("all readings", min(times[0] for times in read), max(times[-1] for times in read))


def _idle(sampler: Sampler, seconds: float) -> tuple[int, int]:
    with sampler:
        start_ns = time.monotonic_ns()
        time.sleep(seconds)
        return start_ns, time.monotonic_ns()


def _run(sampler: Sampler, settings: PowerSettings) -> tuple[Ended, list[Phase]]:
    """The command, and the regions that it has marked on this machine."""
    with tempfile.TemporaryDirectory(prefix="farandole-power-") as folder:
        told = Path(folder) / "phases.jsonl"
        with sampler:
            ended = run_command(settings.command, {**settings.environment, PHASES_FILE: str(told)})
        return ended, read_phases(told, this_machine()[1])
