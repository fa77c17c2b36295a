"""Slurm's programs, where Debian and Ubuntu put them: some are not on a user's PATH."""

import os
import shutil

__all__ = ["missing_programs", "program"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "sinfo")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def program(name: str) -> str:
    """The full path of one of Slurm's programs."""
    found = shutil.which(name, path=SEARCH)
    if found is None:
        raise FileNotFoundError(f"no {name} on {SEARCH}. Type: make slurm")
    return found
