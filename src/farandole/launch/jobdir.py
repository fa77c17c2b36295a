"""A job's private directory on each of its hosts: how ranks tell their workers what MPI cannot.

Rank R leaves `rank.R.up` when `init()` has joined the others, `rank.R.down` when it ends in order,
`rank.R.exception.json` when its script raises, `rank.R.checkpoints` with a line for each it has written, and
`rank.R.segments` with the shared-memory files it uses; its worker adds `rank.R.sampled` with those it saw itself.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from farandole.launch.messages import RankException

__all__ = ["JOB_DIR", "LAUNCH_RANK", "JobDir"]

JOB_DIR = "FARANDOLE_JOB_DIR"
"""The variable that tells workers and ranks where it is."""
LAUNCH_RANK = "FARANDOLE_LAUNCH_RANK"
"""The variable that tells a rank its number here: `init(comm=...)` may give it another one."""

# A socket's path has to fit into 108 bytes, whatever TMPDIR says.
_LONGEST = 80


class JobDir:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls) -> JobDir:
        """A new one, on the launcher's host."""
        base = tempfile.gettempdir()
        return cls(Path(tempfile.mkdtemp(prefix="farandole-", dir=base if len(base) < _LONGEST else "/tmp")))

    def ensure(self) -> None:
        """Make it on this host too, and trust nobody else's."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.path} belongs to another user")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def was_up(self, rank: int) -> bool:
        return self._file(rank, "up").exists()

    def left_at(self, rank: int) -> float:
        """When a rank that was up ended in order, possibly for the second time; 0 if it did not."""
        up, down = self._file(rank, "up"), self._file(rank, "down")
        if not (up.exists() and down.exists()) or up.stat().st_mtime_ns > down.stat().st_mtime_ns:
            return 0.0
        return down.stat().st_mtime

    def exception(self, rank: int) -> tuple[RankException, float] | None:
        """What a rank's script raised, and when."""
        path = self._file(rank, "exception.json")
        try:
            told = json.loads(path.read_text())
            raised = RankException(
                str(told["type"]), str(told["message"]), bool(told.get("consequence", False))
            )
            return raised, path.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # None was raised, or the rank was killed while it wrote.
            return None

    def checkpoints(self, rank: int) -> int:
        """How many a rank has written."""
        return len(_lines(self._file(rank, "checkpoints")))

    def add_sampled(self, rank: int, segments: set[str]) -> None:
        with self._file(rank, "sampled").open("a") as file:
            file.writelines(f"{path}\n" for path in sorted(segments))

    def segments(self) -> set[str]:
        """The shared-memory files of every rank of this host."""
        files = [*self.path.glob("rank.*.segments"), *self.path.glob("rank.*.sampled")]
        return {line.strip() for file in files for line in _lines(file)}

    def _file(self, rank: int, kind: str) -> Path:
        return self.path / f"rank.{rank}.{kind}"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        # Another worker of this host has cleaned up meanwhile.
        return []
