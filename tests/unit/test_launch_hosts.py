"""Where ranks go: hosts that the user names, and hosts that a batch system gives."""

from pathlib import Path

import pytest

from farandole.errors import LaunchError, SettingsError
from farandole.launch.allocation import allocated_hosts, choose_hosts
from farandole.launch.hosts import Host, all_local, machinefile, parse_hosts, read_hostfile
from farandole.launch.settings import LaunchSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:2,b:3", [Host("a", 2), Host("b", 3)]),
        ("a", [Host("a", 1)]),
        ("a:1,b:1,a:2", [Host("a", 3), Host("b", 1)]),
        ("10.0.0.1:2, node-1.site", [Host("10.0.0.1", 2), Host("node-1.site", 1)]),
    ],
)
def test_hosts_of_the_command_line(text: str, expected: list[Host]) -> None:
    assert parse_hosts(text) == expected


@pytest.mark.parametrize("text", ["a:0", "a:x", "a:-1", "", "a,,b", "a:", "a b"])
def test_hosts_that_make_no_sense_are_quoted(text: str) -> None:
    with pytest.raises(SettingsError, match="--hosts"):
        parse_hosts(text)


def test_hostfiles_of_every_style(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# mine\na slots=2 max_slots=4\n\nb:3   # MPICH\nc\na\n")
    assert read_hostfile(path) == [Host("a", 3), Host("b", 3), Host("c", 1)]


@pytest.mark.parametrize(
    ("text", "said"), [("a\nb slots=many\n", "line 2.*many"), ("# none\n", "names no host")]
)
def test_a_bad_hostfile_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_hostfile(path)


def test_a_missing_hostfile(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_hostfile(tmp_path / "none")


def test_machinefiles_are_written_in_both_dialects() -> None:
    hosts = [Host("a", 2), Host("b", 1)]
    assert machinefile(hosts, ":") == "a:2\nb:1\n"
    assert machinefile(hosts, " slots=") == "a slots=2\nb slots=1\n"


def test_this_machine_has_several_names() -> None:
    assert all_local([Host("localhost", 2), Host("127.0.0.1", 1)])
    assert not all_local([Host("localhost", 2), Host("elsewhere", 1)])


@pytest.mark.parametrize(("own", "named", "same"), [
    ("n1", "n1.site", True), ("n1.site", "n1", True), ("n1.site", "n1.site", True), ("n1.site", "n1.other", False), ("n1", "n12.site", False),
])  # fmt: skip
def test_a_domain_may_be_left_out(monkeypatch: pytest.MonkeyPatch, own: str, named: str, same: bool) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: own)
    assert all_local([Host(named, 1)]) == same


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$3" = "n[1-2],m5" ] && printf "n1\\nn2\\nm5\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("scontrol")
def test_a_slurm_allocation() -> None:
    slurm = {"SLURM_JOB_NODELIST": "n[1-2],m5", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert allocated_hosts(slurm) == [Host("n1", 2), Host("n2", 2), Host("m5", 1)]


@pytest.mark.usefixtures("scontrol")
def test_a_slurm_allocation_that_contradicts_itself() -> None:
    with pytest.raises(LaunchError, match="--hosts"):
        allocated_hosts({"SLURM_JOB_NODELIST": "n[1-2],m5", "SLURM_TASKS_PER_NODE": "2"})


def test_a_pbs_allocation(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx1\nx2\n")
    assert allocated_hosts({"PBS_NODEFILE": str(nodes)}) == [Host("x1", 2), Host("x2", 1)]


def test_an_allocation_of_this_machine_alone_says_how_many_ranks(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\n" * 4)
    settings = LaunchSettings(command=["true"], hosts=allocated_hosts({"PBS_NODEFILE": str(nodes)}))
    assert settings.local
    assert settings.ranks == 4
    assert allocated_hosts({}) == []


def test_what_the_user_names_comes_first(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx2\n")
    batch = {"PBS_NODEFILE": str(nodes)}
    assert choose_hosts("a:2", None, batch) == [Host("a", 2)]
    assert choose_hosts(None, nodes, {}) == [Host("x1", 1), Host("x2", 1)]
    assert choose_hosts(None, None, batch) == [Host("x1", 1), Host("x2", 1)]
