"""Lines that name their rank."""

import os
import select
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from farandole.errors import LaunchError
from farandole.launch.output import Files, Terminal

Capture = pytest.CaptureFixture[bytes]


def test_lines_are_whole_however_they_arrive(capsysbinary: Capture) -> None:
    terminal = Terminal()
    for piece in (b"on", b"e\ntw", b"o\nthr"):
        terminal.write(0, "stdout", piece)
    terminal.write(1, "stdout", b"other\n")
    terminal.close()
    assert capsysbinary.readouterr().out == b"[0] one\n[0] two\n[1] other\n[0] thr\n"


def test_streams_stay_apart(capsysbinary: Capture) -> None:
    terminal = Terminal()
    terminal.write(3, "stdout", b"half ")
    terminal.write(3, "stderr", b"warning\n")
    terminal.write(3, "stdout", b"line\n")
    told = capsysbinary.readouterr()
    assert (told.out, told.err) == (b"[3] half line\n", b"[3] warning\n")


def test_bytes_that_are_no_text_pass_unchanged(capsysbinary: Capture) -> None:
    binary = bytes(set(range(256)) - set(b"\r\n"))
    Terminal().write(0, "stdout", binary + b"\n")
    assert capsysbinary.readouterr().out == b"[0] " + binary + b"\n"


def test_a_line_without_end_is_not_kept_for_ever(capsysbinary: Capture) -> None:
    terminal = Terminal()
    for _ in range(40):
        terminal.write(0, "stdout", b"x" * 65536)
    early = len(capsysbinary.readouterr().out)
    terminal.close()
    assert early > 1 << 20
    assert early + len(capsysbinary.readouterr().out) >= 40 * 65536


@pytest.mark.parametrize("buffering", [0, -1], ids=["unbuffered", "buffered"])
def test_a_pipe_that_takes_only_parts_gets_all(monkeypatch: pytest.MonkeyPatch, buffering: int) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found: list[bytes] = []
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering) as target:
        reader = threading.Thread(target=lambda: found.append(source.read()))
        reader.start()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=target))
        terminal = Terminal()
        terminal.write(0, "stdout", (b"x" * 79 + b"\n") * 20_000)
        while terminal.waiting:
            select.select([], terminal.waiting, [])
            terminal.pump()
        target.close()
        reader.join()
    assert found == [(b"[0] " + b"x" * 79 + b"\n") * 20_000]


def test_a_progress_bar_shows_its_latest_state_and_floods_nothing(capsysbinary: Capture) -> None:
    terminal = Terminal()
    for percent in range(100):
        terminal.write(0, "stderr", b"\r%d%%" % percent)
    terminal.write(0, "stderr", b"\r100%\n")
    shown = capsysbinary.readouterr().err.splitlines()
    assert shown[-1] == b"[0] 100%"
    assert len(shown) <= 3


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"cannot be written to .*/file/out: Not a directory. Give another folder: --output-dir"):
        Files(tmp_path / "file" / "out", 2)


def test_files_hold_each_rank_byte_for_byte(tmp_path: Path) -> None:
    files = Files(tmp_path / "new" / "out", 2)
    files.write(1, "stderr", b"\x00\xff no newline")
    files.write(1, "stderr", b"!")
    assert (tmp_path / "new/out/rank.1.err").read_bytes() == b"\x00\xff no newline!"
    assert (tmp_path / "new/out/rank.0.out").read_bytes() == b""


def test_files_of_an_earlier_run_are_replaced(tmp_path: Path) -> None:
    Files(tmp_path, 1).write(0, "stdout", b"old")
    Files(tmp_path, 1).write(0, "stdout", b"new")
    assert (tmp_path / "rank.0.out").read_bytes() == b"new"
