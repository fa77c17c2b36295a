"""Points of a study as jobs of a real Slurm: scripts written, submitted, run on two nodes, and collected."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.data.make import make
from farandole.workloads.finding import tables_of
from ranktest.processes import wait_until
from slurmtest import Cluster

LIMIT_S = 150
SMALL = [
    "--set", "data_dir=data", "--set", "epochs=2", "--set", "conv=[4,5,1]", "--set", "pool=[4]", "--set", "dense=[8]",
    "--set", "batch_size=10",
]  # fmt: skip


def typed(cluster: Cluster, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd, stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | cluster.environment,
    )  # fmt: skip


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_points_are_jobs_on_two_nodes(slurm: Cluster, tmp_path: Path) -> None:
    make(tables_of("nt3"), tmp_path / "data", rows=40, features=60, threads=1)
    farandole = (sys.executable, "-m", "farandole", "study")
    asked = ("--submit", "sbatch", "--ranks-per-node", "1", "--time", "00:02:00", "--directive=--comment=mine")
    written = typed(slurm, tmp_path, *farandole, "strong", "nt3", "--ranks", "2", "--repeats", "1", *SMALL, *asked, "--out", "s")
    assert written.returncode == 0, written.stderr
    assert "sh s/submit.sh" in written.stdout and "farandole study collect s" in written.stdout
    (script,) = (tmp_path / "s" / "scripts").glob("*.sbatch")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in script.read_text()

    submitted = typed(slurm, tmp_path, "sh", "s/submit.sh")
    assert submitted.returncode == 0, submitted.stderr

    def all_have_ended() -> bool:
        asked = typed(slurm, tmp_path, "squeue", "--noheader")
        return asked.returncode == 0 and not asked.stdout.strip()

    assert wait_until(all_have_ended, LIMIT_S, every_s=1.0)
    collected = typed(slurm, tmp_path, *farandole, "collect", "s")
    said = "".join(file.read_text() for file in (tmp_path / "s" / "scripts").glob("*.out"))
    assert collected.returncode == 0, collected.stderr + said
    (line,) = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["status"] == "ok", f"{found['reason']}\n{said}"
    assert (found["settings"]["ranks"], found["settings"]["nodes"], found["job"]["system"]) == (2, 2, "slurm")
    assert found["settings"]["threads"] == found["figures"]["threads"] and found["settings"]["data"]
    assert found["figures"]["global_batch"] == 20 and found["figures"]["comm_bytes"] > 0
    assert (found["figures"]["energy_j"] is None) == ("energy_j" in found["reasons"]), "unknown, and why, or of both nodes"
    assert (tmp_path / "s" / found["run"] / "timeline.json").exists()
    again = typed(slurm, tmp_path, *farandole, "collect", "s")
    assert "0 results of jobs collected" in again.stderr


def test_a_job_that_slurm_ends_leaves_a_failed_point(slurm: Cluster, tmp_path: Path) -> None:
    farandole = (sys.executable, "-m", "farandole", "study")
    asked = ("--ranks", "1", "--repeats", "1", "--no-power", "--submit", "sbatch", "--time", "00:02:00", "--out", "s")
    written = typed(slurm, tmp_path, *farandole, "strong", "--command", "sleep 100 {ranks}", *asked)
    assert written.returncode == 0, written.stderr
    assert typed(slurm, tmp_path, "sh", "s/submit.sh").returncode == 0
    assert wait_until(lambda: bool(list(tmp_path.glob("s/points/*/console.txt"))), LIMIT_S, every_s=0.2)
    (job,) = typed(slurm, tmp_path, "squeue", "--noheader", "--format=%i").stdout.split()
    typed(slurm, tmp_path, "scancel", job)  # which it does as at the time limit: SIGTERM, and SIGKILL later
    assert wait_until(lambda: bool(list(tmp_path.glob("s/points/*/result.json"))), LIMIT_S, every_s=0.2)
    collected = typed(slurm, tmp_path, *farandole, "collect", "s")
    (line,) = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["status"], found["job"]["id"]) == ("failed", job) and "SIGTERM" in found["reason"]
    assert "ended by the batch system" in collected.stdout
    assert (tmp_path / "s" / "scripts" / f"{found['key']}-0-{job}.out").exists()
