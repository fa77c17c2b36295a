"""`farandole run` and memory: what it says it will take is what it takes, and what cannot fit is refused before it is loaded."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.data.make import make
from farandole.workloads.finding import tables_of

pytestmark = pytest.mark.skipif(
    None in (find_spec("keras"), find_spec("torch")), reason="Keras or torch is not installed"
)


def farandole(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farandole", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nt3")
    make(tables_of("nt3"), folder, rows=40, features=60, threads=1)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["p1b1", "-n", "1", "--dense", "4000"], id="weights"),
        pytest.param(["nt3", "-n", "2", "--optimizer", "sgd", "--batch-size", "60"], id="values", marks=pytest.mark.more),
    ],
)
def test_what_is_estimated_is_taken(tmp_path: Path, options: list[str]) -> None:
    few = ["--epochs", "2", "--train-steps", "2", "--val-steps", "1", "--test-steps", "1"]
    run = farandole("run", *options, *few, "--output-dir", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "out" / "run.json").read_text())["memory"]
    estimated, words = found["estimated_bytes_a_rank"], run.stdout.partition(" more than now")[0].split()
    assert found["estimated_phase"] == "train" and float(words[-2].replace(",", "")) > 200, "not what there was before"
    for peak_bytes in found["peak_bytes"]:
        assert 1 / 1.5 < estimated / peak_bytes < 1.5


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--dense", "2000000000"], r"weights of [\d,.]+ GiB, up to [\d,]+ x 2,000,000,000 of layer dense, cannot fit: [\d.]+ GiB are free"),
        pytest.param(
            ["--batch-size", "2000000000"],
            r"about [\d.]+ GiB a rank, 0\.0 GiB of it data, cannot fit: .* a batch_size of at most [1-9]\d+, or",
            marks=pytest.mark.more,
        ),
    ],
)
def test_a_network_or_batch_that_cannot_fit_is_refused(data: Path, tmp_path: Path, options: list[str], refusal: str) -> None:
    run = farandole("run", "nt3", "--data-dir", str(data), *options, cwd=tmp_path)
    assert run.returncode == 2
    assert re.search(refusal, run.stderr), run.stderr
    assert not list(data.glob(".farandole-cache")), "nothing is loaded"


def test_a_table_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    make(tables_of("nt3"), tmp_path, rows=40, features=60, threads=1)
    train = tmp_path / "nt_train2.csv"
    train.write_bytes(train.read_bytes() * 400)
    os.truncate(train, 1 << 43)  # takes no room on the disk
    run = farandole("run", "nt3", "--data-dir", str(tmp_path), cwd=tmp_path)
    assert run.returncode == 2
    assert re.search(r"nt_train2\.csv cannot be read: about [\d,]+ rows of 60 numbers take [\d,.]+ GiB, and [\d.]+ GiB are free", run.stderr)
    assert "Traceback" not in run.stderr and not list(tmp_path.glob(".farandole-cache"))
