"""Find and end every process of a job by a tag in its environment.

A launcher may put its proxies and ranks into sessions and process groups of their own; the environment is what
they all inherit.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["TAG", "describe", "kill_tagged", "process_ids", "tagged", "wait_until"]

TAG = "FARANDOLE_TEST_ID"
KILL_S = 5.0
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def process_ids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def tagged(tag: str) -> list[int]:
    """The living processes that carry `tag` or one below it. Zombies have no environment and do not count."""
    line = f"{TAG}={tag}".encode()
    return [pid for pid in process_ids() if any(_below(line, entry) for entry in _environment(pid))]


def kill_tagged(tag: str) -> None:
    """Kill until none is left: a process may start another while it is being killed."""

    def none_left() -> bool:
        alive = tagged(tag)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not alive

    if not wait_until(none_left, KILL_S):
        raise RuntimeError(f"processes {tagged(tag)} survived SIGKILL for {KILL_S:.0f} s")


def describe(pid: int) -> str:
    with contextlib.suppress(*GONE):
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        return f"{pid}: {command.replace(bytes(1), b' ').decode(errors='replace').strip()[:200]}"
    return f"{pid}: gone"


def wait_until(happened: Callable[[], bool], timeout_s: float, *, every_s: float = 0.02) -> bool:
    """Poll until `happened()`; False once `timeout_s` has passed."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def _below(line: bytes, entry: bytes) -> bool:
    return entry == line or entry.startswith(line + b".")


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(*GONE):
        return (Path("/proc") / str(pid) / "environ").read_bytes().split(bytes(1))
    return []
