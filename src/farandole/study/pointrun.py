"""One point of a study, run to its end: the command, its console, its power, and the line of results it makes."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import DataError, FarandoleError
from farandole.launch.environment import THREAD_VARIABLES
from farandole.observe.machine_time import MachineTime, children_cpu_s, why_busy
from farandole.processes.child import CannotStart, Child
from farandole.processes.signals import EndedBySignal
from farandole.results.schema import BUSY, FIGURES_FILE, OVERSUBSCRIBED, RUN, SCHEMA
from farandole.study.failures import why_failed
from farandole.study.folder import StudyFolder, now
from farandole.study.measures import (
    NO_IDLE,
    Measures,
    add_trace,
    energy_measures,
    measures_of_command,
    measures_of_run,
)
from farandole.study.points import Point, is_crowded, is_here, is_launched, program_words, run_words
from farandole.study.tracing import draw_power, merge_watched, recording_environment

if TYPE_CHECKING:
    from farandole.observe.power import PhaseEnergy, Recording

__all__ = ["Attempt", "PointRunner", "command_words", "marks_of"]

CONSOLE, POWER, POWER_TRACE = "console.txt", "power.json", "power.jsonl"
_LOOK_S = 0.5
_Phases = dict[str, tuple[float, float | None]]
"""Seconds and watts by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    exit_code: int
    start_ns: int
    end_ns: int
    cpu_s: float
    machine: Mapping[str, float | None]
    """Shares of the machine's processor time that went elsewhere."""

    @property
    def wall_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try at a point: its run directory, relative to the study, and when it began."""

    name: str
    started: str = field(default_factory=now)


@dataclass(kw_only=True, slots=True)
class PointRunner:
    """Runs points of one study, in new run directories."""

    folder: StudyFolder
    kind: str
    power: bool = True
    """Sample power meanwhile: here, or by the ranks where they are elsewhere."""
    idle_s: float = 0.0
    """Before the first point, measure this node for so long while it is idle; 0: do not."""
    hosts: str = ""
    """Where ranks run, as `--hosts` takes them; empty: where the launcher finds them."""
    watch: Callable[[str], None] = lambda line: None
    """Gets the last line of the console now and then."""
    pages: Callable[[Path], object] = lambda run: None
    """Writes the page of a run directory."""
    made_with: Mapping[str, Any] = field(default_factory=dict)
    """What every result says of its making: a plan has it only of the last time it was typed."""
    _idle: PhaseEnergy | None = field(init=False, default=None)

    def run(self, point: Point) -> dict[str, Any]:
        """A line of results; not appended yet."""
        return self.run_in(Attempt(name=self.folder.new_run(point)), point)

    def run_in(self, attempt: Attempt, point: Point) -> dict[str, Any]:
        """The same in a run directory that was made for it."""
        run = self.folder.path / attempt.name
        ended, energy, phases = self._measured(point, run)
        measures, reason = self._measures(point, run, ended, {name: seconds for name, (seconds, _) in phases.items()})
        if phases:
            measures.phases_w = {name: watts for name, (_, watts) in phases.items()}
        here = is_here(point.settings, self.hosts)
        if self.power and here:
            draw_power(run, run / POWER_TRACE)
        if (run / RUN).exists():
            self.pages(run)
        seen = {"cpu_s": ended.cpu_s, **ended.machine}
        elsewhere = "ranks on other machines: their processor seconds are not seen from here"
        measures.add(seen if here else {name: value for name in seen if (value := measures.values.get(name)) is None}, elsewhere)
        energy_measures(measures, energy or _no_energy("power was not sampled (--no-power)"), self._why_no_idle(here))
        return self.line(attempt, point, ended.wall_s, measures, reason)

    def line(self, attempt: Attempt, point: Point, wall_s: float, measures: Measures, reason: str | None) -> dict[str, Any]:
        """A result; with a `reason`, one that has failed."""
        return {
            "schema": SCHEMA, "study": self.kind, "key": point.key, "settings": dict(point.settings),
            "repeat": point.repeat, "status": "failed" if reason else "ok", "reason": reason, "started": attempt.started,
            "wall_s": round(wall_s, 3), "run": attempt.name, "marks": marks_of(point.settings, measures.values, self.hosts),
            "figures": measures.values, "reasons": measures.reasons, "steps": measures.steps, "phases_w": measures.phases_w,
            "made_with": dict(self.made_with),
        }  # fmt: skip

    def _measured(self, point: Point, run: Path) -> tuple[_Ended, Mapping[str, Any] | None, _Phases]:
        if point.settings["ranks"] > 1:
            _compile_sums()
        words = command_words(point.settings, run, self.hosts)
        here = is_here(point.settings, self.hosts)
        # Who samples here is this process, from the command's start on: its ranks would do it a second time.
        watched = "command" in point.settings and self.kind != "loaders"
        variables = {**recording_environment(run, watched=watched, power=self.power and not here), **_threads(point)}
        if not self.power:
            return self._run(words, run, variables), None, {}
        if not here:
            return self._run(words, run, variables), _of_all_nodes(run, point), {}
        from farandole.observe.power.discover import find_sensors, root_from_environment
        from farandole.observe.power.recording import PHASES_FILE
        from farandole.observe.power.sampler import Sampler

        self._measure_idle()
        told = run.absolute() / "phases.jsonl"
        sampler = Sampler(find_sensors(root_from_environment()))
        try:
            with sampler:
                ended = self._run(words, run, {**variables, PHASES_FILE: str(told)})
        finally:
            sampler.close()
        total, phases = _report(sampler.recording(), self._idle, words, ended, told, run)
        return ended, total, phases

    def _measure_idle(self) -> None:
        """Once for all points."""
        from farandole.observe.power.running import idle_energy

        if self.idle_s and self._idle is None:
            self.watch(f"{self.idle_s:g} s of the idle node first")
            self._idle = idle_energy(self.idle_s)

    def _why_no_idle(self, here: bool) -> str:
        if not self.idle_s:
            return NO_IDLE
        return "the idle node was measured by other meters, or they have failed" if here else "ranks on other machines: nobody has measured those idle"

    def _run(self, words: list[str], run: Path, environment: Mapping[str, str]) -> _Ended:
        console = run / CONSOLE
        variables = {**environment, FIGURES_FILE: str(run.absolute() / "figures.json")}
        machine, cpu_s, start_ns = MachineTime(), children_cpu_s(), time.monotonic_ns()
        with console.open("wb") as output:
            output.write(f"$ {shlex.join(words)}\n".encode())
            output.flush()
            command = Child(words, own_group=True, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=variables)
            try:
                with command:
                    code = self._wait(command, console)
            except CannotStart as error:
                output.write(f"{error}\n".encode())
                return _Ended(exit_code=error.exit_code, start_ns=start_ns, end_ns=time.monotonic_ns(), cpu_s=0.0, machine=_shares(machine))
        if command.ended_by:
            raise EndedBySignal(command.ended_by)
        return _Ended(
            exit_code=code, start_ns=start_ns, end_ns=time.monotonic_ns(), cpu_s=children_cpu_s() - cpu_s,
            machine=_shares(machine),
        )  # fmt: skip

    def _wait(self, child: Child, console: Path) -> int:
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                self.watch(last_line(console))

    def _measures(
        self, point: Point, run: Path, ended: _Ended, phases_s: Mapping[str, float]
    ) -> tuple[Measures, str | None]:
        """And why the point has failed, if it has."""
        if ended.exit_code != 0:
            return Measures(), why_failed((run / CONSOLE).read_text(errors="replace").partition("\n")[2], ended.exit_code)
        try:
            if "command" in point.settings:
                merge_watched(run)
                measures = measures_of_command(ended.wall_s, _told(run))
                if self.kind == "loaders":
                    measures.add({"total_s": None}, "most of it is the start of Python; load_s is the time of a reading")
                else:
                    add_trace(measures, run, phases_s)
                return measures, None
            return measures_of_run(run), None
        except FarandoleError as error:
            return Measures(), str(error)


@functools.cache
def _compile_sums() -> None:
    """Once on a machine, and in no point's time."""
    import numpy as np

    from farandole.comm.node.arithmetic import prepare

    prepare(np.dtype(np.float32))


def _shares(machine: MachineTime) -> dict[str, float | None]:
    return {"others_share": machine.others_share(), "steal_share": machine.steal_share()}


def _threads(point: Point) -> dict[str, str]:
    """For a program that starts its ranks itself."""
    threads = point.settings.get("threads")
    return dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads and not is_launched(point.settings.get("command", "")) else {}


def command_words(settings: Mapping[str, Any], run: Path, hosts: str = "") -> list[str]:
    """What makes a point: `farandole run`, on the nodes of the allocation where it has several, or the user's program."""
    here = [sys.executable, "-m", "farandole"]
    threads = ["--threads", str(settings["threads"])] if settings.get("threads") else []
    where = ["-n", str(settings["ranks"]), *(["--hosts", hosts] if hosts else [])]
    if "command" in settings:
        words = program_words(settings)
        return [*here, "launch", *where, *threads, "--", *words] if is_launched(settings["command"]) else words
    if settings.get("checkpoint_dir"):  # no point goes on from another's checkpoints
        settings = {**settings, "checkpoint_dir": str(Path(settings["checkpoint_dir"], run.name))}
    words = ["run", *run_words(settings), "--output-dir", str(run), "--no-page"]
    if settings["nodes"] > 1 and not hosts:
        return [*here, "launch", *where, *threads, "--timeline", str(run / "timeline.json"), "--", *here, *words]
    return [*here, *words, *where]


def marks_of(settings: Mapping[str, Any], measures: Mapping[str, Any], hosts: str = "") -> list[str]:
    """What a reader must know of a result."""
    shares = (measures.get(name) for name in ("others_share", "steal_share", "steps_spread"))
    found = {
        OVERSUBSCRIBED: is_crowded(settings, hosts),
        "emulated ranks": bool(settings.get("emulate_ranks")),
        "modelled power": measures.get("power_provenance") == "modelled",
        BUSY: bool(why_busy(*shares)),
    }
    return [mark for mark, is_so in found.items() if is_so]


def _report(
    recording: Recording, idle: PhaseEnergy | None, words: list[str], ended: _Ended, told: Path, run: Path
) -> tuple[Any, _Phases]:
    """power.json and power.jsonl; the total of this node, and seconds and watts by the phases that were marked."""
    from farandole.observe.power import energy_of_ranks, write_trace
    from farandole.observe.power.child import Ended
    from farandole.observe.power.recording import Phase, read_phases
    from farandole.observe.power.running import Measured

    whole = Phase("command", ended.start_ns, ended.end_ns)
    recording.phases = [whole, *read_phases(told, recording.machine)]
    node = energy_of_ranks(recording, whole, idle=idle)
    child = Ended(exit_code=ended.exit_code, start_ns=ended.start_ns, end_ns=ended.end_ns, cpu_s=ended.cpu_s)
    report = Measured(node=node, recording=recording, command=words, ended=child).as_dict()
    (run / POWER).write_text(json.dumps(report, indent=1) + "\n")
    write_trace(run / POWER_TRACE, recording)
    return report["whole"]["total"], {phase.name: (phase.duration_s, phase.total.mean_w) for phase in node.phases}


def _of_all_nodes(run: Path, point: Point) -> Mapping[str, Any]:
    """The total of a job of other nodes than this one, which its ranks have measured, each node by its first."""
    if "command" in point.settings:
        return _no_energy("a program of your own is sampled only where all its ranks are on the node that starts them")
    try:
        total: dict[str, Any] = json.loads((run / POWER).read_text())["total"]
    except (OSError, ValueError, KeyError):
        return _no_energy("the job's nodes have left no power.json")
    return total


def _no_energy(reason: str) -> dict[str, Any]:
    return {"energy_j": None, "mean_w": None, "provenance": "none", "reason": reason}


def _told(run: Path) -> dict[str, Any]:
    """The figures that a user's program has left."""
    try:
        content = json.loads((run / "figures.json").read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{run / 'figures.json'}: no JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{run / 'figures.json'}: expected an object, e.g. {{\"loss\": 0.1}}")
    return content


def last_line(console: Path) -> str:
    with console.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 400))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")
