"""What a rank tells `farandole launch`, by files of the job's folder; nothing under other launchers."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_launched", "tell", "tell_up"]


def is_launched() -> bool:
    return "FARANDOLE_JOB_DIR" in os.environ


def tell_up(rank: int) -> None:
    tell(rank, "up", str(os.getpid()))
    tell(rank, "segments", "\n".join(_shared_segments()))


def tell(rank: int, what: str, text: str) -> None:
    folder = os.environ.get("FARANDOLE_JOB_DIR")
    # The launcher counts all ranks, init(comm=...) those it was given.
    number = os.environ.get("FARANDOLE_LAUNCH_RANK", rank)
    if folder and Path(folder).is_dir():
        (Path(folder) / f"rank.{number}.{what}").write_text(text)


def _shared_segments() -> list[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    return sorted({line.split()[5] for line in maps.read_text().splitlines() if " /dev/shm/" in line})
