"""A process with all that comes from it: found through /proc, ended whole.

Process groups do not suffice: a command may start sessions of its own. As a subreaper, a worker inherits
whatever its command leaves behind, so that descendants are always found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "LOOK_S",
    "NEVER",
    "Ending",
    "Family",
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "end",
    "handles",
    "process_ids",
    "reap_orphans",
    "send",
    "terminate_descendants",
]

NEVER = float("inf")
LOOK_S = 0.05
_KILL_AGAIN_S = 0.5
_KILLS = 3
"""SIGKILLs after which nobody is waited for: what is left hangs in the kernel."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_PARENT, _GROUP, _STARTED = 1, 2, 19
"""Words of /proc/PID/stat, from the state on."""


class Family:
    """A child and all that comes from it, also what was left by a parent that has been seen alive, or is in the child's group."""

    def __init__(self, child: subprocess.Popen[Any]) -> None:
        self._child = child
        self._known: dict[int, int] = {}
        """When each process was started: numbers are given out again."""

    def running(self) -> list[int]:
        """To be asked before anything is signalled: who has lost its parent by then is not found."""
        living = _living()
        children = _by_parent(living)
        found = {pid for pid, since in self._known.items() if pid in living and int(living[pid][_STARTED]) == since}
        found |= {self._child.pid} if self._child.poll() is None else set()
        found |= {pid for pid, words in living.items() if int(words[_GROUP]) == self._child.pid}
        found |= {pid for one in tuple(found) for pid in _below(one, children)}
        self._known = {pid: int(living[pid][_STARTED]) for pid in found if pid in living}
        return list(self._known)


class Ending:
    """How a command that was told to end does, in steps; `tick()` takes those that are due.

        it ends      SIGTERM to what it has left, which has `left_s` to end
        kill_at      SIGKILL to all that still runs, again and again
    """

    def __init__(self, ended: Callable[[], bool], left: Callable[[], Collection[int]], left_s: float) -> None:
        """`ended` tells whether the command has, `left` what runs of it."""
        self._ended, self._left, self._left_s = ended, left, left_s
        self.begun = False
        self.kill_at = NEVER
        """When, on the monotonic clock."""
        self._rest_told, self._kills = False, 0

    def begin(self, grace_s: float = NEVER) -> None:
        """It has just been told to end. An earlier appointment stands."""
        self.begun = True
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)

    def tick(self) -> None:
        now = time.monotonic()
        if self.begun and not self._rest_told and self._ended():
            self._rest_told = True
            send(self._left(), signal.SIGTERM)
            self.kill_at = min(self.kill_at, now + self._left_s)
        if now >= self.kill_at:
            # A process may have been started while its parent was being killed.
            self.kill_at = now + _KILL_AGAIN_S if send(self._left(), signal.SIGKILL) else NEVER
            self._kills += 1

    @property
    def over(self) -> bool:
        """Nothing is left, or nothing that can be ended."""
        return self._kills > _KILLS or (self._ended() and not self._left())


def end(child: subprocess.Popen[Any], grace_s: float) -> None:
    """SIGTERM to a child that runs, then to what it leaves; after `grace_s` SIGKILL to all of it."""
    family = Family(child)
    if child.poll() is not None or not family.running():
        return
    ending = Ending(lambda: child.poll() is not None, family.running, grace_s)
    child.terminate()
    ending.begin(grace_s)
    while not ending.over:
        ending.tick()
        time.sleep(LOOK_S)


def send(pids: Iterable[int], number: int) -> int:
    """Signal them; how many there were."""
    found = list(pids)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(found)


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
    return _below(ancestor, _by_parent(_living()))


def _living() -> dict[int, list[str]]:
    """What the kernel says of each process."""
    return {pid: words for pid in process_ids() if (words := _stat(pid))}


def _by_parent(living: Mapping[int, list[str]]) -> Mapping[int, list[int]]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, words in living.items():
        children[int(words[_PARENT])].append(pid)
    return children


def _below(ancestor: int, children: Mapping[int, list[int]]) -> list[int]:
    found = list(children[ancestor])
    for pid in found:
        found += children[pid]
    return found


def terminate_descendants(ancestor: int) -> None:
    """SIGTERM to those that handle it, and nobody else where one does.

    A script that saves before it ends still needs its own processes, and the shell it runs in would not wait for it.
    """
    children = _by_parent(_living())
    for child in children[ancestor]:
        send(_handlers(child, children) or [child, *_below(child, children)], signal.SIGTERM)


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
