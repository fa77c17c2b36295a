"""Results of points that jobs of a batch system have run: each leaves `result.json`, one process gathers them.

Many jobs appending to one file of a network file system lose lines; this way results.jsonl has one writer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.observe.power.meters import Provenance
from farandole.processes.signals import EndedBySignal, ends_on
from farandole.results.schema import PERHAPS_PARTS
from farandole.study.folder import StudyFolder, made_with
from farandole.study.measures import Measures, energy_measures
from farandole.study.pointrun import Attempt, PointRunner
from farandole.study.points import Point

__all__ = ["accounting_plugins", "collect", "job_of", "run_as_job", "sacct_energy"]

RESULT = "result.json"
_ANSWER_S = 60.0
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""What batch systems send before they kill a job; the last is LSF's at a time limit."""
_JOBS = {"SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs", "LSB_JOBID": "lsf"}
_ENERGY_PLUGINS = {
    **dict.fromkeys(("ipmi", "xcc", "pm_counters", "cray_aries", "ibmaem"), Provenance.NODE),
    **dict.fromkeys(("rapl", "gpu"), Provenance.COMPONENT),
}
"""What Slurm's acct_gather_energy plugins read: the board's controller, which sees the node, or processors and GPUs alone."""


def run_as_job(folder: StudyFolder, name: str, *, power: bool, idle_s: float, pages: Callable[[Path], object]) -> int:
    """What a generated script calls: the point `KEY-REPEAT`, whose result is left in its run directory."""
    folder.check_current()
    plan = folder.plan()
    points = {f"{p['key']}-{p['repeat']}": Point(**p) for p in plan["points"]}
    if name not in points:
        raise DataError(f"{folder.path} has no point {name}; there are {', '.join(points)}")
    runner = PointRunner(folder=folder, kind=plan["kind"], power=power, idle_s=idle_s, pages=pages)
    result = _run_until_ended(runner, points[name], plan) | {"job": job_of(os.environ)}
    file = folder.path / result["run"] / RESULT
    partial = file.with_name(f".{RESULT}")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(file)
    return 0 if result["status"] == "ok" else 1


def _run_until_ended(runner: PointRunner, point: Point, plan: Mapping[str, Any]) -> dict[str, Any]:
    """A result also where the batch system ends the job: such a point has failed, and its log is worth reading."""
    attempt, began = Attempt(name=runner.folder.new_run(point)), time.monotonic()
    try:
        with ends_on(*_ENDS):
            packages = (plan.get("environment") or {}).get("packages") or ()
            runner.made_with = made_with(plan["command"], *packages)  # which may be long after it was submitted
            return runner.run_in(attempt, point)
    except EndedBySignal as ended:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)  # once is enough: what is left to do takes no time
        why = f"ended by the batch system ({signal.Signals(ended.number).name}): by its time limit, or somebody's wish"
        return runner.line(attempt, point, time.monotonic() - began, Measures(), why)


def job_of(environment: Mapping[str, str]) -> dict[str, str] | None:
    return next(({"system": system, "id": environment[name]} for name, system in _JOBS.items() if environment.get(name)), None)


def collect(folder: StudyFolder, *, ask_again: bool = False) -> int:
    """Append what jobs have left and is not in results.jsonl yet; how many. Energy is Slurm's where it has any.

    Slurm adds a job's joules up some time after its end: with `ask_again` those that had none are asked for once more.
    """
    folder.check_current()
    if ask_again:
        _ask_again(folder)
    known = {result["run"] for result in folder.results()}
    found = [_read(file) for file in sorted(folder.path.glob(f"points/*/{RESULT}"))]
    new = [result for result in found if result["run"] not in known]
    for result in sorted(new, key=lambda result: result["started"]):
        _add_accounted(result)
        folder.append(result)
    return len(new)


def _ask_again(folder: StudyFolder) -> None:
    """A result that has got its energy by now is appended once more, and is the one that counts."""
    for result in folder.last_results().values():
        before = result.get("energy_source")
        _add_accounted(result)
        if result.get("energy_source") != before:
            folder.append(result)


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no result ({error}). Remove it.") from None
    return content


def _add_accounted(result: dict[str, Any]) -> None:
    """Joules of all nodes of a job, as Slurm has counted them, where we have measured none."""
    job = result.get("job") or {}
    if job.get("system") != "slurm" or result["status"] != "ok":
        return
    if result["figures"].get("power_provenance") in ("measured-node", "measured-component"):
        return
    counted = sacct_energy(job["id"])
    if counted is None:
        return
    joules, seconds = counted
    plugins = accounting_plugins()
    provenance = _provenance(plugins)
    measures = Measures(values=result["figures"], reasons=result["reasons"])
    energy_measures(
        measures,
        # Of what is not known no more is claimed than that parts were measured.
        {"energy_j": joules, "mean_w": joules / seconds, "duration_s": seconds, "reason": "", "provenance": provenance or Provenance.COMPONENT,
         "window": "the whole job, from its start to its end, as Slurm counts it"},
        "Slurm has counted the joules, and none of the idle node",
    )
    told = f"by {', '.join(plugins)}" if plugins else "Slurm does not say by which plugin"
    result["energy_source"] = f"sacct, job {job['id']}: the whole job, from its start to its end, {told}"
    added = ["energy from sacct", *([] if provenance else [PERHAPS_PARTS])]
    result["marks"] = [mark for mark in result["marks"] if mark != "modelled power"] + added


def _provenance(plugins: Sequence[str]) -> Provenance | None:
    """None where it cannot be told whether their joules are of whole nodes."""
    found = {_ENERGY_PLUGINS.get(plugin.rpartition("/")[2]) for plugin in plugins}
    return found.pop() if len(found) == 1 else None


def accounting_plugins() -> list[str]:
    """What Slurm counts energy with, e.g. acct_gather_energy/rapl; empty where it cannot be asked or has none."""
    for line in _answer("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AcctGatherEnergyType":
            return [word.strip() for word in value.split(",") if word.strip() not in ("", "(null)")]
    return []


def sacct_energy(job: str) -> tuple[float, float] | None:
    """Joules and seconds of the whole job; None where Slurm keeps no account of energy, or has none of this job."""
    answer = _answer("sacct", "--noheader", "--parsable2", "--allocations", "--format=ConsumedEnergyRaw,ElapsedRaw", f"--jobs={job}")
    for joules, _, seconds in (line.strip().partition("|") for line in answer.splitlines()):
        # Slurm writes 0 where it has no meter, and 2^64 - 2 where a meter has failed.
        if joules.isdecimal() and seconds.isdecimal() and 0 < int(joules) < 2**63 and int(seconds) > 0:
            return float(joules), float(seconds)
    return None


def _answer(*words: str) -> str:
    """What a command of the batch system says; nothing where it is not there or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def say_collected(count: int) -> None:
    print(f"farandole: {count} result{'s' * (count != 1)} of jobs collected", file=sys.stderr)
