"""Scripts for batch systems, the live line, and other readers of the benchmarks' files."""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farandole.data.make import make
from farandole.data.table_reader import reading_with
from farandole.errors import SettingsError
from farandole.observe.machine_time import process_cpu_s
from farandole.study.collecting import job_of
from farandole.study.folder import StudyFolder
from farandole.study.live import LiveLine
from farandole.study.points import expand
from farandole.study.submit import JobSettings, write_scripts
from farandole.workloads.nt3 import FILES, NT3
from farandole.workloads.nt3.data import load


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


@pytest.mark.parametrize(
    ("system", "asked"),
    [
        ("sbatch", "--cpus-per-task=3"), ("pbs", "-l select=2:ncpus=12:mpiprocs=4:ompthreads=3"),
        ("lsf", '-R "span[ptile=4] affinity[core(3)]"'),
    ],
)  # fmt: skip
def test_jobs_ask_for_a_core_for_every_thread(tmp_path: Path, system: str, asked: str) -> None:
    points = expand({"command": "x", "threads": 3}, {"ranks": [8]}, 1, lambda ranks: ranks // 4)
    write_scripts(StudyFolder(tmp_path), points, JobSettings(system=system))
    assert f" {asked}\n" in (tmp_path / "scripts" / f"{points[0].name}.{system}").read_text()


@pytest.mark.parametrize(
    ("system", "time", "asked"),
    [
        ("sbatch", "1-02:00:00", "--time=26:00:00"), ("pbs", "1-02:00:00", "-l walltime=26:00:00"), ("lsf", "1-02:00:00", "-W 26:00"),
        ("lsf", "00:30:01", "-W 00:31"), ("lsf", "100:00:00", "-W 100:00"),
    ],
)  # fmt: skip
def test_times_are_written_as_each_system_takes_them(tmp_path: Path, system: str, time: str, asked: str) -> None:
    points = expand({"command": "x"}, {"ranks": [1]}, 1)
    write_scripts(StudyFolder(tmp_path), points, JobSettings(system=system, time=time, idle_s=5))
    script = (tmp_path / "scripts" / f"{points[0].name}.{system}").read_text()
    assert f" {asked}\n" in script and script.endswith(f" {points[0].name} --idle 5\n")


@pytest.mark.parametrize("time", ["banana", "30", "00:30", "1-00", "00:60:00", "00:00:00", "-1:00:00", ""])
def test_times_that_systems_read_differently_are_refused(time: str) -> None:
    with pytest.raises(SettingsError, match=r"expected HH:MM:SS or D-HH:MM:SS above 0, e.g. --time 00:30:00"):
        JobSettings(system="lsf", time=time)


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(SettingsError, match="sbatch, pbs, lsf"):
        JobSettings(system="oar")


def test_a_job_knows_its_number() -> None:
    assert job_of({"SLURM_JOB_ID": "7"}) == {"system": "slurm", "id": "7"}
    assert job_of({}) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_tells_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown, kept = Terminal(), io.StringIO()
    for stream in (shown, kept):
        live = LiveLine(stream)
        live.show("1/2 ranks 1", 60.0, "epoch 3")
        live.say("done")
    line, wiped = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).split("\r", 1)
    assert re.fullmatch(r"1/2 ranks 1 ━+ 0 s, about 60 s left epoch 3 *", line)
    assert wiped.endswith("\x1b[2Kdone\n")
    assert kept.getvalue() == "done\n"


def test_the_processor_time_of_another_process_has_that_of_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('done', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent, burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert process_cpu_s(process.pid) > 0.25
    assert process_cpu_s(process.pid) == 0


def test_the_files_are_the_same_whatever_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    make(FILES, tmp_path, rows=16, features=60, threads=1)
    ours = load(NT3(), tmp_path, cache=False)
    with reading_with("pandas"):
        theirs = load(NT3(), tmp_path)
    assert not list(tmp_path.glob("*.matrix")), "other readers keep no cache"
    for part in ("train", "test"):
        for name in ("x", "y"):
            np.testing.assert_array_equal(getattr(getattr(ours, part), name), getattr(getattr(theirs, part), name))


def test_a_fixed_setting_of_every_kind_reaches_every_point() -> None:
    assert [point.settings["a"] for point in expand({"command": "x", "a": 1}, {"ranks": [1, 2]}, 1)] == [1, 1]
