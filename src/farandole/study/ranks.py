"""Turns of ranks that `farandole launch` has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from farandole.study.turn import Figures, Turn

__all__ = ["measure_on_ranks"]

_ENDING_S = 20.0
_LAST_WORDS = 300


def measure_on_ranks(turns: list[Turn], ranks: int, limit_s: float) -> list[Figures]:
    """Have ranks take the turns together, one after the other."""
    with tempfile.TemporaryDirectory(prefix="farandole-study-") as folder:
        asked, out = Path(folder, "turns.json"), Path(folder, "figures.json")
        asked.write_text(json.dumps([turn.as_json() for turn in turns]))
        program = [sys.executable, "-m", "farandole.study.on_ranks", str(asked), str(out)]
        problem = _launched(["launch", "-n", str(ranks), "--", *program], limit_s)
        if problem is not None:
            return [Figures(reason=problem) for _ in turns]
        return [Figures(**figures) for figures in json.loads(out.read_text())]


def _launched(words: list[str], limit_s: float) -> str | None:
    """Why the ranks did not end well, or None."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"not done after {limit_s:.0f} s"
    finally:
        _end(process)
    return None if process.returncode == 0 else f"exit code {process.returncode}: {said.strip()[-_LAST_WORDS:]}"


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
