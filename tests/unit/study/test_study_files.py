"""The files of studies/ can be run, and what their scalars become can be read."""

import contextlib
import os
import sqlite3
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.study.estimate import Estimate
from farandole.study.folder import StudyFolder
from farandole.study.loaders import LoaderStudy
from farandole.study.points import Point
from farandole.study.scalars import _checksum, write_events
from farandole.study.settings import StudySettings, read_toml
from repository import ROOT

FILES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_study_file_can_be_planned(file: Path) -> None:
    content = read_toml(file)
    if content.pop("kind") == "loaders":
        assert LoaderStudy(**content).benchmarks
        return
    study = StudySettings(**read_toml(file))
    points = study.points()
    assert len({point.name for point in points}) == len(points) > 1
    assert Estimate().seconds(points) < 4 * 3600


def test_accuracy_over_ranks_has_the_papers_divisions() -> None:
    points = StudySettings(**read_toml(ROOT / "studies" / "nt3-accuracy.toml")).points()
    ranks = {point.settings["emulate_ranks"] for point in points}
    assert {1, 384} <= ranks and {point.settings["lr_scaling"] for point in points} == {"linear", "none"}
    assert len({point.settings["seed"] for point in points}) >= 3


def test_events_are_framed_and_checked(tmp_path: Path) -> None:
    write_events(tmp_path / "events", {1: {"loss": 0.5}, 300: {"loss": 0.25}})
    data, records = (tmp_path / "events").read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        records.append(data[12 : 12 + length])
        data = data[16 + length :]
    assert len(records) == 3 and b"brain.Event:2" in records[0]
    assert records[1].endswith(b"\x0a\x04loss\x15" + struct.pack("<f", 0.5))
    assert b"\x10\xac\x02" in records[2], "step 300 as a varint"
    # The check value of CRC-32C, 0xe3069283, masked as the format wants it.
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _checksum(b"123456789") == struct.pack("<I", masked)


@pytest.mark.soak
def test_tensorflow_reads_the_events(tmp_path: Path) -> None:
    write_events(tmp_path / "events", {1: {"loss": 0.5}, 300: {"loss": 0.25, "acc": 1.0}})
    code = (
        "import sys, tensorflow as tf\n"
        "for event in tf.compat.v1.train.summary_iterator(sys.argv[1]):\n"
        "    print(event.step, event.file_version, [(v.tag, v.simple_value) for v in event.summary.value])\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / "events")], capture_output=True, text=True, timeout=150)
    assert told.stdout.splitlines() == [
        "0 brain.Event:2 []", "1  [('loss', 0.5)]", "300  [('loss', 0.25), ('acc', 1.0)]",
    ], told.stderr  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_the_packages_themselves_take_the_scalars(tmp_path: Path, package: str) -> None:
    """Twice: what is written again is the same run."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; type: pip install {package}")
    point = Point(settings={"ranks": 2, "nodes": 1, "loader": "it's"})
    folder = StudyFolder(tmp_path / "study")
    folder.write_plan({"kind": "strong", "title": "it's a study", "benchmark": None, "preset": None, "fixed": {}, "points": [point.as_dict()]})
    (tmp_path / "study" / "run").mkdir()
    (tmp_path / "study" / "run" / "history.csv").write_text("epoch,loss,test_s\n1,0.5,\n2,0.25,0.1\n")
    folder.append(
        {"schema": 1, "study": "strong", **point.as_dict(), "status": "ok", "run": "run", "figures": {"total_s": 3.5, "metric": "r2"}}
    )
    store = f"sqlite:///{tmp_path}/mlflow.db"
    environment = os.environ | {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": store, "WANDB_SILENT": "true"}
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-m", "farandole", "study", "table", str(folder.path), "--scalars", package],
            capture_output=True, text=True, timeout=170, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        assert f"scalars   1 runs for {package}" in told.stdout
    if package == "wandb":
        assert len({path.name for path in folder.path.rglob("*.wandb")}) == 1
        return
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        (run,) = database.execute("select run_uuid from runs where lifecycle_stage = 'active'").fetchall()
        metrics = database.execute("select key, value, step from metrics where run_uuid = ?", run).fetchall()
    assert {("loss", 0.5, 1), ("loss", 0.25, 2), ("figures/total_s", 3.5, 0)} <= set(metrics)
