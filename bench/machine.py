"""What the figures were measured on, and whether the machine was ours alone."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from farandole.launch.environment import usable_cores

__all__ = ["busy_warning", "facts"]

_PACKAGES = ("farandole", "torch", "numpy", "mpi4py", "mpich")
_BUSY_SHARE = 0.25


def facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def busy_warning(found: dict[str, Any]) -> str | None:
    """Something else to do for the machine spoils figures, most of all where ranks wait for one another."""
    load, cores = found["load_average_at_start"][0], found["cores"]
    if load < _BUSY_SHARE * cores:
        return None
    return (
        f"the machine is busy (load average {load} on {cores} cores): figures are noisier than they need be"
    )


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
