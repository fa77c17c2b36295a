"""Where elastic runs keep their commits: a folder of the job, of which the launcher knows no more than what to remove.

    farandole-commits-d0d6d790/
      KEY       the job's own: with it, rank 0 knows its own commits again
      run0/     commits of the first elastic function of the script, run1/ of the second
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

__all__ = ["KEY", "clear", "folder_of"]

KEY = "KEY"
_RUN = re.compile(r"run\d+")


def folder_of(folder: Path, run: int) -> Path:
    """Where the how-manieth elastic function of a script commits to."""
    return folder / f"run{run}"


def clear(folder: Path) -> None:
    """Remove all commits, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _RUN.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    (folder / KEY).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
