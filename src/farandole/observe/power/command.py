"""`farandole power`: what a command takes of this node, in joules."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.observe.power.child import Ended
    from farandole.observe.power.nodes import NodeEnergy
    from farandole.observe.power.recording import Phase, Recording
    from farandole.observe.power.sampler import Sampler

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["PowerSettings", "add_power", "measure_command", "replay"]

_EXAMPLES = """\
examples:
  farandole power -- python train.py                     joules of the processors, memory and GPUs of this node
  farandole power --idle 10 -- python train.py           first 10 s of doing nothing, to subtract
  farandole power --json power.json -- farandole launch -n 4 -- python train.py
  farandole power --record trace.jsonl -- python train.py
  farandole power --replay trace.jsonl                   the figures of a recorded trace

Sensors: Cray pm_counters, RAPL, AMD's hwmon, NVML, AMD SMI; `farandole doctor` says which are here. A machine without
any gets a model, TDP x utilisation, whose figures say `modelled` and prove no saving. The whole node is measured, with
everything that runs on it, and this node only. Regions that the command marks become rows of their own:

  import farandole
  with farandole.observe.energy("train"):
      ...

The table goes to standard error, the exit code is the command's.
"""
_WHOLE = "command"
_SCHEMA = {"format": "farandole-power-report", "version": 1}


@dataclass(kw_only=True, slots=True)
class PowerSettings:
    """What `farandole power` is to do."""

    command: list[str]
    interval_s: float = 0.1
    """Between two samples."""
    idle_s: float = 0.0
    """How long to measure the idle node before; 0: not at all."""
    json_file: Path | None = None
    """Where to put the figures for programs."""
    record: Path | None = None
    """Where to put what the meters showed."""
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        if not self.command:
            raise SettingsError("no command was given: type e.g. farandole power -- python train.py")
        if self.idle_s < 0:
            raise SettingsError(f"--idle {self.idle_s:g}: expected seconds, e.g. --idle 10")
        for option, path in (("--json", self.json_file), ("--record", self.record)):
            if path is not None and not path.absolute().parent.is_dir():
                raise SettingsError(f"{option} {path}: there is no folder {path.absolute().parent}")


def add_power(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "power", help="measure the energy that a command takes", usage="farandole power [options] -- COMMAND ...",
        description="Run a command and measure the energy this node takes meanwhile.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = verb.add_argument
    # fmt: off
    add("--interval", type=float, default=0.1, metavar="S", help="seconds between two samples; default: 0.1")
    add("--idle", type=float, default=0.0, metavar="S",
        help="measure S seconds of the idle node first, and subtract its power")
    add("--json", type=Path, metavar="FILE", help="write the figures for programs as well")
    add("--record", type=Path, metavar="FILE", help="keep what the meters showed, to be replayed")
    add("--replay", type=Path, metavar="FILE", help="the figures of a recorded trace; nothing is run")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    # fmt: on
    verb.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.replay is not None:
        if command:
            raise SettingsError(f"--replay runs nothing: leave out {' '.join(command)}")
        return replay(options.replay, options.json)
    settings = PowerSettings(
        command=command, interval_s=options.interval, idle_s=options.idle, json_file=options.json,
        record=options.record,
    )  # fmt: skip
    return measure_command(settings)


def measure_command(settings: PowerSettings) -> int:
    """Run and measure it, print the table, and return the command's exit code."""
    from farandole.observe.power.discover import find_sensors, root_from_environment
    from farandole.observe.power.nodes import node_energy
    from farandole.observe.power.recording import Phase
    from farandole.observe.power.sampler import Sampler
    from farandole.observe.power.trace import write_trace

    sampler = Sampler(find_sensors(root_from_environment()), interval_s=settings.interval_s)
    try:
        idle = _measure_idle(sampler, settings.idle_s) if settings.idle_s else None
        ended, phases = _run_under(sampler, settings)
    except OSError as error:
        print(f"farandole: {settings.command[0]}: {error.strerror}", file=sys.stderr)
        return 126 if isinstance(error, PermissionError) else 127
    finally:
        sampler.close()
    recording = sampler.recording()
    recording.phases, recording.idle = phases, idle
    whole = Phase(_WHOLE, ended.start_ns, ended.end_ns)
    _tell(recording, node_energy(recording, whole=whole), settings.json_file, _of_command(settings, ended))
    if settings.record is not None:
        recording.phases = [whole, *phases]
        write_trace(settings.record, recording)
    return ended.exit_code


def replay(trace: Path, json_file: Path | None = None) -> int:
    """The figures of a recorded trace."""
    from farandole.observe.power.nodes import node_energy
    from farandole.observe.power.trace import read_trace

    recording = read_trace(trace)
    whole = next((phase for phase in recording.phases if phase.name == _WHOLE), None)
    recording.phases = [phase for phase in recording.phases if phase is not whole]
    _tell(recording, node_energy(recording, whole=whole), json_file, {})
    return 0


def _measure_idle(sampler: Sampler, seconds: float) -> tuple[int, int]:
    with sampler:
        start_ns = time.monotonic_ns()
        time.sleep(seconds)
        return start_ns, time.monotonic_ns()


def _run_under(sampler: Sampler, settings: PowerSettings) -> tuple[Ended, list[Phase]]:
    """The command, and the regions that it has marked on this machine."""
    from farandole.observe.power.child import run_command
    from farandole.observe.power.session import PHASES_FILE
    from farandole.observe.power.trace import read_phases

    with tempfile.TemporaryDirectory(prefix="farandole-power-") as folder:
        told = Path(folder) / "phases.jsonl"
        with sampler:
            ended = run_command(settings.command, settings.environment | {PHASES_FILE: str(told)})
        return ended, read_phases(told)


def _of_command(settings: PowerSettings, ended: Ended) -> dict[str, Any]:
    wall_s = (ended.end_ns - ended.start_ns) / 1e9
    return {"command": settings.command, "exit_code": ended.exit_code, "wall_s": wall_s, "cpu_s": ended.cpu_s}


def _tell(recording: Recording, node: NodeEnergy, json_file: Path | None, of_command: dict[str, Any]) -> None:
    from farandole.observe.power.text import as_text

    text = as_text(node, recording.refusals)
    if recording.replayed_from:
        text = f"replayed from {recording.replayed_from}\n{text}"
    print(text, file=sys.stderr)
    if json_file is None:
        return
    report = _SCHEMA | of_command | {"replayed_from": recording.replayed_from or None} | node.as_dict()
    report["meters"] = [asdict(meter) for meter in recording.meters]
    report["refusals"] = [asdict(refusal) for refusal in recording.refusals]
    try:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise SettingsError(f"--json {json_file}: cannot be written ({error.strerror})") from error
