"""Shared-memory files: which a job has made, and the removal of those that outlive it.

MPICH keeps one file a node in /dev/shm, `mpich_shm_<hash of the job's name>_<node>`, and removes it at
MPI_Finalize: a killed rank leaves it there. Only files that this job's own processes had mapped, that are
of a known make and that no living process uses are removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from farandole.processes.tree import process_ids

__all__ = ["mapped_segments", "remove_abandoned"]

_DIRECTORY = "/dev/shm/"
_MADE_BY_MPI_OR_US = (
    "farandole",
    "mpich_shm_",
    "mpich_shar_tmp",
    "ucx_shm_posix_",
    "Intel_MPI_",
    "vader_segment.",
    "sm_segment.",
)
_DELETED = " (deleted)"


def mapped_segments(pids: Iterable[int]) -> set[str]:
    """Shared-memory files of a known make that the processes have mapped now."""
    return {path for path in _mapped_files(pids) if _removable(path)}


def remove_abandoned(paths: Iterable[str]) -> list[str]:
    """Remove those files that no living process has mapped; which they were."""
    left = [path for path in paths if _removable(path) and _ours(path)]
    if not left:
        return []
    abandoned = sorted(set(left) - _mapped_files(process_ids()))
    for path in abandoned:
        Path(path).unlink(missing_ok=True)
    return abandoned


def _mapped_files(pids: Iterable[int]) -> set[str]:
    return {path for pid in pids for path in _maps(pid)}


def _maps(pid: int) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        # It has ended, or belongs to another user whose files we could not remove either.
        return []
    paths = [line[line.index(_DIRECTORY) :] for line in lines if _DIRECTORY in line]
    return [path for path in paths if not path.endswith(_DELETED)]


def _removable(path: str) -> bool:
    name = path.removeprefix(_DIRECTORY)
    return path.startswith(_DIRECTORY) and name.startswith(_MADE_BY_MPI_OR_US) and "/" not in name


def _ours(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(path).stat().st_uid == os.getuid()
    return False
