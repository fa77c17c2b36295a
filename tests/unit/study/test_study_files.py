"""The files of studies/ can be run, and what their scalars become can be read."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.study.estimate import Estimate
from farandole.study.loaders import LoaderStudy
from farandole.study.scalars import write_events
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


def test_tensorflow_reads_the_events(tmp_path: Path) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    import subprocess
    import sys

    write_events(tmp_path / "events", {1: {"loss": 0.5}, 300: {"loss": 0.25, "acc": 1.0}})
    code = (
        "import sys, tensorflow as tf\n"
        "for event in tf.compat.v1.train.summary_iterator(sys.argv[1]):\n"
        "    print(event.step, event.file_version, [(v.tag, v.simple_value) for v in event.summary.value])\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / "events")], capture_output=True, text=True, timeout=120)
    assert told.stdout.splitlines() == [
        "0 brain.Event:2 []", "1  [('loss', 0.5)]", "300  [('loss', 0.25), ('acc', 1.0)]",
    ], told.stderr  # fmt: skip
