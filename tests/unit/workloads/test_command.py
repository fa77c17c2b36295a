"""`farandole data make` and `verify` as typed."""

import argparse
from pathlib import Path

import pytest

from farandole.errors import DataError, SettingsError
from farandole.workloads.command import add_data


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_data(parser.add_subparsers(required=True))
    options = parser.parse_args(words)
    return int(options.run(options))


def test_make_names_its_files_then_keeps_them_then_verify_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("make", "nt3", "--out", str(tmp_path), "--rows", "32", "--features", "80")
    assert run("data", *words) == 0
    told = capsys.readouterr()
    assert f"bytes  {tmp_path / 'nt_train2.csv'}\n" in told.out
    assert told.err == ""
    assert run("data", *words) == 0
    assert "kept" in capsys.readouterr().err
    assert run("data", "verify", str(tmp_path)) == 0
    assert "nt3, preset demo, 32 rows x 80 features, seed 0" in capsys.readouterr().out


def test_mistakes_are_the_packages_own_errors(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--rows 16"):
        run("data", "make", "nt3", "--out", str(tmp_path), "--rows", "1")
    with pytest.raises(DataError, match="farandole data make nt3"):
        run("data", "verify", str(tmp_path))


def test_ctrl_c_ends_with_130_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("farandole.data.make.make", interrupted)
    assert run("data", "make", "nt3", "--out", str(tmp_path)) == 130
    assert capsys.readouterr().err == "farandole: stopped; no file was left half-written.\n"
