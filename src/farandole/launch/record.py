"""`run.json`: what was launched, where each rank ran and how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from farandole import __version__
from farandole.launch.mpiexec import Mpiexec
from farandole.launch.ranks import Rank
from farandole.launch.settings import LaunchSettings
from farandole.launch.verdict import last_error_line

__all__ = ["write_record"]

_STREAMS = ("stdout", "stderr")


def write_record(
    path: Path,
    *,
    settings: LaunchSettings,
    mpiexec: Mpiexec | None,
    ranks: Iterable[Rank],
    cause: Rank | None,
    exit_code: int,
    started_s: float,
    ended_s: float,
    files: Mapping[tuple[int, str], Path],
    restarts: int,
) -> None:
    """Whole or not at all: a reader never sees half a record."""
    record = {
        "farandole": __version__,
        "command": settings.command,
        "repeat": settings.command_line(),
        "ranks": settings.ranks,
        "hosts": {host.name: host.slots for host in settings.hosts},
        "bind": settings.bind,
        "tune": settings.tune,
        "timeline": None if settings.timeline is None else str(settings.timeline),
        "mpiexec": None
        if mpiexec is None
        else {"path": str(mpiexec.path), "make": mpiexec.make, "version": mpiexec.version},
        "started": _iso(started_s),
        "duration_s": round(ended_s - started_s, 3),
        "restarts": restarts,
        "exit_code": exit_code,
        "failed_rank": None if cause is None else cause.number,
        "rank": [_rank(rank, files) for rank in sorted(ranks, key=lambda rank: rank.number)],
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(record, indent=2) + "\n")
    partial.replace(path)


def _rank(rank: Rank, files: Mapping[tuple[int, str], Path]) -> dict[str, object]:
    started, ended = rank.started, rank.ended
    return {
        "rank": rank.number,
        "host": rank.place.host,
        "local_rank": rank.place.local_rank,
        "pid": rank.pid,
        "threads": started.threads if started else None,
        "allocator": started.allocator if started else None,
        "exit_code": ended.code if ended and not ended.signal else None,
        "signal": ended.signal or None if ended else None,
        "how": rank.how(),
        "error": last_error_line(rank) or None,
        **{stream: files[rank.number, stream].name for stream in _STREAMS if (rank.number, stream) in files},
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
