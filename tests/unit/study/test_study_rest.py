"""Scripts for batch systems, the live line, and other readers of the benchmarks' files."""

import io
from pathlib import Path

import numpy as np
import pytest

from farandole.data.candle.nt3 import load
from farandole.data.candle.tables import reading_with
from farandole.data.make import make
from farandole.errors import SettingsError
from farandole.study.collecting import job_of
from farandole.study.folder import StudyFolder
from farandole.study.live import LiveLine
from farandole.study.points import expand
from farandole.study.submit import JobSettings, write_scripts


@pytest.mark.parametrize(
    ("system", "asked", "how"),
    [
        ("sbatch", ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --time=00:30:00", "#SBATCH -A me"], "sbatch "),
        ("pbs", ["#PBS -l select=2:ncpus=4:mpiprocs=4", "#PBS -l walltime=00:30:00", "#PBS -A me"], "qsub "),
        ("lsf", ["#BSUB -n 8", '#BSUB -R "span[ptile=4]"', "#BSUB -W 00:30", "#BSUB -A me"], "bsub < "),
    ],
)
def test_scripts(tmp_path: Path, system: str, asked: list[str], how: str) -> None:
    points = expand({"command": "x"}, {"ranks": [8]}, 2, lambda ranks: ranks // 4)
    job = JobSettings(system=system, time="00:30:00", directives=["-A me"])
    everything = write_scripts(StudyFolder(tmp_path), points, job)
    lines = everything.read_text().splitlines()[2:]
    assert len(lines) == 2 and all(line.startswith(how) for line in lines)
    script = (tmp_path / "scripts" / f"{points[0].name}.{system}").read_text()
    assert script.startswith("#!/bin/bash\n") and [line for line in asked if f"{line}\n" not in script] == []
    assert script.splitlines()[-1].startswith("exec ") and script.endswith(f"-m farandole study point {tmp_path} {points[0].name}\n")


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(SettingsError, match="sbatch, pbs, lsf"):
        JobSettings(system="oar")


def test_a_job_knows_its_number() -> None:
    assert job_of({"SLURM_JOB_ID": "7"}) == {"system": "slurm", "id": "7"}
    assert job_of({}) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_written_over() -> None:
    shown, kept = Terminal(), io.StringIO()
    for stream in (shown, kept):
        live = LiveLine(stream)
        live.show("a long line")
        live.show("short")
        live.say("done")
    assert shown.getvalue() == "\ra long line\rshort      \r     \rdone\n"
    assert kept.getvalue() == "done\n"


def test_the_files_are_the_same_whatever_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    make("nt3", tmp_path, rows=16, features=60, threads=1)
    ours = load(tmp_path, cache=False)
    with reading_with("pandas"):
        theirs = load(tmp_path)
    assert not list(tmp_path.glob("*.matrix")), "other readers keep no cache"
    for part in ("train", "test"):
        for name in ("x", "y"):
            np.testing.assert_array_equal(getattr(getattr(ours, part), name), getattr(getattr(theirs, part), name))
