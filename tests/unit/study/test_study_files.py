"""The files of studies/ can be run, and what their scalars become can be read."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.study.estimate import Estimate
from farandole.study.loaders import LoaderStudy
from farandole.study.scalars import _checksum, write_events
from farandole.study.settings import StudySettings, read_toml
from repository import ROOT

FILES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_study_file_can_be_planned(file: Path) -> None:
    content = read_toml(file)
    if content.pop("kind") == "loaders":
        content.pop("title")
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
