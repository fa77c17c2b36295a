"""Whose hosts are whose: several runs may have some at the same time, and one that was killed cannot clean up.

Everything that runs on hosts has its owner, the process that made them, in its environment. Namespaces go by
themselves with the last process in them.
"""

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

__all__ = ["OWNER", "make_folder", "owner", "sweep"]

OWNER = "FARANDOLE_TEST_HOSTS_OWNER"
_FOLDER = "farandole-hosts-"
_PROC = Path("/proc")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def owner() -> str:
    """This process, told apart from a later one with the same number."""
    return f"{os.getpid()}.{_started(os.getpid())}"


def make_folder() -> Path:
    """For the files of one network; its name says whose it is."""
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{owner()}-"))


def sweep() -> None:
    """End and remove what owners that are gone have left."""
    for process in _PROC.iterdir():
        if process.name.isdigit() and _is_abandoned(_owner_of(process)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        if _is_abandoned(folder.name.removeprefix(_FOLDER).partition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(owner: str) -> bool:
    pid, _, started = owner.partition(".")
    return pid.isdecimal() and _started(int(pid)) != started


def _owner_of(process: Path) -> str:
    mark = f"{OWNER}=".encode()
    with contextlib.suppress(*_GONE):
        entries = (process / "environ").read_bytes().split(bytes(1))
        return next((entry[len(mark) :].decode() for entry in entries if entry.startswith(mark)), "")
    return ""


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty for one that is gone."""
    with contextlib.suppress(*_GONE):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""
