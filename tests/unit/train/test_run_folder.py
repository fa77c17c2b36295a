"""The run directory: what a new run leaves of an earlier one's, and what it refuses to begin in."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.train.command import _show
from farandole.train.preparing import LOG, prepare
from farandole.train.settings import RunSettings

LEFT = ("history.csv", "model.keras", "report.html")

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")


@pytest.fixture(autouse=True)
def data_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.train.preparing.make_missing_data", lambda settings: None)


def begin(folder: Path, **given: str) -> None:
    prepare(RunSettings.from_flat({"benchmark": "nt3", "output_dir": str(folder), **given}), 1)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """With a checkpoint."""
    (tmp_path / "checkpoints" / "00000003-step-3").mkdir(parents=True)
    (tmp_path / LOG).write_text("epoch 1/1\n")
    for name in ("run.json", *LEFT):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_new_run_begins_a_log_of_its_own(finished: Path) -> None:
    begin(finished)
    assert (finished / LOG).read_text() == ""
    assert not any((finished / name).exists() for name in ("run.json", *LEFT)), "nothing of another run is beside its own"


def test_a_run_that_goes_on_keeps_the_log(finished: Path) -> None:
    begin(finished, checkpoint_every="1")
    assert (finished / LOG).read_text() == "epoch 1/1\n" and not (finished / "run.json").exists()


@pytest.mark.parametrize("given", [{}, {"checkpoint_every": "1"}])
def test_a_run_that_is_not_to_resume_leaves_one_with_checkpoints_alone(finished: Path, given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"--resume off: .*checkpoints has checkpoints, the newest is 00000003-step-3"):
        begin(finished, resume="off", **given)
    assert (finished / LOG).read_text() and (finished / "run.json").exists()


def test_a_run_that_is_not_to_resume_may_have_leftovers_of_others(tmp_path: Path) -> None:
    for name in ("unfinished-00000001-step-1", "damaged-00000002-step-2"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    begin(tmp_path, resume="off")


@pytest.mark.parametrize("name", [LOG, "run.json"])
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SettingsError, match=f"output_dir {tmp_path} cannot be written to: Is a directory. Choose another --output-dir"):
        begin(tmp_path)


def test_as_json_a_run_that_ended_early_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _show(tmp_path, {"json": True}, ["run", "nt3", "--output-dir", "a b"])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"finished": False, "go_on": "farandole run nt3 --output-dir 'a b'"}
    assert "not finished yet" in shown.err
