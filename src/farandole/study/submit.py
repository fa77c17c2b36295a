"""Scripts for batch systems, one for each point, and one that submits them all. Nothing is submitted from here."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farandole.errors import SettingsError
from farandole.study.folder import StudyFolder
from farandole.study.points import Point

__all__ = ["SYSTEMS", "JobSettings", "check_folder", "write_scripts"]

SYSTEMS = {"sbatch": "sbatch", "pbs": "qsub", "lsf": "bsub <"}
"""Each system, and how a script is handed to it."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")
_MARKS = {"sbatch": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB"}


@dataclass(kw_only=True, slots=True)
class JobSettings:
    """How jobs are asked for."""

    system: str
    time: str = "01:00:00"
    """Of every job: HH:MM:SS, or with days D-HH:MM:SS."""
    directives: list[str] = field(default_factory=list)
    """Further words of the system's, each a line: e.g. `--partition=short`."""
    power: bool = True
    idle_s: float = 0.0

    def __post_init__(self) -> None:
        if self.system not in SYSTEMS:
            raise SettingsError(f"--submit {self.system}: unknown. Use one of {', '.join(SYSTEMS)}.")
        if self.limit_s == 0:
            raise SettingsError(f"--time {self.time}: expected HH:MM:SS or D-HH:MM:SS above 0, e.g. --time 00:30:00 or --time 1-12:00:00")

    @property
    def limit_s(self) -> int:
        """0 where `time` is no time."""
        found = _TIME.fullmatch(self.time)
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
        return 60 * (60 * (24 * days + hours) + minutes) + seconds


def check_folder(folder: Path) -> None:
    """SettingsError where a script's directives cannot name what jobs write there: each system reads such signs in its own way."""
    if found := re.search(r"[\s'\"\\%#]", str(folder.absolute())):
        raise SettingsError(f"--submit: {folder.absolute()} has {found[0]!r} in its name, which batch systems' directives do not take. Choose another --out")


def write_scripts(folder: StudyFolder, points: Sequence[Point], job: JobSettings) -> Path:
    """Scripts of these points, and the one to type; its path. What jobs have said before stays."""
    scripts = folder.path / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    for old in [file for system in SYSTEMS for file in scripts.glob(f"*.{system}")]:
        old.unlink()
    names = []
    for point in points:
        name = f"{point.name}.{job.system}"
        (scripts / name).write_text(_script(folder.path.absolute(), point, job))
        names.append(name)
    everything = folder.path / "submit.sh"
    lines = [f"{SYSTEMS[job.system]} {shlex.quote(str(scripts.absolute() / name))}" for name in names]
    everything.write_text("\n".join(["#!/bin/sh", "set -e", *lines]) + "\n")
    return everything


def _script(folder: Path, point: Point, job: JobSettings) -> str:
    mark = _MARKS[job.system]
    asked = {"sbatch": _slurm, "pbs": _pbs, "lsf": _lsf}[job.system](folder, point, job)
    words = [sys.executable, "-m", "farandole", "study", "point", str(folder), point.name]
    if not job.power:
        words.append("--no-power")
    if job.idle_s:
        words += ["--idle", f"{job.idle_s:g}"]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"{mark} {line}" for line in (*asked, *job.directives)),
            f"cd {shlex.quote(str(Path.cwd()))}",
            f"exec {shlex.join(words)}",  # so that signals to the job reach it, and the job lasts until it has ended
        ]
    ) + "\n"


def _clock(limit_s: int) -> str:
    """HH:MM:SS, which every system but LSF takes: PBS knows no days."""
    return f"{limit_s // 3600:02}:{limit_s // 60 % 60:02}:{limit_s % 60:02}"


def _threads(point: Point) -> int:
    """Cores for each rank."""
    return int(point.settings.get("threads") or 1)


def _more(point: Point, words: str) -> str:
    """For ranks with several threads."""
    return words.format(_threads(point)) if _threads(point) > 1 else ""


def _slurm(folder: Path, point: Point, job: JobSettings) -> list[str]:
    ranks, nodes = point.settings["ranks"], point.settings["nodes"]
    return [
        f"--job-name={point.name}", f"--nodes={nodes}", f"--ntasks-per-node={-(-ranks // nodes)}", f"--cpus-per-task={_threads(point)}",
        f"--time={_clock(job.limit_s)}", f"--output={folder}/scripts/{point.name}-%j.out",
    ]  # fmt: skip


def _pbs(folder: Path, point: Point, job: JobSettings) -> list[str]:
    ranks, nodes = point.settings["ranks"], point.settings["nodes"]
    each = -(-ranks // nodes)
    return [
        f"-N p{point.name[:14]}", f"-l select={nodes}:ncpus={each * _threads(point)}:mpiprocs={each}{_more(point, ':ompthreads={}')}", f"-l walltime={_clock(job.limit_s)}", "-j oe",
        f"-o {folder}/scripts/",  # PBS then names the file by the job
    ]  # fmt: skip


def _lsf(folder: Path, point: Point, job: JobSettings) -> list[str]:
    ranks, nodes = point.settings["ranks"], point.settings["nodes"]
    minutes, cores = -(-job.limit_s // 60), _more(point, " affinity[core({})]")
    return [
        f"-J {point.name}", f"-n {ranks}", f'-R "span[ptile={-(-ranks // nodes)}]{cores}"', f"-W {minutes // 60:02}:{minutes % 60:02}",
        f"-o {folder}/scripts/{point.name}-%J.out",
    ]  # fmt: skip
