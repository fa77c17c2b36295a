"""Whether there is room in /dev/shm: an MPI library takes its part without asking, and crashes where it finds none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from farandole.errors import SettingsError
from farandole.launch.place import find_place

__all__ = ["FOLDER", "MORE_ROOM", "make_mpich_fit", "shown"]

FOLDER = Path("/dev/shm")
MORE_ROOM = "in a container, start it with docker run --shm-size=1g"

# Of each rank, measured with MPICH 5.0 from 1 to 12 ranks: 1033 KiB, and 4232 KiB of UCX, which looks for 16 MiB first.
_MPICH_BYTES = 1056 << 10
_UCX_BYTES = 4240 << 10
_UCX_LEAST_BYTES = 16 << 20


def shown(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 10 << 20 else f"{-(-nbytes // 1024)} KiB"


def make_mpich_fit() -> dict[str, str]:
    """What MPICH must be told where there is little room; an error where it would crash."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return {}
    ranks, free = find_place(os.environ).local_size, found.f_bavail * found.f_frsize
    needed = ranks * _MPICH_BYTES
    # Other ranks may have begun, and taken theirs.
    if free + sum(_taken_by_mpich()) < needed:
        raise SettingsError(
            f"{FOLDER} has {shown(free)} free; MPICH needs {shown(needed)} there for {ranks} rank{'s' * (ranks > 1)} on this node, "
            f"and crashes without: {MORE_ROOM}"
        )
    # UCX crashes where it first finds the room it looks for, and then, because others have taken some, does not.
    sure = _UCX_LEAST_BYTES + ranks * (_MPICH_BYTES + _UCX_BYTES)
    return {"UCX_TLS": "^posix"} if free < sure else {}


def _taken_by_mpich() -> Iterator[int]:
    for path in FOLDER.glob("mpich_shm_*"):
        try:
            yield path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
