"""mpiexec of every make: recognised by what it says, asked in its own words."""

import sys
from pathlib import Path

import pytest

from farandole.errors import LaunchError
from farandole.launch.mpiexec import Mpiexec, find_mpiexec, require_mpiexec
from farandole.launch.place import find_place, without_mpi

SAYINGS = {
    "mpich": "HYDRA build details:\n    Version:      4.2.1",
    "openmpi": "mpiexec (OpenRTE) 4.1.6",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 2024",
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, and a Python with nothing beside it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def install(folder: Path, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / "mpiexec"
    program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("make", "version"), [("mpich", "4.2.1"), ("openmpi", "4.1.6"), ("intel", "2021.13")]
)
def test_makes_are_told_apart(path: Path, make: str, version: str) -> None:
    program = install(path, SAYINGS[make])
    assert find_mpiexec() == Mpiexec(program, make, version)


def test_the_one_beside_python_comes_first(path: Path) -> None:
    install(path, SAYINGS["openmpi"])
    beside = install(Path(sys.executable).parent, SAYINGS["mpich"])
    found = find_mpiexec()
    assert found is not None
    assert found.path == beside


@pytest.mark.usefixtures("path")
def test_without_mpiexec_the_error_says_what_to_type() -> None:
    assert find_mpiexec() is None
    with pytest.raises(LaunchError, match=r"2 ranks.*\n.*pip install 'farandole\[mpi\]'"):
        require_mpiexec(2)


def test_an_mpiexec_that_cannot_run(path: Path) -> None:
    program = install(path, "")
    program.write_text("#!/no/such/interpreter\n")
    with pytest.raises(LaunchError, match="farandole doctor"):
        find_mpiexec()


def test_command_lines() -> None:
    hosts, worker = Path("/job/hosts"), ["python", "worker"]
    mpich = Mpiexec(Path("mpiexec"), "mpich", "5")
    assert mpich.command(2, None, {}, worker) == ["mpiexec", "-n", "2", "python", "worker"]
    assert mpich.command(2, hosts, {}, worker) == [
        "mpiexec",
        "-f",
        "/job/hosts",
        "-n",
        "2",
        "python",
        "worker",
    ]
    openmpi = Mpiexec(Path("mpiexec"), "openmpi", "5")
    line = " ".join(openmpi.command(2, hosts, {"A": "1", "BASH_FUNC_x%%": "no"}, worker))
    assert "--bind-to none" in line
    assert "--hostfile /job/hosts -x A -n 2 python worker" in line
    assert Mpiexec(Path("mpiexec"), "intel", "2021").variables() == {"I_MPI_PIN": "0"}


def test_places_in_the_words_of_each_make() -> None:
    hydra = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    openmpi = {
        f"OMPI_COMM_WORLD_{name}": value
        for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")
    }
    for environment in (hydra, openmpi):
        assert find_place(environment)[:4] == (3, 4, 1, 2)
        assert without_mpi(environment | {"HOME": "/"}) == {"HOME": "/"}
    assert find_place({})[:4] == (0, 1, 0, 1)
