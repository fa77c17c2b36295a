"""`farandole power`: what a command takes of this node, in joules."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.observe.power.running import Measured

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_power"]

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


def add_power(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "power", help="measure the energy that a command takes", usage="farandole power [options] -- COMMAND ...",
        description="Run a command and measure the energy this node takes meanwhile.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = verb.add_argument
    # fmt: off
    add("--interval", type=float, metavar="S", help="seconds between two samples; default: 0.1")
    add("--idle", type=float, metavar="S",
        help="measure S seconds of the idle node first, and subtract its power")
    add("--json", type=Path, metavar="FILE", help="write the figures for programs as well")
    add("--record", type=Path, metavar="FILE", help="keep what the meters showed, to be replayed")
    add("--replay", type=Path, metavar="FILE", help="the figures of a recorded trace; nothing is run")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    # fmt: on
    verb.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from farandole.observe.command import check_writable
    from farandole.observe.power.running import PowerSettings, measure_command
    from farandole.observe.power.trace import write_trace
    from farandole.processes.child import CannotStart

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.replay is not None:
        return _replay(options, command)
    for option, path in (("--json", options.json), ("--record", options.record)):
        if path is not None:
            check_writable(option, path)
    asked = {"interval_s": options.interval, "idle_s": options.idle}
    settings = PowerSettings(command=command, **{name: value for name, value in asked.items() if value is not None})
    try:
        measured = measure_command(settings)
    except KeyboardInterrupt:
        print("farandole: stopped before the command was run", file=sys.stderr)
        return 130
    except CannotStart as error:
        print(f"farandole: {error}", file=sys.stderr)
        return error.exit_code
    _tell(measured, options.json)
    if options.record is not None:
        write_trace(options.record, measured.recording)
    return measured.ended.exit_code if measured.ended is not None else 0


def _replay(options: argparse.Namespace, command: list[str]) -> int:
    from farandole.observe.power.running import replay

    useless = [f"--{name}" for name in ("record", "idle", "interval") if getattr(options, name) is not None]
    if useless or command:
        raise SettingsError(f"--replay runs nothing: leave out {' '.join([*useless, *command])}")
    print(f"replayed from {options.replay}", file=sys.stderr)
    _tell(replay(options.replay), options.json)
    return 0


def _tell(measured: Measured, json_file: Path | None) -> None:
    from farandole.observe.power.text import as_text

    print(as_text(measured.node, measured.recording.refusals), file=sys.stderr)
    if json_file is None:
        return
    try:
        json_file.write_text(json.dumps(measured.as_dict(), indent=1) + "\n")
    except OSError as error:
        raise SettingsError(f"--json {json_file}: cannot be written ({error.strerror})") from error
