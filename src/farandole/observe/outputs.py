"""Files that figures go to, looked at before a command runs and not after it."""

from __future__ import annotations

import os
from pathlib import Path

from farandole.errors import SettingsError

__all__ = ["check_writable"]


def check_writable(option: str, path: Path) -> None:
    """SettingsError where nothing could be written there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingsError(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise SettingsError(f"{option} {path} is a folder. Give the name of a file, e.g. {option} {path / 'figures.json'}")
    reason = _why_not(path)
    if reason:
        raise SettingsError(f"{option} {path}: cannot be written ({reason})")


def _why_not(path: Path) -> str:
    """What is there is not opened: it may be a pipe that somebody reads."""
    if path.exists():
        return "" if os.access(path, os.W_OK) else "Permission denied"
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""
