"""Shared-memory files that a job left behind.

Other jobs may run on this machine at the same time, so that a new file is a leftover only if no living
process holds it.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from ranktest.processes import GONE, process_ids, wait_until

__all__ = ["LIBRARIES", "OURS", "abandoned", "remove", "segments"]

OURS = "farandole*"
LIBRARIES = ("mpich_shm_*", "Intel_MPI_*", "sm_segment.*")
"""What MPICH, Intel MPI and Open MPI call theirs."""
SHM = Path("/dev/shm")


def segments(patterns: Sequence[str]) -> set[Path]:
    """This user's shared-memory files."""
    found = {path for pattern in patterns for path in SHM.glob(pattern)}
    return {path for path in found if _owned(path)}


def abandoned(before: set[Path], patterns: Sequence[str], settle_s: float) -> set[Path]:
    """Files that are not in `before`, that stay for `settle_s`, and that no process uses."""
    if wait_until(lambda: segments(patterns) <= before, settle_s):
        return set()
    left = segments(patterns) - before - _in_use()
    return {path for path in left if path.exists()}


def remove(paths: set[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _owned(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_uid == os.getuid()
    return False


def _in_use() -> set[Path]:
    held: set[Path] = set()
    for pid in process_ids():
        with contextlib.suppress(*GONE):
            held |= _held_by(Path("/proc") / str(pid))
    return held


def _held_by(process: Path) -> set[Path]:
    mapped = {
        line.split(maxsplit=5)[5]
        for line in (process / "maps").read_text().splitlines()
        if "/dev/shm/" in line
    }
    opened = set()
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            opened.add(str(descriptor.readlink()))
    return {Path(name) for name in mapped | opened if name.startswith("/dev/shm/")}
