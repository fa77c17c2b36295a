"""Progress on stderr: a bar for people, lines for logs, silence for what is quick."""

import io
import threading

import pytest

from farandole.data import progress
from farandole.data.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_share_rate_and_time_left() -> None:
    stream = Terminal()
    with Progress("nt3", 1000, stream=stream) as bar:
        bar.advance(250)
    shown = stream.getvalue()
    assert shown.startswith("\rnt3: [######..................]  25%, ")
    assert " MB/s, " in shown
    assert " left" in shown
    assert shown.endswith(" s\n")  # the bar is wiped, what remains is one line


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_S", 0.0)
    stream = io.StringIO()
    with Progress("nt3", 1000, stream=stream) as bar:
        bar.advance(500)
        bar.advance(500)
    lines = stream.getvalue().splitlines()
    assert ["\r" in line for line in lines] == [False] * 3
    assert " 50%, " in lines[0]
    assert "100%, " in lines[1]


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
@pytest.mark.parametrize("options", [{"after_s": 60.0}, {"enabled": False}])
def test_nothing_is_printed_for_what_is_quick_or_not_to_be_shown(
    stream: io.StringIO, options: dict[str, float]
) -> None:
    with Progress("nt3", 1000, stream=stream, **options) as bar:  # type: ignore[arg-type]
        bar.advance(1000)
    assert stream.getvalue() == ""


def test_a_failure_wipes_the_bar_and_claims_nothing() -> None:
    stream = Terminal()
    with pytest.raises(ZeroDivisionError), Progress("nt3", 1000, stream=stream) as bar:
        bar.advance(250)
        raise ZeroDivisionError
    assert stream.getvalue().endswith(" \r")


def test_threads_may_advance_together() -> None:
    stream = Terminal()
    with Progress("nt3", 8000, stream=stream) as bar:
        threads = [threading.Thread(target=lambda: [bar.advance(1) for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bar._done == 8000
