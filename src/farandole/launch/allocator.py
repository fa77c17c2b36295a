"""glibc's allocator: keep large buffers instead of giving them back to the kernel at every training step."""

from __future__ import annotations

import ctypes
import os

from farandole.launch.environment import ALLOCATOR_VARIABLES, allocator_set_by_user

__all__ = ["tune_allocator"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_INT = 2**31 - 1


def tune_allocator() -> str:
    """Raise glibc's thresholds in this process unless the environment did or forbids it.

    Returns a word for the run's record: `environment`, `mallopt`, `off` or `unsupported`. Buffers already
    handed out stay valid: only later requests are affected.
    """
    if all(os.environ.get(name) == value for name, value in ALLOCATOR_VARIABLES.items()):
        return "environment"
    if os.environ.get("FARANDOLE_TUNE") == "0" or allocator_set_by_user(os.environ):
        return "off"
    return "mallopt" if _mallopt() else "unsupported"


def _mallopt() -> bool:
    try:
        libc = ctypes.CDLL(None)
        # Other C libraries have a mallopt() that does nothing; only glibc has this name.
        _ = libc.gnu_get_libc_version
    except (OSError, AttributeError):
        return False
    mmap_threshold = int(ALLOCATOR_VARIABLES["MALLOC_MMAP_THRESHOLD_"])
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, mmap_threshold) and libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    )
