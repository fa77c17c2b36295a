"""A folder that the ranks of a test share."""

import tempfile
from pathlib import Path
from typing import Any

__all__ = ["shared_folder"]


def shared_folder(fd: Any) -> Path:
    """A new one, the same on every rank, in the launch's own, which is removed when all its calls have ended."""
    return Path(fd.broadcast_object(tempfile.mkdtemp(dir=Path.cwd()) if fd.rank() == 0 else None))
