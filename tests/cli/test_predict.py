"""`farandole predict` as a user types it: on a folder, which then has prediction.json and a page that shows it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from farandole.cli import main
from studyfolder import Shape, make_study


@pytest.fixture
def weak(tmp_path: Path) -> Path:
    return make_study(tmp_path / "weak", Shape(kind="weak", ranks=(1, 2, 4, 8, 16, 32), loaders=("fast", "pandas"), trace=False))


def test_a_study_is_predicted_and_its_page_shows_it(weak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(weak), "--ranks", "64,1024", "--what-if", "network=2x", "--what-if", "loader=pandas"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "largest run held out: " in told and "1,024 ranks are more than 16 times" in told and "energy" in told
    assert re.search(r"512x|32\.0x", told) and "loading data" in told and "modelled" in told
    document = json.loads((weak / "prediction.json").read_text())
    assert [(one["ranks"], one["settings"]["loader"]) for one in document["predictions"]] == [(64, "fast"), (1024, "fast"), (64, "pandas"), (1024, "pandas")]
    for one in document["predictions"]:
        for name in ("epoch_s", "total_s", "efficiency", "energy_j"):
            assert one[name]["low"] < one[name]["median"] < one[name]["high"]
    page = (weak / "report.html").read_text()
    time = page.split('id="figure-time"')[1].split("</figure>")[0]
    assert time.count('class="wash"') >= 2 and "predicted from 6 rank counts" in time
    assert "figure-predicted-parts" in page and "figure-what-ifs" in page and "Prediction: 1,024 ranks" in page


def test_json_is_what_is_kept(weak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(weak), "--ranks", "64", "--json", "--level", "0.5"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((weak / "prediction.json").read_text()) and told["level"] == 0.5


def test_a_page_without_a_prediction_has_none(weak: Path) -> None:
    assert main(["report", str(weak)]) == 0
    page = (weak / "report.html").read_text()
    assert 'class="wash"' not in page and "predicted" not in page.split("<script")[0].split("</style>")[1]


def test_the_paper_s_table_as_a_user_would_predict_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "t6")
    assert main(["study", "import", "summit-2019-table6", "--out", folder]) == 0
    capsys.readouterr()
    assert main(["predict", folder, "--ranks", "3072", "--fit-up-to", "384", "--collective", "ring", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)["predictions"][0]
    assert one["epoch_s"]["low"] < 33.09 < one["epoch_s"]["high"] < 2 * one["epoch_s"]["low"] and one["measured_s"] == 33.09
    assert one["total_s"] is None and "none in all" in one["reasons"]["total_s"]


def test_the_next_run_and_the_export(weak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(weak), "--ranks", "512", "--next"]) == 0
    assert re.search(r"next: --ranks \d+", capsys.readouterr().out)
    assert main(["predict", str(weak), "--export", "extrap"]) == 0
    assert capsys.readouterr().out.startswith("# written by farandole predict\nPARAMETER ranks\nPOINTS (1) (2)")
    assert not (weak / "prediction.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ranks", "0"], "write the rank counts"), ([], "write the rank counts"), (["--ranks", "64", "--level", "90"], "between 0 and 1"),
        (["--ranks", "64", "--collective", "star"], "ring, tree, two-level, auto"), (["--ranks", "64", "--what-if", "faster"], "write name=value"),
        (["--ranks", "64", "--fit-up-to", "2"], "2 rank counts"), (["--ranks", "64", "--comm", "absent.json"], "farandole bench comm"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(weak: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(["predict", str(weak), *words]) in (1, 2)
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not (weak / "prediction.json").exists()


def test_a_damaged_prediction_is_no_reason_to_have_no_page(weak: Path) -> None:
    (weak / "prediction.json").write_text('{"schema": 1, "predictions"')
    assert main(["report", str(weak)]) == 0
    shutil.copy(weak / "study.json", weak / "prediction.json")
    assert main(["report", str(weak)]) == 0
