"""When a process began."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.observe.process import began_ns

TICK_NS = 10_000_000


def test_a_process_knows_when_it_was_started() -> None:
    script = "import time; time.sleep(0.3); from farandole.observe.process import began_ns; print(began_ns())"
    before_ns = time.monotonic_ns()
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        after_ns = time.monotonic_ns()
        told, _ = child.communicate(timeout=60)
    assert before_ns - TICK_NS <= int(told) <= after_ns + TICK_NS


@pytest.mark.parametrize("text", [None, "", "7 (python) S 1", f"7 (a) b) S {'0 ' * 40}", f"7 (python) S {'9' * 30} {'9' * 30 + ' '}" * 12])
def test_where_the_system_does_not_tell_it_is_unknown(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert began_ns(stat) is None
