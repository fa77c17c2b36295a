"""`farandole study` as a user types it, and as one stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["children", "farandole", "stopped"]

_LIMIT_S = 150


def farandole(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=_LIMIT_S, cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def stopped(*words: str, cwd: Path, when: Callable[[int], bool], number: int = signal.SIGINT) -> tuple[int, str]:
    """A signal, Ctrl-C's, once `when`, asked with the process's id, is true: the exit code and what was said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", *words], cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True, env=os.environ | {"TMPDIR": str(cwd)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not when(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
