"""A study whose ranks are on two hosts: what it ran, where, and what crossed the link."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import Network

WORDS = [
    "study", "strong", "nt3", "--preset", "test", "--ranks", "1,2", "--repeats", "1", "--hosts", "alpha:1,beta:1", "--set", "epochs=2",
    "--set", "conv=[4, 20, 4]", "--set", "pool=[10]", "--set", "dense=[8]",
]  # fmt: skip


@pytest.mark.soak  # two runs of Keras
def test_points_run_on_the_hosts(hosts: Network, tmp_path: Path) -> None:
    command = hosts.on_head([sys.executable, "-m", "farandole", *WORDS, "--out", str(tmp_path / "study")])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **hosts.variables}, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "study" / "results.jsonl").read_text().splitlines()]
    assert [(found["settings"]["ranks"], found["settings"]["nodes"]) for found in results] == [(1, 1), (2, 2)]
    one, two = (json.loads((tmp_path / "study" / found["run"] / "run.json").read_text()) for found in results)
    assert (one["hosts"], two["hosts"]) == (["alpha"], ["alpha", "beta"])
    figures, reasons = results[1]["figures"], results[1]["reasons"]
    assert figures["comm_bytes"] > 0 and figures["exposed_s"] > 0
    # A sampler that got no time says so, and gives no joules.
    assert figures["energy_j"] > 0 if figures["energy_j"] is not None else "were seen" in reasons["energy_j"]
    assert "efficiency" in done.stdout
