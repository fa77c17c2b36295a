"""What a control group still grants of memory: batch systems and containers set limits that /proc/meminfo does not know.

    version   limit                    in use                   of which files, which the system gives up first
    2         memory.max               memory.current           memory.stat: inactive_file
    1         memory.limit_in_bytes    memory.usage_in_bytes    memory.stat: total_inactive_file
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_bytes", "granted_bytes"]

_NO_LIMIT = 1 << 62

_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_bytes() -> int:
    """What the system, and the limits this process runs under, could still give; without a limit where neither says."""
    granted = granted_bytes()
    return min(_free_bytes(), _NO_LIMIT if granted is None else granted)


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _NO_LIMIT
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), _NO_LIMIT)


def granted_bytes(root: Path = Path("/")) -> int | None:
    """The least that any group this process is in can still take; None where none is limited."""
    found = [left for version, folder in _groups(root) if (left := _left(folder, version)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of this process's groups, from its own up to the outermost that can be seen."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            version, top = 2, root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            version, top = 1, root / "sys/fs/cgroup/memory"
        else:
            continue
        own = top / path.lstrip("/")
        # In a container the path may be the host's, and the container's own group is what is mounted.
        for folder in (own, *own.parents) if own.is_dir() else (top,):
            yield version, folder
            if folder == top:
                break


def _left(folder: Path, version: int) -> int | None:
    limit, used, files = _FILES[version]
    try:
        words = [(folder / name).read_text().strip() for name in (limit, used)]
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    # "max"; version 1 says it with a number close to 2^63
    if not all(word.isdigit() for word in words) or int(words[0]) >= 1 << 60:
        return None
    return max(int(words[0]) - int(words[1]) + int(statistics.get(files, 0)), 0)
