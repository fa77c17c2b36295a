"""Progress: a live bar for people, lines for logs, silence for what is quick."""

import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from farandole import progress
from farandole.progress import SENT, Progress, Screen, Shown, screen_of, show_sent

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def drawn(stream: io.StringIO) -> str:
    """What was drawn, one line a time."""
    return re.sub(r" *[\r\n]+", "\n", ESCAPES.sub("", stream.getvalue()))


def test_a_terminal_gets_a_bar_with_share_rate_and_time_left() -> None:
    stream = Terminal()
    with Progress("nt3", 1000, after_s=0.0, stream=stream) as bar:
        bar.advance(250)
    *bars, last = [line for line in drawn(stream).splitlines() if line]
    assert re.fullmatch(r"nt3 ━+.* 25%, \d+ MB/s, 0 s, about 0 s left", bars[0])
    assert stream.getvalue().endswith(f"\x1b[2K{last}\n"), "the bar is wiped, what remains is one line"
    assert re.fullmatch(r"nt3: 0 MB in 0\.\d s", last)


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_S", 0.0)
    monkeypatch.setattr(Screen, "every_s", 0.0)
    monkeypatch.setattr(Screen, "keeps_after_s", 0.0)
    stream = io.StringIO()
    with Progress("nt3", 1000, after_s=0.0, stream=stream) as bar:
        bar.advance(500)
        bar.advance(500)
    lines = stream.getvalue().splitlines()
    assert not ESCAPES.search(stream.getvalue()) and len(lines) == 3
    assert lines[0].startswith("nt3: 50%, ") and lines[0].endswith(" s left")
    assert "100%, " in lines[1]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("options", [{}, {"after_s": 0.0, "enabled": False}])
def test_nothing_is_printed_for_what_is_quick_or_not_to_be_shown(terminal: bool, options: dict[str, float]) -> None:
    stream = Terminal() if terminal else io.StringIO()
    with Progress("nt3", 1000, stream=stream, **options) as bar:  # type: ignore[arg-type]
        bar.advance(1000)
    assert stream.getvalue() == ""


def test_a_terminal_that_cannot_write_over_a_line_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    screen = screen_of(stream)
    screen.show(Shown("training"))
    screen.say("epoch 1")
    assert stream.getvalue() == "epoch 1\n"


def test_a_failure_wipes_the_bar_and_claims_nothing() -> None:
    stream = Terminal()
    with pytest.raises(ZeroDivisionError), Progress("nt3", 1000, after_s=0.0, stream=stream) as bar:
        bar.advance(250)
        raise ZeroDivisionError
    assert stream.getvalue().endswith("\x1b[2K")


def test_threads_may_advance_together() -> None:
    stream = Terminal()
    with Progress("nt3", 8_000_000, after_s=0.0, stream=stream) as bar:
        threads = [threading.Thread(target=lambda: [bar.advance(1000) for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert re.search(r"nt3: 8 MB in \d+\.\d s\n$", stream.getvalue())


def test_what_is_said_stands_above_the_bar() -> None:
    stream, other = Terminal(), io.StringIO()
    screen = screen_of(stream)
    screen.show(Shown("training", done=1, total=4, unit="epochs"))
    screen.say("epoch 1/4 [bold]")
    screen.say("[1] a warning", other)
    screen.clear()
    lines = drawn(stream).splitlines()
    assert lines.count("epoch 1/4 [bold]") == 1 and "a warning" not in stream.getvalue()
    assert other.getvalue() == "[1] a warning\n"
    bars = [number for number, line in enumerate(lines) if "1/4 epochs, 0 s" in line]
    assert bars[0] < lines.index("epoch 1/4 [bold]") < bars[-1]
    assert "?25l" not in stream.getvalue(), "the cursor is not hidden: who is killed could not show it again"


def test_only_one_bar_at_a_time_is_on_a_terminal() -> None:
    stream = Terminal()
    first, second = screen_of(stream), screen_of(stream)
    first.show(Shown("loading"))
    second.show(Shown("reading"))
    until = len(stream.getvalue())
    progress.clear()
    assert "loading" in stream.getvalue() and "loading" not in stream.getvalue()[until:]


def test_a_rank_sends_what_its_launcher_draws(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(SENT, "1")
    sender = screen_of(sys.stdout)
    sender.show(Shown("training", done=3, total=4, unit="epochs"))
    sender.say("epoch 3/4")
    sender.clear()
    monkeypatch.delenv(SENT)
    stream = Terminal()
    screen = screen_of(stream)
    assert [show_sent(line, screen) for line in capsys.readouterr().out.split("\n")[:-1]] == [True, False, True]
    assert "3/4 epochs" in drawn(stream) and stream.getvalue().endswith("\x1b[2K")


def test_rich_is_imported_when_a_terminal_has_something_to_show() -> None:
    program = """
import sys
import farandole, farandole.cli, farandole.data, farandole.train.rank.running, farandole.train.rank.progress, farandole.study.live
from farandole.progress import Progress, Shown, screen_of
with Progress("x", 10, after_s=0.0) as bar:
    bar.advance(5)
screen_of(sys.stdout).show(Shown("x"))
assert "rich" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_reading_tells_how_many_of_its_bytes_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from farandole.data.layout import ReadOptions
    from farandole.data.reading import read

    source, stream = tmp_path / "t.csv", Terminal()
    source.write_text("a,b\n" + "1,2\n" * 1000)
    monkeypatch.setattr(progress.Progress.__init__, "__kwdefaults__", {"after_s": 0.0, "enabled": True, "stream": stream})
    read(source, ReadOptions(header="infer", dtype="float32", columns=(), na=(), delimiter=None))
    assert "reading t.csv" in drawn(stream) and "100%" in drawn(stream)
