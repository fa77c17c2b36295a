"""The MPI that starts the ranks: where its mpiexec is, of which make, and how each make is asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import LaunchError

__all__ = ["INSTALL_MPI", "Mpiexec", "find_mpiexec", "require_mpiexec"]

INSTALL_MPI = "pip install 'farandole[mpi]'"
_ANSWER_S = 20.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Mpiexec:
    path: Path
    make: str
    """`mpich`, `intel` or `openmpi`."""
    version: str

    @property
    def slots_word(self) -> str:
        """What stands between host and number in its machine file."""
        return " slots=" if self.make == "openmpi" else ":"

    def command(
        self, ranks: int, machinefile: Path | None, environment: Mapping[str, str], worker: Sequence[str]
    ) -> list[str]:
        """The command line that starts `ranks` workers."""
        options = (
            self._openmpi(machinefile, environment) if self.make == "openmpi" else self._hydra(machinefile)
        )
        return [str(self.path), *options, "-n", str(ranks), *worker]

    def variables(self) -> dict[str, str]:
        """What it needs to leave cores to the worker, which binds by the user's wish, and to find its hosts."""
        if self.make != "intel":
            return {}
        # Within an allocation Intel's mpiexec would try ssh, which compute nodes often refuse.
        slurm = {"I_MPI_HYDRA_BOOTSTRAP": "slurm"} if "SLURM_JOB_ID" in os.environ else {}
        return {"I_MPI_PIN": "0", **slurm}

    def _hydra(self, machinefile: Path | None) -> list[str]:
        return [] if machinefile is None else ["-f", str(machinefile)]

    def _openmpi(self, machinefile: Path | None, environment: Mapping[str, str]) -> list[str]:
        options = ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
        if machinefile is not None:
            exported = [name for name in environment if _NAME.fullmatch(name)]
            options += ["--hostfile", str(machinefile), *(word for name in exported for word in ("-x", name))]
        return options


def find_mpiexec() -> Mpiexec | None:
    """The one beside this Python, otherwise the first on PATH; None without either."""
    beside = Path(sys.executable).parent
    found = [shutil.which(name, path=path) for path in (str(beside), None) for name in ("mpiexec", "mpirun")]
    path = next(filter(None, found), None)
    return None if path is None else _ask(Path(path))


def require_mpiexec(ranks: int) -> Mpiexec:
    found = find_mpiexec()
    if found is None:
        raise LaunchError(
            f"cannot start {ranks} ranks: no mpiexec beside {sys.executable} or on PATH.\n"
            f"  Type: {INSTALL_MPI}\n"
            "  or load the site's MPI, e.g. module load mpich"
        )
    return found


def _ask(path: Path) -> Mpiexec:
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version does not answer: {error}. Type: farandole doctor") from error
    text = answer.stdout + answer.stderr
    version = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return Mpiexec(path, _make(text), version[0] if version else "unknown")


def _make(text: str) -> str:
    """MPICH's Hydra is the ancestor of most of the rest (Cray, MVAPICH, ParaStation): it is the default."""
    if "Open MPI" in text or "OpenRTE" in text or "prterun" in text or "PRRTE" in text:
        return "openmpi"
    return "intel" if "Intel(R) MPI" in text else "mpich"
