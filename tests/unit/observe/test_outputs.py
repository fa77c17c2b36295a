"""Files that figures go to, refused before a command runs, not after it; and options that would do nothing."""

from pathlib import Path

import pytest

from farandole.cli import main


@pytest.mark.parametrize("words", [["observe", "--json"], ["power", "--json"], ["power", "--record"]])
@pytest.mark.parametrize(("name", "said"), [(".", "is a folder"), ("no/such.json", "there is no folder"), ("/proc/x.json", "cannot be written")])
def test_nothing_runs_whose_figures_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, name, "--", "touch", "ran"]) == 2
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--record", "x.jsonl"], ["--idle", "1"], ["--interval", "0.5"]])
def test_a_replayed_trace_is_as_it_was_recorded(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--replay", "trace.jsonl", *option]) == 2
    assert f"--replay runs nothing: leave out {option[0]}" in capsys.readouterr().err
