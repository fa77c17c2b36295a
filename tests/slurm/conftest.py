"""One cluster for all tests of this directory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmtest import Cluster, missing_programs


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    missing = missing_programs()
    if missing:
        pytest.skip(
            f"Slurm is not installed (no {', '.join(missing)}). On Debian and Ubuntu type: sudo make slurm"
        )
    # Not pytest's own directory: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="farandole-slurm-") as folder, Cluster(Path(folder)) as cluster:
        yield cluster
