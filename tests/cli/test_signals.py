"""Signals to `farandole power` and `farandole observe`: the command gets them, once, and nothing of it stays behind."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

VERBS = ("power", "observe")
LIMIT_S = 60
WORKER = "import time; time.sleep(120)"
WITH_A_WORKER = f"""
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}])
print(worker.pid, flush=True)
time.sleep(120)
"""
COUNTS = """
import signal, sys, time
came = []
signal.signal(signal.SIGINT, lambda *_: came.append(1))
print("ready", flush=True)
while not came:
    time.sleep(0.05)
time.sleep(float(sys.argv[1]))
sys.exit(40 + len(came))
"""


@contextmanager
def started(folder: Path, verb: str, *words: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """In a session of its own, without a terminal."""
    where = ["--out", str(folder / "seen")] if verb == "observe" else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE")}
    running = subprocess.Popen(
        [sys.executable, "-m", "farandole", verb, *where, "--", *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL} | options,
        text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_us_alone_ends_the_command_and_its_workers(tmp_path: Path, verb: str, number: int) -> None:
    with started(tmp_path, verb, sys.executable, "-c", WITH_A_WORKER) as running:
        worker = int(line(running))
        running.send_signal(number)
        assert running.wait(LIMIT_S) == 128 + number
        assert not runs(worker)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shell_does_not_hide_the_command_from_signals(tmp_path: Path, number: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITH_A_WORKER)
    with started(tmp_path, "power", "sh", "-c", f"{sys.executable} {script}; exit 9") as running:
        worker = int(line(running))
        running.send_signal(number)
        assert running.wait(LIMIT_S) in (9, 128 + number)
        assert not runs(worker)


def test_what_the_command_leaves_by_itself_stays(tmp_path: Path) -> None:
    with started(tmp_path, "power", "sh", "-c", "sleep 120 >/dev/null & echo $!") as running:
        left = int(line(running))
        assert running.wait(LIMIT_S) == 0
        assert runs(left)


def test_a_signal_to_all_of_us_is_not_doubled(tmp_path: Path) -> None:
    with started(tmp_path, "power", sys.executable, "-c", COUNTS, "0.3") as running:
        assert line(running) == "ready"
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(LIMIT_S) == 41


def test_ctrl_c_is_not_doubled_however_long_the_command_takes(tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    try:
        begin = {"stdin": terminal, "preexec_fn": lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)}
        with started(tmp_path, "power", sys.executable, "-c", COUNTS, "2.5", **begin) as running:
            assert line(running) == "ready"
            os.write(ours, b"\x03")
            assert running.wait(LIMIT_S) == 41
    finally:
        os.close(ours)
        os.close(terminal)
