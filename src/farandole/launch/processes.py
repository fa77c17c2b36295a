"""A process with all that comes from it: found through /proc, ended whole.

Process groups do not suffice: a command may start sessions of its own. As a subreaper, a worker inherits
whatever its command leaves behind, so that descendants are always found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "handles",
    "process_ids",
    "reap_orphans",
    "signal_descendants",
    "started",
    "terminate_descendants",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_STARTED = 19


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent does."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_ids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 (half the time of iterdir)


def descendants(ancestor: int) -> list[int]:
    """All living processes that come from `ancestor`, without itself."""
    return _below(ancestor, _children())


def _children() -> Mapping[int, list[int]]:
    """The living processes, by parent."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in process_ids():
        children[_parent(pid)].append(pid)
    return children


def _below(ancestor: int, children: Mapping[int, list[int]]) -> list[int]:
    found = list(children[ancestor])
    for pid in found:
        found += children[pid]
    return found


def signal_descendants(ancestor: int, number: int) -> int:
    """Signal all that come from `ancestor`; how many there were."""
    found = descendants(ancestor)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(found)


def terminate_descendants(ancestor: int) -> None:
    """SIGTERM to those that handle it, and nobody else where one does.

    A script that saves before it ends still needs its own processes, and the shell it runs in would not wait for it.
    """
    children = _children()
    for child in children[ancestor]:
        for pid in _handlers(child, children) or [child, *_below(child, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _handlers(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    """The outermost processes that handle SIGTERM, from `pid` on."""
    if handles(pid, signal.SIGTERM):
        return [pid]
    return [found for child in children[pid] for found in _handlers(child, children)]


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def reap_orphans(child: int) -> None:
    """Collect adopted processes that have ended; `child` is left to its owner."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def started(pid: int) -> int:
    """When a living process was started, which tells it from a later one of the same number; -1 for one that has ended."""
    words = _stat(pid)
    return int(words[_STARTED]) if words else -1


def _parent(pid: int) -> int:
    """The parent of a living process; -1 for one that has ended."""
    words = _stat(pid)
    return int(words[1]) if words else -1


def _stat(pid: int) -> list[str]:
    """What the kernel says of a living process, from its state on; empty for one that has ended."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if not words or words[0] in "ZX" else words


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
